#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/topologies.md and docs/interop.md anew from what the suites left: make_tables.py [--topology FILE]
[--interop FILE]. A table stands between the lines <!-- table NAME --> and <!-- end -->."""
import argparse
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = {"0.26.0rc1": "v0", "0.29.0rc1": "v1"}


def table(head: list[str], rows: list[list[str]], centred: int = 1) -> str:
    """centred: the first column that is."""
    line = [":-:" if i >= centred else "---" for i in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, line, *rows))


# ---- topologies ----
def options(row: dict) -> dict[str, str]:
    return dict(re.findall(r"--([a-z0-9-]+)(?: (?!--)(\S+))?", row["command"]))


def good(row: dict) -> bool:
    return row["ok"] and row.get("equal", True) and row.get("pulled_bytes") == row.get("oracle_bytes")


def number(o: dict, name: str, plain: int = 1) -> int:
    return int(o.get(name, plain))


def words(o: dict) -> str:
    said = [f"{o['prefill-tp']}→{o['decode-tp']}"]
    said += [f"{sign} {o[key]}" for key, sign in (("prefill-pp", "PP"),) if number(o, key) > 1]
    if number(o, "prefills") > 1 or number(o, "decodes") > 1:
        said.append(f"{number(o, 'prefills')}:{number(o, 'decodes')} engines")
    return " ".join(said)


KINDS = (  # the first that fits
    ("one storage slot for several layers", lambda o: number(o, "reuse-buffers", 0) > 0),
    ("layers without an indexer, or bf16 indexers", lambda o: o.get("model") == "glm-5" or "bf16-indexer" in o),
    ("engine `tcp`", lambda o: o.get("engine") == "tcp"),
    ("several engines on a side", lambda o: number(o, "prefills") > 1 or number(o, "decodes") > 1),
    ("pipeline stages on Prefill", lambda o: number(o, "prefill-pp") > 1),
    ("long, short, and many prompts", lambda o: o["prompt-tokens"] != "200" or o["requests"] != "5"),
)


def topologies(rows: list[dict]) -> dict[str, str]:
    served = [(options(r), r) for r in rows if "checked_bytes" in r]
    sizes = [sorted({int(o[key]) for o, _ in served}) for key in ("prefill-tp", "decode-tp")]
    cells = []
    for p in sizes[0]:
        cells.append([f"**{p}**"])
        for d in sizes[1]:
            here = [r for o, r in served if (int(o["prefill-tp"]), int(o["decode-tp"])) == (p, d)]
            cells[-1].append(f"{'✓' if all(map(good, here)) else '✗'} {len(here)}" if here else "")
    more = []
    left = [(o, r) for o, r in served if not r["case"].startswith("reuse")]
    for name, fits in KINDS:
        some = [(o, r) for o, r in left if fits(o)]
        left = [x for x in left if not fits(x[0])]
        more.append([name, ", ".join(dict.fromkeys(words(o) for o, _ in some)), "✓" if all(good(r) for _, r in some) else "✗"])
    stress = [[words(o), f"{o['reuse-buffers']} slots for {o['layers']} layers", f"{r['gates']:,}", f"{r['checked_bytes'] / 1e6:,.0f} MB",
               "0" if good(r) else "**some**"] for o, r in served if r["case"].startswith("reuse")]
    return {"pairs": table(["P \\ D", *map(str, sizes[1])], cells), "kinds": table(["besides", "TP of Prefill → Decode", ""], more, 2),
            "stress": table(["TP", "reuse", "gates waited for", "compared", "wrong bytes"], stress),
            "count": f"{len(served)} topologies, {sum(good(r) for _, r in served)} of them right; "
                     f"{sum(r['checked_bytes'] for _, r in served) / 1e9:.1f} GB compared."}


# ---- interoperation ----
def mark(rows: list[dict]) -> str:
    return "–" if not rows else "✓" if all(r["ok"] for r in rows) else "✗"


def interop(rows: list[dict]) -> dict[str, str]:
    versions = list(NAMES)
    scenarios = list(dict.fromkeys(r["scenario"] for r in rows))
    lines = []
    for name in scenarios:
        here = [r for r in rows if r["scenario"] == name]
        control = [r for r in here if r["our_role"] == "none"]
        told = f"✓ {len(control)}" if mark(control) == "✓" else mark(control)
        lines.append([re.sub(r"^(refused: |refused there: )?[A-Z]\d\d ", r"\1", name)]
                     + [mark([r for r in here if r["version"] == v and r["our_role"] == role]) for role in ("decode", "prefill")
                        for v in versions] + [told])
    head = ["scenario", "our D, P v0", "our D, P v1", "our P, D v0", "our P, D v1", "v0 and v1 alone"]
    return {"interop": table(head, lines), "count": f"{len(rows)} rows, {sum(r['ok'] for r in rows)} of them right."}


def replace(page: Path, tables: dict[str, str]) -> None:
    text = page.read_text()
    for name, content in tables.items():
        place = re.compile(rf"(<!-- table {name} -->\n)(?:.*?\n)??(<!-- end -->)", re.S)
        text, found = place.subn(lambda m, content=content: f"{m[1]}{content}\n{m[2]}", text)
        if not found:
            raise SystemExit(f"{page}: there is no place for table {name}")
    page.write_text(text)
    print(f"{page.relative_to(ROOT)}: {', '.join(tables)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", type=Path, default=ROOT / "build/topology.json")
    parser.add_argument("--interop", type=Path, default=ROOT / "build/interop.json")
    args = parser.parse_args()
    replace(ROOT / "docs/topologies.md", topologies(json.loads(args.topology.read_text())))
    replace(ROOT / "docs/interop.md", interop(json.loads(args.interop.read_text())))


if __name__ == "__main__":
    main()
