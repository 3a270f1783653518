# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine without a model: vLLM's own scheduler, KV cache manager, output aggregator and configuration, rd2h's connector
on both sides, real KV tensors. What a model would compute is a number that each (layer, token, position) determines, so that
every byte that was pulled can be checked. One call of `step` is one engine step, in the order in which vLLM calls the hooks."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import queue
import tempfile
import time
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from metaserver import Metaserver, Plan
from ports import free_port
from rd2h import _vllm_worker
from rd2h import vllm as rd2h_vllm
from vllm import EngineArgs, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, LAYERS, HEADS, DIM = 16, 3, 2, 8
NAMES = [f"model.layers.{i}.self_attn.attn" for i in range(LAYERS)]
BLOCK_BYTES = 2 * BLOCK * HEADS * DIM * 4


@functools.cache
def _base_config():
    folder = Path(tempfile.mkdtemp(prefix="rd2h-test-"))
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "vocab_size": 512,
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS,
                "num_key_value_heads": HEADS,
                "head_dim": DIM,
                "max_position_embeddings": 1024,
                "torch_dtype": "float32",
            }
        )
    )
    init_none_hash(sha256)
    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=8,
        block_size=BLOCK,
        enforce_eager=True,
        enable_prefix_caching=True,
        max_num_batched_tokens=512,
        enable_chunked_prefill=True,
        seed=0,
    ).create_engine_config()


def config(kv_role: str = "kv_consumer", extra: dict | None = None, **transfer: Any):
    """A VllmConfig with our connector; the base is shared, the parts that tests change are copies."""
    c = copy.copy(_base_config())
    c.scheduler_config, c.parallel_config, c.cache_config = map(
        copy.copy, (c.scheduler_config, c.parallel_config, c.cache_config)
    )
    transfer.setdefault("kv_port", free_port(2))
    c.kv_transfer_config = KVTransferConfig(
        kv_connector=rd2h_vllm.NAME,
        kv_connector_module_path="rd2h.vllm",
        kv_role=kv_role,
        kv_connector_extra_config={"transfer_backend": "auto"} if extra is None else extra,
        **transfer,
    )
    return c


def spec(**changes: Any) -> FullAttentionSpec:
    return FullAttentionSpec(**{"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": DIM, "dtype": torch.float32, **changes})


def cache_config(num_blocks: int = 64, groups: list[KVCacheGroupSpec] | None = None) -> KVCacheConfig:
    groups = groups or [KVCacheGroupSpec(layer_names=NAMES, kv_cache_spec=spec())]
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


def caches(num_blocks: int = 64) -> dict[str, torch.Tensor]:
    """Llama's KV on CPU: blocks x heads x tokens x (K and V)."""
    return {n: torch.zeros(num_blocks, HEADS, BLOCK, 2 * DIM) for n in NAMES}


def value(layer: int, token: int, position: int) -> float:
    return float((layer * 7919 + token * 31 + position) % 65521 + 1)


@dataclass
class Done:
    id: str
    reason: str
    tokens: list[int]


class Engine:
    """tp workers, each with KV of its own; wrap changes the configuration before use. Close it at the end of a test."""

    def __init__(
        self,
        kv_role: str,
        num_blocks: int = 64,
        tp: int = 1,
        extra: dict | None = None,
        tokens: int = 512,
        wrap=lambda config: None,
        **transfer: Any,
    ) -> None:
        c = config(kv_role, {"transfer_backend": "auto", **(extra or {})}, **transfer)
        wrap(c)
        c.parallel_config.tensor_parallel_size = tp
        c.scheduler_config.max_num_batched_tokens = c.scheduler_config.max_num_scheduled_tokens = tokens
        c.cache_config.num_gpu_blocks = num_blocks
        self.config, kv = c, cache_config(num_blocks)
        self.scheduler = Scheduler(c, kv, StructuredOutputManager(c), BLOCK, hash_block_size=BLOCK, log_stats=True)
        self.connector = self.scheduler.connector
        self.kv = [caches(num_blocks) for _ in range(tp)]
        self.workers = []
        for rank in range(tp):
            worker = KVConnectorFactory.create_connector(c, KVConnectorRole.WORKER, kv)
            with ranks(rank):
                worker.register_kv_caches(self.kv[rank])
            self.workers.append(worker)
        self.aggregator = KVOutputAggregator.from_connector(self.connector, tp)
        self.outputs: list[KVConnectorOutput] = []
        self.reports = [Counter() for _ in range(tp)]  # by rank: how often an id was reported
        self._hasher = get_request_block_hasher(BLOCK, sha256)

    def close(self) -> None:
        for w in self.workers:
            w.shutdown()
        self.connector.shutdown()

    def add(self, request_id: str, prompt: list[int], params: dict | None = None, max_tokens: int = 1, **more: Any) -> Request:
        sampling = SamplingParams(
            max_tokens=max_tokens, ignore_eos=True, extra_args={"kv_transfer_params": params} if params else None
        )
        sampling.update_from_generation_config({}, 2)
        request = Request(request_id, prompt, sampling, None, block_hasher=self._hasher, **more)
        self.scheduler.add_request(request)
        return request

    def abort(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def blocks(self, request_id: str) -> list[int]:
        return self.scheduler.kv_cache_manager.get_block_ids(request_id)[0]

    @property
    def free(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def step(self) -> list[Done]:
        out = self.scheduler.schedule()
        runs = [self._run(rank, out) for rank in range(len(self.workers))]
        return self.update(out, self.aggregator.aggregate(runs))

    def update(self, out, run: ModelRunnerOutput) -> list[Done]:
        """The second half of a step, apart for tests of what may come in between."""
        self.outputs.append(run.kv_connector_output)
        finished = self.scheduler.update_from_output(out, run)
        return [
            Done(o.request_id, str(o.finish_reason), list(o.new_token_ids))
            for e in finished.values()
            for o in e.outputs
            if o.finish_reason is not None
        ]

    def _run(self, rank: int, out) -> ModelRunnerOutput:
        """A worker's side of a step; only the first worker's tokens count."""
        meta, worker, kv = out.kv_connector_metadata, self.workers[rank], self.kv[rank]
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        sampled = {}
        if out.total_num_scheduled_tokens:
            for layer, name in enumerate(NAMES):
                worker.wait_for_layer_load(name)
                for request_id, count in out.num_scheduled_tokens.items():
                    sampled[request_id] = self._compute(kv[name], layer, request_id, count)
                worker.save_kv_layer(name, kv[name], None)
        worker.start_load_kv(None)
        worker.wait_for_save()
        results = worker.get_transfer_results(out.finished_req_ids)
        self.reports[rank].update([*results.finished_sending, *results.finished_recving])
        told = KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_stats=worker.get_kv_connector_stats(),
        )
        worker.clear_connector_metadata()
        return ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={r: i for i, r in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
            kv_connector_output=told,
        )

    def _compute(self, tensor: torch.Tensor, layer: int, request_id: str, count: int) -> list[int]:
        request, blocks = self.scheduler.requests[request_id], self.blocks(request_id)
        end = request.num_computed_tokens  # vLLM has advanced it already
        for position in range(end - count, end):
            tensor[blocks[position // BLOCK], :, position % BLOCK] = value(layer, request.all_token_ids[position], position)
        return [7] if end >= request.num_tokens else []

    def kv_right(self, blocks: list[int], prompt: list[int], rank: int = 0) -> bool:
        """Whether the blocks hold the KV of the prompt, in every layer."""
        return all(
            float(t[blocks[i // BLOCK], h, i % BLOCK, d]) == value(layer, token, i)
            for layer, t in enumerate(self.kv[rank].values())
            for i, token in enumerate(prompt)
            for h in (0, HEADS - 1)
            for d in (0, 2 * DIM - 1)
        )


@contextlib.contextmanager
def ranks(tp: int, pp: int = 0):
    """What vLLM's parallel groups would say of this worker."""
    with (
        mock.patch.object(_vllm_worker, "get_tp_group", lambda: SimpleNamespace(rank_in_group=tp)),
        mock.patch.object(_vllm_worker, "get_pp_group", lambda: SimpleNamespace(rank_in_group=pp)),
    ):
        yield


class Pair:
    """A Prefill and a Decode engine with a metaserver. Prompts reach Prefill in the turn after their rendezvous."""

    def __init__(self, p: dict | None = None, d: dict | None = None) -> None:
        self.p, self.d = Engine("kv_producer", **(p or {})), Engine("kv_consumer", **(d or {}))
        self._posted: queue.SimpleQueue = queue.SimpleQueue()
        self.meta = Metaserver(self._prefill)
        self.done: dict[str, Done] = {}
        self.hold = False  # True: rendezvous wait, Prefill is not told
        self.loaded: dict[str, list[int]] = {}  # Decode's blocks of a request when its KV was complete

    def close(self) -> None:
        self.meta.close()
        self.d.close()
        self.p.close()

    def _prefill(self, request_id: str, plan: Plan, params: dict):
        self._posted.put((request_id, plan.prompt, params))
        return lambda timeout: True

    def params(self) -> dict[str, Any]:
        return {"do_remote_decode": False, "do_remote_prefill": True, "metaserver": self.meta.url}

    def send(self, name: str, prompt: list[int], status: int = 0, **more: Any) -> str:
        """Returns Decode's internal id of the request."""
        internal = f"{name}-{zlib.crc32(name.encode()):08x}"
        self.meta.register(name, Plan(prompt, status=status))
        self.d.add(internal, prompt, self.params(), **more)
        return internal

    def turn(self) -> None:
        """One step of both engines, as far as they have work."""
        while not self.hold and not self._posted.empty():
            name, prompt, params = self._posted.get()
            self.p.add(f"{name}-0123abcd", prompt, params)
        for engine in (self.p, self.d):
            if engine.scheduler.has_requests():
                for done in engine.step():
                    self.done[done.id] = done
        for output in self.d.outputs[-1:]:
            for i in (output.finished_recving or set()) & set(self.d.scheduler.requests):
                self.loaded[i] = list(self.d.blocks(i))

    def until(self, condition, turns: int = 3000, what: str = "") -> None:
        for _ in range(turns):
            if condition():
                return
            self.turn()
            time.sleep(0.001)
        raise AssertionError(f"not within {turns} turns: {what}")

    def rest(self) -> None:
        """Until nobody holds a request."""
        self.until(
            lambda: (
                not (self.meta.open or self.d.scheduler.requests or self.p.scheduler.requests)
                and (self.hold or self._posted.empty())
            ),
            what="an engine still holds requests",
        )
