# SPDX-License-Identifier: Apache-2.0
"""KV memory of the ranks, and the oracle: which bytes must lie where when all is done.

A rank's memory is a file that every process maps, so that this side writes the sources and compares the destinations of any rank.
A block's content names where it comes from (rank, layer, tensor, request, position): bytes of the wrong contributor, or of the wrong
chunk, are seen. Blocks that nothing should write stay zero.
"""
from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
from dataclasses import dataclass, field
from pathlib import Path

TENSORS = ("k", "v", "indexer", "scale")
BLOCK_TOKENS = 16
BLOCKS = 64


def layer_name(layer: int) -> str:
    return f"model.layers.{layer}.self_attn"


@dataclass(frozen=True)
class Model:
    """Bytes of a block by layer: K, V, indexer, scale; 0: the layer has none. ring: so many storage slots are shared by all layers."""

    layers: tuple[tuple[int, int, int, int], ...]
    ring: int = 0

    def stage(self, rank: int, size: int) -> list[int]:
        """Layers of a pipeline stage: as even as possible, the first ones longer."""
        each, more = divmod(len(self.layers), size)
        first = rank * each + min(rank, more)
        return list(range(first, first + each + (rank < more)))

    @property
    def groups(self) -> int:
        return 2 if any(sizes[2] for sizes in self.layers) else 1

    def tensors(self, layers: list[int], names: tuple[str, ...] = TENSORS) -> list[tuple[int, str, int]]:
        return [(i, t, size) for i in layers for t, size in zip(TENSORS, self.layers[i]) if size and t in names]


class Memory:
    """One file with some tensors; place: (layer, tensor) -> (offset, bytes of a block)."""

    def __init__(self, path: Path, tensors: list[tuple[int, str, int]], ring: int = 0) -> None:
        self.path, self.place, end, slots = path, {}, 0, {}
        for layer, tensor, size in tensors:
            key = (layer % ring, tensor) if ring else (layer, tensor)
            if key not in slots:
                slots[key] = end
                end += size * BLOCKS
            self.place[layer, tensor] = (slots[key], size)
        with open(path, "w+b") as f:
            os.truncate(f.fileno(), max(end, mmap.PAGESIZE))
            self.map = mmap.mmap(f.fileno(), 0)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def base(self, layer: int, tensor: str) -> int:
        return self.address + self.place[layer, tensor][0]

    def write(self, layer: int, tensor: str, block: int, content: bytes) -> None:
        offset, size = self.place[layer, tensor]
        self.map[offset + block * size:offset + (block + 1) * size] = content

    def block(self, layer: int, tensor: str, block: int) -> bytes:
        offset, size = self.place[layer, tensor]
        return self.map[offset + block * size:offset + (block + 1) * size]

    def described(self) -> dict:
        """For the process that maps it: path and places."""
        return {"path": str(self.path), "place": {f"{i}/{t}": at for (i, t), at in self.place.items()}}

    @property
    def area(self) -> tuple[int, int]:
        return self.address, len(self.map)


@dataclass
class Request:
    """A prompt: tokens in all, how many Decode has already, tokens of each Prefill step, blocks by group on either side."""

    ext: str
    tokens: int
    cached: int
    steps: list[int]
    source: tuple[list[int], list[int]]
    target: tuple[list[int], list[int]]
    number: int
    chunks: list[tuple[int, int]] = field(default_factory=list)  # (first block, blocks) that each step publishes

    def __post_init__(self) -> None:
        done, first = 0, self.cached // BLOCK_TOKENS
        for n in self.steps:
            done += n
            end = -(-done // BLOCK_TOKENS) if done >= self.tokens else done // BLOCK_TOKENS
            self.chunks.append((first, max(0, end - first)))
            first = max(first, end)

    @property
    def id(self) -> str:
        return f"{self.ext}-{self.number:08x}"

    @property
    def blocks(self) -> int:
        return -(-self.tokens // BLOCK_TOKENS)


def make_requests(prefix: str, lengths: list[tuple[int, int, int]], seed: int) -> list[Request]:
    """Requests of (tokens, tokens cached on Decode, tokens of a chunk or 0) whose blocks are disjoint and in random order."""
    dice = random.Random(seed)
    free = [dice.sample(range(BLOCKS), BLOCKS) for _ in range(4)]
    made = []
    for number, (tokens, cached, chunk) in enumerate(lengths):
        n = -(-tokens // BLOCK_TOKENS)
        take = [[pool.pop() for _ in range(n)] for pool in free]
        steps = [min(chunk, tokens - at) for at in range(0, tokens, chunk)] if chunk else [tokens]
        made.append(Request(f"{prefix}-{number}", tokens, cached, steps, (take[0], take[1]), (take[2], take[3]), number + 1))
    return made


def content(rank: int, layer: int, tensor: str, request: Request, position: int, size: int) -> bytes:
    tag = struct.pack("<BBBBHH", rank + 1, layer, TENSORS.index(tensor), request.number, position, 0xA55A)
    return (tag * (size // len(tag) + 1))[:size]


def share(n: int, rank: int, size: int, start: int) -> range:
    """The part of n blocks, the first of them the start-th of the request, that falls to a rank."""
    logical = (rank - start % size) % size
    each, more = divmod(n, size)
    first = logical * each + min(logical, more)
    return range(first, first + each + (logical < more))


def contributors(p: int, d: int, rank: int) -> list[int]:
    """Prefill ranks that serve a Decode rank."""
    return [q for q in range(p) if q * d // p == rank] if p >= d else [rank * p // d]


class Oracle:
    """What every destination block must hold: (rank or None for the pool, layer, tensor, block) -> bytes."""

    def __init__(self, model: Model, p: int, d: int) -> None:
        self.model, self.p, self.d, self.want, self.bytes = model, p, d, {}, 0

    def expect(self, request: Request, chunk: tuple[int, int]) -> None:
        start, n = chunk
        for rank in range(self.d):
            group = contributors(self.p, self.d, rank)
            for layer, tensor, size in self.model.tensors(list(range(len(self.model.layers)))):
                main = tensor in ("k", "v")
                for member, source in enumerate(group):
                    if main and member:
                        continue
                    for j in share(n, rank, self.d, start) if main else share(n, member, len(group), start):
                        block = request.target[not main][start + j]
                        key = (None if main else rank, layer, tensor, block)
                        assert key not in self.want, f"{key} would be written twice"
                        self.want[key] = content(source, layer, tensor, request, start + j, size)
                        self.bytes += size

    def compare(self, pool: Memory, ranks: list[Memory]) -> None:
        """Every block of every destination."""
        for rank, memory in [(None, pool), *enumerate(ranks)]:
            for (layer, tensor), (_, size) in memory.place.items():
                for block in range(BLOCKS):
                    want, have = self.want.get((rank, layer, tensor, block), bytes(size)), memory.block(layer, tensor, block)
                    if have != want:
                        raise AssertionError(f"rank {rank}, layer {layer} {tensor}, block {block}: {self.told(have)} where"
                                             f" {self.told(want)} belongs")

    @staticmethod
    def told(raw: bytes) -> str:
        if not any(raw):
            return "nothing"
        rank, layer, tensor, number, position, mark = struct.unpack("<BBBBHH", raw[:8])
        if mark != 0xA55A:
            return f"{raw[:8].hex()}…"
        return f"block {position} of request {number}, layer {layer} {TENSORS[tensor]} of rank {rank - 1}"
