# SPDX-License-Identifier: Apache-2.0
"""vLLM-Ascend: what its configuration, its SparseKVOffloadManager and its devices say, as the flat values that the C library takes.
Every attribute that is read here stands in ``rd2h._ascend_names`` with the versions it was read from.

Prefill has regular paged caches in NPU memory. On Decode, main KV lies in a pool of host memory that the manager owns: TP rank 0
allocates it, every rank has its addresses and pulls a share of its own; indexers and their scales lie in each rank's NPU memory."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from rd2h import _ascend_names, core

NPU = "npu"
CONFIG = "vllm_ascend.ascend_config"
MANAGER = "vllm_ascend.distributed.kv_transfer.sparse_kv_offload.sparse_kv_offload_manager"
SPECS = ("AscendMLAAttentionSpec", "AscendSFAIndexerCacheSpec")


def active(vllm_config) -> bool:
    return getattr(vllm_config.device_config, "device_type", None) == NPU


def _complete(thing: Any, of: str) -> Any:
    """The object itself. Raises RuntimeError when it lacks what every known version of it has."""
    missing = [
        n.name for n in _ascend_names.OBJECTS if n.of == of and n.versions == _ascend_names.BOTH and not hasattr(thing, n.name)
    ]
    if missing:
        raise RuntimeError(f"{of} has no {', '.join(missing)}: rd2h knows vLLM-Ascend {' and '.join(_ascend_names.BOTH)}")
    return thing


# ---- configuration ----
def offload_config(vllm_config) -> Any:
    config = _complete(importlib.import_module(CONFIG), CONFIG)
    config.init_ascend_config(vllm_config)  # does nothing when it is done already
    return _complete(config.get_ascend_config().sparse_kv_offload_config, "SparseKVOffloadConfig")


def check(vllm_config, prefill: bool) -> None:
    """Raises ValueError, one line, for a role and sparse_kv_offload_config that do not go together, and for what is not served."""
    offload = offload_config(vllm_config)
    if prefill and offload.enabled:
        raise ValueError(
            "sparse_kv_offload_config.enabled is true on Prefill (kv_producer): its KV must lie in NPU memory, where Decode reads "
            "it; set it on Decode only"
        )
    if not prefill and not offload.enabled:
        raise ValueError(
            "sparse_kv_offload_config.enabled is false on Decode (kv_consumer): the pool of host memory that KV is pulled into is "
            "SparseKVOffloadManager's; set it to true in additional_config"
        )
    if getattr(offload, "fused_op_type", "none") != "none":
        raise ValueError(
            f"sparse_kv_offload_config.fused_op_type is {offload.fused_op_type!r}: fused copy-SFA keeps the end of a prompt in NPU "
            'memory of its own, which is not served; set it to "none"'
        )
    speculative = getattr(vllm_config, "speculative_config", None)
    if getattr(speculative, "method", None) == "dspark":
        raise ValueError(
            'speculative_config.method is "dspark": the KV of a DSpark draft model would have to be pulled too, which is not served; '
            "choose another method"
        )


def serves_spec(spec) -> bool:
    return type(spec).__name__ in SPECS and type(spec).__module__.split(".")[0] == "vllm_ascend"


def default_host() -> str:
    """Where other machines reach this one, as vLLM finds it (VLLM_HOST_IP, or the address of the default route)."""
    from vllm.utils.network_utils import get_ip

    return get_ip()


# ---- device ----
def device() -> str:
    """The worker's NPU as rd2h/device.h names it."""
    return f"ascend,id={torch.npu.current_device()}"


def stream() -> int:
    """Address of the stream that the layer is being computed on."""
    return torch.npu.current_stream().npu_stream


# ---- Decode's destinations ----
def _manager() -> Any:
    manager = importlib.import_module(MANAGER).get_sparse_kv_offload_manager()
    if not hasattr(manager, "offload_layer_names"):
        raise RuntimeError("SparseKVOffloadManager has no layers yet: its register_kv_caches must come before the connector's")
    return _complete(manager, "SparseKVOffloadManager")


def _same_length(manager, names: list[str]) -> None:
    for attribute in ("gvas_k_bases", "gvas_v_bases", "cpu_block_lens"):
        have = len(getattr(manager, attribute))
        if have != len(names):
            raise RuntimeError(f"SparseKVOffloadManager: {attribute} has {have} entries for {len(names)} layers")


def _owned(manager, place: int, num_blocks: int, name: str) -> None:
    """TP rank 0 holds the pool's tensors: they and the addresses that the other ranks go by must be the same memory."""
    bases, lengths = (manager.gvas_k_bases[place], manager.gvas_v_bases[place]), manager.cpu_block_lens[place]
    for part, caches, base, length in zip("KV", (manager.k_caches_cpu, manager.v_caches_cpu), bases, lengths):
        t = caches[place]
        if t.data_ptr() != base or t.nbytes != length * num_blocks:
            raise RuntimeError(
                f"SparseKVOffloadManager: {part} of {name} is {t.nbytes} bytes at {t.data_ptr():#x}, but {num_blocks} blocks of "
                f"{length} bytes at {base:#x} are announced"
            )


def pool_tensors(num_blocks: int, main_group: int, tp_rank: int) -> list[core.KvTensor]:
    """Main KV of every layer in the manager's pool, K and V, by the addresses that all ranks share."""
    manager = _manager()
    names = list(manager.offload_layer_names)
    _same_length(manager, names)
    found = []
    for name in names:
        place = manager._get_offload_layer_id(name)
        if tp_rank == 0:
            _owned(manager, place, num_blocks, name)
        bases = manager.gvas_k_bases[place], manager.gvas_v_bases[place]
        found += [
            core.KvTensor(name, main_group, int(base), int(length), num_blocks)
            for base, length in zip(bases, manager.cpu_block_lens[place])
        ]
    return found


def indexers(kv_caches: dict[str, Any]) -> dict[str, Any]:
    """What of Decode's caches is pulled into NPU memory."""
    return {name: cache for name, cache in kv_caches.items() if "indexer" in name.lower()}
