# SPDX-License-Identifier: Apache-2.0
"""Where the pieces go into vLLM."""

from __future__ import annotations

import functools

from rd2h_cpu_sparse import fp8

BACKEND = "rd2h_cpu_sparse.mla.SparseMlaBackend"


@functools.cache
def once() -> None:
    _platform()
    _quantisation()
    _indexer()


def _platform() -> None:
    """The platform's backend choice, with an answer where it refuses."""
    from vllm.platforms.cpu import CpuPlatform

    choose = CpuPlatform.get_attn_backend_cls

    def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
        if attn_selector_config.use_sparse:
            return BACKEND
        return choose(selected_backend, attn_selector_config, num_heads)

    CpuPlatform.get_attn_backend_cls = classmethod(get_attn_backend_cls)


def _quantisation() -> None:
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    fp8_utils.per_token_group_quant_fp8 = fp8.per_token_group_quant_fp8


def _indexer() -> None:
    from rd2h_cpu_sparse import indexer
    from vllm.model_executor.layers import sparse_attn_indexer
    from vllm.v1.attention.backends.mla import indexer as vllm_indexer

    sparse_attn_indexer.SparseAttnIndexer.forward_cpu = indexer.forward
    vllm_indexer.DeepseekV32IndexerBackend = indexer.IndexerBackend
