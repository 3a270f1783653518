# SPDX-License-Identifier: Apache-2.0
"""docs/benchmarks.md and its plots from build/bench.json: page.py FILE."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator  # noqa: E402

DOCS = Path(__file__).resolve().parent.parent / "docs"
INK, FAINT, GRID = "#1f2933", "#7b8794", "#e4e7eb"
OURS, OURS_2, OURS_3, REFERENCE = "#0b6bcb", "#0f9d8a", "#7a4fd0", "#d1495b"
# name in bench.json: colour, dashed, width
WAYS = {
    "rd2h local, shared mapping": (OURS, "-", 2.4), "rd2h local, foreign memory": (OURS_2, "-", 2.4), "rd2h tcp": (OURS_3, "-", 2.4),
    "rd2h local, shared, one thread": (OURS, "-", 1.45), "rd2h local, foreign, one thread": (OURS_2, "-", 1.45),
    "memcpy in one process": (OURS, (0, (2, 2)), 1.3), "bare process_vm_readv": (OURS_2, (0, (2, 2)), 1.3),
    "bare TCP, two streams": (OURS_3, (0, (2, 2)), 1.3), "bare TCP, one stream": (OURS_3, (0, (1, 3)), 1.0),
    "UCX, cma": ("#e07b00", "-", 1.5), "UCX, tcp": ("#e0b000", "-", 1.5), "NIXL": (REFERENCE, "-", 1.5),
    "Mooncake, tcp": ("#8a5a44", "-", 1.5),
}
plt.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "rd2h", "font.family": ["Helvetica Neue", "Helvetica", "Arial", "DejaVu Sans"], "font.size": 11,
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": FAINT, "ytick.color": FAINT, "axes.edgecolor": "#cbd2d9",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "axes.axisbelow": True,
    "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlelocation": "left", "legend.frameon": False, "figure.facecolor": "white",
    "lines.markersize": 4.5})


def size_text(n: float, _=None) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if n >= unit:
            return f"{n / unit:g} {name}"
    return f"{n:g} B"


def time_text(us: float, _=None) -> str:
    return f"{us / 1000:g} ms" if us >= 1000 else f"{us:g} µs"


def ticks(axis, values, text) -> None:
    axis.set_major_locator(matplotlib.ticker.FixedLocator(sorted(values)))
    axis.set_major_formatter(FuncFormatter(text))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def save(figure, name: str) -> None:
    (DOCS / "img").mkdir(exist_ok=True)
    figure.savefig(DOCS / "img" / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight", pad_inches=0.15)
    plt.close(figure)


def plot_bandwidth(rows: list[dict]) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), sharey=True)
    for ax, pattern, title in zip(axes, ("scatter", "contig"), ("Scattered blocks", "Contiguous blocks")):
        for way, (colour, dash, width) in WAYS.items():
            points = sorted((r["block"], r["best_gb_s"]) for r in rows if r["way"] == way and r["pattern"] == pattern)
            if points:
                ax.plot(*zip(*points), color=colour, linestyle=dash, linewidth=width, marker="o" if width > 1.4 else None, label=way)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ticks(ax.xaxis, {r["block"] for r in rows}, size_text)
        ax.set_title(title)
        ax.set_xlabel("block size")
        ax.tick_params(axis="x", labelrotation=30, labelsize=9)
    low, high = (f(r["best_gb_s"] for r in rows) for f in (min, max))
    ticks(axes[0].yaxis, [v for v in (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30) if low / 2 < v < high * 2], lambda v, _: f"{v:g}")
    axes[0].set_ylabel("GB/s, best of all samples")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, bbox_to_anchor=(0.5, -0.27), fontsize=9.5)
    save(figure, "bandwidth")


def series(rows: list[dict], who: str, pattern: str, blocks=None) -> list[dict]:
    return sorted((r for r in rows if r["who"] == who and r["pattern"] == pattern and (blocks is None or r["blocks"] == blocks)),
                  key=lambda r: r["requests"] * r["blocks"])


def plot_control(rows: list[dict]) -> None:
    figure, ax = plt.subplots(figsize=(7.4, 4.6))
    for who, colour in (("reference", REFERENCE), ("rd2h", OURS)):
        for pattern, dash in (("scatter", "-"), ("contig", (0, (3, 2)))):
            s = series(rows, who, pattern)
            if not s:
                continue
            x, y = [r["requests"] * r["blocks"] for r in s], [r["cpu_us"] for r in s]
            ax.plot(x, y, color=colour, linestyle=dash, linewidth=2.2 if pattern == "scatter" else 1.5, marker="o",
                    label=f"{who}, {'scattered' if pattern == 'scatter' else 'contiguous'} ids")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks(ax.xaxis, {r["requests"] * r["blocks"] for r in rows}, lambda v, _: f"{v:,.0f}")
    ax.yaxis.set_major_formatter(FuncFormatter(time_text))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.tick_params(axis="x", labelrotation=30, labelsize=9)
    ax.set_title("CPU time of Decode for one layer message")
    ax.set_xlabel("blocks announced in the message")
    ax.legend(fontsize=9.5)
    save(figure, "message-cost")


def plot_growth(rows: list[dict]) -> None:
    figure, ax = plt.subplots(figsize=(7.4, 4.2))
    for who, colour in (("reference", REFERENCE), ("rd2h", OURS)):
        s = series(rows, who, "scatter", 256)
        if s:
            y = [1000 * r["cpu_us"] / r["requests"] / r["blocks"] for r in s]
            ax.plot([r["requests"] for r in s], y, color=colour, linewidth=2.2, marker="o", label=who)
            ax.annotate(f"{y[-1]:.0f} ns", (s[-1]["requests"], y[-1]), xytext=(7, -3), textcoords="offset points", color=colour)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks(ax.xaxis, {r["requests"] for r in rows if r["blocks"] == 256}, lambda v, _: f"{v:g}")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g} ns"))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_title("CPU time for each block, as a message carries more requests")
    ax.set_xlabel("requests of the message, 256 scattered blocks each")
    ax.legend(fontsize=9.5)
    save(figure, "growth")


def plot_peers(rows: list[dict], block: int) -> None:
    here = [r for r in rows if r["block"] == block and r["pattern"] == "scatter"]
    here.sort(key=lambda r: r["best_gb_s"])
    figure, ax = plt.subplots(figsize=(7.4, 0.42 * len(here) + 1.2))
    for i, r in enumerate(here):
        ours, bare = r["way"].startswith("rd2h"), WAYS[r["way"]][2] < 1.4
        ax.barh(i, r["best_gb_s"], color=WAYS[r["way"]][0] if ours else "#b8c4ce" if bare else "#e3b7a0", height=0.66)
        ax.text(r["best_gb_s"], i, f"  {r['best_gb_s']:.2f}", va="center", fontsize=10, fontweight="bold" if ours else "normal")
    ax.set_yticks(range(len(here)), [r["way"] for r in here])
    ax.tick_params(axis="y", colors=INK, length=0)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    ax.set_title(f"Scattered blocks of {size_text(block)}, GB/s")
    save(figure, "peers")


def plot_crowd(rows: list[dict]) -> None:
    figure, ax = plt.subplots(figsize=(7.4, 4.2))
    x = [1, *(r["peers"] for r in rows)]
    for many, part, words, colour, dash in (("many", "times_one", "Decode, whole process", OURS, "-"),
                                            ("many", "thread_times_one", "Decode, control thread", OURS_2, "-"),
                                            ("bare_many", "times_one", "bare ROUTER, whole process", FAINT, (0, (3, 2))),
                                            ("bare_many", "thread_times_one", "bare ROUTER, its thread", "#b8c4ce", (0, (3, 2)))):
        y = [1, *(r[many][part] for r in rows)]
        ax.plot(x, y, color=colour, linestyle=dash, linewidth=2.2 if dash == "-" else 1.5, marker="o", label=f"{words}: {y[-1]:.1f}")
    ax.set_xscale("log", base=10)
    ticks(ax.xaxis, x, lambda v, _: f"{v:,.0f}")
    ax.set_ylim(bottom=0)
    ax.set_title("CPU time of a message from many Prefill ranks, times that from one")
    ax.set_xlabel("Prefill ranks, with ten live requests each")
    ax.legend(fontsize=9.5)
    save(figure, "crowd")


# ---- the page ----
def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" if i == 0 else "---:" for i in range(len(head))) + "|"]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in rows])


def control_table(rows: list[dict]) -> str:
    out = []
    for r in (r for r in rows if r["who"] == "rd2h"):
        ref = next((x for x in rows if x["who"] == "reference" and all(x[k] == r[k] for k in ("requests", "blocks", "pattern"))), None)
        out.append([f"{r['requests']} x {r['blocks']} {r['pattern']}", f"{r['message_bytes']:,}", f"{r['descriptors']:,.0f}",
                    f"{r['cpu_us']:,.0f}", f"{ref['cpu_us']:,.0f}" if ref else "", f"{ref['times_rd2h']:.0f}" if ref else "",
                    f"{r['lockstep_us']:,.0f}", f"{ref['lockstep_us']:,.0f}" if ref else ""])
    return table(["requests x blocks, ids", "bytes", "descriptors", "rd2h, µs CPU", "reference, µs CPU", "times", "rd2h, µs round trip",
                  "reference"], out)


def read_table(rows: list[dict], pattern: str) -> str:
    sizes = sorted({r["block"] for r in rows})
    value = {(r["way"], r["block"]): r for r in rows if r["pattern"] == pattern}

    def cell(way, size):
        r = value.get((way, size))
        return f"{r['gb_s']:.2f} / {r['best_gb_s']:.2f}" if r else "–"
    return table(["GB/s, median / best", *map(size_text, sizes)],
                 [[w, *(cell(w, s) for s in sizes)] for w in WAYS if any((w, s) in value for s in sizes)])


INTRO = """`make bench` measures everything on this page and writes it. What follows was taken on a virtual machine with {cpus} CPUs
({cpu}, Linux {kernel}), one process beside another, {rounds} rounds in which all take turns. Nothing else ran on it{busy}: load
averages before and after were {load} and {load_after}; its host has other guests, so that the same figure moves by a tenth from minute
to minute. Ratios within a row compare; absolute figures, and rows of different tables, do not."""
TARGETS = """Ratios of one run, medians. What stays missed, and why, is on the page about [performance](performance.md)."""
CONTROL = """One layer message to a Decode rank with a no-op engine: 61 layers, K, V, LIC8 indexer and scale. CPU is that of the whole
Decode process, by message, over a driver's mix of lockstep and pipelined messages; the Decode rank has one CPU, the driver another.
`times`: what the reference takes of ours, median of the rounds' own ratios."""
PAIR = """From Prefill's call that a layer of 32 blocks is ready until it knows that they were read; no-op engine, lockstep."""
MOVING = """Out of one process's memory into another's on the same host, 8 MiB or 4096 blocks a message. The dashed lines are what each
engine is built on, done bare by one thread: no protocol, no checks, no cancellation. Engine `local` reads with two threads, and in
the thinner lines with one."""
E2E = """A prompt of {layers} layers, {mib:.0f} MiB each, computed (slept: an accelerator would compute) layer by layer in {compute} % of a
layer's transfer, read meanwhile. What is visible after the last layer, until Decode has the request: one layer's transfer is the
least that is possible."""
CROWD = """CPU time of the whole Decode process for one message when {requests:,} requests are live, from one Prefill rank or from
{peers:,} in turns; and of its control thread alone, the rest being ZeroMQ's thread, for which each connection costs system calls of its
own. Everything is on its way before Decode takes the first message, and no two messages in a row are about the same requests. The bare
ROUTER answers as many messages of as many bytes and does nothing else: of its growth none is ours."""
UCX = """The same gets of the same memory, posted by engine `ucx` and by a bare UCX reader in turns: 1.00 is as fast as UCX itself. What
the engine adds is a thread of its own, peers whose death is noticed, cancellation, and checks of every range."""
AGAIN = """`make bench` takes about half an hour on a quiet machine; `make bench BENCH="--small --rounds 3"` takes minutes. The parts by
themselves: `rd2h bench plan`, `decode`, `pair`, `read`, `e2e` and `peers`, each with `--help` and `--json`. Why the figures are as
they are: [performance](performance.md)."""


def pair_table(p: dict) -> str:
    rows = [["rd2h Prefill and Decode", f"{p['pair_us']:.0f}", f"{p['times_bare']:.2f}"],
            ["bare DEALER and ROUTER, as many frames and bytes", f"{p['bare_us']:.0f}", "1.00"]]
    if "reference_us" in p:
        rows.append(["reference Prefill and Decode", f"{p['reference_us']:.0f}", f"{p['reference_us'] / p['bare_us']:.2f}"])
    return table(["pair", "µs", "times bare"], rows)


def e2e_table(rows: list[dict]) -> str:
    return table(["engine", "a layer, µs", "visible, µs", "in layers", "beyond one layer, of the whole transfer"],
                 [[r["way"], f"{r['layer_us']:.0f}", f"{r['visible_us']:.0f}", f"{r['visible_layers']:.2f}", f"{r['beyond_percent']:.2f} %"]
                  for r in rows])


def crowd_table(p: dict) -> str:
    names = (("one", "one rank"), ("many", f"{p['peers']:,} ranks"), ("bare_one", "bare ROUTER, one connection"),
             ("bare_many", f"bare ROUTER, {p['peers']:,} connections"))
    return table(["messages of", "µs CPU", "times one", "control thread, µs", "times one", "MiB resident"],
                 [[words, f"{p[k]['us']:.1f}", f"{p[k]['times_one']:.2f}", f"{p[k]['thread_us']:.1f}", f"{p[k]['thread_times_one']:.2f}",
                   f"{p[k]['mib']:.0f}"] for k, words in names])


# ---- what was aimed at ----
def targets(b: dict) -> list[tuple[str, float, bool, float]]:
    """What, the bound, whether it is the most (else the least), measured."""
    out = []
    for r in b.get("control") or []:
        bound = {(64, 256): 50, (256, 1024): 60, (1, 32): 8}.get((r["requests"], r["blocks"]))
        if r["who"] == "reference" and r["pattern"] == "scatter" and bound:
            out.append((f"Decode's CPU a message, {r['requests']} x {r['blocks']} scattered: reference / rd2h", bound, False,
                        r["times_rd2h"]))
    p = b.get("pair") or {}
    if "reference_times" in p:
        out.append(("a layer's round trip: reference / rd2h", 6, False, p["reference_times"]))
    if p:
        out.append(("a layer's round trip: rd2h / bare DEALER and ROUTER", 1.25, True, p["times_bare"]))
    value = {(r["way"], r["block"]): r["gb_s"] for r in b.get("read") or [] if r["pattern"] == "scatter"}
    for ours, other, bound in (("rd2h local, shared, one thread", "memcpy in one process", 0.9),
                               ("rd2h local, foreign memory", "bare process_vm_readv", 0.95),
                               ("rd2h local, foreign, one thread", "bare process_vm_readv", 0.95),
                               ("rd2h local, shared mapping", "NIXL", 2.5), ("rd2h local, foreign memory", "NIXL", 2.5),
                               ("rd2h tcp", "bare TCP, two streams", 0.9), ("rd2h tcp", "UCX, tcp", 3)):
        for size in (16384, 131072):
            if (ours, size) in value and (other, size) in value:
                out.append((f"scattered blocks of {size_text(size)}: {ours} / {other}", bound, False,
                            value[ours, size] / value[other, size]))
    for r in b.get("e2e") or []:
        out.append((f"visible beyond one layer, % of the whole transfer: {r['way']}", 1, True, r["beyond_percent"]))
    for r in (b.get("peers") or [])[-1:]:
        out.append((f"{r['peers']:,} Prefill ranks: MiB resident", 512, True, r["many"]["mib"]))
        out.append((f"{r['peers']:,} Prefill ranks: control thread's time a message, times that of one rank", 1.1, True,
                    r["many"]["thread_times_one"]))
    return out


def target_table(b: dict) -> str:
    return table(["what", "aim", "measured", ""],
                 [[what, f"{'≤' if most else '≥'} {bound:g}", f"{got:.2f}" if got < 100 else f"{got:.0f}",
                   "met" if (got <= bound if most else got >= bound) else "**missed**"] for what, bound, most, got in targets(b)])


def ucx_table(rows: list[dict]) -> str:
    return table(["way", "blocks", "engine, GB/s", "bare UCX", "relative, median of rounds", "best to best"],
                 [[r["way"], r["load"], f"{r['engine_gb_s']:.2f}", f"{r['bare_gb_s']:.2f}", f"{r['relative']:.2f}",
                   f"{r['best_engine_gb_s'] / r['best_bare_gb_s']:.2f}"] for r in rows])


def page(b: dict) -> str:
    m = b["machine"]
    loads = {k: ", ".join(map(str, m[k])) for k in ("load", "load_after")}
    busy = "" if max(m["load"][0], m["load_after"][0]) < 3 else ", or so it should have been"
    parts = ["# Benchmarks", INTRO.format(**{**m, **loads}, rounds=b["rounds"], busy=busy)]
    parts += ["## What was aimed at", TARGETS, target_table(b)]
    if b.get("control"):
        parts += ["## Control path", CONTROL, control_table(b["control"]), "![CPU time of a message](img/message-cost.svg)",
                  "![CPU time of a block as requests grow](img/growth.svg)"]
    if b.get("pair"):
        parts += ["## A layer's round trip", PAIR, pair_table(b["pair"])]
    if b.get("read"):
        parts += ["## Moving bytes", MOVING, "![Bandwidth against block size](img/bandwidth.svg)",
                  "![All ways at one block size](img/peers.svg)", "### Scattered", read_table(b["read"], "scatter"), "### Contiguous",
                  read_table(b["read"], "contig")]
    if b.get("e2e"):
        e = b["e2e"][0]
        parts += ["## Behind the computation", E2E.format(**e, mib=e["blocks"] * e["block"] / 2**20), e2e_table(b["e2e"])]
    if b.get("peers"):
        p = b["peers"][-1]
        parts += ["## Very many Prefill ranks", CROWD.format(**p), crowd_table(p), "![CPU time of a message as ranks grow](img/crowd.svg)"]
    if b.get("ucx"):
        parts += ["## Engine ucx beside bare UCX", UCX, ucx_table(b["ucx"])]
    left_out = "".join(f"\n- {name}: {why}" for name, why in b.get("skipped", {}).items())
    if left_out:
        parts += ["## Left out", "What could not be measured this time:\n" + left_out]
    return "\n\n".join([*parts, "## Again", AGAIN]) + "\n"


def main() -> None:
    b = json.loads(Path(sys.argv[1]).read_text())
    if b.get("read"):
        plot_bandwidth(b["read"])
        plot_peers(b["read"], min({r["block"] for r in b["read"]}, key=lambda n: abs(n - 131072)))
    if b.get("control"):
        plot_control(b["control"])
        plot_growth(b["control"])
    if b.get("peers"):
        plot_crowd(b["peers"])
    (DOCS / "benchmarks.md").write_text(page(b))


if __name__ == "__main__":
    main()
