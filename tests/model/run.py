#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the models of this folder with spin, every state of them: run.py [--json FILE] [MODEL...].

A model must hold: its assertions, its deadlocks, its properties under weak fairness. Each variant that its head calls BROKEN n must
fail, or the model proves nothing. Reports as TAP.
"""
import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SEARCH = ["-m200000", "-w22"]
LIMIT_S = 60


def run(words: list[str], folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    return done.stdout + done.stderr


def search(model: Path, broken: int, claim: str) -> dict:
    """One exhaustive search: of the assertions and deadlocks, or of a property."""
    with tempfile.TemporaryDirectory(prefix="rd2h-model-") as name:
        folder = Path(name)
        said = run(["spin", f"-DBROKEN={broken}", *(["-DLIVENESS"] if claim else []), "-a", str(model)], folder)
        options = ["-DNFAIR=3"] if claim else ["-DSAFETY", "-DNOCLAIM"]
        said += run(["gcc", "-O0", "-w", *options, "-o", "pan", "pan.c"], folder)
        said += run(["./pan", *SEARCH, *(["-a", "-f", "-N", claim] if claim else [])], folder) if (folder / "pan").exists() else ""
    errors, states = re.search(r"errors: (\d+)", said), re.search(r"(\d+) states, stored", said)
    whole = bool(errors and states) and "Search not completed" not in said and "max search depth too small" not in said
    why = re.search(r"^pan:\d+: (.*?)(?: \(at|$)", said, re.M)
    return {"model": model.stem, "broken": broken, "property": claim or "assertions, deadlocks", "states": int(states[1]) if states else 0,
            "errors": int(errors[1]) if errors else None, "whole": whole, "why": why[1] if why else "", "said": said}  # fmt: skip


def check(model: Path) -> list[dict]:
    """The model itself, then each broken variant, which any of its searches may find."""
    text = model.read_text()
    claims = ["", *re.findall(r"^ltl (\w+)", text, re.M)]
    head = text[: text.index("*/")]
    variants = [int(n) for n in re.findall(r"(?<![\w.])(\d)[:.] ?(?=[a-z])", head[head.index("BROKEN") :])]
    rows = [search(model, 0, claim) for claim in claims]
    for row in rows:
        row["ok"] = row["errors"] == 0 and row["whole"]
    for broken in variants:
        for claim in claims:
            row = search(model, broken, claim)
            if row["errors"]:
                break
        rows.append({**row, "ok": bool(row["errors"])})
    return rows


def describe(row: dict) -> str:
    if row["broken"]:
        return f"{row['model']}, broken {row['broken']}: found by {row['property']} after {row['states']:,} states ({row['why']})"
    return f"{row['model']}: {row['property']}, all of {row['states']:,} states"


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("models", nargs="*", metavar="MODEL")
    ask.add_argument("--json", type=Path, default=ROOT / "build/model.json")
    a = ask.parse_args()
    if not shutil.which("spin"):
        print("1..0\nspin is not installed: scripts/bootstrap.sh spin")
        return 1
    models = [m for m in sorted(HERE.glob("*.pml")) if not a.models or m.stem in a.models]
    with ThreadPoolExecutor(2) as pool:
        rows = [row for some in pool.map(check, models) for row in some]
    print(f"1..{len(rows)}")
    for n, row in enumerate(rows, 1):
        print(f"{'ok' if row['ok'] else 'not ok'} {n} - {describe(row)}")
        if not row["ok"]:
            print("".join(f"# {line}\n" for line in row["said"].splitlines()), end="")
    a.json.parent.mkdir(parents=True, exist_ok=True)
    a.json.write_text(json.dumps([{k: v for k, v in row.items() if k != "said"} for row in rows], indent=1) + "\n")
    return 0 if rows and all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
