# SPDX-License-Identifier: Apache-2.0
"""What peers are read by and whom a rank waits for (rd2h/peers.h), from the C workers to vLLM's log line and its metrics page.

A rank says it at most four times a second, as a table under its number; tables of several ranks lie beside each other, and a later one
of a rank replaces the earlier. The page shows the sum of connections by transport, and of peers waited for those with the longest
wait of any rank: never more than ``SHOWN`` labels each."""

from __future__ import annotations

import os
import time
from typing import Any

from rd2h import core

SHOWN = core.lib.RD2H_PEERS_ROWS
KEPT = 64  # labels where none can be taken back: metrics of several processes, and Ray's
PERIOD_S = 0.25
NOBODY = "none yet"  # requests that no Prefill rank has begun to send
OTHER = "other"

Rows = dict[str, Any]  # "transports": "backend|way" -> peers; "waits": peer -> [seconds, waiting]; "awaited": how many peers


def key(prefill: bool) -> str:
    return "prefill_ranks" if prefill else "decode_ranks"


class Source:
    """A worker's end. number: of the rank, unique within the engine."""

    def __init__(self, prefill: bool, number: int) -> None:
        self._key, self._number = key(prefill), str(number)
        self._rows: Rows = {"transports": {}, "waits": {}, "awaited": 0}
        self._told: Rows | None = None
        self._next = 0.0

    def take(self, rank: Any, waits: bool, busy: bool) -> dict[str, dict[str, Rows]]:
        """What is to be passed on: nothing while it is what it was, unless something is passed on anyway (busy). waits: whether
        anything waits now; the rows themselves are up to a period old, and nobody asks again once the engine rests."""
        if (now := time.monotonic()) >= self._next:
            self._next, self._rows = now + PERIOD_S, _rows(rank.peers(0))
        rows = self._rows if waits else {**self._rows, "waits": {}, "awaited": 0}
        if rows == self._told and not (busy and rows["transports"]):
            return {}
        if self._told is None and not rows["transports"] and not rows["awaited"]:
            return {}
        self._told = rows
        return {self._key: {self._number: rows}}


def _rows(told: core.Peers) -> Rows:
    waits: dict[str, list[float]] = {}
    for peer, waiting, seconds in told.waits:
        before = waits.setdefault(peer or NOBODY, [0, 0])
        before[0], before[1] = max(before[0], seconds), before[1] + waiting
    return {"transports": {f"{t.engine}|{t.way}": t.peers for t in told.transports}, "waits": waits, "awaited": told.awaited}


def merge(ranks: dict[str, Rows]) -> Rows:
    """One table of all ranks."""
    transports: dict[str, int] = {}
    waits: dict[str, list[float]] = {}
    for rows in ranks.values():
        for transport, peers in rows["transports"].items():
            transports[transport] = transports.get(transport, 0) + peers
        for peer, (seconds, waiting) in rows["waits"].items():
            before = waits.get(peer, [0, 0])
            waits[peer] = [max(before[0], seconds), before[1] + waiting]
    longest = sorted(waits.items(), key=lambda w: -w[1][0])[:SHOWN]
    return {"transports": transports, "waits": dict(longest), "awaited": max((r["awaited"] for r in ranks.values()), default=0)}


def in_words(role: str, ranks: dict[str, Rows]) -> dict[str, float]:
    """For the log line: every transport, and the peer that is waited for longest."""
    rows = merge(ranks)
    said: dict[str, float] = {f"rd2h_{role}_peers[{t.replace('|', ', ').rstrip(', ')}]": n for t, n in sorted(rows["transports"].items())}
    said |= {f"rd2h_{role}_waits_for_s[{p}]": round(w[0], 1) for p, w in list(rows["waits"].items())[:1]}
    return said


class _Labelled:
    """A gauge with labels of its own beside vLLM's; what is shown no more is taken back, or is 0 where it cannot be."""

    def __init__(self, gauge: Any, engine_labels: list[object]) -> None:
        self._gauge, self._engine = gauge, list(engine_labels)
        self._shown: set[tuple[str, ...]] = set()
        multiprocess = {"PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"} & os.environ.keys()
        self._remove = None if multiprocess else getattr(gauge, "remove", None)

    def show(self, rows: dict[tuple[str, ...], float]) -> None:
        for labels in self._shown - rows.keys():
            self._gauge.labels(*self._engine, *labels).set(0)
            if self._remove is not None:
                self._remove(*self._engine, *labels)
                self._shown.discard(labels)
        others = 0.0
        for labels, value in rows.items():
            if labels not in self._shown and len(self._shown) >= KEPT:
                labels, value = (OTHER,) * len(labels), (others := max(others, value))
            self._shown.add(labels)
            self._gauge.labels(*self._engine, *labels).set(value)


class Page:
    """The metrics page's end, of one role. make(name, help, labels) -> gauge."""

    def __init__(self, prefill: bool, make: Any, per_engine_labelvalues: dict[int, list[object]]) -> None:
        role, peer, unit = ("prefill", "Decode rank", "Layer messages") if prefill else ("decode", "Prefill rank", "Requests")
        self._key = key(prefill)
        gauges = {
            "waits": make(f"{role}_peer_wait_seconds", f"How long the oldest that waits for a {peer} has, the {SHOWN} longest.", ["peer"]),
            "waiting": make(f"{role}_peer_waiting", f"{unit} that wait for a {peer}, of the {SHOWN} with the longest wait.", ["peer"]),
            "awaited": make(f"{role}_peers_awaited", f"{peer}s that are waited for, on the rank with the most.", []),
        }
        if not prefill:
            gauges["transports"] = make(
                "decode_transport_peers", "Connections to Prefill ranks by what they are read by.", ["backend", "transport"]
            )
        self._gauges = {i: {n: _Labelled(g, labels) for n, g in gauges.items()} for i, labels in per_engine_labelvalues.items()}
        self._ranks: dict[int, dict[str, Rows]] = {i: {} for i in per_engine_labelvalues}

    def observe(self, data: dict[str, Any], engine: int) -> None:
        if not (told := data.get(self._key)):
            return
        self._ranks[engine].update(told)
        rows, gauges = merge(self._ranks[engine]), self._gauges[engine]
        gauges["waits"].show({(p,): seconds for p, (seconds, _) in rows["waits"].items()})
        gauges["waiting"].show({(p,): waiting for p, (_, waiting) in rows["waits"].items()})
        gauges["awaited"].show({(): rows["awaited"]})
        if "transports" in gauges:
            gauges["transports"].show({tuple(t.split("|", 1)): n for t, n in rows["transports"].items()})
