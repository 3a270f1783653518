# SPDX-License-Identifier: Apache-2.0
"""What every peer moves: the samples of `rd2h bench read`. A pool of 256 MiB on either side, samples of 8 MiB or 4096 blocks, random
distinct blocks or contiguous ones, up to eight different samples, the whole once to warm up and then `rounds` times."""
from __future__ import annotations

import json
import mmap
import statistics
import time

import numpy as np

POOL, SAMPLE, BLOCKS_MAX, STEPS_MAX = 256 << 20, 8 << 20, 4096, 8


def pool(fill: int) -> tuple[np.ndarray, int]:
    memory = np.frombuffer(mmap.mmap(-1, POOL, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
    memory[:] = fill
    return memory, memory.ctypes.data


def samples(block: int, pattern: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Offsets of source and destination, sample by sample."""
    cache, n = POOL // block, max(1, min(BLOCKS_MAX, SAMPLE // block))
    steps = min(STEPS_MAX, cache // n)
    roll = np.random.default_rng(7)
    if pattern == "contig":
        ids = [np.arange(n * steps), np.arange(cache - n * steps, cache)]
    else:
        ids = [roll.permutation(cache)[:n * steps] for _ in range(2)]
    return [(ids[0][i * n:(i + 1) * n] * block, ids[1][i * n:(i + 1) * n] * block) for i in range(steps)]


def measure(block: int, pattern: str, rounds: int, prepare, read) -> None:
    """prepare(source offsets, destination offsets, bytes): untimed; read(what it returned): timed, back when all has landed."""
    ready = [prepare(*s, block) for s in samples(block, pattern)]
    n = len(samples(block, pattern)[0][0])
    for r in ready:
        read(r)
    took = []
    for _ in range(rounds):
        for r in ready:
            begin = time.perf_counter()
            read(r)
            took.append(time.perf_counter() - begin)
    print(json.dumps({"block": block, "pattern": pattern, "blocks": n, "gb_s": n * block / statistics.median(took) / 1e9,
                      "best_gb_s": n * block / min(took) / 1e9}), flush=True)
