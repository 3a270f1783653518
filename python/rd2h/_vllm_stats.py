# SPDX-License-Identifier: Apache-2.0
"""Counters and gauges of the C workers for vLLM's log line and its Prometheus page. Counters are passed on as what they grew by since
the last step, so that they may be added up over ranks and over time; gauges as they stand, of which the highest counts."""

from __future__ import annotations

from typing import Any

from rd2h import _vllm_peers, core
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

HELP = {
    "prefill_batches": "Layer messages sent to Decode ranks.",
    "prefill_bytes_sent": "Bytes of control messages sent to Decode ranks.",
    "prefill_given_up": "Readers given up after hold_ms.",
    "decode_bytes": "Bytes of KV pulled.",
    "decode_completed": "Requests whose KV is complete.",
    "decode_aborted": "Requests ended by the engine while KV was being pulled.",
    "decode_parked": "Layer messages that came before their destinations.",
    "decode_skipped": "Requests of layer messages that had ended here already.",
    "decode_malformed": "Messages that could not be read.",
    "decode_refused_keys": "Connections whose key is not allowed.",
    "decode_digests_checked": "Blocks whose digest was compared with Prefill's.",
    "decode_digests_wrong": "Blocks that are not what Prefill held.",
    "decode_digests_missing": "Reads that Prefill sent no digests for, though Decode wants them.",
    "decode_oldest_wait_ms": "How long the request that waits longest for KV has waited.",
    "decode_quarantined_blocks": "Blocks of ended requests that reads may still write.",
    "prefill_oldest_wait_ms": "How long the layer message that waits longest for its answer has waited.",
    "prefill_slots_closed": "Storage slots that wait for readers.",
    "prefill_held": "Ended requests whose blocks readers still hold.",
}


def names(prefill: bool) -> tuple[str, ...]:
    role = "prefill" if prefill else "decode"
    return tuple(f"{role}_{n}" for n in core.counters(f"rd2h_{role}_stats"))


def gauges(prefill: bool) -> tuple[str, ...]:
    role = "prefill" if prefill else "decode"
    return tuple(f"{role}_{n}" for n in core.gauges(f"rd2h_{role}_stats"))


GAUGES = frozenset(gauges(True) + gauges(False))


class Rd2hStats(KVConnectorStats):
    """data: counter name -> growth, gauge name -> its value, and by rank what _vllm_peers says."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, growth in other.data.items():
            if isinstance(growth, dict):
                self.data[name] = self.data.get(name, {}) | growth
                continue
            old = self.data.get(name, 0)
            self.data[name] = max(old, growth) if name in GAUGES else old + growth
        return self

    def reduce(self) -> dict[str, int | float]:
        said: dict[str, int | float] = {}
        for name, growth in sorted(self.data.items()):
            said |= _vllm_peers.in_words(name.split("_")[0], growth) if isinstance(growth, dict) else {f"rd2h_{name}": growth}
        return said

    def is_empty(self) -> bool:
        return not self.data


class Growth:
    """Turns a rank's counters into what they grew by since the last look; gauges come as long as they are not 0,
    and once with 0: where one rank's falls, another's that stands still must still count."""

    def __init__(self, prefill: bool) -> None:
        self._prefill, self._role = prefill, "prefill" if prefill else "decode"
        self._names = core.counters(f"rd2h_{self._role}_stats")
        self._gauges = core.gauges(f"rd2h_{self._role}_stats")
        self._last: dict[str, int] = {}
        self._peers: _vllm_peers.Source | None = None

    def take_all(self, rank: Any) -> Rd2hStats | None:
        """Also what the rank says of its peers."""
        if self._peers is None:
            self._peers = _vllm_peers.Source(self._prefill, rank.number)
        grown = self.take(stats := rank.stats())
        told = self._peers.take(rank, stats["oldest_wait_ms"] > 0, grown is not None)
        return Rd2hStats(data=(grown.data if grown else {}) | told) if grown or told else None

    def take(self, stats: dict[str, int]) -> Rd2hStats | None:
        grown = {f"{self._role}_{n}": stats[n] - self._last.get(n, 0) for n in self._names if stats[n] > self._last.get(n, 0)}
        grown |= {f"{self._role}_{n}": stats[n] for n in self._gauges if stats[n] or self._last.get(n, 0)}
        self._last = stats
        return Rd2hStats(data=grown) if grown else None


class Rd2hPromMetrics(KVConnectorPromMetrics):
    """One counter or gauge a name, labelled by engine: vllm:rd2h_<name>. A gauge is of the rank where it is highest."""

    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        prefill = vllm_config.kv_transfer_config.kv_role == "kv_producer"
        self._counters = {n: self._make(n, labelnames, self._counter_cls) for n in names(prefill)}
        self._gauges = {n: self._make(n, labelnames, self._gauge_cls, multiprocess_mode="mostrecent") for n in gauges(prefill)}
        self._page = _vllm_peers.Page(prefill, self._labelled, per_engine_labelvalues)

    def _make(self, name: str, labelnames: list[str], kind: Any, **options: Any) -> dict[int, Any]:
        text = HELP.get(name, f"rd2h: {name.replace('_', ' ')}.")
        metric = kind(name=f"vllm:rd2h_{name}", documentation=text, labelnames=labelnames, **options)
        return create_metric_per_engine(metric, self.per_engine_labelvalues)

    def _labelled(self, name: str, text: str, labels: list[str]) -> Any:
        return self._gauge_cls(
            name=f"vllm:rd2h_{name}", documentation=text, labelnames=[*self._labelnames, *labels], multiprocess_mode="mostrecent"
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, growth in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name][engine_idx].inc(growth)
            elif name in self._gauges:
                self._gauges[name][engine_idx].set(growth)
        self._page.observe(transfer_stats_data, engine_idx)
