# SPDX-License-Identifier: Apache-2.0
"""A rank of a pool of MemFabric's offload API by rd2h's Python face: python_pool.py RANK PORT. Rank 0 creates and says the handle; rank 1
hears it, writes and says so; a line from outside ends either."""
from __future__ import annotations

import json
import sys

from rd2h.pool import Pool

SHAPE = {"layers": 2, "blocks": 8, "block_bytes": (65536, 32768)}
rank, port = sys.argv[1:]
provider = f"memfabric,rank={rank},world=2,store=tcp://127.0.0.1:{port},init_s=20"


def say(**what) -> None:
    print("\n" + json.dumps(what), flush=True)  # the library's own lines need not end


Pool.join(**SHAPE, provider=provider)
if rank == "0":
    pool = Pool.create(**SHAPE, provider=provider)
    say(handle=pool.handle, base=pool.memory[0], creator=bool(pool.info["creator"]))
    sys.stdin.readline()
    say(read=bytes(pool.array(1, 1)[32768:32776]).decode())
else:
    pool = Pool.attach(sys.stdin.readline().strip(), **SHAPE, provider=provider)
    pool.array(1, 1)[32768:32776] = b"from one"
    say(base=pool.memory[0], creator=bool(pool.info["creator"]))
sys.stdin.readline()
pool.close()
