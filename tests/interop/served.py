# SPDX-License-Identifier: Apache-2.0
"""What must simply work, whichever side is the reference: every destination byte is compared, and nothing else may have changed."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from memory import BLOCK_TOKENS, Model, Oracle, make_requests
from sides import Area, OurDecode, OurPrefill, Reference, TheirDecode, TheirPrefill

BF16 = (4096, 512, 1024, 0)
LIC8 = (4096, 512, 1024, 16)
PLAIN = (4096, 512, 0, 0)
ONE, SOME = [(80, 0, 0)], [(150, 0, 0), (33, 0, 0), (16, 0, 0), (1, 0, 0)]
ROLES = ("prefill", "decode", "control")


@dataclass(frozen=True)
class Served:
    name: str
    layers: tuple[tuple[int, int, int, int], ...] = (LIC8,) * 3
    requests: tuple = tuple(SOME)  # (tokens, tokens that Decode has already, tokens of a chunk)
    p: int = 1
    d: int = 1
    pp: int = 1
    move: bool = True
    ring: int = 0
    rows: int = 1  # that make a block on our side; the reference has one
    roles: tuple[str, ...] = ROLES  # of ours


CHUNKED = ((150, 0, 37), (64, 0, 37), (90, 0, 16))
CACHED = ((150, 48, 0), (33, 32, 0), (100, 16, 40), (81, 0, 0))
# Lengths around a block, around a chunk, and with every cached prefix that leaves something to pull.
EDGES = tuple((tokens, cached, chunk) for tokens in (1, 15, 16, 17, 32, 33, 64) for cached, chunk in ((0, 0), (16, 0), (0, 32))
              if cached < tokens)
SERVED = (
    Served("handshake and one batch, no-op engine", (BF16,), tuple(ONE), move=False),
    Served("bf16 indexer", (BF16,) * 3),
    Served("LIC8 indexer with scale", (LIC8,) * 4),
    Served("no indexer", (PLAIN,) * 2),
    Served("layers without an indexer among others", (LIC8, PLAIN, PLAIN, LIC8, PLAIN)),
    Served("Y02 a block is two rows here, one there", requests=CHUNKED, rows=2, roles=("prefill", "decode")),
    Served("chunks", requests=CHUNKED),
    Served("prefixes that Decode has", requests=CACHED),
    Served("S03 prompts of every length around a block, a chunk and a prefix", (LIC8, PLAIN), EDGES[:9]),
    Served("S03 longer prompts of that kind", (LIC8, PLAIN), EDGES[9:]),
    Served("TP 2 to 1", p=2, requests=CHUNKED),
    Served("TP 4 to 1", p=4, requests=CHUNKED),
    Served("TP 2 to 2, chunks of one block", (LIC8, PLAIN), ((90, 0, 16), (40, 16, 16)), p=2, d=2),
    Served("TP 4 to 2, bf16", (BF16,) * 2, CHUNKED, p=4, d=2),
    Served("TP 8 to 2, prefixes", (LIC8, PLAIN), CACHED, p=8, d=2),
    Served("TP 3 to 2", p=3, d=2, requests=CHUNKED, roles=("prefill", "decode")),
    Served("TP 1 to 2", p=1, d=2, requests=CHUNKED, roles=("prefill",)),
    Served("TP 2 to 3, prefixes", p=2, d=3, requests=CACHED, roles=("prefill",)),
    Served("PP 2", (LIC8,) * 5, pp=2, requests=CHUNKED),
    Served("PP 2, TP 2 to 1", (LIC8, PLAIN, LIC8), pp=2, p=2, requests=CHUNKED),
    Served("PP 3, TP 1 to 2", (LIC8,) * 3, pp=3, d=2, requests=CACHED, roles=("prefill",)),
    Served("two storage slots for five layers, overwritten when the gate opens", (LIC8,) * 5, CHUNKED, ring=2, roles=("prefill",)),
    Served("three storage slots for six layers, TP 2 to 1", (LIC8,) * 6, CHUNKED, p=2, ring=3, roles=("prefill",)),
)


def fits(case: Served, references: list[Reference]) -> bool:
    """Pipeline stages want a reference that knows them."""
    return case.pp == 1 or all(r.pipeline for r in references)


def sides(case: Served, role: str, area: Area, references: list[Reference], keep: ExitStack):
    """(Prefill, Decode); references: the one that plays Prefill first in a control."""
    def owned(x):
        return keep.enter_context(closing(x))

    if role == "decode":
        d = owned(OurDecode(area, engine="local" if case.move else "noop", rows=case.rows))
        return owned(TheirPrefill(area, d, references[0])), d
    d = owned(TheirDecode(area, references[-1], move=case.move))
    if role == "control":
        return owned(TheirPrefill(area, d, references[0])), d
    return owned(OurPrefill(area, d, engine="local" if case.move else "noop", rows=case.rows)), d


def serve(case: Served, role: str, references: list[Reference], folder: Path) -> str:
    model = Model(case.layers, case.ring)
    area = Area(folder, model, case.p, case.pp, case.d)
    requests = make_requests("req", list(case.requests), seed=len(case.name))
    oracle = Oracle(model, case.p, case.d)
    with ExitStack() as keep:
        p, d = sides(case, role, area, references, keep)
        d.install(requests)
        for step in range(max(len(r.steps) for r in requests)):
            p.step(requests, step)
        for r in requests:
            for chunk in r.chunks:
                oracle.expect(r, chunk)
        p.settle(requests)
        d.settle(requests)
        moved = d.moved()
    if case.move:
        oracle.compare(area.pool, area.own)
    assert moved == oracle.bytes, f"{moved} bytes were pulled where {oracle.bytes} had to be"
    return f"{moved} bytes"


def sweep(role: str, references: list[Reference], folder: Path) -> str:
    """Prompts of 33 blocks, of which Decode has any number already: what is pulled begins there, and is no block more."""
    model = Model((LIC8,))
    area, moved, served = Area(folder, model, 1, 1, 1), 0, 0
    with ExitStack() as keep:
        p, d = sides(Served("", model.layers), role, area, references, keep)
        for tokens in (32 * BLOCK_TOKENS + 1, 33 * BLOCK_TOKENS - 5, 33 * BLOCK_TOKENS):
            for cached in range(33):
                (r,) = make_requests(f"sweep-{tokens}-{cached}", [(tokens, cached * BLOCK_TOKENS, 0)], seed=cached)
                assert r.chunks == [(cached, 33 - cached)]
                oracle = Oracle(model, 1, 1)
                oracle.expect(r, r.chunks[0])
                d.install([r])
                p.step([r], 0)
                p.settle([r])
                d.settle([r])
                oracle.compare(area.pool, area.own)
                assert d.moved() - moved == oracle.bytes, f"{cached} blocks cached: {d.moved() - moved} bytes for {oracle.bytes}"
                moved, served = d.moved(), served + 1
                for memory in (area.pool, *area.own):
                    memory.map[:] = bytes(len(memory.map))
    return f"{served} prompts, {moved} bytes"


def rows(references: list[Reference]) -> Iterator[tuple]:
    """(version, our role, name, function, arguments but the folder)"""
    for reference in references:
        for role in ("decode", "prefill"):
            yield reference.version, role, "S01 every prefix that Decode may have", sweep, (role, [reference])
            for case in SERVED:
                if role in case.roles and fits(case, [reference]):
                    yield reference.version, role, case.name, serve, (case, role, [reference])
    for p in references:
        for d in references:
            for case in SERVED:
                if "control" in case.roles and fits(case, [p, d]):
                    yield f"{p.version} to {d.version}", "none", case.name, serve, (case, "control", [p, d])
