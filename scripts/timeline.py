#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the timeline of `rd2h demo --trace FILE` as a picture: timeline.py TRACE.json PICTURE.svg [--from MS] [--to MS] [--title TEXT]

A row for each rank and kind of work, the layer's number in each bar. (For looking closer, the trace itself opens in Perfetto.)
"""
import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

LEFT, WIDTH, ROW, BAR, TOP = 190, 1010, 24, 17, 56
COLOUR = {"compute": "#4c78a8", "gate": "#e45756", "dispatch": "#f2cf5b", "read": "#54a24b", "answer": "#b279a2"}
MEANING = {"compute": "layer computed", "gate": "waits for its storage slot", "dispatch": "handed over", "read": "read by Decode",
           "answer": "sent, until its answer"}
DRAW = ("compute", "gate", "read", "answer")  # handing over takes microseconds: no bar of it could be seen


@dataclass
class Bar:
    rank: str
    kind: str
    layer: int
    start: float
    end: float


def bars_of(events: list[dict]) -> list[Bar]:
    """Complete events as they are, begin and end of asynchronous ones joined by their id."""
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    bars, begun = [], {}
    for e in sorted((e for e in events if e["ph"] in "Xbe"), key=lambda e: e["ts"]):
        kind = e.get("cat", "")
        key = (e["pid"], kind, e.get("id"))
        if e["ph"] == "X":
            bars.append(Bar(names[e["pid"]], kind, e["args"]["layer"], e["ts"], e["ts"] + e["dur"]))
        elif e["ph"] == "b":
            begun[key] = e
        elif key in begun:
            b = begun.pop(key)
            bars.append(Bar(names[e["pid"]], kind, b["args"]["layer"], b["ts"], e["ts"]))
    return bars


def lanes_of(bars: list[Bar]) -> list[list[Bar]]:
    """Bars that overlap lie in different lanes."""
    lanes: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda b: b.start):
        for lane in lanes:
            if lane[-1].end <= bar.start:
                lane.append(bar)
                break
        else:
            lanes.append([bar])
    return lanes


class Picture:
    def __init__(self, start: float, end: float, title: str) -> None:
        self.start, self.end, self.y, self.title, self.parts = start, end, TOP, title, []

    def x(self, t: float) -> float:
        return LEFT + (min(max(t, self.start), self.end) - self.start) / (self.end - self.start) * WIDTH

    def text(self, x: float, y: float, words: str, **style) -> None:
        more = "".join(f' {k.replace("_", "-")}="{v}"' for k, v in style.items())
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words)}</text>')

    def row(self, label: str, bars: list[Bar]) -> None:
        self.text(LEFT - 8, self.y + BAR - 4, label, text_anchor="end", fill="#444")
        for b in bars:
            if b.end < self.start or b.start > self.end:
                continue
            x, width = self.x(b.start), max(0.8, self.x(b.end) - self.x(b.start))
            self.parts.append(f'<rect x="{x:.1f}" y="{self.y}" width="{width:.1f}" height="{BAR}" fill="{COLOUR[b.kind]}" rx="1.5">'
                              f"<title>{b.rank}: {MEANING[b.kind]}, layer {b.layer}, {b.end - b.start:.0f} µs</title></rect>")
            if width > 13:
                self.text(x + width / 2, self.y + BAR - 4.5, str(b.layer), text_anchor="middle", fill="#fff", font_size="11")
        self.y += ROW

    def rank(self, name: str, bars: list[Bar]) -> None:
        self.text(8, self.y + 11, name, font_weight="600", fill="#222")
        self.y += 18
        for kind in DRAW:
            for n, lane in enumerate(lanes_of([b for b in bars if b.kind == kind])):
                self.row(kind if n == 0 else "", lane)
        self.y += 8

    def axis(self) -> None:
        step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000) if (self.end - self.start) / 1000 / s <= 14)
        n = 0
        while (t := self.start + n * step * 1000) <= self.end:
            self.parts.insert(0, f'<line x1="{self.x(t):.1f}" x2="{self.x(t):.1f}" y1="{TOP - 8}" y2="{self.y}" stroke="#e3e3e3"/>')
            self.text(self.x(t), self.y + 14, f"{n * step:g}", text_anchor="middle", fill="#666")
            n += 1
        self.text(LEFT + WIDTH, self.y + 30, "milliseconds", text_anchor="end", fill="#666")

    def legend(self) -> None:
        x = LEFT
        for kind in DRAW:
            self.parts.append(f'<rect x="{x}" y="30" width="12" height="12" fill="{COLOUR[kind]}" rx="1.5"/>')
            self.text(x + 17, 40.5, MEANING[kind], fill="#444")
            x += 36 + 6.4 * len(MEANING[kind])

    def svg(self) -> str:
        self.axis()
        self.legend()
        self.text(LEFT, 18, self.title, font_size="14", font_weight="600", fill="#222")
        width, height = LEFT + WIDTH + 20, self.y + 40
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
                f'font-family="system-ui, sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>'
                + "\n".join(self.parts) + "</svg>\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--from", dest="start", type=float, default=0.0, help="milliseconds after the first event")
    parser.add_argument("--to", dest="end", type=float, help="milliseconds after the first event")
    parser.add_argument("--title", default="")
    args = parser.parse_args()
    bars = bars_of(json.loads(args.trace.read_text())["traceEvents"])
    first, last = min(b.start for b in bars), max(b.end for b in bars)
    picture = Picture(first + args.start * 1000, last if args.end is None else first + args.end * 1000, args.title)
    for name in sorted({b.rank for b in bars}, key=lambda n: (not n.startswith("Prefill"), n)):
        picture.rank(name, [b for b in bars if b.rank == name])
    args.picture.write_text(picture.svg())


if __name__ == "__main__":
    main()
