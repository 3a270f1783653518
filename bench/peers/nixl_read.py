# SPDX-License-Identifier: Apache-2.0
"""NIXL, UCX backend, reads of host memory between two processes: nixl_read.py ROUNDS PATTERN BLOCK..., a JSON line a block size.
Descriptor lists are prepared beforehand, untimed; posting and waiting are timed."""
import os
import signal
import socket
import sys

near, far = socket.socketpair()
child = os.fork()
import numpy as np  # noqa: E402
import workload  # noqa: E402
from nixl_cu12._api import nixl_agent, nixl_agent_config  # noqa: E402


def send(sock, data: bytes) -> None:
    sock.sendall(len(data).to_bytes(8, "little") + data)


def receive(sock) -> bytes:
    def exactly(n):
        data = b""
        while len(data) < n:
            data += sock.recv(n - len(data)) or sys.exit("the other process has ended")
        return data
    return exactly(int.from_bytes(exactly(8), "little"))


agent = nixl_agent("source" if child == 0 else "reader", nixl_agent_config(enable_prog_thread=True, backends=["UCX"]))
memory, base = workload.pool(1 if child == 0 else 0)
agent.register_memory(agent.get_reg_descs([(base, workload.POOL, 0, "pool")], "DRAM"))
if child == 0:
    send(far, agent.get_agent_metadata())
    send(far, base.to_bytes(8, "little"))
    agent.add_remote_agent(receive(far))
    signal.pause()
peer = agent.add_remote_agent(receive(near))
peer = peer.decode() if isinstance(peer, bytes) else peer
remote = int.from_bytes(receive(near), "little")
send(near, agent.get_agent_metadata())


def prepare(source, target, block):
    def handle(name, at):
        table = np.column_stack([at, np.full(len(at), block), np.zeros(len(at))]).astype(np.uint64)
        return agent.prep_xfer_dlist(name, agent.get_xfer_descs(table, "DRAM"), "DRAM")
    return handle("NIXL_INIT_AGENT", target + base), handle(peer, source + remote), np.arange(len(source), dtype=np.int32)


def read(ready):
    here, there, which = ready
    transfer = agent.make_prepped_xfer("READ", here, which, there, which, b"")
    state = agent.transfer(transfer)
    while state == "PROC":
        state = agent.check_xfer_state(transfer)
    agent.release_xfer_handle(transfer)
    if state != "DONE":
        raise SystemExit(f"a transfer ended as {state}")


try:
    for size in sys.argv[3:]:
        workload.measure(int(size), sys.argv[2], int(sys.argv[1]), prepare, read)
    if not (memory[:int(sys.argv[3])] <= 1).all() or not memory.any():
        raise SystemExit("nothing has moved")
finally:
    os.kill(child, signal.SIGKILL)
    sys.stdout.flush()
os._exit(0)
