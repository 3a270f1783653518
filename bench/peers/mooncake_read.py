# SPDX-License-Identifier: Apache-2.0
"""Mooncake's transfer engine over TCP between two processes: mooncake_read.py ROUNDS PATTERN BLOCK..., a JSON line a block size."""
import os
import signal
import socket
import sys

near, far = socket.socketpair()
child = os.fork()
import workload  # noqa: E402
from mooncake.engine import TransferEngine  # noqa: E402

engine = TransferEngine()
memory, base = workload.pool(1 if child == 0 else 0)
if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") or engine.register_memory(base, workload.POOL):
    raise SystemExit("the engine does not start")
if child == 0:
    far.sendall(base.to_bytes(8, "little") + engine.get_rpc_port().to_bytes(8, "little"))
    signal.pause()
hello = near.recv(16)
remote, session = int.from_bytes(hello[:8], "little"), f"127.0.0.1:{int.from_bytes(hello[8:], 'little')}"


def prepare(source, target, block):
    return [int(t) + base for t in target], [int(s) + remote for s in source], [block] * len(source)


def read(ready):
    if engine.batch_transfer_sync_read(session, *ready):
        raise SystemExit("a read failed")


try:
    for size in sys.argv[3:]:
        workload.measure(int(size), sys.argv[2], int(sys.argv[1]), prepare, read)
finally:
    os.kill(child, signal.SIGKILL)
    sys.stdout.flush()
os._exit(0)
