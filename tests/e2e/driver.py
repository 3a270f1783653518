# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine in a process of its own, driven through a pipe: `serve` is its main function.

config: model, overrides, kv (a KV transfer configuration or None), engine (more engine arguments), core (CPU to stay on).
Commands and events are dicts. An engine that runs in its own process is not polled while idle, so this one keeps stepping as
long as the scheduler holds a request, and sleeps on the pipe otherwise.
"""

from __future__ import annotations

import hashlib
import os
import time
from multiprocessing.connection import Connection
from typing import Any

IDLE_WAIT_S = 0.001  # between two steps that had nothing to compute: somebody else's reads are awaited


def serve(config: dict[str, Any], pipe: Connection, log: str) -> None:
    with open(log, "w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    # One core each (law 14: an engine that waits for remote KV spins, and would take the other's time).
    os.sched_setaffinity(0, {config["core"]})
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = str(config["core"])
    driver = Driver(config, pipe)
    driver.run()
    driver.close()


def make_engine(config: dict[str, Any]):
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    arguments = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 1024,
        "max_num_seqs": 4,
        "seed": 0,
        "kv_cache_memory_bytes": 64 << 20,
        "disable_log_stats": True,
        "compilation_config": {"custom_ops": ["none"]},
        **config.get("engine", {}),
    }
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=config["model"], hf_overrides=config.get("overrides") or {}, kv_transfer_config=config.get("kv"), **arguments
        )
    )


class Kv:
    """The engine's KV tensors, hashed block by block."""

    def __init__(self, core) -> None:
        self._scheduler = core.scheduler
        layers = core.vllm_config.compilation_config.static_forward_context
        groups = core.scheduler.kv_cache_config.kv_cache_groups
        self._layers = [(name, g, layers[name].kv_cache) for g, group in enumerate(groups) for name in group.layer_names]

    def digest(self, blocks, count: int) -> dict[str, list[str]]:
        """layer -> SHA-256 of its first `count` blocks; blocks: ids by KV group."""
        return {name: [self._hash(cache[b]) for b in blocks[g][:count]] for name, g, cache in self._layers}

    @staticmethod
    def _hash(block) -> str:
        import torch

        return hashlib.sha256(block.contiguous().view(torch.uint8).numpy()).hexdigest()[:24]

    def of(self, request, whole: bool) -> dict[str, list[str]]:
        """The blocks of the request's prompt; whole: the last, partly filled one too."""
        block = self._scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        count = -(-request.num_prompt_tokens // block) if whole else request.num_prompt_tokens // block
        return self.digest(self._scheduler.kv_cache_manager.get_block_ids(request.request_id), count)


class Watch:
    """Looks over the connector's shoulder: KV right after it was computed or pulled, and who computed how many prompt tokens."""

    def __init__(self, scheduler, kv: Kv) -> None:
        self.digests: dict[str, Any] = {}
        self.prompt_tokens = 0
        self.computing = True
        self._scheduler, self._kv = scheduler, kv
        if scheduler.connector is not None:
            self._wrap("build_connector_meta", self._scheduled)
            self._wrap("update_connector_output", self._received)
            self._wrap("request_finished_all_groups", self._finished)

    def _wrap(self, name: str, look) -> None:
        hook = getattr(self._scheduler.connector, name)

        def call(*args):
            look(*args)
            return hook(*args)

        setattr(self._scheduler.connector, name, call)

    def _scheduled(self, out) -> None:
        self.computing = out.total_num_scheduled_tokens > 0
        cached = out.scheduled_cached_reqs
        computed = {r.req_id: r.num_computed_tokens for r in out.scheduled_new_reqs}
        computed.update(zip(cached.req_ids, cached.num_computed_tokens))
        for request_id, scheduled in out.num_scheduled_tokens.items():
            prompt = self._scheduler.requests[request_id].num_prompt_tokens
            self.prompt_tokens += max(0, min(prompt, computed[request_id] + scheduled) - computed[request_id])

    def _received(self, output) -> None:
        for request_id in (output.finished_recving or set()) - (output.failed_recving or set()):
            request = self._scheduler.requests[request_id]
            if not request.is_finished():
                self.digests[request_id] = self._kv.of(request, whole=True)

    def _finished(self, request, blocks) -> None:
        params = request.kv_transfer_params or {}
        if params.get("do_remote_decode") and request.num_computed_tokens >= request.num_prompt_tokens:
            self.digests[request.request_id] = self._kv.of(request, whole=True)

    def computed(self, request_id: str) -> None:
        """An engine without a connector has computed the first token of a request."""
        if request_id in self._scheduler.requests and request_id not in self.digests:
            self.digests[request_id] = self._kv.of(self._scheduler.requests[request_id], whole=False)


class Composition:
    """Which child of a MultiConnector was asked when, layer by layer, and what statistics came of all of them."""

    HOOKS = ("wait_for_layer_load", "save_kv_layer")

    def __init__(self, scheduler, worker) -> None:
        self.calls: list[tuple[str, str, str]] = []
        self.statistics: list[dict[str, Any]] = []
        for child in worker._connectors:
            for hook in self.HOOKS:
                self._wrap(child, hook)
        for half in (scheduler, worker):
            self._listen(half)

    def _listen(self, half) -> None:
        take = half.get_kv_connector_stats

        def statistics():
            taken = take()
            if taken is not None and not taken.is_empty():
                self.statistics.append(taken.to_dict())
            return taken

        half.get_kv_connector_stats = statistics

    def _wrap(self, child, hook: str) -> None:
        call = getattr(child, hook)

        def record(layer_name, *args, **kwargs):
            self.calls.append((hook, layer_name, type(child).__name__))
            return call(layer_name, *args, **kwargs)

        setattr(child, hook, record)

    def metrics(self, config) -> dict[str, float]:
        """What the metrics page says of these statistics."""
        from prometheus_client import CollectorRegistry
        from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorProm

        registry = CollectorRegistry()

        class Page(KVConnectorProm):
            _counter_cls, _gauge_cls, _histogram_cls = (
                staticmethod(lambda kind=kind, **options: kind(registry=registry, **options))
                for kind in (KVConnectorProm._counter_cls, KVConnectorProm._gauge_cls, KVConnectorProm._histogram_cls)
            )

        page = Page(config, ["engine"], {0: ["0"]})
        for statistics in self.statistics:
            page.observe(statistics)
        samples = [sample for family in registry.collect() for sample in family.samples]
        return {s.name: s.value for s in samples if s.value and not s.name.endswith("_created")}


class Driver:
    def __init__(self, config: dict[str, Any], pipe: Connection) -> None:
        self._pipe = pipe
        self._engine = make_engine(config)
        core = self._engine.engine_core.engine_core
        self._scheduler = core.scheduler
        self._alone = core.scheduler.connector is None
        self._watch = Watch(core.scheduler, Kv(core))
        self._config = core.vllm_config
        self._composition = None
        if hasattr(self._connector(), "_connectors"):
            self._composition = Composition(core.scheduler.connector, self._connector())
        self._aborts: dict[str, int] = {}  # request -> engine steps until it is aborted
        self.say(event="ready", block=core.scheduler.block_size)

    def say(self, **event: Any) -> None:
        self._pipe.send(event)

    def run(self) -> None:
        while True:
            wait = None if not self._scheduler.has_requests() else 0 if self._watch.computing else IDLE_WAIT_S
            while self._pipe.poll(wait):
                command = self._pipe.recv()
                if command["cmd"] == "quit":
                    return
                self._obey(command)
                wait = 0
            if self._scheduler.has_requests():
                self._step()

    def _obey(self, command: dict) -> None:
        try:
            value = getattr(self, "do_" + command.pop("cmd"))(**{k: v for k, v in command.items() if k != "seq"})
        except Exception as e:  # reported to whoever sent the command
            self.say(event="error", seq=command.get("seq"), text=f"{type(e).__name__}: {e}")
        else:
            self.say(event="reply", seq=command.get("seq"), value=value)

    def _step(self) -> None:
        for request_id in [i for i, steps in self._aborts.items() if steps == 0]:
            del self._aborts[request_id]
            self._engine.abort_request([request_id])
            self.say(event="finished", id=request_id, tokens=[], reasons=["abort"])
        self._aborts = {i: steps - 1 for i, steps in self._aborts.items()}
        for out in self._engine.step():
            if out.finished:
                outputs = sorted(out.outputs, key=lambda o: o.index)
                self.say(
                    event="finished",
                    id=out.request_id,
                    tokens=[list(o.token_ids) for o in outputs],
                    reasons=[o.finish_reason for o in outputs],
                )
        if self._alone:
            for request_id, request in list(self._scheduler.requests.items()):
                if request.num_output_tokens:
                    self._watch.computed(request_id)

    # ---- commands ----
    def do_add(
        self, id: str, prompt: list[int], max_tokens: int, n: int = 1, params: dict | None = None, abort_after: int = 0
    ) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        greedy = {"temperature": 0} if n == 1 else {"temperature": 1, "top_k": 1}  # vLLM wants a temperature where n > 1
        sampling = SamplingParams(
            max_tokens=max_tokens,
            ignore_eos=True,
            n=n,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={"kv_transfer_params": params} if params else None,
            **greedy,
        )
        self._engine.add_request(id, {"prompt_token_ids": prompt}, sampling)
        if abort_after:
            self._aborts[id] = abort_after

    def do_abort(self, id: str) -> None:
        self._engine.abort_request([id])

    def do_ghost(self, id: str, params: dict) -> None:
        """What vLLM's server submits for a rejected or disconnected request: a request that is aborted before it begins."""
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        sampling = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": dict(params)})
        self._engine.engine_core.add_request(
            EngineCoreRequest(
                request_id=id,
                prompt_token_ids=[0],
                mm_features=None,
                sampling_params=sampling,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
                abort_immediately=True,
            )
        )

    def do_set(self, active: int | None = None, recompute: bool | None = None) -> None:
        """Settings that vLLM's scheduler reads at every step; they save an engine start for every combination."""
        if active is not None:
            self._scheduler.max_num_active_reqs = active
        if recompute is not None:
            self._scheduler.recompute_kv_load_failures = recompute

    def do_forget(self) -> bool:
        """Empties the prefix cache."""
        return self._engine.reset_prefix_cache()

    def do_state(self) -> dict[str, Any]:
        return {
            "requests": len(self._scheduler.requests),
            "free_blocks": self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            "prompt_tokens": self._watch.prompt_tokens,
            "stats": self._stats(),
        }

    def _connector(self):
        """The worker's; None without one."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return None if self._alone else get_kv_transfer_group()

    def _stats(self) -> dict[str, int]:
        found = [c._rank.stats() for c in getattr(self._connector(), "_connectors", [self._connector()]) if hasattr(c, "_rank")]
        return found[0] if found else {}

    def do_transports(self) -> list[tuple[str, str, int]]:
        """What Decode's latest reads came by: engine, way, how many peers."""
        return [(t.engine, t.way, t.peers) for t in self._connector()._rank.peers(1000).transports]

    def do_composition(self) -> dict[str, Any]:
        """What MultiConnector's children did since the last time."""
        c = self._composition
        told = {"calls": c.calls, "statistics": [sorted(s) for s in c.statistics], "metrics": c.metrics(self._config)}
        c.calls, c.statistics = [], []
        return told

    def do_digests(self) -> dict[str, Any]:
        """Internal request id -> layer -> hashes, since the last time."""
        taken = dict(self._watch.digests)
        self._watch.digests.clear()
        return taken

    def close(self) -> None:
        self._engine.engine_core.shutdown()
