# SPDX-License-Identifier: Apache-2.0
"""One step's batch, as both the attention and the indexer need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)

BLOCK = 16  # tokens of a block: what vLLM sets for MLA models on CPU


@dataclass
class Batch(AttentionMetadata):
    """Requests lie one after the other: rows starts[i] to starts[i + 1] are the new tokens of request i, the last of its
    lengths[i]."""

    num_reqs: int
    num_actual_tokens: int
    starts: torch.Tensor  # requests + 1
    lengths: torch.Tensor  # requests
    blocks: torch.Tensor  # requests x blocks: where their tokens lie
    slots: torch.Tensor  # tokens: where the new ones go; below 0: nowhere
    owner: torch.Tensor  # tokens: the request of each
    # MLA's common layer asks how many tokens take the one-query path: all do here.
    num_decodes: int
    num_decode_tokens: int
    num_prefills: int = 0


class BatchBuilder(AttentionMetadataBuilder[Batch]):
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False) -> Batch:
        c = common_attn_metadata
        starts = c.query_start_loc_cpu.long()
        owner = torch.arange(c.num_reqs).repeat_interleave(starts.diff()[: c.num_reqs])
        return Batch(
            num_reqs=c.num_reqs,
            num_actual_tokens=c.num_actual_tokens,
            starts=starts,
            lengths=c.seq_lens,
            blocks=c.block_table_tensor.long(),
            slots=c.slot_mapping.long(),
            owner=owner,
            num_decodes=c.num_reqs,
            num_decode_tokens=c.num_actual_tokens,
        )


class BatchBackend(AttentionBackend):
    """What attention and indexer have in common as vLLM backends."""

    @staticmethod
    def get_builder_cls() -> type[BatchBuilder]:
        return BatchBuilder

    @staticmethod
    def get_metadata_cls() -> type[Batch]:
        return Batch

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None) -> list[int]:
        return [BLOCK]
