#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two vLLM engines and a prompt: Prefill computes its KV cache, Decode pulls it and generates what one engine alone would."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import models as tiny
from bench import Bench, prompt
from models import MODELS

ROOT = Path(__file__).resolve().parents[2]
PROMPT = 200
A_ROW = 12  # tokens
BOLD, GREEN, RED, OFF = ("\033[1m", "\033[32m", "\033[31m", "\033[0m") if sys.stdout.isatty() else ("",) * 4


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """A line that counts seconds while something takes its time."""
    start, over = time.monotonic(), threading.Event()

    def show() -> None:
        while not over.wait(0.5 if sys.stdout.isatty() else 2):
            seconds = f"{time.monotonic() - start:3.0f} s"
            print(f"\r{what} {seconds}" if sys.stdout.isatty() else ".", end="", flush=True)

    print(what, end=" ", flush=True)
    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        print(f"\r{what} {time.monotonic() - start:3.0f} s" if sys.stdout.isatty() else f" {time.monotonic() - start:.0f} s")


def rows(tokens: list[int], other: list[int]) -> list[str]:
    """Tokens as words, those that differ in red."""
    shown = [f"{RED if t != o else ''}{t:>4}{OFF if t != o else ''}" for t, o in zip(tokens, other)]
    return ["".join(shown[i : i + A_ROW]) for i in range(0, len(shown), A_ROW)]


def side_by_side(alone: list[int], pulled: list[int]) -> None:
    width = 4 * A_ROW + 3
    print(f"{BOLD}{'one engine alone':<{width}}Prefill -> rd2h -> Decode{OFF}")
    for left, right in zip(rows(alone, pulled), rows(pulled, alone)):
        print(f"{left}   {right}")


def show(bench: Bench) -> bool:
    model, tokens = bench.model, prompt("demo", PROMPT)
    bench.oracle([tokens])
    bench.right(tokens)
    before = bench.d.call("state")
    start = time.monotonic()
    (answer,) = bench.answers(bench.send(tokens))
    took = time.monotonic() - start
    after = bench.d.call("state")
    bench.settled()
    kv_p, kv_d = (next(iter(bench.digests(e).values()), {}) for e in (bench.p, bench.d))
    pulled = {n: after["stats"][n] - before["stats"][n] for n in ("bytes", "reads", "messages", "descriptors")}
    computed = after["prompt_tokens"] - before["prompt_tokens"]
    blocks = -(-PROMPT // model.block)
    print(f"\na prompt of {PROMPT} tokens: {' '.join(f'w{t}' for t in tokens[:9])} ...\n")
    side_by_side(bench.right(tokens), answer.tokens)
    same, kv_same = answer.tokens == bench.right(tokens), bool(kv_p) and kv_p == kv_d
    verdict = f"{GREEN}equal{OFF}" if same else f"{RED}DIFFERENT{OFF}"
    print(f"\ntokens      {len(answer.tokens)} and {len(bench.right(tokens))}: {verdict}")
    kv_verdict = f"{GREEN}the same bytes as on Prefill{OFF}" if kv_same else f"{RED}DIFFERENT{OFF}"
    print(f"KV cache    {len(kv_d)} tensors x {blocks} blocks on Decode: {kv_verdict}")
    kib = f"{pulled['bytes'] / 1024:.0f} KiB ({pulled['bytes'] / (blocks * model.block_bytes):.3f} of what the prompt needs)"
    print(f"moved       {pulled['reads']} layers, {kib}: {pulled['messages']} messages, {pulled['descriptors']} pieces")
    ways = [", ".join(filter(None, row[:2])) for row in bench.d.call("transports")]
    print(f"read by     {'; '.join(ways)}")
    print(f"computed    {computed} of {PROMPT} prompt tokens on Decode: the last one, which samples the first new token")
    print(f"took        {took:.2f} s from request to last token, prefill, transfer and {len(answer.tokens)} tokens in all")
    return same and kv_same and pulled["bytes"] == blocks * model.block_bytes


def main() -> int:
    model, folder = MODELS["dsv32"], ROOT / "build"
    print(f"{model.title} in miniature: 4 layers of random weights, sparse attention with an indexer")
    tiny.ensure(folder / "e2e-models", [model.folder])
    with contextlib.ExitStack() as stack:
        with progress("starting Prefill and Decode"):
            bench = stack.enter_context(Bench(model, folder / "e2e-models", folder / "demo-logs", single=False))
        return 0 if show(bench) else 1


if __name__ == "__main__":
    sys.exit(main())
