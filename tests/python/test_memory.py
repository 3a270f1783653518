# SPDX-License-Identifier: Apache-2.0
"""The option shared_memory: what vLLM allocates for the KV cache of a CPU engine is memory that another process can map."""

from __future__ import annotations

import unittest
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from rd2h import _vllm_memory
from vllm.v1.worker.utils import allocate_kv_cache

SIZE = (4 << 20) + 4096


def allocate(context) -> torch.Tensor:
    """By vLLM's own function, within the context that its worker enters."""
    spec = SimpleNamespace(has_layer_views=False)
    config = SimpleNamespace(
        kv_cache_tensors=[SimpleNamespace(size=SIZE, layers=["layer"])],
        kv_cache_groups=[SimpleNamespace(layer_names=["layer"], kv_cache_spec=spec)],
    )
    with context:
        return allocate_kv_cache(config, torch.device("cpu"), None)["layer"]


def mapping_of(tensor: torch.Tensor) -> str:
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(x, 16) for x in line.split()[0].split("-"))
            if low <= tensor.data_ptr() < high:
                return line
    return ""


def engine(prefill: bool, backend: str, shared: bool) -> SimpleNamespace:
    return SimpleNamespace(prefill=prefill, options={"transfer_backend": backend, "shared_memory": shared})


class TestSharedMemory(unittest.TestCase):
    def test_the_cache_is_a_shared_file(self) -> None:
        cache = allocate(_vllm_memory.SharedCache())
        self.assertIn("/memfd:", mapping_of(cache))
        self.assertEqual((cache.dtype, cache.shape, cache.storage_offset()), (torch.int8, (SIZE,), 0))
        self.assertEqual(cache.untyped_storage().nbytes(), SIZE)
        self.assertEqual(int(cache.count_nonzero()), 0)
        cache[-1] = 7
        self.assertEqual(int(cache.sum()), 7)
        self.assertNotIn("/memfd:", mapping_of(allocate(nullcontext())))

    def test_other_calls_pass(self) -> None:
        with _vllm_memory.SharedCache():
            made = [
                torch.zeros(SIZE, dtype=torch.float32, device="cpu"),
                torch.zeros(SIZE, dtype=torch.int8),
                torch.zeros(16, dtype=torch.int8, device="cpu"),
                torch.zeros((SIZE, 2), dtype=torch.int8, device="cpu"),
                torch.zeros(SIZE, dtype=torch.int8, device="cpu", pin_memory=False),
                torch.ones(SIZE, dtype=torch.int8, device="cpu"),
            ]
            self.assertEqual(torch.zeros(SIZE, dtype=torch.int8, device="meta").device.type, "meta")
        for tensor in made:
            self.assertNotIn("/memfd:", mapping_of(tensor))

    def test_memory_that_cannot_be_had(self) -> None:
        """Then the cache is ordinary memory, and a line says so."""
        with self.assertLogs("vllm.rd2h", "WARNING") as log, _vllm_memory.SharedCache():
            self.assertIsNone(_vllm_memory._allocate(1 << 60, torch.int8))
        self.assertIn("shared_memory", log.output[0])

    def test_who_gets_it(self) -> None:
        for prefill, backend, shared in ((True, "auto", True), (True, "local", True)):
            self.assertIsNotNone(_vllm_memory.context(engine(prefill, backend, shared)))
        for prefill, backend, shared in ((True, "auto", False), (False, "auto", True), (True, "tcp", True)):
            self.assertIsNone(_vllm_memory.context(engine(prefill, backend, shared)))
