# SPDX-License-Identifier: Apache-2.0
"""The host memory that all Decode TP ranks of one engine share (include/rd2h/pool.h), as buffers without a copy.

pool = Pool.create(layers=61, blocks=4096, block_bytes=(131072, 16384))   # rank 0, which hands pool.handle to the others
pool = Pool.attach(handle, layers=61, blocks=4096, block_bytes=(131072, 16384))
k = torch.frombuffer(pool.array(0, 0), dtype=torch.bfloat16)              # or numpy.frombuffer

Of another provider of memory (MemFabric's offload API) all ranks join first, at once, each with its own provider text:

Pool.join(layers=61, blocks=4096, block_bytes=(131072, 16384), provider="memfabric,rank=0,world=2,store=tcp://127.0.0.1:23456")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rd2h._rd2h import ffi, lib
from rd2h.core import _check, _error, _str

PAGES = {"auto": 0, "small": 1, "huge": 2}
LOCK = {"auto": 0, "off": 1, "must": 2}


class Pool:
    """Views of it keep the memory mapped: it goes away with the last of them, however early the pool was closed."""

    def __init__(self, p, layers: int, blocks: int, block_bytes: Sequence[int]) -> None:
        self._p = ffi.gc(p, lib.rd2h_pool_destroy)
        self.layers, self.blocks, self.block_bytes = layers, blocks, tuple(block_bytes)

    @staticmethod
    def join(layers: int, blocks: int, block_bytes: Sequence[int], provider: str) -> None:
        """On every rank at once, before create and attach with the same provider: returns when all of the world have called it,
        within the provider's init_s (90). A process joins once."""
        opts, _keep = _options(layers, blocks, block_bytes, "auto", None, provider)
        err = _error()
        _check(lib.rd2h_pool_join(opts, err), err)

    @classmethod
    def create(
        cls,
        layers: int,
        blocks: int,
        block_bytes: Sequence[int],
        *,
        pages: str = "auto",
        lock: str = "auto",
        numa_nodes: Iterable[int] = (),
        keep_free: int = 0,
        device: str | None = None,
        provider: str | None = None,
    ) -> Pool:
        """On one rank. block_bytes: of K and V, or of the one tensor where MLA has one. keep_free: bytes to leave to others. device:
        pinned for it. provider: whose memory, as it was joined; none: our own."""
        opts, _keep = _options(layers, blocks, block_bytes, lock, device, provider)
        opts.pages, opts.keep_free = _choice("pages", pages, PAGES), keep_free
        opts.numa_nodes = sum({1 << node for node in numa_nodes})
        out, err = ffi.new("rd2h_pool **"), _error()
        _check(lib.rd2h_pool_create(opts, out, err), err)
        return cls(out[0], layers, blocks, block_bytes)

    @classmethod
    def attach(
        cls,
        handle: str,
        layers: int,
        blocks: int,
        block_bytes: Sequence[int],
        *,
        lock: str = "auto",
        device: str | None = None,
        provider: str | None = None,
    ) -> Pool:
        """On the other ranks; refused when the handle is stale or the pool has another shape."""
        opts, _keep = _options(layers, blocks, block_bytes, lock, device, provider)
        out, err = ffi.new("rd2h_pool **"), _error()
        _check(lib.rd2h_pool_attach(handle.encode(), opts, out, err), err)
        return cls(out[0], layers, blocks, block_bytes)

    def close(self) -> None:
        self._p = None

    def _open(self):
        if self._p is None:
            raise ValueError("this pool is closed")
        return self._p

    @property
    def handle(self) -> str:
        return _str(lib.rd2h_pool_handle(self._open()))

    @property
    def memory(self) -> tuple[int, int]:
        """(address, bytes) of all arrays, as rd2h.core.Decode takes it."""
        area = lib.rd2h_pool_memory(self._open())
        return area.base, area.len

    @property
    def orphaned(self) -> bool:
        """Whether the rank that created it has ended."""
        return lib.rd2h_pool_orphaned(self._open())

    @property
    def info(self) -> dict[str, int]:
        i = ffi.new("struct rd2h_pool_info *")
        lib.rd2h_pool_info(self._open(), i)
        return {name: getattr(i, name) for name, _ in ffi.typeof("struct rd2h_pool_info").fields}

    def address(self, layer: int, array: int) -> int:
        return int(ffi.cast("uintptr_t", self._array(layer, array)))

    def array(self, layer: int, array: int) -> memoryview:
        """The bytes of an array (0: K, 1: V), writable and shared with the other ranks."""
        base, keep = ffi.cast("char *", self._array(layer, array)), self._open()
        owner = ffi.gc(base, lambda _base: keep)
        return memoryview(ffi.buffer(owner, self.blocks * self.block_bytes[array]))

    def _array(self, layer: int, array: int):
        if not (0 <= layer < self.layers and 0 <= array < len(self.block_bytes)):
            raise IndexError(f"layer {layer}, array {array}: the pool has {self.layers} layers of {len(self.block_bytes)} arrays")
        return lib.rd2h_pool_array(self._open(), layer, array)


def _choice(name: str, value: str, table: dict[str, int]) -> int:
    if value not in table:
        raise ValueError(f"{name} {value!r}: one of {', '.join(table)} is wanted")
    return table[value]


def _options(layers: int, blocks: int, block_bytes: Sequence[int], lock: str, device: str | None, provider: str | None):
    """The C options, and their texts, which must be kept as long."""
    opts = ffi.new("struct rd2h_pool_opts *")
    keep = [ffi.NULL if text is None else ffi.new("char[]", text.encode()) for text in (device, provider)]
    opts.device, opts.provider = keep
    opts.size = ffi.sizeof("struct rd2h_pool_opts")
    opts.lock = _choice("lock", lock, LOCK)
    if not 1 <= len(block_bytes) <= 2:
        raise ValueError(f"block_bytes has {len(block_bytes)} entries: one a tensor of a layer, 1 or 2")
    opts.shape.layers, opts.shape.arrays, opts.shape.blocks = layers, len(block_bytes), blocks
    for i, n in enumerate(block_bytes):
        opts.shape.block_bytes[i] = n
    return opts, keep
