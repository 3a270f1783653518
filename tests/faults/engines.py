#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults in real vLLM engines: reads that fail or take 2 s, a Decode with 24 blocks, storms of aborts, killed engines; what is right
comes from a single engine. engines.py [--json FILE]. Needs an interpreter that has vLLM and rd2h. Reports as TAP."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
import bench  # noqa: E402
import faulty  # noqa: E402
import models as tiny  # noqa: E402
from bench import Bench, Engine, Flight, prompt  # noqa: E402

BLOCKS, SLOW_MS, ABORTS = 24, 2000, 200
READ_SLACK_S = 2.0  # of a busy machine, above the read itself


class Faulty(Engine):
    """Decode's cache has 24 blocks, and its transfer engine fails or is slow; kept so that another can be started in its place."""

    def __init__(self, name: str, config: dict, log: Path) -> None:
        if name == "decode":
            config = {"fault": "fail_every=16", **config, "engine": {**config["engine"], "num_gpu_blocks_override": BLOCKS}}
        self.config, self.log = config, log
        super().__init__(name, config, log)

    def die(self) -> None:
        self._process.kill()
        self._process.join()

    def successor(self, **changes) -> Faulty:
        return Faulty(self.name, {**self.config, **changes}, self.log.with_suffix(".2.log"))


class Case:
    """b: the engines; notes: what went wrong; said: what there is to tell."""

    def __init__(self, b: Bench) -> None:
        self.b, self.notes, self.said = b, [], ""

    def require(self, condition: bool, note: str) -> None:
        if not condition:
            self.notes.append(note)

    def free(self) -> list[int]:
        return [e.call("state")["free_blocks"] for e in (self.b.p, self.b.d)]

    def at_rest(self, free: list[int]) -> None:
        self.require(self.b.settled(60), "an engine still holds requests")
        self.require(self.free() == free, f"blocks are lost: {free} were free on Prefill and Decode, {self.free()} are")

    def outcomes(self, flights: list[Flight], may_fail: bool) -> tuple[int, int]:
        """(right, ended with an error)"""
        right = bad = 0
        for f in flights:
            (answer,) = self.b.answers(f)
            if answer.reason == "error":
                bad += 1
            elif answer.tokens == self.b.right(f.prompt):
                right += 1
            else:
                self.notes.append(f"{f.id}: {answer.reason}, tokens differ")
        self.require(may_fail or not bad, f"{bad} requests ended with an error")
        return right, bad

    def served(self, seed: str) -> None:
        tokens = prompt(seed, 150)
        self.b.oracle([tokens])
        self.outcomes([self.b.send(tokens)], may_fail=False)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def many(case: Case, seed: str, n: int, length: int) -> list[Flight]:
    prompts = [prompt(f"{seed}-{i}", length + 5 * i) for i in range(n)]
    case.b.oracle(prompts)
    return [case.b.send(p) for p in prompts]


def reads_fail(case: Case) -> None:
    right, bad = case.outcomes(many(case, "fail", 24, 40), may_fail=True)
    case.require(bad > 0 and right > 0, f"{right} right, {bad} failed: both were expected")
    case.said = f"{right} right, {bad} ended with an error"


def recompute(case: Case) -> None:
    case.b.d.call("set", recompute=True)
    before = case.b.d.call("state")
    right, _ = case.outcomes(many(case, "recompute", 24, 40), may_fail=False)
    computed = case.b.d.call("state")["prompt_tokens"] - before["prompt_tokens"]
    case.require(computed > 24, "no read failed: nothing was computed again")
    case.said = f"{right} right, {computed - 24} tokens of failed loads computed on Decode"


def out_of_blocks(case: Case) -> None:
    right, _ = case.outcomes(many(case, "full", 16, 600), may_fail=False)
    case.said = f"{right} requests of 5 blocks and more at once, {BLOCKS} blocks: all right"


def aborts(case: Case) -> None:
    b = case.b
    for i in range(ABORTS // 8):
        flights = [b.send(prompt(f"storm-{i}-{k}", 120 + k)) for k in range(8)]
        if i % 3:
            time.sleep(0.004 * (i % 7))  # another moment of the pull each time
        for f in flights:
            b.d.call("abort", id=f.id)
    case.require(b.settled(60), "an engine still holds requests")
    case.said = f"{ABORTS} aborts, every 16th read fails"
    case.served("after-storm")


def decode_killed(case: Case) -> None:
    b, free = case.b, case.free()
    many(case, "killed", 6, 300)
    case.require(until(lambda: b.p.call("state")["requests"] > 0, 30), "Prefill got nothing to compute")
    b.d.die()
    begin = time.monotonic()
    until(lambda: not b.p.call("state")["requests"], 60)
    waited = time.monotonic() - begin
    case.require(b.p.call("state")["free_blocks"] == free[0], "Prefill has lost blocks")
    case.require(waited < 10, f"Prefill held them for {waited:.1f} s, liveness_ms is 5000")
    b.engines.discard(b.d)
    b.d = b.d.successor(fault=f"delay_ms={SLOW_MS}")
    b.engines.add(b.d)
    b.d.wait_ready()
    b.d.call("set", active=4)
    case.served("successor")
    case.said = f"Prefill let go after {waited:.1f} s; a new Decode at the same port is served"


def slow_reads(case: Case) -> None:
    b, free = case.b, case.free()
    worst = 0.0
    for i in range(4):
        flights = [b.send(prompt(f"slow-{i}-{k}", 500)) for k in range(4)]  # 16 of the 23 blocks that can be used
        time.sleep(0.3)
        begin = time.monotonic()
        for f in flights:
            b.d.call("abort", id=f.id)
        until(lambda: case.free()[1] == free[1], 30)
        worst = max(worst, time.monotonic() - begin)
    case.require(worst < SLOW_MS / 1000 + READ_SLACK_S, f"blocks came back after {worst:.1f} s, a read takes {SLOW_MS / 1000} s")
    case.served("after-slow")
    case.said = f"aborted under reads of {SLOW_MS} ms: blocks back after {worst:.1f} s, whole for the next request"


def prefill_killed(case: Case) -> None:
    b = case.b
    b.d.call("set", recompute=True)
    flights = many(case, "orphan", 4, 300)
    time.sleep(0.3)
    b.p.die()
    begin = time.monotonic()
    right, _ = case.outcomes(flights, may_fail=False)
    waited = time.monotonic() - begin
    b.engines.discard(b.p)
    b.p = b.p.successor()
    b.engines.add(b.p)
    b.p.wait_ready()
    b.p.call("set", active=4)
    case.served("new-prefill")
    case.said = f"{right} requests computed on Decode, {waited:.1f} s after Prefill's end; a new Prefill serves"


CASES: tuple[tuple[str, str, Callable[[Case], None]], ...] = (
    ("reads-fail", "every 16th read fails, policy fail", reads_fail),
    ("recompute", "every 16th read fails, policy recompute", recompute),
    ("out-of-blocks", "Decode out of blocks", out_of_blocks),
    ("abort-storm", f"{ABORTS} aborts while reads fail", aborts),
    ("decode-killed", "SIGKILL of Decode, another at the same port", decode_killed),
    ("slow-reads", f"reads take {SLOW_MS / 1000:.0f} s, {BLOCKS} blocks, aborts", slow_reads),
    ("prefill-killed", "SIGKILL of Prefill, policy recompute", prefill_killed),
)


def run(b: Bench) -> list[dict]:
    rows = []
    for n, (name, title, do) in enumerate(CASES, 1):
        case, begin = Case(b), time.monotonic()
        try:
            free = case.free()
            do(case)
            case.at_rest(case.free() if name == "prefill-killed" else free)
        except Exception as e:  # a case that breaks is a failed one, the next goes on
            case.notes.append(f"{type(e).__name__}: {e}")
        ok = not case.notes
        print(f"{'ok' if ok else 'not ok'} {n} - vllm {name}: {title}\n# {case.said} ({time.monotonic() - begin:.0f} s)", flush=True)
        for note in case.notes[:10]:
            print("".join(f"# {line}\n" for line in note.splitlines()), end="", flush=True)
        rows.append({"name": name, "fault": title, "outcome": case.said, "ok": ok})
    return rows


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--json", type=Path, default=ROOT / "build/faults-vllm.json")
    a = ask.parse_args()
    folder = a.json.resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny.MODELS["llama"]
    tiny.ensure(folder / "e2e-models", [model.folder])
    bench.driver, bench.Engine = faulty, Faulty
    print(f"1..{len(CASES)}", flush=True)
    with Bench(model, folder / "e2e-models", folder / "faults-logs", {"enable_prefix_caching": False}) as b:
        rows = run(b)
    a.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
