# SPDX-License-Identifier: Apache-2.0
"""The shared pool from Python: one memory for several processes, seen without a copy and for as long as it is looked at."""

from __future__ import annotations

import gc
import subprocess
import sys
import unittest

import torch
from rd2h import Rd2hError
from rd2h.core import Decode, KvTensor, Layout, status_name
from rd2h.pool import Pool

SHAPE = {"layers": 2, "blocks": 8, "block_bytes": (1024, 128)}
WRITER = f"""
import sys
from rd2h.pool import Pool
pool = Pool.attach(sys.argv[1], **{SHAPE})
pool.array(1, 0)[1024:2048] = bytes(range(256)) * 4
assert not pool.orphaned and not pool.info["creator"]
"""


class TestPool(unittest.TestCase):
    def test_another_process_writes(self) -> None:
        """A tensor over the pool shows what another process has written since."""
        pool = Pool.create(**SHAPE, lock="off")
        tensor = torch.frombuffer(pool.array(1, 0), dtype=torch.uint8).view(8, 1024)
        self.assertEqual(tensor.data_ptr(), pool.address(1, 0))
        self.assertEqual(int(tensor.sum()), 0)
        subprocess.run([sys.executable, "-c", WRITER, pool.handle], check=True, timeout=60)
        self.assertEqual(tensor[1].tolist(), list(range(256)) * 4)
        self.assertEqual(int(tensor[0].sum() + tensor[2:].sum()), 0)

    def test_views_outlive_the_pool(self) -> None:
        pool = Pool.create(**SHAPE, lock="off")
        handle, view = pool.handle, pool.array(0, 1)
        view[:4] = b"kept"
        pool.close()
        del pool
        gc.collect()
        self.assertEqual(bytes(view[:4]), b"kept")
        again = Pool.attach(handle, **SHAPE)  # the creator still holds it
        self.assertEqual(bytes(again.array(0, 1)[:4]), b"kept")
        again.close()
        view.release()
        del view
        gc.collect()
        with self.assertRaisesRegex(Rd2hError, "stale handle"):
            Pool.attach(handle, **SHAPE)

    def test_a_decode_rank_over_it(self) -> None:
        pool = Pool.create(**SHAPE)
        tensors = [
            KvTensor(f"model.layers.{i}.attn", 0, pool.address(i, a), n, SHAPE["blocks"])
            for i in range(2)
            for a, n in enumerate(SHAPE["block_bytes"])
        ]
        rank = Decode(
            Layout(tensors, SHAPE["blocks"], 0, 0), [pool.memory], tp_size=2, tp_rank=1, main_rank=1, main_ranks=2, engine="local"
        )
        self.assertGreater(rank.port, 0)
        rank.close()

    def test_providers(self) -> None:
        """What is said of whose memory it is reaches the library; who needs another's joins first (tests/memfabric has it whole)."""
        Pool.join(**SHAPE, provider="own")
        own = Pool.create(**SHAPE, lock="off", provider="own")
        Pool.attach(own.handle, **SHAPE, provider="own").close()
        away = "memfabric,rank=0,world=2,store=tcp://127.0.0.1:1,lib=/nowhere/libmf_acc_offload.so"
        for call in (
            lambda: Pool.create(**SHAPE, provider=away),
            lambda: Pool.attach(f"rd2h-pool-memfabric:1:1:200000:{'0' * 32}", **SHAPE, provider=away),
        ):
            with self.assertRaisesRegex(Rd2hError, "rd2h_pool_join") as caught:
                call()
            self.assertEqual(status_name(caught.exception.status), "STATE")
        with self.assertRaisesRegex(Rd2hError, "/nowhere/libmf_acc_offload.so") as caught:
            Pool.join(**SHAPE, provider=away)
        self.assertEqual(status_name(caught.exception.status), "NOT_FOUND")
        with self.assertRaisesRegex(Rd2hError, "own, or memfabric"):
            Pool.join(**SHAPE, provider="cuda")

    def test_refusals(self) -> None:
        pool = Pool.create(**SHAPE, lock="off")
        with self.assertRaisesRegex(Rd2hError, "8 blocks.*9 blocks"):
            Pool.attach(pool.handle, **SHAPE | {"blocks": 9})
        with self.assertRaisesRegex(Rd2hError, "do not fit"):
            Pool.create(1, 1 << 20, (1 << 24,), lock="off")
        with self.assertRaisesRegex(IndexError, "layer 2, array 0"):
            pool.array(2, 0)
        with self.assertRaisesRegex(ValueError, "'no'"):
            Pool.create(**SHAPE, lock="no")
        with self.assertRaisesRegex(ValueError, "3 entries"):
            Pool.create(1, 1, (1, 2, 3))
        pool.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            pool.handle
