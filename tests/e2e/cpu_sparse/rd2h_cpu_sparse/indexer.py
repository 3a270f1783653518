# SPDX-License-Identifier: Apache-2.0
"""The lightning indexer: scores every earlier token with a small fp8 key and writes the positions of the best ones."""

from __future__ import annotations

import torch

from rd2h_cpu_sparse import fp8
from rd2h_cpu_sparse.batch import Batch, BatchBackend
from vllm.forward_context import get_forward_context

SCALE_BYTES = 4


class IndexerBackend(BatchBackend):
    @staticmethod
    def get_name() -> str:
        return "RD2H_CPU_INDEXER"

    @staticmethod
    def get_impl_cls() -> None:
        return None

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [32, 64, 128, 128 + SCALE_BYTES]


class _Cache:
    """A block holds the fp8 keys of all its tokens, then their scales: the order that GPU kernels use."""

    def __init__(self, cache: torch.Tensor, dim: int) -> None:
        self.tokens, self.dim = cache.shape[1], dim
        self.raw = cache.as_strided((cache.shape[0], self.tokens * (dim + SCALE_BYTES)), (cache.stride(0), 1))
        self.split = self.tokens * dim

    def write(self, slots: torch.Tensor, keys: torch.Tensor) -> None:
        used = slots >= 0
        block, token = slots[used].div(self.tokens, rounding_mode="floor").unsqueeze(1), (slots[used] % self.tokens).unsqueeze(1)
        values, scales = fp8.quantise(keys[used], power_of_two=True)
        self.raw[block, token * self.dim + torch.arange(self.dim)] = values.view(torch.uint8)
        self.raw[block, self.split + token * SCALE_BYTES + torch.arange(SCALE_BYTES)] = scales.contiguous().view(torch.uint8)

    def read(self, blocks: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(keys: length x dim, scales: length) of a request's first `length` tokens."""
        raw = self.raw[blocks[: -(-length // self.tokens)]]
        keys = raw[:, : self.split].reshape(-1, self.dim).view(torch.float8_e4m3fn)[:length]
        scales = raw[:, self.split :].contiguous().view(torch.float32).reshape(-1)[:length]
        return keys.to(torch.float32), scales


def _best(
    query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor, first: int, most: int
) -> torch.Tensor:
    """Positions of the highest scores for each of the tokens at first, first + 1, ...; -1 where no more tokens precede."""
    score = torch.matmul(query.to(torch.float32), keys.t()).relu()  # tokens x heads x length
    score = (score * weights.to(torch.float32).unsqueeze(-1)).sum(dim=1) * scales
    future = torch.arange(len(keys)).unsqueeze(0) > torch.arange(first, first + len(query)).unsqueeze(1)
    value, position = score.masked_fill(future, -torch.inf).topk(min(most, len(keys)), dim=-1)
    return position.masked_fill(value == -torch.inf, -1)


def forward(self, hidden_states: torch.Tensor, q_quant: torch.Tensor, k: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """SparseAttnIndexer.forward_cpu: stores the new keys, then chooses for every new token."""
    chosen, by_layer = self.topk_indices_buffer, get_forward_context().attn_metadata
    if not isinstance(by_layer, dict):
        return chosen  # a dry run
    batch: Batch = by_layer[self.k_cache.prefix]
    cache = _Cache(self.k_cache.kv_cache, self.head_dim)
    cache.write(batch.slots[: batch.num_actual_tokens], k[: batch.num_actual_tokens])
    chosen[: batch.num_actual_tokens] = -1
    for i, length in enumerate(batch.lengths[: batch.num_reqs].tolist()):
        start, end = batch.starts[i : i + 2].tolist()
        if end > start:
            keys, scales = cache.read(batch.blocks[i], length)
            best = _best(q_quant[start:end], weights[start:end], keys, scales, length - (end - start), self.topk_tokens)
            chosen[start:end, : best.shape[1]] = best.to(chosen.dtype)
    return chosen
