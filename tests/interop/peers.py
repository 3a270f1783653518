# SPDX-License-Identifier: Apache-2.0
"""Ranks of the reference connector, each a process: its own threads and protocol code over memory that its starter mapped.

peers.py reads JSON lines: {"socket": path} forks a rank, which connects there and reads and writes JSON lines itself. The package is
imported once, before the forks. A rank's first line is its configuration: role "prefill" or "decode", layers, memory.
"""
from __future__ import annotations

import ctypes
import json
import logging
import mmap
import os
import signal
import socket
import sys
import threading
import time

import stubs

stubs.install()
from vllm_ascend.distributed.kv_transfer.kv_p2p.sfa_pd_rd2h import protocol, read_thread, send_thread  # noqa: E402
from vllm_ascend.distributed.kv_transfer.utils.memfabric_transfer_engine import MemfabricBackend  # noqa: E402

TENSORS = ("k", "v", "indexer", "scale")
WAIT_S = 20


class Line:
    """JSON lines over the socket; anybody may say something."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._file = self._socket.makefile("rw")
        self._lock = threading.Lock()

    def say(self, **what) -> None:
        with self._lock:
            self._file.write(json.dumps(what) + "\n")
            self._file.flush()

    def hear(self) -> dict:
        line = self._file.readline()
        return json.loads(line) if line else {"cmd": "end"}


class LogLines(logging.Handler):
    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def emit(self, record) -> None:
        self._line.say(ev="log", level=record.levelname, text=record.getMessage())


class Memory:
    """The starter's files, mapped here: base addresses and block bytes of tensors."""

    def __init__(self, files: list[dict]) -> None:
        self.base, self.size, self._maps = {}, {}, []
        for file in files:
            with open(file["path"], "r+b") as f:
                self._maps.append(mmap.mmap(f.fileno(), 0))
            address = ctypes.addressof(ctypes.c_char.from_buffer(self._maps[-1]))
            for name, (offset, size) in file["place"].items():
                self.base[name], self.size[name] = address + offset, size


class Tensor:
    """What the read thread asks of a tensor."""

    def __init__(self, base: int, rows: int, row_bytes: int) -> None:
        self._base, self.shape = base, (rows, row_bytes)

    def data_ptr(self) -> int:
        return self._base

    def element_size(self) -> int:
        return 1


def layer_name(i: int) -> str:
    return f"model.layers.{i}.self_attn"


# ---- Decode ----
def decode(cfg: dict, line: Line) -> None:
    memory, names = Memory(cfg["memory"]), {layer_name(i): n for n, i in enumerate(cfg["layers"])}

    def optional(tensor: str) -> list[Tensor | None]:
        keys = [f"{i}/{tensor}" for i in cfg["layers"]]
        return [Tensor(memory.base[k], cfg["blocks"], memory.size[k]) if k in memory.base else None for k in keys]

    state = read_thread.ConsumerReadState(
        num_blocks=cfg["blocks"], tp_size=cfg["tp_size"], layer_metadata=dict.fromkeys(names), main_name_to_idx=names,
        cpu_pools=[None] * len(names), main_gva_bases=[(memory.base[f"{i}/k"], memory.base[f"{i}/v"]) for i in cfg["layers"]],
        main_block_lens=[(memory.size[f"{i}/k"], memory.size[f"{i}/v"]) for i in cfg["layers"]], indexer_tensors=optional("indexer"),
        indexer_scale_tensors=optional("scale"), dest_blocks_by_req={}, get_offload_layer_id=lambda name: names[name])
    engine = stubs.Engine(move=cfg["move"], fail_on=cfg["fail_on"])
    thread = read_thread.MembPullReadThread(tp_rank=cfg["tp_rank"], side_channel_port=cfg["port"], engine=MemfabricBackend(engine, 0),
                                            state=state)
    thread.start()
    thread.ready_event.wait(WAIT_S)
    line.say(ev="listening", error=repr(thread.startup_error) if thread.startup_error else None)
    threading.Thread(target=report, args=(thread, line), daemon=True).start()
    while (what := line.hear())["cmd"] != "end":
        if what["cmd"] == "install":
            state.dest_blocks_by_req.update({ext: tuple(blocks) for ext, blocks in what["requests"].items()})
        line.say(ev=what["cmd"], calls=engine.calls, bytes=engine.bytes)


def report(thread, line: Line) -> None:
    while True:
        for ev, ids in (("done", thread.get_and_clear_done()), ("failed", thread.get_and_clear_failed())):
            for ext in ids:
                line.say(ev=ev, id=str(ext))
        time.sleep(0.002)  # the reference offers no way to wait for it


# ---- Prefill ----
def request_of(fields: dict):
    unused = dict.fromkeys(("remote_engine_id", "remote_te_rpc_port", "remote_layer_metadata", "metaserver", "remote_tp_size",
                            "remote_pcp_size", "remote_dcp_size"))
    return protocol.SfaPDProducerReqMeta(token_ids=[], remote_block_ids=[], remote_block_size=[], remote_host="127.0.0.1",
                                         **fields, **unused)


def layer_metadata(cfg: dict, memory: Memory) -> dict:
    meta = {}
    for i in cfg["layers"]:
        have = [t for t in TENSORS if f"{i}/{t}" in memory.base]
        bases, sizes = [memory.base[f"{i}/{t}"] + cfg["shift"] for t in have], [memory.size[f"{i}/{t}"] for t in have]
        meta[layer_name(i)] = protocol.LayerMetadata([0, 0, 1, 1][:len(have)], bases, sizes, [1] * len(have), 2, len(have) > 2)
    return meta


def prefill(cfg: dict, line: Line) -> None:
    memory = Memory(cfg["memory"])
    slots = {i: (2 * n, 2 * n + 1) for n, i in enumerate(cfg["layers"])}
    state = send_thread.ProducerSendState(
        last_layer_idx=cfg["layers"][-1], layer_metadata=layer_metadata(cfg, memory), p_session=f"127.0.0.1:{os.getpid()}",
        main_group_idx=0, indexer_group_idx=cfg["groups"] - 1, block_sizes=(cfg["block_tokens"],) * cfg["groups"],
        layer_storage_slots=slots)
    if hasattr(state, "producer_pp_rank"):
        state.producer_pp_rank, state.producer_pp_size = cfg["pp_rank"], cfg["pp_size"]
    ready = threading.Event()
    thread = send_thread.MembPullSendingThread(ready_event=ready, state=state)
    thread.start()
    ready.wait(WAIT_S)
    line.say(ev="listening", error=repr(thread.startup_error) if thread.startup_error else None)
    while (what := line.hear())["cmd"] != "end":
        requests = {r: request_of(fields) for r, fields in what["requests"].items()}
        for i in cfg["layers"]:
            thread.mark_layer_pending(i)
            thread.send_queue.put(protocol.SendTask(send_request=requests, layer_idx=i, layer_name=layer_name(i)))
        line.say(ev="step", errors={str(i): wait_layer(thread, slots[i]) for i in cfg["layers"]})


def wait_layer(thread, slots: tuple[int, int]) -> str | None:
    """What the forward would be told: nothing, the reader's text, or that no answer came."""
    opened = all(thread.get_storage_send_event(s).wait(WAIT_S) for s in slots)
    errors = [e for e in map(thread.get_storage_error, slots) if e is not None]
    return str(errors[0]) if errors else None if opened else f"no answer in {WAIT_S} s"


# ---- processes ----
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def rank(path: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # one that was stopped must not stay when all others end
    line = Line(path)
    log = logging.getLogger("vllm")
    log.handlers[:] = [LogLines(line)]
    log.propagate = False
    cfg = line.hear()
    {"decode": decode, "prefill": prefill}[cfg["role"]](cfg, line)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(json.dumps({"ev": "ready"}), flush=True)
    for text in sys.stdin:
        pid = os.fork()
        if not pid:
            try:
                os.close(0)
                rank(json.loads(text)["socket"])
            finally:
                os._exit(0)
        print(json.dumps({"pid": pid}), flush=True)


if __name__ == "__main__":
    main()
