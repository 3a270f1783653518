# SPDX-License-Identifier: Apache-2.0
"""What vLLM's configuration and KV tensors say, as the flat values that the C library takes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rd2h import _ascend, _vllm_options, core
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs


@dataclass(frozen=True)
class Engine:
    """One vLLM engine: role, options and sizes. Everything in it is the same in the scheduler and in every worker."""

    prefill: bool
    options: dict[str, Any]
    engine_id: str
    kv_port: int
    dp_rank: int
    tp_size: int
    pp_size: int
    num_blocks: int
    block_sizes: tuple[int, ...]
    main_group: int
    indexer_group: int
    groups: tuple[tuple[str, ...], ...]  # layer names by KV cache group
    specs: dict[str, Any]  # layer name -> its KV cache spec
    total_kv_heads: int  # 0: the KV is not sharded by heads
    ascend: bool  # vLLM-Ascend: KV is written by streams of an NPU, Decode's main KV lies in SparseKVOffloadManager's pool


def _role(kv_role: str | None) -> bool:
    roles = {"kv_producer": True, "kv_consumer": False}
    if kv_role not in roles:
        raise ValueError(f"kv_role is {kv_role!r}: SfaRemoteD2HConnector needs kv_producer (Prefill) or kv_consumer (Decode)")
    return roles[kv_role]


def _layer_specs(group) -> dict[str, Any]:
    spec = group.kv_cache_spec
    return dict(spec.kv_cache_specs) if isinstance(spec, UniformTypeKVCacheSpecs) else dict.fromkeys(group.layer_names, spec)


def _check_groups(groups) -> dict[str, Any]:
    """Layer name -> spec of all groups; only full attention and MLA caches can be pulled block by block."""
    if not groups:
        raise ValueError("the model has no KV cache: there is nothing to transfer")
    if len(groups) > 2:
        names = "; ".join(f"{g.layer_names[0]} and {len(g.layer_names) - 1} more" for g in groups)
        raise ValueError(
            f"the model has {len(groups)} KV cache groups ({names}): main and indexer groups are served, no third one"
        )
    specs: dict[str, Any] = {}
    for group in groups:
        specs.update(_layer_specs(group))
    for name, spec in specs.items():
        if type(spec) not in (FullAttentionSpec, MLAAttentionSpec) and not _ascend.serves_spec(spec):
            raise ValueError(f"{name} has a {type(spec).__name__}: only full attention and MLA caches are served")
    return specs


def _check_parallel(parallel, prefill: bool) -> None:
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise ValueError(f"{name} is {getattr(parallel, name)}: context parallelism is not served, set it to 1")
    if not prefill and parallel.pipeline_parallel_size > 1:
        raise ValueError(f"pipeline_parallel_size is {parallel.pipeline_parallel_size} on Decode: only Prefill may have stages")


def engine(vllm_config, kv_cache_config) -> Engine:
    """Raises ValueError or Rd2hError, one line, for a configuration that cannot be served."""
    transfer, parallel = vllm_config.kv_transfer_config, vllm_config.parallel_config
    prefill = _role(transfer.kv_role)
    ascend, extra = _ascend.active(vllm_config), dict(transfer.kv_connector_extra_config or {})
    if ascend:
        _ascend.check(vllm_config, prefill)
        extra.setdefault("host", _ascend.default_host())
    options = _vllm_options.read(extra)
    if not options["use_layerwise"]:
        raise ValueError("kv_connector_extra_config: use_layerwise is false; KV goes layer by layer only, set it to true")
    if os.environ.get("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "0").lower() in ("1", "true"):
        raise ValueError(
            "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION is set: two requests with one X-Request-Id would be one; unset it"
        )
    _check_parallel(parallel, prefill)
    groups = kv_cache_config.kv_cache_groups
    specs = _check_groups(groups)
    names = tuple(tuple(g.layer_names) for g in groups)
    main_group, indexer_group = core.layout_groups(names)
    dp_rank = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
    core.rank_port(transfer.kv_port, dp_rank, 0, parallel.tensor_parallel_size)
    sharded = not vllm_config.model_config.use_mla
    return Engine(
        prefill=prefill,
        options=options,
        engine_id=transfer.engine_id,
        kv_port=transfer.kv_port,
        dp_rank=dp_rank,
        tp_size=parallel.tensor_parallel_size,
        pp_size=parallel.pipeline_parallel_size,
        num_blocks=kv_cache_config.num_blocks,
        block_sizes=tuple(g.kv_cache_spec.block_size for g in groups),
        main_group=main_group,
        indexer_group=indexer_group,
        groups=names,
        specs=specs,
        total_kv_heads=vllm_config.model_config.get_total_num_kv_heads() if sharded else 0,
        ascend=ascend,
    )


def heads(e: Engine, tp_rank: int) -> tuple[int, int, int]:
    """(first, count, total) attention heads of this rank's main tensors; total 0 when every rank holds them all."""
    if not e.total_kv_heads:
        return 0, 0, 0
    count = max(1, e.total_kv_heads // e.tp_size)
    return tp_rank * e.total_kv_heads // e.tp_size, count, e.total_kv_heads


def _planes(name: str, cache, num_blocks: int) -> list[torch.Tensor]:
    """The tensors of one layer, rows of blocks first: one, or K and V."""
    parts = list(cache) if isinstance(cache, (list, tuple)) else [cache]
    if (
        len(parts) == 1
        and parts[0].dim() > 1
        and parts[0].shape[0] == 2
        and num_blocks != 2
        and parts[0].shape[1] % num_blocks == 0
    ):
        parts = list(parts[0].unbind(0))  # K and V one after the other
    for t in parts:
        what = f"{name}: KV tensor of shape {tuple(t.shape)}, strides {t.stride()}, {t.dtype}"
        if t.numel() == 0 or t.shape[0] % num_blocks:
            raise ValueError(f"{what}: its first dimension is no multiple of the {num_blocks} blocks")
        if not t.is_contiguous():
            raise ValueError(f"{what} is not contiguous (padded, or interleaved with other layers): its blocks cannot be pulled")
    return parts


def in_pool(e: Engine) -> bool:
    """Whether main KV lies in a pool that the ranks of this engine share."""
    return e.ascend and not e.prefill


def pool(e: Engine, tp_rank: int) -> list[core.KvTensor]:
    """Main KV where it lies in such a pool."""
    return _ascend.pool_tensors(e.num_blocks, e.main_group, tp_rank) if in_pool(e) else []


def tensors(e: Engine, kv_caches: dict[str, Any]) -> list[core.KvTensor]:
    """The registered KV tensors in the order of `kv_caches`. Raises ValueError naming layer, shape and what does not fit."""
    group_of = {name: g for g, names in enumerate(e.groups) for name in names}
    found = []
    for name, cache in kv_caches.items():
        if name not in group_of:
            raise ValueError(f"{name}: a KV tensor that belongs to no KV cache group")
        parts = _planes(name, cache, e.num_blocks)
        held = sum(t.nbytes for t in parts)
        page = e.specs[name].page_size_bytes
        if held != page * e.num_blocks:
            shapes = ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in parts)
            raise ValueError(
                f"{name}: KV of shape {shapes} has {held} bytes; {e.num_blocks} blocks of {page} bytes are "
                f"{page * e.num_blocks} (a padded or quantised layout that is not served)"
            )
        found += [core.KvTensor(name, group_of[name], t.data_ptr(), t.nbytes // t.shape[0], t.shape[0]) for t in parts]
    return found


def memory(kv_caches: dict[str, Any], in_pool: Sequence[core.KvTensor] = ()) -> list[tuple[int, int]]:
    """The storage areas (address, bytes) that hold the tensors, each once."""
    areas = {t.base: t.row_bytes * t.rows for t in in_pool}
    for cache in kv_caches.values():
        for t in cache if isinstance(cache, (list, tuple)) else [cache]:
            s = t.untyped_storage()
            areas[s.data_ptr()] = max(s.nbytes(), areas.get(s.data_ptr(), 0))
    return sorted(areas.items())


def fingerprint(e: Engine, kv_caches: dict[str, Any]) -> str:
    """What must be equal on both sides and byte counts cannot tell: element type and shape of a main block. Indexers are left
    out: a pipeline stage may have none."""
    kinds = set()
    if e.ascend:  # Decode's main tensors are no tensors on every rank: what both sides have is the spec
        kinds = {
            f"{s.block_size} {s.dtype} {s.num_kv_heads} {s.head_size}" for n, s in e.specs.items() if "indexer" not in n.lower()
        }
        kv_caches = {}
    for name, cache in kv_caches.items():
        if "indexer" not in name.lower():
            for t in _planes(name, cache, e.num_blocks):
                kinds.add(f"{e.specs[name].block_size} {t.dtype} {(t.shape[0] // e.num_blocks, *t.shape[1:])}")
    return "vllm-1:" + hashlib.sha256("\n".join(sorted(kinds)).encode()).hexdigest()[:32]
