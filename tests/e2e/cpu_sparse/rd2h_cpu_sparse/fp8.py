# SPDX-License-Identifier: Apache-2.0
"""The number format of the indexer's cache: 8-bit floats with one scale for each group of values, here the whole row."""

from __future__ import annotations

import torch

LARGEST = torch.finfo(torch.float8_e4m3fn).max
SMALLEST_AMAX = 1e-4  # keeps the scale of a row of zeros away from 0


def quantise(rows: torch.Tensor, power_of_two: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(values in fp8, scales in fp32 with a last dimension of 1) of `rows`, quantised over their last dimension."""
    wide = rows.to(torch.float32)
    scale = wide.abs().amax(dim=-1, keepdim=True).clamp_min(SMALLEST_AMAX).div(LARGEST)
    if power_of_two:
        scale = scale.log2().ceil().exp2()
    return wide.div(scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale


def per_token_group_quant_fp8(x: torch.Tensor, group_size: int, *args, use_ue8m0: bool | None = None, **kwargs):
    """Stands in for vLLM's kernel of that name, for rows of exactly one group."""
    if x.shape[-1] != group_size:
        raise NotImplementedError(f"rows of {x.shape[-1]} values in groups of {group_size}: one group a row is served")
    return quantise(x, bool(use_ue8m0))
