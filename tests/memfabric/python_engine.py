# SPDX-License-Identifier: Apache-2.0
"""The library's own Python engine, as a peer of ours: python_engine.py prefill BYTES | decode SESSION BASE BYTES. One JSON line says what
it has; a line on standard input ends it."""
import ctypes
import json
import os
import random
import sys
import time

import memfabric_hybrid

ROLES = {"prefill": "Prefill", "decode": "Decode"}


def pattern(n: int) -> bytes:
    return bytes((i * 131 + (i >> 8) * 7 + 3) & 255 for i in range(n))


def engine(role: str):
    memfabric_hybrid.set_log_level(3)
    memfabric_hybrid.set_conf_store_tls(False, "")
    e = memfabric_hybrid.TransferEngine()
    status = e.initialize("tcp://127.0.0.1", "127.0.0.1", ROLES[role], 0, memfabric_hybrid.TransDataOpType.HOST_RDMA,
                          store_server_role="Prefill", nic=f"tcp://127.0.0.1:{random.randrange(12000, 32000)}")
    assert status == 0, f"initialize: {status} {memfabric_hybrid.get_last_err_msg()}"
    return e


def prefill(n: int) -> dict:
    e, buffer = engine("prefill"), ctypes.create_string_buffer(pattern(n), n)
    assert e.register_memory(ctypes.addressof(buffer), n) == 0
    print(json.dumps({"session": f"127.0.0.1:{e.get_rpc_port()}", "base": ctypes.addressof(buffer)}), flush=True)
    sys.stdin.readline()


def decode(session: str, base: int, n: int) -> None:
    e, buffer, want = engine("decode"), ctypes.create_string_buffer(n), pattern(n)
    at, pieces = ctypes.addressof(buffer), range(0, n - 1000, 1000)
    status, tries = -1, 0
    while status and tries < 50:
        status = e.batch_transfer_sync_read(session, [at + i for i in pieces], [base + i + 3 for i in pieces], [900 for _ in pieces])
        tries += 1
        time.sleep(0.1 if status else 0)
    got = buffer.raw
    wrong = sum(got[i:i + 900] != want[i + 3:i + 903] or any(got[i + 900:i + 1000]) for i in pieces)
    print(json.dumps({"status": status, "wrong": wrong, "tries": tries}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "prefill":
        prefill(int(sys.argv[2]))
    else:
        decode(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    os._exit(0)
