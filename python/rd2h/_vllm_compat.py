# SPDX-License-Identifier: Apache-2.0
"""Whether this vLLM is one that the adapters know: tested is 0.32. Whatever they rely on is compared at construction, so that
another vLLM is refused with the name of what differs, instead of failing in the middle of a request."""

from __future__ import annotations

import dataclasses
import inspect

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput

TESTED = "0.32"
logger = init_logger("vllm.rd2h")


@dataclasses.dataclass
class _TransferResults:
    """Of vLLM before 0.32, which asks for completions and for failures in two calls and knows failures by block only."""

    finished_sending: set[str] = dataclasses.field(default_factory=set)
    finished_recving: set[str] = dataclasses.field(default_factory=set)
    failed_recving: set[str] = dataclasses.field(default_factory=set)


KVConnectorTransferResults = getattr(base, "KVConnectorTransferResults", _TransferResults)
HIT_SOURCE = getattr(getattr(base, "CacheHitSource", None), "P2P", None)
FAILS_BY_REQUEST = KVConnectorTransferResults is not _TransferResults

# Hooks that the adapters implement, with the parameters they are called with.
HOOKS = {
    "__init__": ("vllm_config", "role", "kv_cache_config"),
    "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
    "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
    "build_connector_meta": ("scheduler_output",),
    "update_connector_output": ("connector_output",),
    "request_finished": ("request", "block_ids"),
    "get_loaded_kv_cache_group_ids": ("request",),
    "has_pending_block_frees": (),
    "register_kv_caches": ("kv_caches",),
    "bind_connector_metadata": ("connector_metadata",),
    "handle_preemptions": ("kv_connector_metadata",),
    "start_load_kv": ("forward_context", "kwargs"),
    "wait_for_layer_load": ("layer_name",),
    "save_kv_layer": ("layer_name", "kv_layer", "attn_metadata", "kwargs"),
    "wait_for_save": (),
    "get_transfer_results": ("finished_req_ids",),
    "get_kv_connector_stats": (),
    "shutdown": (),
}
SINCE_032 = {"get_loaded_kv_cache_group_ids", "has_pending_block_frees", "get_transfer_results"}
# Fields of vLLM's data that are read.
FIELDS = {
    KVConnectorTransferResults: ("finished_sending", "finished_recving", "failed_recving"),
    KVConnectorOutput: ("finished_sending", "finished_recving", "failed_recving" if FAILS_BY_REQUEST else "invalid_block_ids"),
    SchedulerOutput: (
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "num_scheduled_tokens",
        "scheduled_spec_decode_tokens",
        "preempted_req_ids",
        "finished_req_ids",
    ),
    NewRequestData: ("req_id", "block_ids", "num_computed_tokens"),
    CachedRequestData: ("req_ids", "resumed_req_ids", "new_block_ids", "num_computed_tokens"),
    KVCacheConfig: ("num_blocks", "kv_cache_groups"),
    KVCacheGroupSpec: ("layer_names", "kv_cache_spec"),
}


def parameters(function) -> tuple[str, ...]:
    return tuple(p for p in inspect.signature(function).parameters if p != "self")


def differences() -> list[str]:
    """What this vLLM has otherwise than the adapters need it, one text each."""
    found = []
    for name, want in HOOKS.items():
        hook = getattr(KVConnectorBase_V1, name, None)
        if hook is None and name in SINCE_032 and not FAILS_BY_REQUEST:
            continue
        if hook is None:
            found.append(f"hook {name} is missing")
        elif parameters(hook) != want:
            found.append(f"hook {name} takes ({', '.join(parameters(hook))}), not ({', '.join(want)})")
    if parameters(SupportsHMA.request_finished_all_groups) != ("request", "block_ids"):
        found.append("hook request_finished_all_groups takes " + str(parameters(SupportsHMA.request_finished_all_groups)))
    if not hasattr(KVCacheBlocks, "get_block_ids"):
        found.append("KVCacheBlocks.get_block_ids is missing")
    for cls, names in FIELDS.items():
        have = {f.name for f in dataclasses.fields(cls)}
        found += [f"{cls.__name__}.{n} is missing" for n in names if n not in have]
    return found


def check() -> None:
    """Raises RuntimeError, one line, when this vLLM cannot be served; warns when its version was not tested."""
    found = differences()
    if found:
        raise RuntimeError(
            f"rd2h serves vLLM {TESTED}, and 0.26 and 0.29 under vLLM-Ascend; this is vLLM {vllm.__version__}: "
            f"{'; '.join(found)}"
        )
    if not vllm.__version__.startswith(TESTED + "."):
        logger.warning("rd2h was tested with vLLM %s; this is %s: its hooks have the known form", TESTED, vllm.__version__)


def check_groups(prefill: bool, groups: int) -> None:
    """Raises ValueError when failed loads could not be told: vLLM before 0.32 knows them by block, with one group only."""
    if not prefill and groups > 1 and not FAILS_BY_REQUEST:
        raise ValueError(
            f"the model has {groups} KV cache groups on Decode, and vLLM {vllm.__version__} can be told of a failed load with one "
            "group only: vLLM 0.32 is needed"
        )
