# SPDX-License-Identifier: Apache-2.0
"""Where rd2h and vLLM-Ascend touch, name by name, with the versions each was read from: what vLLM-Ascend calls on or reads from its
connector, which options a deployment of it writes, and what the adapter reads of its objects. The documentation and the tests come
from here. Run ``python -m rd2h._ascend_names`` to print the tables."""

from __future__ import annotations

from dataclasses import dataclass

BOTH = ("0.26.0rc1", "0.29.0rc1")
NEW = ("0.29.0rc1",)
NEXT = ("0.30.0rc2",)


@dataclass(frozen=True)
class Name:
    """One attribute: whose it is, what it is called, who uses it for what, and the versions that it was read from. parameters: of a
    method, without self."""

    of: str
    name: str
    use: str
    versions: tuple[str, ...]
    parameters: tuple[str, ...] | None = None


def _connector(name: str, use: str, *parameters: str, versions: tuple[str, ...] = BOTH, method: bool = True) -> Name:
    return Name("connector", name, use, versions, parameters if method else None)


def _value(name: str, use: str, versions: tuple[str, ...] = BOTH) -> Name:
    return _connector(name, use, versions=versions, method=False)


# Hooks of vLLM's own interface are in it too: they are called by vLLM-Ascend's runner, schedulers and AscendMultiConnector.
CONNECTOR = (
    _value("supports_layerwise_buffer_reuse", "AscendMultiConnector: whether this child says when a storage slot may be used again"),
    _value("is_producer", "AscendMultiConnector: only children on Prefill say so"),
    _value("is_consumer", "the connector's role, as the reference has it"),
    _value("kv_role", "the connector's role, as the reference has it"),
    _value("engine_id", "the engine's id, as the reference has it"),
    _value("use_layerwise", "as the reference has it; always true"),
    _value("connector_worker", "AscendMultiConnector: not None in a worker"),
    _value("connector_scheduler", "not None in the scheduler"),
    _value("requires_full_blocks_on_update_after_alloc", "AscendMultiConnector: this child sees the whole block table"),
    _connector("wait_for_layer_reuse", "AscendStore, through AscendMultiConnector: before the n-th layer of the stage", "stage_layer"),
    _connector("wait_for_layer_send", "before a layer, by its number in the model or by name", "layer"),
    _connector("wait_for_layer_load", "attention, before the layer is written", "layer_name"),
    _connector("on_kv_cache_written", "attention, after the layer was written; without a name: the current layer", "layer_name"),
    _connector("save_kv_layer", "attention, at the end of the layer", "layer_name", "kv_layer", "attn_metadata", "kwargs"),
    _connector("has_connector_metadata", "attention: whether the step has a connector's part"),
    _connector("bind_connector_metadata", "runner, at the beginning of a step", "connector_metadata"),
    _connector("clear_connector_metadata", "runner, at the end of a step"),
    _connector("register_kv_caches", "runner, once the caches are there", "kv_caches"),
    _connector("handle_preemptions", "runner, before blocks are taken away", "kv_connector_metadata"),
    _connector("start_load_kv", "runner", "forward_context", "kwargs"),
    _connector("wait_for_save", "runner"),
    _connector("get_finished", "runner: requests that have ended on this rank", "finished_req_ids"),
    _connector("get_block_ids_with_load_errors", "runner: blocks whose KV did not come"),
    _connector("get_kv_connector_stats", "runner and scheduler"),
    _connector("get_kv_connector_kv_cache_events", "runner"),
    _connector("build_connector_worker_meta", "runner"),
    _connector("get_handshake_metadata", "worker: None, there is no handshake"),
    _connector("get_num_cpu_blocks", "Decode: blocks of main KV in the pool, by request", "req_ids"),
    _connector("get_num_new_matched_tokens", "schedulers", "request", "num_computed_tokens"),
    _connector("update_state_after_alloc", "schedulers", "request", "blocks", "num_external_tokens"),
    _connector("build_connector_meta", "schedulers", "scheduler_output"),
    _connector("update_connector_output", "schedulers", "connector_output"),
    _connector("request_finished", "schedulers", "request", "block_ids"),
    _connector("request_finished_all_groups", "schedulers, AscendMultiConnector", "request", "block_ids"),
    _connector("take_events", "schedulers"),
    _connector("shutdown", "worker and scheduler, at the end"),
    _connector("close", "as shutdown"),
)

OPTIONS = (
    Name("option", "transfer_backend", '"memfabric" in deployments of the reference', BOTH),
    Name("option", "use_layerwise", "true", BOTH),
    Name("option", "memfabric_transfer_protocol", "sdma, device_rdma, device_urma", NEW),
)

OBJECTS = (
    Name("vllm_config.device_config", "device_type", '"npu": this is vLLM-Ascend', BOTH),
    Name("vllm_ascend.ascend_config", "init_ascend_config", "called before the configuration is read", BOTH, ("vllm_config",)),
    Name("vllm_ascend.ascend_config", "get_ascend_config", "its sparse_kv_offload_config", BOTH, ()),
    Name("SparseKVOffloadConfig", "enabled", "must be true on Decode and false on Prefill", BOTH),
    Name("SparseKVOffloadConfig", "fused_op_type", '"fused_copy_sfa" is refused', NEXT),
    Name("vllm_config.speculative_config", "method", '"dspark" is refused', NEXT),
    Name("sparse_kv_offload_manager", "get_sparse_kv_offload_manager", "the manager of this process", BOTH, ()),
    Name("SparseKVOffloadManager", "offload_layer_names", "layers whose main KV lies in the pool, in its order", BOTH),
    Name("SparseKVOffloadManager", "_get_offload_layer_id", "a layer's place in the lists below", BOTH, ("layer_name",)),
    Name("SparseKVOffloadManager", "gvas_k_bases", "address of the first K block, by layer: on every TP rank", BOTH),
    Name("SparseKVOffloadManager", "gvas_v_bases", "the same of V", BOTH),
    Name("SparseKVOffloadManager", "cpu_block_lens", "bytes of a block, K and V, by layer", BOTH),
    Name("SparseKVOffloadManager", "k_caches_cpu", "TP rank 0 owns the pool: its tensors must be what the addresses say", BOTH),
    Name("SparseKVOffloadManager", "v_caches_cpu", "the same of V", BOTH),
    Name("vllm_ascend.core.kv_cache_interface", "AscendMLAAttentionSpec", "spec of a main cache", BOTH),
    Name("vllm_ascend.core.kv_cache_interface", "AscendSFAIndexerCacheSpec", "spec of an indexer and its scale", BOTH),
    Name("torch.npu", "current_device", "the worker's NPU, for the threads of the library", BOTH, ()),
    Name("torch.npu", "current_stream", "its npu_stream: where a layer's event is recorded", BOTH, ()),
)


def tables() -> str:
    """The three tables as Markdown."""
    out = ["| of the connector | used by | read from |", "|---|---|---|"]
    for n in CONNECTOR:
        shown = n.name if n.parameters is None else f"{n.name}({', '.join(n.parameters)})"
        out.append(f"| `{shown}` | {n.use} | {', '.join(n.versions)} |")
    out += ["", "| option | written by deployments | read from |", "|---|---|---|"]
    out += [f"| `{n.name}` | {n.use} | {', '.join(n.versions)} |" for n in OPTIONS]
    out += ["", "| object | attribute | what the adapter takes it for | read from |", "|---|---|---|---|"]
    out += [f"| `{n.of}` | `{n.name}` | {n.use} | {', '.join(n.versions)} |" for n in OBJECTS]
    return "\n".join(out)


if __name__ == "__main__":
    print(tables())
