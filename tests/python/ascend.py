# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for vLLM-Ascend, which cannot be installed without an NPU: its modules with the attributes that the adapter reads and no
others, an NPU whose stream does what it was given only when it is told to, and engines that call the connector as its runner does.
Host memory stands for the pool's global addresses and for NPU memory; every byte goes through the C library."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

import engine
from engine import BLOCK
from rd2h import _ascend_names, _vllm_worker
from vllm.config import ModelConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.structured_output import StructuredOutputManager

ROOT = Path(__file__).resolve().parents[2]
LAYERS, K_DIM, V_DIM, INDEX_DIM = 4, 8, 4, 8
MAIN = [f"model.layers.{i}.self_attn.attn" for i in range(LAYERS)]
INDEXER = [f"model.layers.{i}.self_attn.indexer.k_cache" for i in range(LAYERS) if i != 2]  # one layer has none


# ---- the NPU ----
class Stream(ctypes.Structure):
    """struct standin_stream of tests/standin/ascendcl.h."""

    _fields_ = [("given", ctypes.c_uint64), ("reached", ctypes.c_uint64), ("held", ctypes.c_bool)]


@functools.cache
def _library() -> ctypes.CDLL:
    """The stand-in for CANN's runtime library, where ASCEND_HOME_PATH will say that it is."""
    home = Path(tempfile.mkdtemp(prefix="rd2h-cann-"))
    (home / "lib64").mkdir()
    target = home / "lib64/libascendcl.so"
    source = ROOT / "tests/standin/ascendcl.c"
    soname = "-Wl,-soname,libascendcl.so"
    subprocess.run([*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", "-pthread", soname, "-I", ROOT, source, "-o", target],
                   check=True)
    library = ctypes.CDLL(target)
    library.standin_run.argtypes = [ctypes.POINTER(Stream), ctypes.c_uint64]
    library.home = home
    return library


class Npu:
    """torch.npu of a process, and what its stream does. hung: the stream never gets to what it is given from now on."""

    def __init__(self) -> None:
        self.library, self.stream, self.hung = _library(), Stream(held=True), False
        self.library.standin_reset()
        self.library.aclrtSetDevice(0)

    def current_device(self) -> int:
        return 0

    def current_stream(self) -> Any:
        return SimpleNamespace(npu_stream=ctypes.addressof(self.stream))

    def run(self) -> None:
        if not self.hung:
            self.library.standin_run(ctypes.byref(self.stream), self.stream.given)


# ---- the Python package ----
@dataclass(frozen=True, kw_only=True)
class AscendMLAAttentionSpec(MLAAttentionSpec):
    @property
    def page_size_bytes(self) -> int:
        return self.block_size * self.num_kv_heads * self.head_size * 2


@dataclass(frozen=True, kw_only=True)
class AscendSFAIndexerCacheSpec(MLAAttentionSpec):
    scale_dim: int = 0

    @property
    def page_size_bytes(self) -> int:
        return self.block_size * self.num_kv_heads * (self.head_size * self.dtype.itemsize + self.scale_dim * 2)


class Only:
    """An object with the attributes that the table lists for it; to read another is a mistake of the adapter."""

    def __init__(self, of: str, **values: Any) -> None:
        self._of = of
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        listed = {n.name for n in _ascend_names.OBJECTS if n.of == self._of}
        if name not in listed and not name.startswith("__"):
            raise AssertionError(f"{self._of}.{name} is read, but is not in rd2h._ascend_names")
        raise AttributeError(name)


class Package:
    """The modules of vLLM-Ascend, and which configuration and managers they hand out."""

    def __init__(self) -> None:
        self.offload = Only("SparseKVOffloadConfig", enabled=False)
        self.managers: list[Any] = []  # by TP rank
        self.calls: Counter = Counter()

    def modules(self) -> dict[str, ModuleType]:
        names = [
            "vllm_ascend",
            "vllm_ascend.ascend_config",
            "vllm_ascend.core",
            "vllm_ascend.core.kv_cache_interface",
            "vllm_ascend.distributed",
            "vllm_ascend.distributed.kv_transfer",
            "vllm_ascend.distributed.kv_transfer.sparse_kv_offload",
            "vllm_ascend.distributed.kv_transfer.sparse_kv_offload.sparse_kv_offload_manager",
        ]
        found = {n: ModuleType(n) for n in names}
        config = found["vllm_ascend.ascend_config"]
        config.init_ascend_config = lambda vllm_config: self.calls.update(["init"])
        config.get_ascend_config = lambda: SimpleNamespace(sparse_kv_offload_config=self.offload)
        found[names[-1]].get_sparse_kv_offload_manager = lambda: self.managers[_vllm_worker.get_tp_group().rank_in_group]
        return found


for _spec in (AscendMLAAttentionSpec, AscendSFAIndexerCacheSpec):
    _spec.__module__ = "vllm_ascend.core.kv_cache_interface"


@contextlib.contextmanager
def installed():
    """As in a process of vLLM-Ascend: (its package, its NPU)."""
    engine.config()  # made once for all tests, and not for an MLA model: on a CPU vLLM takes chunks and prefixes away from those
    package, npu = Package(), Npu()
    environment = {"ASCEND_HOME_PATH": str(npu.library.home), "VLLM_HOST_IP": "127.0.0.1"}
    with (
        mock.patch.dict(sys.modules, package.modules()),
        mock.patch.dict(os.environ, environment),
        mock.patch.object(torch, "npu", npu, create=True),
        mock.patch.object(ModelConfig, "use_mla", property(lambda self: True)),
    ):
        yield package, npu


# ---- memory ----
def _numbers(layer: int, token: int, position: int, part: int, count: int) -> torch.Tensor:
    first = (layer * 7919 + token * 31 + position * 3 + part * 1237) % 29989
    return torch.arange(first, first + count, dtype=torch.int64)


def write(tensor: torch.Tensor, block: int, slot: int, numbers: torch.Tensor) -> None:
    """One token's values; a block may be several rows of the tensor."""
    rows = tensor.shape[0] * tensor.shape[1]
    flat = tensor.reshape(rows, -1)
    view = flat.view(torch.int16 if tensor.dtype.itemsize == 2 else torch.int8)
    view[block * BLOCK + slot] = numbers.to(view.dtype)


def holds(tensor: torch.Tensor, block: int, slot: int, numbers: torch.Tensor) -> bool:
    flat = tensor.reshape(tensor.shape[0] * tensor.shape[1], -1)
    view = flat.view(torch.int16 if tensor.dtype.itemsize == 2 else torch.int8)
    return torch.equal(view[block * BLOCK + slot], numbers.to(view.dtype))


class Caches:
    """The KV tensors of one rank. slots: storage shared by layers i, i + slots, …, main and indexer each (0: own storage)."""

    def __init__(self, num_blocks: int, lic8: bool, slots: int = 0, scale: int = 1) -> None:
        self.num_blocks, self.lic8 = num_blocks, lic8
        shape = (num_blocks * scale, BLOCK // scale, 1)
        main = [(self._zeros(*shape, K_DIM), self._zeros(*shape, V_DIM)) for _ in range(slots or LAYERS)]
        dtype = torch.int8 if lic8 else torch.bfloat16
        index = [self._index(shape, dtype) for _ in range(slots or LAYERS)]
        self.of = {n: main[int(n.split(".")[2]) % len(main)] for n in MAIN}
        self.of |= {n: index[int(n.split(".")[2]) % len(index)] for n in INDEXER}

    @staticmethod
    def _zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    def _index(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        k = self._zeros(*shape, INDEX_DIM, dtype=dtype)
        return (k, self._zeros(*shape, 1, dtype=torch.float16)) if self.lic8 else (k,)

    def parts(self, layer: int) -> list[torch.Tensor]:
        """Everything of a layer, in one order: K, V, indexer, scale."""
        return [t for n, c in self.of.items() if int(n.split(".")[2]) == layer for t in c]


def pool_manager(caches: Caches, tp_rank: int, **changes: Any) -> Only:
    """SparseKVOffloadManager of a rank: every rank has the addresses, rank 0 the tensors too."""
    main = [caches.of[n] for n in MAIN]
    own = tp_rank == 0
    values = {
        "offload_layer_names": list(MAIN),
        "_get_offload_layer_id": MAIN.index,
        "gvas_k_bases": [k.data_ptr() for k, _ in main],
        "gvas_v_bases": [v.data_ptr() for _, v in main],
        "cpu_block_lens": [tuple(t.nbytes // caches.num_blocks for t in pair) for pair in main],
        "k_caches_cpu": [k for k, _ in main] if own else [],
        "v_caches_cpu": [v for _, v in main] if own else [],
    }
    return Only("SparseKVOffloadManager", **{**values, **changes})


def configs(num_blocks: int, lic8: bool) -> tuple[KVCacheConfig, KVCacheConfig]:
    """The KV cache configuration of the scheduler and of the workers: one group, whose layers have specs of their own."""
    common = {"block_size": BLOCK, "num_kv_heads": 1}
    specs: dict[str, Any] = {
        n: AscendMLAAttentionSpec(**common, head_size=K_DIM + V_DIM, dtype=torch.bfloat16) for n in MAIN
    }
    dtype = torch.int8 if lic8 else torch.bfloat16
    specs |= {
        n: AscendSFAIndexerCacheSpec(**common, head_size=INDEX_DIM, dtype=dtype, scale_dim=int(lic8)) for n in INDEXER
    }
    one = MLAAttentionSpec(**common, head_size=K_DIM + V_DIM, dtype=torch.bfloat16)
    both = (one, UniformTypeKVCacheSpecs(block_size=BLOCK, kv_cache_specs=specs))
    scheduler, worker = (
        KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(MAIN + INDEXER, spec)])
        for spec in both
    )
    return scheduler, worker


# ---- engines ----
def vllm_config(kv_role: str, extra: dict | None = None, **transfer: Any):
    c = engine.config(kv_role, {"transfer_backend": "local", "use_layerwise": True, **(extra or {})}, **transfer)
    c.device_config = Only("vllm_config.device_config", device_type="npu")
    return c


class Engine(engine.Engine):
    """tp ranks that step as vLLM-Ascend's runner does: the layer's hooks come before, right after and at the end of its writes, and
    the host is ahead of the NPU."""

    def __init__(
        self,
        package: Package,
        npu: Npu,
        kv_role: str,
        num_blocks: int = 32,
        tp: int = 1,
        lic8: bool = False,
        slots: int = 0,
        scale: int = 1,
        extra: dict | None = None,
        tokens: int = 512,
        named: bool = True,
        **transfer: Any,
    ) -> None:
        c = vllm_config(kv_role, extra, **transfer)
        c.parallel_config.tensor_parallel_size = tp
        c.scheduler_config.max_num_batched_tokens = c.scheduler_config.max_num_scheduled_tokens = tokens
        c.cache_config.num_gpu_blocks = num_blocks
        self.config, self.npu, self.prefill, self.named = c, npu, kv_role == "kv_producer", named
        package.offload = Only("SparseKVOffloadConfig", enabled=not self.prefill)
        scheduler, worker = configs(num_blocks, lic8)
        self.scheduler = Scheduler(c, scheduler, StructuredOutputManager(c), BLOCK, hash_block_size=BLOCK, log_stats=True)
        self.connector = self.scheduler.connector
        self.caches = [Caches(num_blocks, lic8, slots, scale) for _ in range(tp)]
        for rank in range(1, tp if not self.prefill else 0):  # one pool
            self.caches[rank].of |= {n: self.caches[0].of[n] for n in MAIN}
        package.managers = [pool_manager(c, r) for r, c in enumerate(self.caches)]
        self.workers = [self._worker(c, worker, rank) for rank in range(tp)]
        self.aggregator = KVOutputAggregator.from_connector(self.connector, tp)
        self.outputs: list[KVConnectorOutput] = []
        self.reports = [Counter() for _ in range(tp)]
        self._hasher = get_request_block_hasher(BLOCK, sha256)

    def _worker(self, config, cache_config: KVCacheConfig, rank: int):
        worker = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, cache_config)
        worker.on_kv_cache_written(MAIN[0])  # profiling, before there are caches
        with engine.ranks(rank):
            worker.register_kv_caches(self.registered(rank))
        worker.on_kv_cache_written("")  # graph capture: no step
        return worker

    def registered(self, rank: int) -> dict[str, Any]:
        """What the runner hands over. On Decode a main layer is (K, V of the NPU, K, V of the pool, two buffers), most of them
        None."""
        of = self.caches[rank].of
        if self.prefill:
            return dict(of)
        pool = {n: (None, None, *(of[n] if rank == 0 else (None, None)), torch.zeros(1), torch.zeros(1)) for n in MAIN}
        return pool | {n: of[n] for n in INDEXER}

    def _run(self, rank: int, out) -> ModelRunnerOutput:
        meta, worker = out.kv_connector_metadata, self.workers[rank]
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        sampled: dict[str, list[int]] = {}
        if out.total_num_scheduled_tokens:
            for layer, name in enumerate(MAIN):
                worker.wait_for_layer_load(name)
                worker.on_kv_cache_written(name if self.named else "")
                for request_id, count in out.num_scheduled_tokens.items():  # the NPU does this later
                    sampled[request_id] = self._write(rank, layer, request_id, count)
                self.npu.run()
                worker.save_kv_layer(name, None, None)
        worker.start_load_kv(None)
        worker.wait_for_save()
        told = self._results(worker, out.finished_req_ids)
        self.reports[rank].update([*(told.finished_sending or ()), *(told.finished_recving or ())])
        worker.clear_connector_metadata()
        return ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={r: i for i, r in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
            kv_connector_output=told,
        )

    @staticmethod
    def _results(worker, finished_req_ids: set[str]) -> KVConnectorOutput:
        if hasattr(worker, "get_transfer_results") and "failed_recving" in KVConnectorOutput.__dataclass_fields__:
            told = KVConnectorOutput(**vars(worker.get_transfer_results(finished_req_ids)))
        else:  # vLLM before 0.32
            sending, recving = worker.get_finished(finished_req_ids)
            told = KVConnectorOutput(finished_sending=sending, finished_recving=recving)
        told.invalid_block_ids = worker.get_block_ids_with_load_errors()
        return told

    def _write(self, rank: int, layer: int, request_id: str, count: int) -> list[int]:
        """Prefill writes all tokens so far: where layers share storage, what came before was brought back before the layer."""
        request, blocks = self.scheduler.requests[request_id], self.blocks(request_id)
        end = request.num_computed_tokens
        for position in range(0 if self.prefill else end - count, end):
            for part, t in enumerate(self.caches[rank].parts(layer)):
                numbers = _numbers(layer, request.all_token_ids[position], position, part, t.shape[-1])
                write(t, blocks[position // BLOCK], position % BLOCK, numbers)
        return [7] if end >= request.num_tokens else []

    def kv_right(self, blocks: list[int], prompt: list[int], rank: int = 0) -> bool:
        return all(
            holds(t, blocks[i // BLOCK], i % BLOCK, _numbers(layer, token, i, part, t.shape[-1]))
            for layer in range(LAYERS)
            for part, t in enumerate(self.caches[rank].parts(layer))
            for i, token in enumerate(prompt)
        )


def block_bytes(lic8: bool) -> tuple[int, int]:
    """Bytes of one block of all layers: main KV, and indexer with its scale."""
    index = INDEX_DIM + 2 if lic8 else INDEX_DIM * 2
    return LAYERS * BLOCK * (K_DIM + V_DIM) * 2, len(INDEXER) * BLOCK * index


def blocks_of(prompt: list[int]) -> int:
    return math.ceil(len(prompt) / BLOCK)


class Pair(engine.Pair):
    def __init__(self, package: Package, npu: Npu, p: dict | None = None, d: dict | None = None) -> None:
        make = lambda kv_role, **options: Engine(package, npu, kv_role, **options)  # noqa: E731
        with mock.patch.object(engine, "Engine", make):
            super().__init__(p, d)
