# SPDX-License-Identifier: Apache-2.0
"""One rank of the reference connector (package vllm-ascend, unmodified, at $REFERENCE_SRC) over its own MemFabric engine.

reference.py decode | prefill PORT. Its peer is ours.c: the same layers, the same request, the same contents. The one thing changed is
outside of it: the library's default protocol, which needs an NPU, becomes RDMA between hosts.
"""
from __future__ import annotations

import ctypes
import json
import os
import random
import socket
import sys
import threading
import time
from pathlib import Path

import memfabric_hybrid

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "interop"))
import stubs  # noqa: E402

stubs.install()
sys.modules["memfabric_hybrid"] = memfabric_hybrid  # the stubs have one that copies memory
from vllm_ascend.distributed.kv_transfer.kv_p2p.sfa_pd_rd2h import protocol, read_thread, send_thread  # noqa: E402
from vllm_ascend.distributed.kv_transfer.utils import memfabric_transfer_engine as transfer  # noqa: E402

LAYERS, BLOCKS, WAIT_S, CANARY, WRITE = 3, 32, 20, 0xEE, 1
BYTES = (256, 128, 64, 8)  # of a block: K, V, indexer, scale
SOURCE, TARGET = [1 + 2 * i for i in range(6)], [4 + 2 * i for i in range(6)]
NAMES = [f"model.layers.{i}.self_attn.attn" for i in range(LAYERS)]
EXTERNAL, INTERNAL = "moved", "moved-12345678"


def stamp(layer: int, tensor: int, block: int) -> bytes:
    base = (layer * 31 + tensor) * 1009 + block * 17 + WRITE * 131071
    return bytes((x ^ x >> 8 ^ x >> 16) & 255 for x in (base + 7 * i for i in range(BYTES[tensor])))


class Memory:
    def __init__(self, filled: bool) -> None:
        size = BLOCKS * sum(BYTES)
        self.bytes = LAYERS * size
        self.buffer = ctypes.create_string_buffer(bytes([CANARY]) * self.bytes, self.bytes)
        start = ctypes.addressof(self.buffer)
        self.base = {(i, t): start + i * size + BLOCKS * sum(BYTES[:t]) for i in range(LAYERS) for t in range(4)}
        for (i, t), at in self.base.items():
            for b in range(BLOCKS if filled else 0):
                ctypes.memmove(at + b * BYTES[t], stamp(i, t, b), BYTES[t])

    def wrong(self) -> int:
        """Blocks that do not hold what they should: their source's bytes, or what was there before."""
        place = dict(zip(TARGET, SOURCE))
        return sum(ctypes.string_at(at + b * BYTES[t], BYTES[t]) !=
                   (stamp(i, t, place[b]) if b in place else bytes([CANARY]) * BYTES[t])
                   for (i, t), at in self.base.items() for b in range(BLOCKS))


class Tensor:
    """What the read thread asks of a tensor."""

    def __init__(self, base: int, row_bytes: int) -> None:
        self._base, self.shape = base, (BLOCKS, row_bytes)

    def data_ptr(self) -> int:
        return self._base

    def element_size(self) -> int:
        return 1


class HostEngine(memfabric_hybrid.TransferEngine):
    def initialize(self, *args, **kw):
        nic = f"tcp://127.0.0.1:{random.randrange(12000, 32000)}"
        return super().initialize(*args, data_op_type=memfabric_hybrid.TransDataOpType.HOST_RDMA, nic=nic, **kw)


def own_engine(role: str):
    memfabric_hybrid.TransferEngine = HostEngine
    te = transfer.global_memfabric_te
    te.configure(role=role, device_id=0)
    return te, te.get_transfer_engine("127.0.0.1")


def say(**what) -> None:
    print(json.dumps(what), flush=True)


def decode() -> None:
    memory, (_, engine) = Memory(False), own_engine(transfer.MEMFABRIC_ROLE_DECODE)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    state = read_thread.ConsumerReadState(
        num_blocks=BLOCKS, tp_size=1, layer_metadata=dict.fromkeys(NAMES), main_name_to_idx={n: i for i, n in enumerate(NAMES)},
        cpu_pools=[None] * LAYERS, main_gva_bases=[(memory.base[i, 0], memory.base[i, 1]) for i in range(LAYERS)],
        main_block_lens=[BYTES[:2]] * LAYERS, indexer_tensors=[Tensor(memory.base[i, 2], BYTES[2]) for i in range(LAYERS)],
        indexer_scale_tensors=[Tensor(memory.base[i, 3], BYTES[3]) for i in range(LAYERS)],
        dest_blocks_by_req={EXTERNAL: (TARGET, TARGET)}, get_offload_layer_id=NAMES.index)
    thread = read_thread.MembPullReadThread(tp_rank=0, side_channel_port=port, engine=engine, state=state)
    thread.start()
    thread.ready_event.wait(WAIT_S)
    assert not thread.startup_error, thread.startup_error
    say(port=port)
    deadline, done, failed = time.monotonic() + WAIT_S, set(), set()
    while not done and not failed and time.monotonic() < deadline:
        done, failed = thread.get_and_clear_done(), thread.get_and_clear_failed()
        time.sleep(0.005)
    say(status=0 if done == {EXTERNAL} else -1, wrong=memory.wrong(), failed=sorted(map(str, failed)))


def prefill(port: int) -> None:
    memory, (te, _) = Memory(True), own_engine(transfer.MEMFABRIC_ROLE_PREFILL)
    te.register_buffer([ctypes.addressof(memory.buffer)], [memory.bytes])
    meta = {n: protocol.LayerMetadata([0, 0, 1, 1], [memory.base[i, t] for t in range(4)], list(BYTES), [1] * 4, 2, True)
            for i, n in enumerate(NAMES)}
    slots = {i: (2 * i, 2 * i + 1) for i in range(LAYERS)}
    state = send_thread.ProducerSendState(last_layer_idx=LAYERS - 1, layer_metadata=meta, p_session=te.unique_id, main_group_idx=0,
                                          indexer_group_idx=1, block_sizes=(16, 16), layer_storage_slots=slots)
    ready = threading.Event()
    thread = send_thread.MembPullSendingThread(ready_event=ready, state=state)
    thread.start()
    ready.wait(WAIT_S)
    unused = dict.fromkeys(("remote_engine_id", "remote_te_rpc_port", "remote_layer_metadata", "metaserver", "remote_tp_size",
                            "remote_pcp_size", "remote_dcp_size"))
    request = protocol.SfaPDProducerReqMeta(local_block_ids=[SOURCE, SOURCE], token_ids=[], remote_block_ids=[], remote_block_size=[],
                                            remote_host="127.0.0.1", remote_port=port, chunk_finish=True,
                                            local_computed_tokens=16 * len(SOURCE), **unused)
    for i in range(LAYERS):
        thread.mark_layer_pending(i)
        thread.send_queue.put(protocol.SendTask(send_request={INTERNAL: request}, layer_idx=i, layer_name=NAMES[i]))
    opened = all(thread.get_storage_send_event(s).wait(WAIT_S) for pair in slots.values() for s in pair)
    errors = [str(e) for pair in slots.values() for s in pair if (e := thread.get_storage_error(s)) is not None]
    say(status=0 if opened and not errors else -1, errors=errors)
    sys.stdin.readline()


if __name__ == "__main__":
    decode() if sys.argv[1] == "decode" else prefill(int(sys.argv[2]))
    os._exit(0)
