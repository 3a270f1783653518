# SPDX-License-Identifier: Apache-2.0
"""A live rank of the reference connector: its own thread and protocol code over memory of this process.

    peers.py decode   reads one JSON line of configuration, prints {"ev": "listening"}, then what happens, until stdin closes
    peers.py prefill  reads one JSON line, publishes what its tasks say, prints {"ev": "acked"} a layer, until stdin closes

Memory: every layer has 2 main tensors, an indexer and (scale_bytes > 0) a scale, num_blocks blocks each. Checksums are printed by
block, so that both sides can be compared: {"ev": "sums", "layer/tensor": [crc32 of block 0, ...]}.
"""
from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
import threading
import time
import zlib

import stubs

stubs.install()
from vllm_ascend.distributed.kv_transfer.kv_p2p.sfa_pd_rd2h import protocol, read_thread, send_thread  # noqa: E402
from vllm_ascend.distributed.kv_transfer.utils.memfabric_transfer_engine import MemfabricBackend  # noqa: E402

TENSORS = ("k", "v", "indexer", "scale")
_lock = threading.Lock()


def emit(**kw) -> None:
    with _lock:
        sys.stdout.write(json.dumps(kw) + "\n")
        sys.stdout.flush()


class _LogLines(logging.Handler):
    def emit(self, record):
        emit(ev="log", level=record.levelname, text=record.getMessage())


class Memory:
    """Tensors of all layers; filled with bytes that name their place, or with zeros."""

    def __init__(self, cfg: dict, filled: bool):
        self.blocks = cfg["num_blocks"]
        self.sizes = [n for n in (cfg["k_bytes"], cfg["v_bytes"], cfg.get("indexer_bytes", 0), cfg.get("scale_bytes", 0)) if n]
        self.buffers = {}
        for i in range(cfg["layers"]):
            for t, size in zip(TENSORS, self.sizes):
                raw = ctypes.create_string_buffer(size * self.blocks)
                if filled:
                    for b in range(self.blocks):
                        ctypes.memset(ctypes.addressof(raw) + b * size, (31 * i + 7 * TENSORS.index(t) + 3 * b + 1) & 255, size)
                self.buffers[i, t] = raw

    def base(self, layer: int, tensor: str) -> int:
        return ctypes.addressof(self.buffers[layer, tensor])

    def sums(self) -> dict:
        size = dict(zip(TENSORS, self.sizes))
        return {f"{i}/{t}": [zlib.crc32(raw.raw[b * size[t]:(b + 1) * size[t]]) for b in range(self.blocks)]
                for (i, t), raw in self.buffers.items()}


class _Tensor:
    """What the read thread asks of a tensor."""

    def __init__(self, base, rows, row_bytes):
        self._base, self.shape = base, (rows, row_bytes)

    def data_ptr(self):
        return self._base

    def element_size(self):
        return 1


def layer_name(i: int) -> str:
    return f"model.layers.{i}.self_attn"


def decode(cfg: dict) -> None:
    mem = Memory(cfg, filled=False)
    names = {layer_name(i): i for i in range(cfg["layers"])}

    def optional(tensor, key):
        n = cfg.get(key, 0)
        return [_Tensor(mem.base(i, tensor), mem.blocks, n) if n else None for i in range(cfg["layers"])]

    state = read_thread.ConsumerReadState(
        num_blocks=mem.blocks, tp_size=1, layer_metadata=dict.fromkeys(names), main_name_to_idx=names, cpu_pools=[None] * len(names),
        main_gva_bases=[(mem.base(i, "k"), mem.base(i, "v")) for i in range(cfg["layers"])],
        main_block_lens=[(cfg["k_bytes"], cfg["v_bytes"])] * cfg["layers"], indexer_tensors=optional("indexer", "indexer_bytes"),
        indexer_scale_tensors=optional("scale", "scale_bytes"),
        dest_blocks_by_req={r: tuple(v) for r, v in cfg["requests"].items()}, get_offload_layer_id=lambda n: names[n])
    engine = stubs.Engine(move=cfg.get("move", True), fail=cfg.get("fail", False))
    thread = read_thread.MembPullReadThread(tp_rank=0, side_channel_port=cfg["port"], engine=MemfabricBackend(engine, 0), state=state)
    thread.start()
    thread.ready_event.wait(20)
    if thread.startup_error:
        raise SystemExit(f"reference Decode did not start: {thread.startup_error!r}")
    emit(ev="listening")
    threading.Thread(target=_report, args=(thread,), daemon=True).start()
    for line in sys.stdin:
        if line.strip() == "sums":
            emit(ev="sums", sums=mem.sums(), calls=engine.calls, bytes=engine.bytes)
    os._exit(0)


def _report(thread) -> None:
    while True:
        for ev, ids in (("done", thread.get_and_clear_done()), ("failed", thread.get_and_clear_failed())):
            if ids:
                emit(ev=ev, ids=sorted(map(str, ids)))
        time.sleep(0.005)  # the reference offers no way to wait for it


def _request(port: int, blocks: list, tokens: int):
    fields = dict.fromkeys(("remote_engine_id", "remote_te_rpc_port", "remote_layer_metadata", "metaserver", "remote_tp_size",
                            "remote_pcp_size", "remote_dcp_size"))
    return protocol.SfaPDProducerReqMeta(
        local_block_ids=blocks, token_ids=[], remote_block_ids=[], remote_block_size=[], remote_host="127.0.0.1", remote_port=port,
        chunk_finish=True, local_computed_tokens=tokens, **fields)


def prefill(cfg: dict) -> None:
    mem = Memory(cfg, filled=True)
    meta = {}
    for i in range(cfg["layers"]):
        n = len(mem.sizes)
        meta[layer_name(i)] = protocol.LayerMetadata([0, 0, 1, 1][:n], [mem.base(i, t) for t in TENSORS[:n]], mem.sizes, [1] * n, 2, n > 2)
    state = send_thread.ProducerSendState(
        last_layer_idx=cfg["layers"] - 1, layer_metadata=meta, p_session=f"127.0.0.1:{os.getpid()}", main_group_idx=0,
        indexer_group_idx=1, block_sizes=(16, 16), layer_storage_slots={i: (2 * i, 2 * i + 1) for i in range(cfg["layers"])})
    if hasattr(state, "producer_pp_rank"):
        state.producer_pp_rank, state.producer_pp_size = int(os.environ.get("PP_RANK", "0")), int(os.environ.get("PP_SIZE", "1"))
    ready = threading.Event()
    thread = send_thread.MembPullSendingThread(ready_event=ready, state=state)
    thread.start()
    ready.wait(20)
    if thread.startup_error:
        raise SystemExit(f"reference Prefill did not start: {thread.startup_error!r}")
    requests = {f"{r}-12345678": _request(cfg["port"], blocks, 16 * len(blocks[0])) for r, blocks in cfg["requests"].items()}
    for i in range(cfg["layers"]):
        thread.mark_layer_pending(i)
        thread.send_queue.put(protocol.SendTask(send_request=requests, layer_idx=i, layer_name=layer_name(i)))
    for i in range(cfg["layers"]):
        opened = all(thread.get_storage_send_event(s).wait(20) for s in (2 * i, 2 * i + 1))
        error = next((e for e in map(thread.get_storage_error, (2 * i, 2 * i + 1)) if e is not None), None)
        emit(ev="acked", layer=i, ok=opened and error is None, error=None if error is None else str(error))
    emit(ev="sums", sums=mem.sums())
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    log = logging.getLogger("vllm")
    log.handlers[:] = [_LogLines()]
    log.propagate = False
    {"decode": decode, "prefill": prefill}[sys.argv[1]](json.loads(sys.stdin.readline()))
