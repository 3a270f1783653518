#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every fuzz target of build-fuzz/ for a while, from fuzz/corpus/<target>, and reports as TAP: fuzz.py SECONDS [TARGET...].

What a run learns is kept in build-fuzz/corpus/<target> and used the next time; an input that broke a target is left in
build-fuzz/broken/<target>-*: run the program with it as the only argument to see it again.
"""
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-fuzz"


def fuzz(program: Path, seconds: int) -> tuple[bool, str, str]:
    """(passed, summary, what was printed) of one target."""
    name = program.name.removeprefix("fuzz_")
    learnt, broken, seeds = BUILD / "corpus" / name, BUILD / "broken", ROOT / "fuzz/corpus" / name
    for folder in (learnt, broken):
        folder.mkdir(parents=True, exist_ok=True)
    command = [program, f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1", "-close_fd_mask=1",
               f"-artifact_prefix={broken}/{name}-", learnt, *([seeds] if seeds.is_dir() else [])]
    env = {"ASAN_OPTIONS": "allocator_may_return_null=1", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1", **os.environ}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds + 120, env=env)
        status, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        status, output = -1, f"did not end {seconds + 120} s after its start\n{late.stderr or ''}"
    runs = re.search(r"number_of_executed_units: (\d+)", output)
    cover = re.findall(r"cov: (\d+)", output)
    corpus = f"{sum(1 for _ in seeds.iterdir())} seeds" if seeds.is_dir() else "no seeds"
    summary = f"{name} ({int(runs[1]) if runs else 0:,} runs, {cover[-1] if cover else 0} edges, {corpus})"
    return status == 0 and runs is not None and int(runs[1]) > 0, summary, output


def main() -> int:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    wanted = sys.argv[2:]
    programs = sorted(p for p in BUILD.glob("fuzz_*") if p.is_file() and os.access(p, os.X_OK))
    programs = [p for p in programs if not wanted or p.name.removeprefix("fuzz_") in wanted]
    if not programs:
        print(f"no fuzz target {' '.join(wanted)} in {BUILD.name}/")
        return 1
    print(f"1..{len(programs)}", flush=True)
    bad = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, (passed, summary, output) in enumerate(pool.map(lambda p: fuzz(p, seconds), programs), 1):
            bad += not passed
            print(f"{'ok' if passed else 'not ok'} {number} - {summary}", flush=True)
            if not passed:
                print("".join(f"# {line}\n" for line in output.splitlines()[-60:]), end="", flush=True)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
