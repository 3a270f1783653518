# SPDX-License-Identifier: Apache-2.0
"""Counters of the C workers for vLLM's log line and its Prometheus page. Only what grows is passed on, as the difference since
the last step: such numbers may be added up over ranks and over time."""

from __future__ import annotations

from typing import Any

from rd2h import core
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

HELP = {
    "prefill_batches": "Layer messages sent to Decode ranks.",
    "prefill_bytes_sent": "Bytes of control messages sent to Decode ranks.",
    "prefill_given_up": "Readers given up after hold_ms.",
    "decode_bytes": "Bytes of KV pulled.",
    "decode_completed": "Requests whose KV is complete.",
    "decode_aborted": "Requests ended by the engine while KV was being pulled.",
}


def names(prefill: bool) -> tuple[str, ...]:
    role = "prefill" if prefill else "decode"
    return tuple(f"{role}_{n}" for n in core.counters(f"rd2h_{role}_stats"))


class Rd2hStats(KVConnectorStats):
    """data: counter name -> growth."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, growth in other.data.items():
            self.data[name] = self.data.get(name, 0) + growth
        return self

    def reduce(self) -> dict[str, int | float]:
        return {f"rd2h_{name}": growth for name, growth in sorted(self.data.items())}

    def is_empty(self) -> bool:
        return not self.data


class Growth:
    """Turns a rank's counters into what they grew by since the last look."""

    def __init__(self, prefill: bool) -> None:
        self._role = "prefill" if prefill else "decode"
        self._names = core.counters(f"rd2h_{self._role}_stats")
        self._last: dict[str, int] = {}

    def take(self, stats: dict[str, int]) -> Rd2hStats | None:
        grown = {f"{self._role}_{n}": stats[n] - self._last.get(n, 0) for n in self._names if stats[n] > self._last.get(n, 0)}
        self._last = stats
        return Rd2hStats(data=grown) if grown else None


class Rd2hPromMetrics(KVConnectorPromMetrics):
    """One counter a name, labelled by engine: vllm:rd2h_<name>."""

    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        prefill = vllm_config.kv_transfer_config.kv_role == "kv_producer"
        self._counters = {n: self._make(n, labelnames) for n in names(prefill)}

    def _make(self, name: str, labelnames: list[str]) -> dict[int, Any]:
        text = HELP.get(name, f"rd2h: {name.replace('_', ' ')}.")
        counter = self._counter_cls(name=f"vllm:rd2h_{name}", documentation=text, labelnames=labelnames)
        return create_metric_per_engine(counter, self.per_engine_labelvalues)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, growth in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name][engine_idx].inc(growth)
