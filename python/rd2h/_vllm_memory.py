# SPDX-License-Identifier: Apache-2.0
"""A KV cache in memory that another process of this host can map: what vLLM allocates within the context of its memory-pool hook.

For the CPU torch has no memory pools, so the context is a TorchFunctionMode that answers vLLM's allocation of the cache, a zeroed
tensor of bytes, with one over rd2h_shared_alloc. Whatever else is called within it passes, and when vLLM allocates in
another way the cache is ordinary memory, which engine local reads by a system call.
"""

from __future__ import annotations

from typing import Any

import torch
from rd2h._rd2h import ffi, lib
from rd2h._vllm_model import Engine
from rd2h.core import _error, _str
from torch.overrides import TorchFunctionMode
from vllm.logger import init_logger

logger = init_logger("vllm.rd2h")
LEAST = 1 << 20  # bytes: what is smaller is no cache
BYTES = (torch.int8, torch.uint8)


def context(e: Engine) -> SharedCache | None:
    """None: vLLM allocates as it does without us."""
    wanted = e.prefill and e.options["shared_memory"] and e.options["transfer_backend"] in ("auto", "local")
    return SharedCache() if wanted else None


class SharedCache(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        size = _bytes_wanted(args, kwargs) if func is torch.zeros else 0
        shared = _allocate(size, kwargs["dtype"]) if size >= LEAST else None
        return func(*args, **kwargs) if shared is None else shared


def _bytes_wanted(args: tuple, kwargs: dict[str, Any]) -> int:
    """Of a call of torch.zeros that asks for bytes on the CPU and nothing else; 0: it asks for something else."""
    size = args[0] if len(args) == 1 else None
    if isinstance(size, (tuple, list, torch.Size)) and len(size) == 1:
        size = size[0]
    plain = set(kwargs) <= {"dtype", "device"} and kwargs.get("dtype") in BYTES
    device = kwargs.get("device")
    cpu = device is not None and torch.device(device).type == "cpu"
    return size if plain and cpu and isinstance(size, int) else 0


def _allocate(size: int, dtype: torch.dtype) -> torch.Tensor | None:
    err = _error()
    p = lib.rd2h_shared_alloc(size, lib.RD2H_SHARED_HUGE, err)
    if p == ffi.NULL:
        logger.warning("rd2h: shared_memory: %s; this KV cache is ordinary memory", _str(err.text))
        return None
    # Kept for as long as any tensor stands on it, and then for the life of the process: engines may still offer it.
    return torch.frombuffer(ffi.buffer(p, size), dtype=dtype)
