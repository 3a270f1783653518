# SPDX-License-Identifier: Apache-2.0
"""The worker halves: the registered KV tensors as a layout, a step's bytes handed to the C worker, its outcomes handed to
vLLM."""

from __future__ import annotations

import re
import time
from collections import deque
from typing import Any

from rd2h import _ascend, _vllm_model, _vllm_options, core
from rd2h._vllm_compat import KVConnectorTransferResults
from rd2h._vllm_model import Engine
from rd2h._vllm_support import keys, state_on_signal
from vllm.distributed.parallel_state import get_pp_group, get_tp_group

LAYER_NUMBER = re.compile(r"layers\.(\d+)")
STEP_PAUSES = (0.01, 0.05, 0.2, 0.0)  # seconds between two tries of a step that meets no memory
GATE_MARGIN_MS = 1_000  # the C side gives a reader up after hold_ms; waits last a little longer, never for ever


def _pick(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {n: options[n] for n in names}


DIGEST = {"off": core.lib.RD2H_DIGEST_OFF, "log": core.lib.RD2H_DIGEST_LOG, "fail": core.lib.RD2H_DIGEST_FAIL}


def _place(e: Engine) -> dict[str, Any]:
    """Where the rank's KV lies and what moves it."""
    npu = _ascend.device() if e.ascend else None
    return {"engine": _vllm_options.engine_spec(e.options, int(npu.rpartition("=")[2]) if npu else None), "device": npu}


class _Steps:
    """Hands steps to the C side, in order. One that meets no memory is repeated, later too and before everything else: a request that
    gets lost in it is never reported, and vLLM would hold its blocks for ever."""

    _c: Any

    def __init__(self) -> None:
        self._owed: deque[bytes] = deque()  # what the C side has not taken yet

    def _take(self, blob: bytes) -> None:
        self._owed.append(blob)
        while self._owed:
            try:
                self._try(self._owed[0])
            except core.Rd2hError as e:
                if e.status != core.lib.RD2H_NOMEM:
                    self._owed.popleft()
                raise
            self._owed.popleft()

    def _try(self, blob: bytes) -> None:
        for pause in STEP_PAUSES:
            try:
                return self._c.step(blob)
            except core.Rd2hError as e:
                if e.status != core.lib.RD2H_NOMEM or not pause:
                    raise
            time.sleep(pause)


class PrefillRank(_Steps):
    def __init__(self, e: Engine, kv_caches: dict[str, Any]) -> None:
        super().__init__()
        o, tp, pp = e.options, get_tp_group(), get_pp_group()
        self.number = pp.rank_in_group * e.tp_size + tp.rank_in_group
        self._layout = _layout(e, kv_caches, tp.rank_in_group, _vllm_model.tensors(e, kv_caches))
        self._on_stream, self._current = e.ascend, 0
        self._layers: dict[str | int, int | None] = {name: self._layout.find(name) for name in kv_caches}
        self._layers |= {int(n[1]): i for name, i in self._layers.items() if (n := LAYER_NUMBER.search(name))}
        self.raises = o["on_read_failure"] == "raise"
        self._wait_ms = o["hold_ms"] + GATE_MARGIN_MS + (o["event_ms"] if e.ascend else 0)
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
            on_read_failure=core.lib.RD2H_RAISE if self.raises else core.lib.RD2H_ISOLATE,
            **keys(o, "curve_servers"),
            digest=DIGEST[o["digest"]],
            max_queue_bytes_mb=o["max_queue_mb"],
            **_pick(o, "handshake_ms", "hold_ms", "liveness_ms", "settle_ms", "event_ms"),
            **_place(e),
        )

    def step(self, metadata: Any) -> None:
        self._current = 0
        self._take(metadata.blob)

    def finished(self, request_ids: set[str]) -> None:
        pass

    def layer(self, name: str) -> None:
        """The layer's KV of this step is complete, or will be when the device has done what it was given. "": the layer that the
        step has come to."""
        i = self._layers.get(name) if name else self._current
        if i is None or i >= len(self._layout):
            return
        if self._on_stream:
            self._c.layer_on(i, _ascend.stream())
        else:
            self._c.layer(i)

    def layer_end(self, name: str) -> None:
        self.layer(name)
        self._current += 1

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

    def peers(self, timeout_ms: int) -> core.Peers:
        return self._c.peers(timeout_ms)

    def cpu_blocks(self, request_ids: list[str]) -> dict[str, int] | None:
        return None

    def close(self) -> None:
        self._c.close()
        self._layout.close()


class DecodeRank(_Steps):
    raises = False

    def __init__(self, e: Engine, kv_caches: dict[str, Any]) -> None:
        super().__init__()
        o, tp = e.options, get_tp_group()
        self.number = tp.rank_in_group
        self._granted: dict[str, Any] = {}  # id -> its destinations, until the engine is done with the request
        pool = _vllm_model.pool(e, tp.rank_in_group)
        own = _ascend.indexers(kv_caches) if pool else kv_caches
        self._layout = _layout(e, kv_caches, tp.rank_in_group, pool + _vllm_model.tensors(e, own))
        self._c = core.Decode(
            self._layout,
            _vllm_model.memory(own, pool),
            bind_host=o["bind_host"],
            **keys(o, "curve_allow"),
            digest=DIGEST[o["digest"]],
            port=core.rank_port(e.kv_port, e.dp_rank, tp.rank_in_group, e.tp_size),
            tp_rank=tp.rank_in_group,
            tp_size=e.tp_size,
            # A pool is pulled into by all ranks, each a share; else every rank has complete main KV of its own and pulls all of it.
            main_rank=tp.rank_in_group if pool else 0,
            main_ranks=e.tp_size if pool else 1,
            **_place(e),
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
                "read_retries",
            ),
        )

    def step(self, metadata: Any) -> None:
        self._granted.update(metadata.granted)
        self._take(metadata.blob)

    def finished(self, request_ids: set[str]) -> None:
        for request_id in request_ids:
            self._granted.pop(request_id, None)

    def layer(self, name: str | int) -> None:
        pass

    layer_end = gate = wait_send = wait_ordinal = layer

    def cpu_blocks(self, request_ids: list[str]) -> dict[str, int] | None:
        """How many blocks of main KV each request has."""
        return {r: len(self._granted[r].blocks) for r in request_ids if r in self._granted} or None

    def pulled(self, request_id: str) -> list[int]:
        """The blocks of a request that KV was to be pulled into."""
        grant = self._granted.get(request_id)
        return grant.blocks[grant.first :] if grant else []

    def preempted(self, blob: bytes) -> None:
        pass

    def results(self) -> KVConnectorTransferResults:
        """A failed request is in both sets of one step: vLLM releases it by the first and knows why by the second."""
        done = self._c.collect()
        return KVConnectorTransferResults(finished_recving={o.id for o in done}, failed_recving={o.id for o in done if o.status})

    def stats(self) -> dict[str, int]:
        return self._c.stats

    def peers(self, timeout_ms: int) -> core.Peers:
        return self._c.peers(timeout_ms)

    def close(self) -> None:
        self._c.close()
        self._layout.close()


def _layout(e: Engine, kv_caches: dict[str, Any], tp_rank: int, tensors: list[core.KvTensor]) -> core.Layout:
    return core.Layout(
        tensors,
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
