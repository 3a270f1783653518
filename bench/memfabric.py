# SPDX-License-Identifier: Apache-2.0
"""Table and plot of docs/memfabric.md from what memfabric_speed says: memfabric.py LINES.json

    build-memfabric/run build/tests/memfabric/memfabric_speed 101 | grep '^{' > LINES.json
"""
import json
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAIRS = (("rd2h", "ours_gb_s", "#0b6bcb"), ("the library's own read", "library_gb_s", "#b8c4ce"))
WIDTH, LEFT, BAR, ROW, TOP = 720, 130, 15, 50, 58


def plot(rows: list[dict]) -> str:
    most = max(max(r["ours_gb_s"], r["library_gb_s"]) for r in rows)
    scale = (WIDTH - LEFT - 90) / most
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{TOP + ROW * len(rows)}" '
             'font-family="Helvetica Neue, Helvetica, Arial, DejaVu Sans, sans-serif" font-size="12" fill="#1f2933">',
             '<rect width="100%" height="100%" fill="white"/>',
             '<text x="12" y="22" font-size="14" font-weight="bold">MemFabric over host TCP, GB/s</text>']
    for i, (name, _, colour) in enumerate(PAIRS):
        parts.append(f'<rect x="{LEFT + 130 * i}" y="34" width="11" height="11" fill="{colour}"/>'
                     f'<text x="{LEFT + 16 + 130 * i}" y="44">{name}</text>')
    for n, r in enumerate(rows):
        y = TOP + n * ROW
        parts.append(f'<text x="{LEFT - 10}" y="{y + BAR + 4}" text-anchor="end">{r["shape"]}</text>')
        for i, (_, key, colour) in enumerate(PAIRS):
            wide, at, weight = max(1.0, r[key] * scale), y + i * (BAR + 2), "normal" if i else "bold"
            parts.append(f'<rect x="{LEFT}" y="{at}" width="{wide:.1f}" height="{BAR}" fill="{colour}"/>'
                         f'<text x="{LEFT + wide + 6:.1f}" y="{at + 12}" font-weight="{weight}">{r[key]:.3f}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def table(rows: list[dict]) -> str:
    lines = ["| one read of | rd2h, GB/s | library, GB/s | rd2h / library |", "|---|---:|---:|---:|"]
    return "\n".join(lines + [f"| {r['shape']} | {r['ours_gb_s']:.3f} | {r['library_gb_s']:.3f} | {r['ratio']:.2f} |" for r in rows])


if __name__ == "__main__":
    told = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    (DOCS / "img/memfabric-speed.svg").write_text(plot(told))
    print(table(told))
