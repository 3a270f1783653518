# SPDX-License-Identifier: Apache-2.0
"""The scheduler halves: vLLM's requests and scheduler output as the flat values of the C library. No rule of the protocol is
here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rd2h import core
from rd2h._vllm_model import Engine
from vllm.v1.request import RequestStatus


@dataclass(frozen=True)
class Grant:
    """Destinations of one request on Decode, as vLLM itself may ask for them."""

    blocks: list[int]  # of the main group
    first: int  # the first of them that KV is pulled into


def params_json(request) -> str | None:
    """The request's kv_transfer_params as JSON; None when it has none or they are no JSON object."""
    params = request.kv_transfer_params
    if not params or not isinstance(params, dict):
        return None
    return json.dumps(params, default=str)


class PrefillHalf:
    def __init__(self, e: Engine) -> None:
        self._c = core.PrefillScheduler(e.block_sizes, e.main_group, e.indexer_group)

    def matched(self, request, computed: int) -> int:
        return 0

    def alloc(self, request, block_ids: tuple[list[int], ...], external: int) -> None:
        params = params_json(request)
        if params is not None:
            self._c.alloc(request.request_id, params, request.num_prompt_tokens, block_ids)

    def take_granted(self) -> dict[str, Grant]:
        return {}

    def step(self, out) -> bytes:
        """The workers' bytes for one engine step. A new request's table is complete, a resumed one's replaces the old."""
        scheduled, spec, cached = out.num_scheduled_tokens, out.scheduled_spec_decode_tokens, out.scheduled_cached_reqs
        self._c.step_begin()
        for request_id in out.preempted_req_ids or ():
            self._c.step_preempted(request_id)
        for r in out.scheduled_new_reqs:
            self._add(r.req_id, r.num_computed_tokens, scheduled, spec, r.block_ids, True)
        for i, request_id in enumerate(cached.req_ids):
            resumed = request_id in cached.resumed_req_ids
            self._add(request_id, cached.num_computed_tokens[i], scheduled, spec, cached.new_block_ids[i], resumed)
        return self._c.step_end()

    def _add(
        self, request_id: str, computed: int, scheduled: dict[str, int], spec: dict[str, list[int]], blocks, whole: bool
    ) -> None:
        self._c.step_add(request_id, computed, scheduled.get(request_id, 0), len(spec.get(request_id, ())), blocks, whole)

    def finished(self, request) -> bool:
        return self._c.finish(request.request_id, request.status == RequestStatus.FINISHED_ABORTED)

    def update(self, output) -> None:
        for request_id in output.finished_sending or ():
            self._c.released(request_id)

    @property
    def pending_frees(self) -> bool:
        return self._c.held > 0

    def close(self) -> None:
        self._c.close()


class DecodeHalf:
    def __init__(self, e: Engine) -> None:
        o = e.options
        self._granted: dict[str, Grant] = {}  # since the last step
        self._group, self._block = e.main_group, e.block_sizes[e.main_group]
        self._c = core.DecodeScheduler(
            e.block_sizes,
            e.main_group,
            e.indexer_group,
            host=o["host"],
            kv_port=e.kv_port,
            dp_rank=e.dp_rank,
            tp_size=e.tp_size,
            engine_id=e.engine_id,
            **{n: o[n] for n in ("legacy_metaserver", "connect_timeout_ms", "max_attempts", "answer_timeout_ms", "max_inflight",
                                 "rendezvous_ca")},
        )

    def matched(self, request, computed: int) -> int:
        params = params_json(request)
        return 0 if params is None else self._c.matched(request.request_id, params, request.num_prompt_tokens, computed)

    def alloc(self, request, block_ids: tuple[list[int], ...], external: int) -> None:
        params = params_json(request)
        if params is None or external <= 0:
            return
        # The dict may be shared with the request's siblings (n > 1): replaced, never changed. Before the call, so that a request
        # whose parameters are refused is not pulled again.
        request.kv_transfer_params = {**request.kv_transfer_params, "do_remote_prefill": False}
        local = max(request.num_prompt_tokens - external, 0)
        self._granted[request.request_id] = Grant(list(block_ids[self._group]), local // self._block)
        self._c.alloc(request.request_id, params, request.num_prompt_tokens, external, block_ids)

    def step(self, out) -> bytes:
        return self._c.step_end()

    def take_granted(self) -> dict[str, Grant]:
        granted, self._granted = self._granted, {}
        return granted

    def finished(self, request) -> bool:
        self._c.finish(request.request_id)
        return False  # vLLM itself holds the blocks of a request that waits for KV

    def update(self, output) -> None:
        failed = getattr(output, "failed_recving", None) or set()
        for request_id in output.finished_recving or ():
            self._c.received(request_id, request_id in failed)

    @property
    def pending_frees(self) -> bool:
        return False

    def close(self) -> None:
        self._c.close()


def create(e: Engine) -> Any:
    return PrefillHalf(e) if e.prefill else DecodeHalf(e)
