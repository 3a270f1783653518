# SPDX-License-Identifier: Apache-2.0
"""The worker halves: the registered KV tensors as a layout, a step's bytes handed to the C worker, its outcomes handed to
vLLM."""

from __future__ import annotations

import re
from typing import Any

from rd2h import _vllm_model, core
from rd2h._vllm_model import Engine
from rd2h._vllm_support import keys, state_on_signal
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.parallel_state import get_pp_group, get_tp_group

LAYER_NUMBER = re.compile(r"layers\.(\d+)")
GATE_MARGIN_MS = 1_000  # the C side gives a reader up after hold_ms; waits last a little longer, never for ever


def _pick(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {n: options[n] for n in names}


class PrefillRank:
    def __init__(self, e: Engine, kv_caches: dict[str, Any]) -> None:
        o, tp, pp = e.options, get_tp_group(), get_pp_group()
        self._layout = _layout(e, kv_caches, tp.rank_in_group)
        self._layers: dict[str | int, int | None] = {name: self._layout.find(name) for name in kv_caches}
        self._layers |= {int(n[1]): i for name, i in self._layers.items() if (n := LAYER_NUMBER.search(name))}
        self.raises = o["on_read_failure"] == "raise"
        self._wait_ms = o["hold_ms"] + GATE_MARGIN_MS
        gate = o["layer_gate"]
        self._gated = gate == "always" or (gate == "auto" and self._layout.shares_storage())
        self._c = core.Prefill(
            self._layout,
            _vllm_model.memory(kv_caches),
            tp_rank=tp.rank_in_group,
            tp_size=e.tp_size,
            pp_rank=pp.rank_in_group,
            pp_size=e.pp_size,
            host=o["host"],
            engine=o["transfer_backend"],
            on_read_failure=core.lib.RD2H_RAISE if self.raises else core.lib.RD2H_ISOLATE,
            **keys(o, "curve_servers"),
            max_queue_bytes_mb=o["max_queue_mb"],
            **_pick(o, "handshake_ms", "hold_ms", "liveness_ms", "settle_ms"),
        )

    def step(self, blob: bytes) -> None:
        self._c.step(blob)

    def layer(self, name: str) -> None:
        """The layer's KV of this step is complete."""
        i = self._layers.get(name)
        if i is not None:
            self._c.layer(i)

    def gate(self, name: str) -> None:
        """Before the layer is written: waits for the readers of what its storage held, where layers share storage."""
        if self._gated:
            self.wait_send(name)

    def wait_send(self, layer: str | int) -> None:
        i = self._layers.get(layer)
        if i is not None:
            self._c.wait_layer(i, self._wait_ms)

    def wait_ordinal(self, stage_layer: int) -> None:
        if not 0 <= stage_layer < len(self._layout):
            raise core.Rd2hError(core.lib.RD2H_RANGE, f"there is no layer {stage_layer}: this stage has {len(self._layout)}")
        self._c.wait_layer(stage_layer, self._wait_ms)

    def preempted(self, blob: bytes) -> None:
        self._c.wait_preempted(blob, self._wait_ms)

    def results(self) -> KVConnectorTransferResults:
        return KVConnectorTransferResults(finished_sending={o.id for o in self._c.collect()})

    def stats(self) -> dict[str, int]:
        return self._c.stats

    def close(self) -> None:
        self._c.close()
        self._layout.close()


class DecodeRank:
    raises = False

    def __init__(self, e: Engine, kv_caches: dict[str, Any]) -> None:
        o, tp = e.options, get_tp_group()
        self._layout = _layout(e, kv_caches, tp.rank_in_group)
        # Plain vLLM: every rank has complete main KV of its own, so it pulls all of it (rank 0 of 1).
        self._c = core.Decode(
            self._layout,
            _vllm_model.memory(kv_caches),
            bind_host=o["bind_host"],
            **keys(o, "curve_allow"),
            port=core.rank_port(e.kv_port, e.dp_rank, tp.rank_in_group, e.tp_size),
            tp_rank=tp.rank_in_group,
            tp_size=e.tp_size,
            main_rank=0,
            main_ranks=1,
            engine=o["transfer_backend"],
            **_pick(
                o,
                "engine_threads",
                "park_ms",
                "queue_ms",
                "progress_ms",
                "probe_ms",
                "reply_on_read_failure",
                "max_peers",
                "max_requests",
                "max_message_mb",
                "read_timeout_ms",
            ),
        )

    def step(self, blob: bytes) -> None:
        self._c.step(blob)

    def layer(self, name: str | int) -> None:
        pass

    gate = wait_send = wait_ordinal = layer

    def preempted(self, blob: bytes) -> None:
        pass

    def results(self) -> KVConnectorTransferResults:
        """A failed request is in both sets of one step: vLLM releases it by the first and knows why by the second."""
        done = self._c.collect()
        return KVConnectorTransferResults(finished_recving={o.id for o in done}, failed_recving={o.id for o in done if o.status})

    def stats(self) -> dict[str, int]:
        return self._c.stats

    def close(self) -> None:
        self._c.close()
        self._layout.close()


def _layout(e: Engine, kv_caches: dict[str, Any], tp_rank: int) -> core.Layout:
    return core.Layout(
        _vllm_model.tensors(e, kv_caches),
        e.num_blocks,
        e.main_group,
        e.indexer_group,
        _vllm_model.heads(e, tp_rank),
        _vllm_model.fingerprint(e, kv_caches),
    )


def create(e: Engine, kv_caches: dict[str, Any]) -> Any:
    rank = PrefillRank(e, kv_caches) if e.prefill else DecodeRank(e, kv_caches)
    state_on_signal(e.options, rank._c)
    return rank
