#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""End to end: two real vLLM engines for every model, every scenario, compared with a single engine.

run.py [--models a,b] [--scenarios c,d] [--json FILE] [--list]. Needs an interpreter that has vLLM and rd2h.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import models as tiny
from bench import Bench, EngineError
from models import MODELS, Model
from scenarios import SCENARIOS, Check, Row, Scenario

ROOT = Path(__file__).resolve().parents[2]
HEAD = ("model", "scenario", "tokens", "KV", "pulled", "pulled/needed", "prefill on D", "s")
FORM = "{:<10} {:<17} {:<7} {:<6} {:>10} {:>14} {:>13} {:>6}"


def chosen(names: str | None, known: list[str], what: str) -> list[str]:
    picked = names.split(",") if names else known
    for n in picked:
        if n not in known:
            raise SystemExit(f"run.py: unknown {what} {n!r}; known are {', '.join(known)}")
    return picked


def engine_arguments(model: Model) -> dict:
    """Plain attention: prompts of 700 tokens come in three chunks, and what was computed is found again."""
    return (
        {"max_num_batched_tokens": 256, "enable_chunked_prefill": True, "enable_prefix_caching": True}
        if model.folder == "llama"
        else {}
    )


def line(row: Row, seconds: float) -> str:
    ratio = (
        f"{row.pulled_bytes / row.oracle_bytes:.3f}" if row.oracle_bytes else "nothing" if not row.pulled_bytes else "too much"
    )
    return FORM.format(
        row.model,
        row.scenario,
        "equal" if row.equal else "DIFFER",
        "equal" if row.kv_equal else "DIFFER",
        f"{row.pulled_bytes / 1024:.0f} KiB",
        ratio,
        f"{row.prefill_tokens_on_decode} of {row.expected_prefill}",
        f"{seconds:.1f}",
    )


def broken(model: Model, scenario: Scenario, error: Exception) -> Row:
    return Row(model.name, scenario.name, False, False, 0, 0, 0, 0, [f"{type(error).__name__}: {error}"])


def run_model(model: Model, wanted: list[Scenario], folder: Path) -> list[Row]:
    rows, begin = [], time.monotonic()
    print(f"-- {model.title}: starting Prefill, Decode and a single engine", flush=True)
    with Bench(model, folder / "e2e-models", folder / "e2e-logs", engine_arguments(model)) as bench:
        print(f"-- up after {time.monotonic() - begin:.0f} s", flush=True)
        for scenario in wanted:
            start = time.monotonic()
            try:
                check = Check(bench, scenario.name)
                scenario.run(check)
                row = check.row()
            except EngineError:
                raise
            except Exception as e:  # a scenario that breaks is a failed row, the next one goes on
                row = broken(model, scenario, e)
            print(line(row, time.monotonic() - start), flush=True)
            for note in row.notes[:5]:
                print(f"     {note}", flush=True)
            rows.append(row)
    return rows


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--models", help="comma-separated, default all")
    ask.add_argument("--scenarios", help="comma-separated, default all that fit the model")
    ask.add_argument("--json", type=Path, default=ROOT / "build/e2e.json")
    ask.add_argument("--list", action="store_true", help="say what there is")
    a = ask.parse_args()
    if a.list:
        print(
            "\n".join(
                [f"model     {m.name:<18} {m.title}" for m in MODELS.values()]
                + [f"scenario  {s.name:<18} {s.title}" for s in SCENARIOS]
            )
        )
        return 0
    names = chosen(a.models, list(MODELS), "model")
    scenarios = [s for s in SCENARIOS if s.name in chosen(a.scenarios, [s.name for s in SCENARIOS], "scenario")]
    folder = a.json.resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    tiny.ensure(folder / "e2e-models", sorted({MODELS[n].folder for n in names}))
    begin, rows = time.monotonic(), []
    print(FORM.format(*HEAD), flush=True)
    for name in names:
        wanted = [s for s in scenarios if s.fits(MODELS[name])]
        try:
            rows += run_model(MODELS[name], wanted, folder)
        except EngineError as e:
            print(f"     {e}", flush=True)
            rows += [broken(MODELS[name], s, e) for s in wanted if s.name not in {r.scenario for r in rows if r.model == name}]
    a.json.write_text(json.dumps([r.json() for r in rows], indent=1) + "\n")
    good = sum(r.ok for r in rows)
    print(f"e2e: {good} of {len(rows)} rows right, {len(rows) - good} wrong, in {time.monotonic() - begin:.0f} s; {a.json}")
    return 0 if rows and good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
