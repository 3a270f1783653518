# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector: Prefill publishes every layer of a prompt's KV cache as it is computed, Decode pulls it and generates.

::

    {"kv_connector": "SfaRemoteD2HConnector", "kv_connector_module_path": "rd2h.vllm",
     "kv_role": "kv_producer" | "kv_consumer", "kv_port": 14579,
     "kv_connector_extra_config": {"transfer_backend": "auto"}}

The options are those of ``rd2h._vllm_options``. Tested with vLLM 0.32. Errors at start-up are one line; at run time no hook
raises (an exception in a hook ends a vLLM server) but on Prefill with ``on_read_failure`` set to ``raise``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from rd2h import Rd2hError, _log, _vllm_compat, _vllm_memory, _vllm_model, _vllm_scheduler, _vllm_worker
from rd2h._vllm_compat import KVConnectorTransferResults
from rd2h._vllm_stats import Growth, Rd2hPromMetrics, Rd2hStats
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector as VllmMultiConnector
from vllm.logger import init_logger

logger = init_logger("vllm.rd2h")
NAME = "SfaRemoteD2HConnector"


@dataclass
class StepMetadata(KVConnectorMetadata):
    """What the scheduler half decided in one engine step, for every worker: bytes made and read by the C library, and what vLLM
    itself may ask a worker about."""

    blob: bytes = b""
    granted: dict[str, _vllm_scheduler.Grant] = field(default_factory=dict)


def _safe(default):
    """A hook that logs what went wrong and answers `default()`: vLLM ends the engine when a hook raises."""

    def wrap(hook):
        @functools.wraps(hook)
        def call(self, *args, **kwargs):
            try:
                return hook(self, *args, **kwargs)
            except Exception as e:
                if self._raises():
                    raise
                known = isinstance(e, Rd2hError)  # its line says all; of anything else the place must be known
                logger.error("rd2h: %s: %s", hook.__name__, e, exc_info=None if known else e)
                return default()

        return call

    return wrap


_nothing = _safe(lambda: None)


class SfaRemoteD2HConnector(KVConnectorBase_V1, SupportsHMA):
    """Pulls the KV cache of sparse and dense attention models from a Prefill engine into a Decode engine.

    Raises at construction and at register_kv_caches, one line each: ValueError (configuration, or a KV tensor that cannot be
    served: names it and its shape), RuntimeError (another vLLM), Rd2hError (of the C library: port, memory, permission).
    """

    _cache_hit_source = _vllm_compat.HIT_SOURCE
    supports_layerwise_buffer_reuse = True  # wait_for_layer_reuse says when a storage slot is free again
    use_layerwise = True

    def __init__(self, vllm_config, role: KVConnectorRole, kv_cache_config) -> None:
        _vllm_compat.check()
        super().__init__(vllm_config, role, kv_cache_config)
        self._engine = _vllm_model.engine(vllm_config, kv_cache_config)
        _vllm_compat.check_groups(self._engine.prefill, len(self._engine.groups))
        self.kv_role, self.engine_id = vllm_config.kv_transfer_config.kv_role, self._engine.engine_id
        self.is_producer = self._engine.prefill
        self.is_consumer = not self.is_producer
        # Composed with others, Prefill must see a request's complete block table even when another connector loads it.
        self.requires_full_blocks_on_update_after_alloc = self.is_producer
        self._failed_blocks: set[int] = set()  # for the next get_block_ids_with_load_errors
        _log.start()
        self._half = _vllm_scheduler.create(self._engine) if role == KVConnectorRole.SCHEDULER else None
        self._rank: Any = None
        self._growth = Growth(self._engine.prefill)

    @property
    def connector_worker(self) -> SfaRemoteD2HConnector | None:
        """What serves a worker, and what serves the scheduler: here both are the connector itself."""
        return self if self.role == KVConnectorRole.WORKER else None

    @property
    def connector_scheduler(self) -> SfaRemoteD2HConnector | None:
        return self if self.role == KVConnectorRole.SCHEDULER else None

    def _raises(self) -> bool:
        return self._rank is not None and self._rank.raises

    # ---- scheduler ----
    @_safe(lambda: (0, False))
    def get_num_new_matched_tokens(self, request, num_computed_tokens: int) -> tuple[int, bool]:
        """(prompt tokens to pull beyond the computed ones, whether they come asynchronously). Free of effects."""
        tokens = self._half.matched(request, num_computed_tokens)
        return tokens, tokens > 0

    def get_loaded_kv_cache_group_ids(self, request) -> tuple[int, ...]:
        """All groups: the request's own blocks are pulled, not those of a store."""
        return self._kv_cache_config.transfer_group_ids

    @_nothing
    def update_state_after_alloc(self, request, blocks, num_external_tokens: int) -> None:
        self._half.alloc(request, blocks.get_block_ids(), num_external_tokens)

    @_safe(StepMetadata)
    def build_connector_meta(self, scheduler_output) -> StepMetadata:
        return StepMetadata(self._half.step(scheduler_output), self._half.take_granted())

    @_nothing
    def update_connector_output(self, connector_output) -> None:
        self._half.update(connector_output)

    def request_finished(self, request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    @_safe(lambda: (False, None))
    def request_finished_all_groups(self, request, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        """True when the blocks must be held until every rank reports the request: readers are at work on Prefill."""
        return self._half.finished(request), None

    @_safe(bool)
    def has_pending_block_frees(self) -> bool:
        return self._half.pending_frees

    # ---- worker ----
    @_nothing
    def get_mem_pool_context(self):
        """Where vLLM allocates the KV cache; None: where it would anyway."""
        return _vllm_memory.context(self._engine)

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """kv_caches: layer name -> tensor (blocks, ...), or (2, blocks, ...), or a list of K and V (then indexer and scale)."""
        if self._rank is not None:
            self._rank.close()
        self._rank = _vllm_worker.create(self._engine, kv_caches)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._begin_step(connector_metadata)

    @_nothing
    def _begin_step(self, metadata: StepMetadata) -> None:
        if self._rank is not None:
            self._rank.step(metadata)

    @_nothing
    def handle_preemptions(self, kv_connector_metadata: StepMetadata) -> None:
        """Waits until no reader is at work on blocks that this step takes away; bounded by hold_ms."""
        if self._rank is not None:
            self._rank.preempted(kv_connector_metadata.blob)

    def start_load_kv(self, forward_context, **kwargs: Any) -> None:
        """Nothing: reads start when a layer is ready on Prefill."""

    @_nothing
    def wait_for_layer_load(self, layer_name: str) -> None:
        """Prefill: the layer is about to be written; waits for readers of its storage where layers share storage."""
        if self._rank is not None:
            self._rank.gate(layer_name)

    @_nothing
    def wait_for_layer_send(self, layer: str | int) -> None:
        """Prefill: waits until every reader of the layer's storage has answered; bounded by hold_ms. layer: the name of one of its
        tensors, or its number in the model."""
        if self._rank is not None:
            self._rank.wait_send(layer)

    @_nothing
    def wait_for_layer_reuse(self, stage_layer: int) -> None:
        """The same for the stage_layer-th cache layer of this pipeline stage: for who reuses storage layer by layer."""
        if self._rank is not None:
            self._rank.wait_ordinal(stage_layer)

    @_nothing
    def on_kv_cache_written(self, layer_name: str = "") -> None:
        """Prefill, engines that say so before save_kv_layer: the layer's KV is complete. Without a name: the layer that the step
        has come to. Comes in runs without a step, too, and before there are caches: then it means nothing."""
        if self._rank is not None and self.has_connector_metadata():
            self._rank.layer(layer_name)

    @_nothing
    def save_kv_layer(self, layer_name: str, kv_layer, attn_metadata, **kwargs: Any) -> None:
        if self._rank is not None and self.has_connector_metadata():
            self._rank.layer_end(layer_name)

    def wait_for_save(self) -> None:
        """Nothing: sources are held until their readers have answered."""

    @_safe(KVConnectorTransferResults)
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        if self._rank is None:
            return KVConnectorTransferResults()
        results = self._rank.results()
        if not _vllm_compat.FAILS_BY_REQUEST:
            self._failed_blocks.update(b for r in results.failed_recving for b in self._rank.pulled(r))
        self._rank.finished(finished_req_ids)
        return results

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending or None, results.finished_recving or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Nothing where vLLM is told failed requests; before 0.32, the blocks whose KV did not come."""
        blocks, self._failed_blocks = self._failed_blocks, set()
        return blocks

    @_nothing
    def get_num_cpu_blocks(self, req_ids: list[str]) -> dict[str, int] | None:
        """Decode: how many blocks of main KV each of the requests has, those unknown here left out; None when there is none."""
        return None if self._rank is None else self._rank.cpu_blocks(req_ids)

    @_nothing
    def get_kv_connector_stats(self) -> Rd2hStats | None:
        return None if self._rank is None else self._growth.take_all(self._rank)

    @_nothing
    def shutdown(self) -> None:
        rank, self._rank = self._rank, None
        half, self._half = self._half, None
        for part in (rank, half):
            if part is not None:
                part.close()

    def close(self) -> None:
        self.shutdown()

    # ---- class hooks ----
    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return True  # save_kv_layer must run between the layers

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Rd2hStats:
        return Rd2hStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues) -> Rd2hPromMetrics:
        return Rd2hPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


class MultiConnector(VllmMultiConnector):
    """vLLM's MultiConnector, which also passes on the layer hooks of engines that reuse storage layer by layer. rd2h's children
    come first there: their gate closes before another connector publishes or reuses the same storage.

    Use it as ``"kv_connector": "MultiConnector", "kv_connector_module_path": "rd2h.vllm"``: vLLM goes by the class name.
    """

    def __init__(self, vllm_config, role: KVConnectorRole, kv_cache_config) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        for c in self._connectors:
            if (offer := getattr(c, "set_external_slot_release_waiter", None)) is not None:
                offer(self.wait_for_layer_reuse)

    def _ordered(self) -> list[KVConnectorBase_V1]:
        return sorted(self._connectors, key=lambda c: not isinstance(c, SfaRemoteD2HConnector))

    @property
    def requires_full_blocks_on_update_after_alloc(self) -> bool:
        return any(getattr(c, "requires_full_blocks_on_update_after_alloc", False) for c in self._connectors)

    def wait_for_layer_load(self, layer_name: str) -> None:
        for c in self._ordered():
            c.wait_for_layer_load(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer, attn_metadata, **kwargs: Any) -> None:
        for c in self._ordered():
            c.save_kv_layer(layer_name, kv_layer, attn_metadata, **kwargs)

    def on_kv_cache_written(self, layer_name: str, *args: Any, **kwargs: Any) -> None:
        for c in self._ordered():
            if (hook := getattr(c, "on_kv_cache_written", None)) is not None:
                hook(layer_name, *args, **kwargs)

    def wait_for_layer_send(self, layer: str | int) -> None:
        for c in self._ordered():
            if (hook := getattr(c, "wait_for_layer_send", None)) is not None:
                hook(layer)

    def wait_for_layer_reuse(self, stage_layer: int) -> None:
        """Given to children that reuse storage themselves: they ask before they overwrite what readers of ours may still read."""
        for c in self._connectors:
            if isinstance(c, SfaRemoteD2HConnector):
                c.wait_for_layer_reuse(stage_layer)


# vLLM's MultiConnector looks statistics classes up in the registry, also those of connectors that came by module path.
if NAME not in KVConnectorFactory._registry:
    KVConnectorFactory.register_connector(NAME, "rd2h.vllm", NAME)
