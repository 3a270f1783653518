# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention over the tokens that the indexer chose, and no others."""

from __future__ import annotations

from typing import ClassVar

import torch

from rd2h_cpu_sparse.batch import Batch, BatchBackend
from vllm.model_executor.layers.attention.sparse_mla_attention import SharedTopkIndicesBuffer
from vllm.v1.attention.backend import MLAAttentionImpl


class SparseMla(MLAAttentionImpl[Batch], SharedTopkIndicesBuffer):
    is_sparse = True

    def __init__(
        self,
        num_heads,
        head_size,
        scale,
        num_kv_heads,
        alibi_slopes,
        sliding_window,
        kv_cache_dtype,
        logits_soft_cap,
        attn_type,
        kv_sharing_target_layer_name,
        topk_indices_buffer=None,
        indexer=None,
        **mla,
    ) -> None:
        self.num_heads, self.head_size, self.num_kv_heads, self.scale = num_heads, head_size, num_kv_heads, scale
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_lora_rank = mla["kv_lora_rank"]
        self.init_topk_indices_buffer(indexer, topk_indices_buffer)

    def record_logical_topk_ready(self) -> None:
        """Nothing to wait for: everything runs on one stream."""

    def do_kv_cache_update(self, kv_c_normed, k_pe, kv_cache, slot_mapping, kv_cache_dtype, k_scale) -> None:
        """Latent and rotary part of each new token side by side into its slot."""
        if not kv_cache.numel():
            return
        slots = slot_mapping.reshape(-1).long()
        used = (slots >= 0).nonzero().squeeze(-1)
        tokens = torch.cat((kv_c_normed, k_pe.flatten(1)), dim=1)[used]
        kv_cache.view(-1, kv_cache.shape[-1])[slots[used]] = tokens.to(kv_cache.dtype)

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata: Batch, layer) -> tuple[torch.Tensor, None]:
        """q: tokens x heads x (latent + rotary). Each token attends to its chosen positions, -1 fills up."""
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        tokens, block = query.shape[0], kv_c_and_k_pe_cache.shape[1]
        chosen = self.topk_indices_buffer[:tokens].long()
        empty = chosen < 0
        position = chosen.masked_fill(empty, 0)
        row = attn_metadata.blocks[attn_metadata.owner[:tokens]].gather(1, position.div(block, rounding_mode="floor"))
        keys = kv_c_and_k_pe_cache[row, position % block].to(torch.float32)  # tokens x chosen x (latent + rotary)
        logits = torch.matmul(query.to(torch.float32), keys.transpose(1, 2)) * self.scale
        weights = logits.masked_fill(empty.unsqueeze(1), -torch.inf).softmax(dim=-1)
        return torch.matmul(weights, keys[..., : self.kv_lora_rank]).to(query.dtype), None


class SparseMlaBackend(BatchBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto"]

    @staticmethod
    def get_name() -> str:
        return "RD2H_CPU_SPARSE_MLA"

    @staticmethod
    def get_impl_cls() -> type[SparseMla]:
        return SparseMla

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [576]
