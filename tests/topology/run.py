#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`rd2h demo` in many topologies: every destination byte against its oracle, every byte around it against what it was painted with,
bytes moved by component against what had to move. Then topologies that cannot be served, and storage that layers share, overwritten
the instant its gate opens. One JSON row a case: run.py [--program PROGRAM] [--json FILE] [CASE...]"""
import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = {"requests": 5, "prompt-tokens": 200, "chunk": 96, "block-tokens": 16, "layers": 4}
LIMIT_S = 100  # of one case
STRESS_STEPS = 10_000


def case(prefill_tp: int, decode_tp: int, prefill_pp: int = 1, prefills: int = 1, decodes: int = 1, **more) -> dict:
    """Options of the demonstration; underscores stand for dashes, True for an option without a value."""
    sizes = {"prefill-tp": prefill_tp, "prefill-pp": prefill_pp, "decode-tp": decode_tp, "prefills": prefills, "decodes": decodes}
    return SMALL | sizes | {name.replace("_", "-"): value for name, value in more.items()}


SERVED = [
    # equal, dividing, not dividing, fewer Prefill than Decode ranks
    *(case(p, d) for p, d in ((1, 1), (2, 1), (3, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 2), (4, 4), (3, 2), (5, 2), (4, 3), (5, 3),
                              (6, 4), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4), (2, 5), (3, 8), (1, 8), (2, 8), (4, 8),
                              (8, 4), (8, 8))),
    # pipeline stages: a layer a stage, uneven stages, contributor groups in each
    *(case(p, d, pp, layers=layers) for p, d, pp, layers in ((1, 1, 2, 4), (1, 1, 3, 5), (1, 1, 4, 4), (2, 1, 2, 5), (2, 2, 2, 3),
                                                             (1, 2, 2, 3), (1, 2, 4, 6), (3, 2, 2, 5), (2, 3, 3, 6), (4, 2, 2, 4))),
    # several engines on either side, in one step and in one pool of prompts
    *(case(p, d, pp, n, m, requests=8) for p, d, pp, n, m in ((1, 1, 1, 2, 1), (1, 1, 1, 1, 2), (2, 1, 1, 2, 2), (1, 2, 1, 2, 2),
                                                              (3, 2, 1, 2, 2), (2, 3, 2, 2, 2), (1, 1, 1, 4, 3), (2, 2, 1, 1, 4))),
    # layers without an indexer, indexers without a scale, prompts of a few tokens, long ones, many
    case(2, 2, model="glm-5", layers=6), case(3, 2, 3, model="glm-5", layers=6), case(1, 2, 4, model="glm-5", layers=4),
    case(2, 1, bf16_indexer=True), case(4, 3, bf16_indexer=True, model="glm-5", layers=5), case(2, 3, prompt_tokens=20, chunk=5),
    case(4, 2, prompt_tokens=2000, chunk=600, requests=3), case(2, 4, requests=40, prompt_tokens=60, block_tokens=4),
    case(1, 8, requests=2, prompt_tokens=40), case(3, 2, 2, 2, 2, engine="tcp"), case(1, 2, engine="tcp"),
    # layers that share storage
    *(case(p, d, pp, n, m, reuse_buffers=slots, layers=6, independent_layers=own, model=model) for p, d, pp, n, m, slots, own, model in (
        (1, 1, 1, 1, 1, 2, 0, "deepseek-v3.2"), (2, 1, 1, 1, 1, 3, 1, "deepseek-v3.2"), (3, 2, 1, 1, 1, 4, 0, "deepseek-v3.2"),
        (1, 2, 2, 1, 1, 2, 1, "deepseek-v3.2"), (2, 2, 1, 2, 2, 2, 0, "glm-5"), (2, 3, 2, 1, 2, 2, 0, "glm-5"))),
]
# What is built differently -> what standard error must say, both sizes among it.
REFUSED = {
    "indexer": (case(2, 1, mismatch="indexer"), "4096 x 1 bytes on Prefill, 2048 x 1 on Decode"),
    "layers": (case(1, 2, mismatch="layers"), "all 4 layers of Decode, it names 3"),
    "heads": (case(2, 1, mismatch="heads"), "Prefill holds [1, 2) of 2, Decode [0, 1) of 2"),
}
# Storage of a few layers, overwritten the instant its gate opens: STRESS_STEPS engine steps, in chunks that seldom fill a block; then
# as many gates of several ranks. (options, least number of gates)
STRESS = {
    f"{STRESS_STEPS} steps": (case(1, 1, layers=4, requests=16, prompt_tokens=4000, chunk=6, block_tokens=4, reuse_buffers=3),
                              4 * STRESS_STEPS),
    f"ranks, {STRESS_STEPS} gates": (case(2, 2, 2, layers=6, requests=8, prompt_tokens=1600, chunk=16, block_tokens=4, reuse_buffers=2),
                                     STRESS_STEPS),
}
# 78 layers, most of them without an indexer, and chunks of one block, of which seven ranks of eight own nothing.
Y09 = case(1, 8, model="glm-5", layers=78, requests=2, prompt_tokens=40, chunk=16)


def name_of(options: dict) -> str:
    plain = {**SMALL, "prefill-pp": 1, "prefills": 1, "decodes": 1, "independent-layers": 0, "model": "deepseek-v3.2"}
    extra = [f"{k}={v}" for k, v in options.items() if k not in ("prefill-tp", "decode-tp", "seed") and plain.get(k) != v]
    return " ".join([f"{options['prefill-tp']}->{options['decode-tp']}", *extra])


def demo(program: str, options: dict) -> subprocess.CompletedProcess:
    words = [word for k, v in options.items() for word in ([f"--{k}"] if v is True else [f"--{k}", str(v)])]
    command = [program, "demo", "--json", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, "RD2H_LOG": "warn"})
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, 124, "", f"not done after {LIMIT_S} s: {late.stderr!r}")


def served(program: str, name: str, options: dict) -> dict:
    done = demo(program, options)
    row = {"case": name, "ok": False, "command": " ".join(done.args[1:])}
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return row | {"error": done.stderr[-2000:]}
    parts = found["components"].values()
    row |= {"pulled_bytes": found["moved_bytes"], "oracle_bytes": found["oracle_bytes"], "checked_bytes": found["checked_bytes"],
            "gates": found["gates"], "seconds": round(found["seconds"], 3)}
    row["equal"] = found["wrong_bytes"] == 0 and found["disturbed_blocks"] == 0 and found["checked_bytes"] > 0
    row["ok"] = found["ok"] and done.returncode == 0 and all(p["moved_bytes"] == p["oracle_bytes"] for p in parts)
    return row if row["ok"] else row | {"error": done.stderr[-2000:]}


def stressed(program: str, name: str, options: dict, gates: int) -> dict:
    row = served(program, name, options)
    return row | {"ok": row["ok"] and row["gates"] >= gates}


def refused(program: str, name: str, options: dict, words: str) -> dict:
    done = demo(program, options)
    return {"case": name, "ok": done.returncode == 1 and words in done.stderr, "command": " ".join(done.args[1:]),
            **({} if words in done.stderr else {"error": done.stderr[-2000:]})}


def cases() -> list[tuple]:
    """(function, name, arguments): names are unique, seeds differ."""
    table = [(served, name_of(options), options | {"seed": 100 + i}) for i, options in enumerate(SERVED)]
    table.append((served, "Y09 " + name_of(Y09), Y09 | {"seed": 9}))
    table += [(refused, f"refused: {name}", options, words) for name, (options, words) in REFUSED.items()]
    table += [(stressed, f"reuse, {name}", options, gates) for name, (options, gates) in STRESS.items()]
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="parts of names; none: all")
    parser.add_argument("--program", default=str(ROOT / "build/rd2h"))
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    args = parser.parse_args()
    chosen = [c for c in cases() if not args.cases or any(part in c[1] for part in args.cases)]
    start, rows = time.monotonic(), []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for row in pool.map(lambda c: c[0](args.program, *c[1:]), chosen):
            rows.append(row)
            good = row["ok"] and row.get("equal", True)
            print(f"{'ok  ' if good else 'BAD '} {row['case']:<70} {row.get('pulled_bytes', 0) / 1e6:8.2f} MB"
                  + (f"\n{row['command']}\n{row.get('error', '')}" if not good else ""), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    bad = sum(not (row["ok"] and row.get("equal", True)) for row in rows)
    print(f"{len(rows)} cases, {bad} bad, {time.monotonic() - start:.0f} s")
    return bad > 0 or not rows


if __name__ == "__main__":
    sys.exit(main())
