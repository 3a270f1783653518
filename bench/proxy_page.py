# SPDX-License-Identifier: Apache-2.0
"""docs/proxy-bench.md and docs/img/proxy-cost.svg from build/proxy.json: proxy_page.py FILE."""
from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

from page import DOCS, FAINT, INK, OURS, REFERENCE, plt, save
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

PANELS = (("cpu_ms", "CPU time of the proxy, a request"), ("p99_ms", "Latency, 99th percentile"))


def time_text(ms: float) -> str:
    return f"{ms / 1000:.2g} s" if ms >= 1000 else f"{ms:.3g} ms" if ms >= 1 else f"{1000 * ms:.0f} µs"


def plot(rows: list[dict]) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(12, 0.42 * len(rows) + 1.4), sharey=True)
    place, names = [], []
    for i, r in enumerate(rows):
        place.append(-i - 0.6 * len({x["load"] for x in rows[:i + 1]}))
        names.append(f"{r['load']} · {r['clients']} client{'s' if r['clients'] > 1 else ''}")
    for ax, (key, title) in zip(axes, PANELS):
        for y, r in zip(place, rows):
            ours, other = r[key], r["reference_" + key]
            if other:
                ax.plot([ours, other], [y, y], color="#cbd2d9", linewidth=2, zorder=1)
                ax.scatter([other], [y], color=REFERENCE, s=46, zorder=2)
                ax.annotate(f"{other / ours:.0f} x", ((ours * other) ** 0.5, y), xytext=(0, 4), textcoords="offset points", ha="center",
                            fontsize=9, color=INK)
                ax.annotate(time_text(other), (other, y), xytext=(8, -3.5), textcoords="offset points", fontsize=9, color=FAINT)
            ax.scatter([ours], [y], color=OURS, s=46, zorder=2)
            ax.annotate(time_text(ours), (ours, y), xytext=(-8, -3.5), textcoords="offset points", ha="right", fontsize=9, color=FAINT)
        ax.set_xscale("log")
        low, high = ax.get_xlim()
        ax.set_xlim(low / 3.2, high * 3.2)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: time_text(v)))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.grid(axis="y", visible=False)
        ax.set_title(title)
    axes[0].set_yticks(place, names)
    axes[0].tick_params(axis="y", colors=INK, length=0)
    for who, colour in (("rd2h-proxy", OURS), ("reference", REFERENCE)):
        axes[1].scatter([], [], color=colour, s=46, label=who)
    axes[1].legend(loc="lower center", bbox_to_anchor=(-0.05, -0.24), ncols=2)
    save(figure, "proxy-cost")


def number(v: float | None) -> str:
    return "–" if v is None else f"{v:.3g}" if v < 100 else f"{v:,.0f}"


def times(row: dict, key: str) -> str:
    return f"{row['reference_' + key] / row[key]:.0f}" if row["reference_" + key] and row[key] else "–"


def page(rows: list[dict], more: dict) -> str:
    before, after = (", ".join(f"{x:.1f}" for x in load) for load in more["load"])
    out = f"""# The proxy, measured

`make bench-proxy` measures this and writes it. rd2h-proxy and the reference's proxy (its layerwise example, unmodified, with the
servers that it names) stand between the same engines, which answer at once, and take turns; medians of {more['rounds']} rounds. The proxy
has one CPU, clients and engines the other of a virtual machine (Linux {platform.release()}); its load averages were {before} before and
{after} after, so ratios within a row count, not figures. Connections are kept, prompts have 200 characters. The
last two rows have 64 events at the pace of tokens; there the latency is what comes on top of the pace.

| load | clients | CPU ms a request | reference | times | p99 ms | reference | times | failed | reference |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
"""
    for r in rows:
        failed = "–" if r["reference_failed"] is None else r["reference_failed"]
        out += (f"| {r['load']} | {r['clients']} | {number(r['cpu_ms'])} | {number(r['reference_cpu_ms'])} | **{times(r, 'cpu_ms')}** | "
                f"{number(r['p99_ms'])} | {number(r['reference_p99_ms'])} | **{times(r, 'p99_ms')}** | {r['failed']} | {failed} |\n")
    s = more["streams"]
    out += f"""
![CPU time and latency beside the reference's](img/proxy-cost.svg)

{s['streams']:,} streams at once: {s['failed']} failed, {s['kib_a_stream']} KiB of resident memory each (the tests hold it below
40, with TLS below 100, and see that nothing grows with the number of requests served).

## What each makes of faults

Two Prefill engines and one Decode, scripted; rd2h-proxy with `--rendezvous-timeout 3`, the client waits 5 s.

| input | rd2h-proxy | reference |
|---|---|---|
"""
    for f in more["faults"]:
        out += f"| {f['input']} | {f['rd2h']} | {f.get('reference', '–')} |\n"
    return out


def main() -> None:
    file = Path(sys.argv[1])
    rows, more = json.loads(file.read_text()), json.loads(file.with_name("proxy-more.json").read_text())
    plot(rows)
    (DOCS / "proxy-bench.md").write_text(page(rows, more))


main()
