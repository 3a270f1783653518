# SPDX-License-Identifier: Apache-2.0
"""vLLM's OffloadingConnector on a machine without an accelerator: its scheduler, its manager and its statistics as they are, and a
worker that copies blocks between the KV cache and host tensors itself (vLLM's own wants a GPU's streams).

    {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config":
     {"spec_name": "MemcpySpec", "spec_module_path": "cpu_offload", "cpu_bytes_to_use": BYTES}}
"""

from __future__ import annotations

import time

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class MemcpyWorker(OffloadingWorker):
    """A chunk is a block. Copies are over when they are submitted."""

    def __init__(self, caches: CanonicalKVCaches, chunks: int) -> None:
        self._blocks = [t.tensor.view(torch.int8).view(-1, t.page_size_bytes) for t in caches.tensors]
        self._chunks = [torch.zeros((chunks, t.page_size_bytes), dtype=torch.int8) for t in caches.tensors]
        self._tensors = [[ref.tensor_idx for ref in refs] for refs in caches.group_data_refs]
        self._over: list[TransferResult] = []

    def _copy(self, job_id: int, blocks, chunks, store: bool) -> bool:
        begin, at, moved = time.monotonic(), 0, 0
        for size, tensors in zip(blocks.group_sizes, self._tensors):
            part = slice(at, at + size)
            at += size
            rows, slots = torch.tensor(blocks.block_ids[part]).long(), torch.tensor(chunks.block_ids[part]).long()
            for t in tensors:
                if store:
                    self._chunks[t][slots] = self._blocks[t][rows]
                else:
                    self._blocks[t][rows] = self._chunks[t][slots]
                moved += size * self._blocks[t].shape[1]
        self._over.append(TransferResult(job_id, True, moved, time.monotonic() - begin))
        return True

    def submit_store(self, job_id, src_spec, dst_spec) -> bool:
        return self._copy(job_id, src_spec, dst_spec, store=True)

    def submit_load(self, job_id, src_spec, dst_spec) -> bool:
        return self._copy(job_id, dst_spec, src_spec, store=False)

    def get_finished(self) -> list[TransferResult]:
        over, self._over = self._over, []
        return over

    def wait(self, job_ids: set[int]) -> None:
        """Nothing: see above."""


class MemcpySpec(CPUOffloadingSpec):
    def get_worker(self, kv_caches: CanonicalKVCaches) -> MemcpyWorker:
        assert self.blocks_per_chunk == 1, "offloaded chunks of more than one block are not needed here"
        if self._worker is None:
            self._worker = MemcpyWorker(kv_caches, self.num_chunks)
        return self._worker
