# SPDX-License-Identifier: Apache-2.0
"""What an operator sees of a rank's peers: what they are read by and whom it waits for, from the C worker to the metrics page."""

from __future__ import annotations

import os
import time
import unittest
from types import SimpleNamespace
from unittest import mock

import engine
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from rd2h import _vllm_peers, _vllm_stats
from rd2h.core import Peers, Transport
from test_laws import Law, prompt

LOCAL = Transport("local", "shared mapping", 2)


class Page:
    """The metrics page of one engine."""

    def __init__(self, role: str) -> None:
        self.registry = CollectorRegistry()

        def bound(kind):
            return lambda **options: kind(registry=self.registry, **options)

        kinds = {Gauge: bound(Gauge), Counter: bound(Counter), Histogram: bound(Histogram)}
        self._prom = _vllm_stats.Rd2hPromMetrics(engine.config(role), kinds, ["engine"], {0: ["0"]})

    def observe(self, data: dict) -> None:
        self._prom.observe(data)

    def rows(self, name: str) -> dict[tuple[str, ...], float]:
        """Of a gauge: the labels of its own -> value."""
        found = [s for family in self.registry.collect() for s in family.samples if s.name == f"vllm:rd2h_{name}"]
        return {tuple(v for k, v in s.labels.items() if k != "engine"): s.value for s in found}


def rows(transports: dict | None = None, waits: dict | None = None, awaited: int = 0) -> dict:
    return {"transports": transports or {}, "waits": waits or {}, "awaited": awaited}


class Rank:
    def __init__(self, *told: Peers) -> None:
        self._told = list(told)

    def peers(self, timeout_ms: int) -> Peers:
        assert timeout_ms == 0  # an engine step must not wait
        return self._told.pop(0) if len(self._told) > 1 else self._told[0]


class Rows(unittest.TestCase):
    def test_what_is_passed_on(self) -> None:
        """What has changed, and what there is when counters go out anyway; nothing that is over once nothing waits."""
        source = _vllm_peers.Source(False, 3)
        rank = Rank(Peers((), (), 0, 0), Peers((LOCAL,), (("", 2, 0.5), ("a:1", 1, 0.25)), 2, 2))
        self.assertEqual(source.take(rank, True, True), {})
        self.assertEqual(source.take(rank, True, True), {}, "not asked again at once")
        source = _vllm_peers.Source(False, 3)
        with mock.patch.object(_vllm_peers, "PERIOD_S", 0):
            waits = {"none yet": [0.5, 2], "a:1": [0.25, 1]}
            now = rows({"local|shared mapping": 2}, waits, 2)
            self.assertEqual(source.take(rank, True, False), {"decode_ranks": {"3": now}})
            self.assertEqual(source.take(rank, True, False), {})
            self.assertEqual(source.take(rank, False, False), {"decode_ranks": {"3": now | {"waits": {}, "awaited": 0}}})
            self.assertEqual(source.take(rank, False, False), {})
            self.assertEqual(source.take(rank, False, True), {"decode_ranks": {"3": now | {"waits": {}, "awaited": 0}}})

    def test_ranks_lie_beside_each_other(self) -> None:
        one = _vllm_stats.Rd2hStats(data={"decode_bytes": 1, "decode_ranks": {"0": rows({"tcp|": 1}, {"a:1": [3.0, 1]}, 1)}})
        two = _vllm_stats.Rd2hStats(data={"decode_bytes": 2, "decode_ranks": {"1": rows({"tcp|": 2}, {"a:1": [5.0, 2]}, 4)}})
        later = _vllm_stats.Rd2hStats(data={"decode_ranks": {"0": rows({"tcp|": 3})}})
        both = _vllm_stats.Rd2hStats(data=dict(one.data)).aggregate(two)
        self.assertEqual(_vllm_peers.merge(both.data["decode_ranks"]), rows({"tcp|": 3}, {"a:1": [5.0, 3]}, 4))
        words = {"rd2h_decode_bytes": 3, "rd2h_decode_peers[tcp]": 3, "rd2h_decode_waits_for_s[a:1]": 5.0}
        self.assertEqual(both.reduce(), words)
        both.aggregate(later)
        self.assertEqual(_vllm_peers.merge(both.data["decode_ranks"]), rows({"tcp|": 5}, {"a:1": [5.0, 2]}, 4))
        self.assertEqual(one.data["decode_ranks"].keys(), {"0"}, "what others hold stays as it was")

    def test_labels_are_bounded(self) -> None:
        """The page shows the longest waits of all ranks, and takes back who is waited for no more."""
        page = Page("kv_consumer")
        for rank in range(4):
            waits = {f"host:{rank}{i}": [float(10 * rank + i), 1] for i in range(_vllm_peers.SHOWN)}
            page.observe({"decode_ranks": {str(rank): rows({"local|shared mapping": 1}, waits, 8)}})
            shown = page.rows("decode_peer_wait_seconds")
            self.assertEqual(shown, {(p,): s for p, (s, _) in waits.items()})
            self.assertEqual(page.rows("decode_peer_waiting").keys(), shown.keys())
        self.assertEqual(page.rows("decode_transport_peers"), {("local", "shared mapping"): 4})
        self.assertEqual(page.rows("decode_peers_awaited"), {(): 8})
        for rank in range(4):
            page.observe({"decode_ranks": {str(rank): rows()}})
        self.assertEqual(page.rows("decode_peer_wait_seconds"), {})
        self.assertEqual(page.rows("decode_transport_peers"), {})
        self.assertEqual(page.rows("decode_peers_awaited"), {(): 0})

    def test_labels_that_stay(self) -> None:
        """Where labels cannot be taken back they become 0, and from a number on new ones are one."""
        with mock.patch.dict(os.environ, {"PROMETHEUS_MULTIPROC_DIR": "/nowhere"}):
            gauge = mock.Mock(spec=["labels", "remove"])
            shown: dict[tuple[str, ...], float] = {}
            gauge.labels = lambda *labels: SimpleNamespace(set=lambda v: shown.__setitem__(labels, v))
            table = _vllm_peers._Labelled(gauge, ["m"])
            for i in range(2 * _vllm_peers.KEPT):
                table.show({(f"p{i}",): 7.0, (f"q{i}",): 9.0})
            gauge.remove.assert_not_called()
        self.assertLessEqual(len(shown), _vllm_peers.KEPT + 1)
        self.assertEqual(shown["m", "p0"], 0)
        self.assertEqual({k: v for k, v in shown.items() if v}, {("m", "other"): 9.0})


class Cluster(Law):
    def told(self, engine_, page: Page) -> None:
        for output in engine_.outputs:
            if output and output.kv_connector_stats:
                page.observe(output.kv_connector_stats.data)
        engine_.outputs.clear()

    def test_O_who_is_waited_for_and_what_is_used(self):
        """Prefill that was never told; then its session's transport; then nobody."""
        pair, tokens = self.pair(), prompt(81, 50)
        page = Page("kv_consumer")
        pair.hold = True
        request = pair.send("cmpl-peers-0", tokens)
        until = time.monotonic() + 20
        while not page.rows("decode_peer_wait_seconds") and time.monotonic() < until:
            pair.turn()
            self.told(pair.d, page)
            time.sleep(0.005)
        self.assertEqual(page.rows("decode_peer_waiting"), {("none yet",): 1})
        self.assertEqual(page.rows("decode_peers_awaited"), {(): 1})
        pair.hold = False
        self.served(pair, request, tokens)
        self.told(pair.d, page)
        self.assertEqual(page.rows("decode_peer_wait_seconds"), {}, "nobody waits, though nobody has asked since")
        with mock.patch.object(_vllm_peers, "PERIOD_S", 0):
            rank = pair.d.workers[0]
            rank.get_kv_connector_stats()
            while not page.rows("decode_transport_peers") and time.monotonic() < until:
                if stats := rank.get_kv_connector_stats():
                    page.observe(stats.data)
                time.sleep(0.005)
        self.assertEqual(page.rows("decode_transport_peers"), {("local", "process_vm_readv"): 1})
        p = pair.p.workers[0]._rank.peers(1000)
        self.assertEqual((p.transports, p.waits, p.connected), ((), (), 1))


if __name__ == "__main__":
    unittest.main()
