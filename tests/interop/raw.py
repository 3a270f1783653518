# SPDX-License-Identifier: Apache-2.0
"""Peers that are nobody's connector: a bare socket of either role that sends what it is told."""
from __future__ import annotations

import os
import threading

import msgspec
import zmq
from memory import TENSORS, Memory, layer_name

ANSWER_MS = 10000


class RawPrefill:
    def __init__(self, port: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"tcp://127.0.0.1:{port}")

    def send(self, message: bytes) -> None:
        self._socket.send(message)

    def send_fields(self, *fields) -> None:
        self.send(msgspec.msgpack.encode(fields))

    def reply(self) -> tuple:
        """The next answer: its fields, or (b"ACK",)."""
        while self._socket.poll(ANSWER_MS):
            frames = [f for f in self._socket.recv_multipart() if f]
            if frames:  # an empty one only asks whether we are there
                return (b"ACK",) if frames == [b"ACK"] else tuple(msgspec.msgpack.decode(frames[0]))
        raise AssertionError(f"no answer in {ANSWER_MS} ms")

    def close(self) -> None:
        self._context.destroy(linger=0)


class RawDecode:
    """Acknowledges the metadata, then answers every batch with nonsense."""

    class area:
        d = 1

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self.base = self._socket.bind_to_random_port("tcp://127.0.0.1", 18000, 19999)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            while True:
                identity, *frames = self._socket.recv_multipart()
                tag = msgspec.msgpack.decode(frames[-1])[0] if frames[-1] else b""
                if tag == b"mf_meta":
                    self._socket.send_multipart([identity, b"", msgspec.msgpack.encode((b"mf_meta_ack", 1))])
                elif tag:
                    self._socket.send_multipart([identity, b"", b"\x93\xc4\x09read_done\xff"])
        except zmq.ContextTerminated:
            self._socket.close(linger=0)

    def close(self) -> None:
        self._context.term()
        self._thread.join()


def garbage() -> list[bytes]:
    ready = b"\xc4\x10read_ready_batch"
    return [b"x", b"\x90", b"\xc1\xc1", b"ACK", b"\x92\xa7mf_meta\x01", b"\x91" + ready, b"\x94" + ready + b"\xff\xa1l\x90",
            b"\x94" + ready + b"\x05\xa1l\xdd\xff\xff\xff", os.urandom(64)]


def legacy_meta(memory: Memory, layers: tuple) -> bytes:
    """Three fields, and layer maps without the keys that came later; the session is this process."""
    told = {}
    for i, sizes in enumerate(layers):
        have = [t for t, size in zip(TENSORS, sizes) if size]
        told[layer_name(i)] = {"base_addrs": [memory.base(i, t) for t in have], "block_len": [s for s in sizes if s]}
    return msgspec.msgpack.encode((b"mf_meta", f"127.0.0.1:{os.getpid()}", msgspec.msgpack.encode(told)))
