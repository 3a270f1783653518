# SPDX-License-Identifier: Apache-2.0
"""The control path, driven from outside: any Decode rank gets the same messages.

    control.py drive PORT REQUESTS BLOCKS PATTERN [SECONDS]   a client: lockstep and pipelined, one JSON line
    control.py decode PORT REQUESTS BLOCKS PATTERN            the reference's Decode with a no-op engine; talks like `rd2h bench decode`
    control.py prefill PORT BLOCKS                            the reference's Prefill in lockstep to a Decode rank, one JSON line

decode and prefill need REFERENCE_SRC (scripts/setup_reference.sh) and torch.
"""
from __future__ import annotations

import gc
import json
import os
import random
import statistics
import sys
import threading
import time
from pathlib import Path

LAYERS, CACHE, PART_BYTES = 61, 300_000, (131072, 16384, 16384, 256)
RUNS = 5


def name(layer: int) -> str:
    return f"model.layers.{layer}.self_attn"


def block_ids(seed: int, requests: int, blocks: int, pattern: str) -> list[list[int]]:
    roll, n = random.Random(seed), requests * blocks
    if pattern == "contig":
        first = roll.randrange(CACHE - n)
        flat = list(range(first, first + n))
    elif pattern == "runs8":
        flat = [8 * start + i for start in roll.sample(range(CACHE // 8), -(-n // 8)) for i in range(8)][:n]
    else:
        flat = roll.sample(range(CACHE), n)
    return [flat[i:i + blocks] for i in range(0, n, blocks)]


def metadata() -> dict:
    """What a Prefill rank publishes; no memory stands behind the addresses."""
    return {name(i): {"base_addrs": [(6 + part << 44) + (i << 40) for part in range(4)], "block_len": list(PART_BYTES),
                      "block_size_scale": [1] * 4, "tensor_group_idx": [0, 0, 1, 1], "main_tensor_count": 2, "has_indexer": True}
            for i in range(LAYERS)}


# ---- the client ----
class Client:
    def __init__(self, port: int, requests: int, blocks: int, pattern: str):
        import msgspec
        import zmq

        pack = msgspec.msgpack.encode
        main, indexer = (block_ids(seed, requests, blocks, pattern) for seed in (0, 1))
        entries = [(f"req-{i}", main[i], indexer[i], 0, 0) for i in range(requests)]
        done = [e[0] for e in entries]
        self.messages = [pack((b"read_ready_batch", i, name(i), entries, done if i == LAYERS - 1 else [], 0, 1)) for i in range(LAYERS)]
        self.socket = zmq.Context().socket(zmq.DEALER)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self.socket.setsockopt(option, 0)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.socket.send(pack((b"mf_meta", "127.0.0.1:1", pack(metadata()))))
        if self.socket.recv_multipart()[-1] != b"ACK":
            raise SystemExit("the Decode rank refuses the metadata")

    def answer(self) -> None:
        reply = self.socket.recv_multipart()[-1]
        if b"read_done" not in reply:
            raise SystemExit(f"the Decode rank answers {reply!r}")

    def lockstep(self, n: int) -> float:
        begin = time.perf_counter()
        for message in self.messages[:n]:
            self.socket.send(message)
            self.answer()
        return (time.perf_counter() - begin) / n

    def pipelined(self, n: int, times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            for message in self.messages[:n]:
                self.socket.send(message, copy=False)
            for _ in range(n):
                self.answer()
        return (time.perf_counter() - begin) / n / times


def drive(port: int, requests: int, blocks: int, pattern: str, seconds: float = 0.5) -> None:
    """As many layers as fit the time, all 61 if they do; each run in lockstep, then with all of them on their way at once."""
    c = Client(port, requests, blocks, pattern)
    once = c.lockstep(2)
    n = max(3, min(LAYERS, int(seconds / once)))
    times = max(1, min(20, int(seconds / once / n)))
    rows = [(c.lockstep(n), c.pipelined(n, times)) for _ in range(RUNS)]
    lock, pipe = ([1e6 * r[k] for r in rows] for k in (0, 1))
    print(json.dumps({"layers": n, "message_bytes": len(c.messages[0]), "lockstep_us": statistics.median(lock),
                      "pipelined_us": statistics.median(pipe)}), flush=True)
    os._exit(0)


# ---- the reference ----
def reference():
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/interop"))
    import stubs

    stubs.install()
    from vllm_ascend.distributed.kv_transfer.kv_p2p.sfa_pd_rd2h import protocol, read_thread, send_thread
    from vllm_ascend.distributed.kv_transfer.utils.memfabric_transfer_engine import MemfabricBackend

    return protocol, read_thread, send_thread, MemfabricBackend


class CountingEngine:
    """Takes reads and does nothing."""
    calls = descriptors = 0

    def batch_transfer_sync_read(self, session, local, peer, length):
        self.calls += 1
        self.descriptors += len(local)
        return 0

    def initialize(self, *_, **__):
        return 0

    register_memory = initialize


class Tensor:
    def __init__(self, base: int, row_bytes: int):
        self._base, self.shape = base, (CACHE, row_bytes)

    def data_ptr(self) -> int:
        return self._base

    def element_size(self) -> int:
        return 1


def decode(port: int, requests: int, blocks: int, pattern: str) -> None:
    _, read_thread, _, backend = reference()
    names = {name(i): i for i in range(LAYERS)}
    main, indexer = (block_ids(seed, requests, blocks, pattern) for seed in (2, 3))
    state = read_thread.ConsumerReadState(
        num_blocks=CACHE, tp_size=1, layer_metadata=dict.fromkeys(names), main_name_to_idx=names, cpu_pools=[None] * LAYERS,
        main_gva_bases=[((1 << 44) + (i << 40), (2 << 44) + (i << 40)) for i in range(LAYERS)], main_block_lens=[PART_BYTES[:2]] * LAYERS,
        indexer_tensors=[Tensor((4 << 44) + (i << 40), PART_BYTES[2]) for i in range(LAYERS)],
        indexer_scale_tensors=[Tensor((5 << 44) + (i << 40), PART_BYTES[3]) for i in range(LAYERS)],
        dest_blocks_by_req={f"req-{i}": (main[i], indexer[i]) for i in range(requests)}, get_offload_layer_id=lambda n: names[n])
    engine = CountingEngine()
    thread = read_thread.MembPullReadThread(tp_rank=0, side_channel_port=port, engine=backend(engine, 0), state=state)
    thread.start()
    thread.ready_event.wait(60)
    gc.collect()
    gc.freeze()  # what was imported is not looked through again and again
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() != "stat":
            break
        print(json.dumps([engine.calls, engine.descriptors, time.process_time()]), flush=True)
        thread.get_and_clear_done()
    os._exit(0)


def prefill(port: int, blocks: int) -> None:
    protocol, _, send_thread, _ = reference()
    meta = {n: protocol.LayerMetadata(m["tensor_group_idx"], m["base_addrs"], m["block_len"], m["block_size_scale"], 2, True)
            for n, m in metadata().items()}
    ready = threading.Event()
    thread = send_thread.MembPullSendingThread(ready_event=ready, state=send_thread.ProducerSendState(
        LAYERS - 1, meta, "127.0.0.1:1", 0, 1, (128, 128), {i: (i,) for i in range(LAYERS)}))
    thread.start()
    ready.wait(60)
    empty = dict.fromkeys(("remote_engine_id", "remote_te_rpc_port", "remote_layer_metadata", "metaserver", "remote_tp_size",
                           "remote_pcp_size", "remote_dcp_size"))
    request = protocol.SfaPDProducerReqMeta(
        local_block_ids=[block_ids(seed, 1, blocks, "scatter")[0] for seed in (0, 1)], token_ids=[], remote_block_ids=[],
        remote_block_size=[], remote_host="127.0.0.1", remote_port=port, chunk_finish=True, local_computed_tokens=128 * blocks, **empty)

    def trip(layer: int) -> float:
        begin = time.perf_counter()
        thread.mark_layer_pending(layer)
        thread.send_queue.put(protocol.SendTask(send_request={"req-0-12345678": request}, layer_idx=layer, layer_name=name(layer)))
        if not thread.get_storage_send_event(layer).wait(60) or thread.get_storage_error(layer) is not None:
            raise SystemExit(f"layer {layer} was not answered")
        return time.perf_counter() - begin

    trips = [trip(i % (LAYERS - 1)) for i in range(3 * LAYERS)]
    print(json.dumps({"pair_us": 1e6 * statistics.median(trips[LAYERS:])}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    what, *args = sys.argv[1:]
    try:  # two cores at least: Decode on the first, all else on the second
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0 if what == "decode" else -1]})
    except OSError:
        pass
    words = [a if a.isalnum() and a.isalpha() or a == "runs8" else float(a) if "." in a else int(a) for a in args]
    {"drive": drive, "decode": decode, "prefill": prefill}[what](*words)
