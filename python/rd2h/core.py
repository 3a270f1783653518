# SPDX-License-Identifier: Apache-2.0
"""Thin objects over the C API: Python values to flat arrays and back, an exception for a status below 0, nothing else.

Every object owns one C object; ``close()`` destroys it (bounded, may be called again) and the garbage collector does so too.
An object belongs to one thread unless its C header says otherwise. What the calls mean is written in include/rd2h/*.h.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rd2h._rd2h import ffi, lib

COLLECT = 64  # outcomes fetched per call of the C library
DUMP_MAX = 1 << 20  # bytes of a rank's state; what is longer is cut


class Rd2hError(RuntimeError):
    """A call of librd2h failed. ``status`` is the number of include/rd2h/status.h, the text is one line a person can act on."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text or status_text(status))
        self.status = status


def version() -> str:
    return _str(lib.rd2h_version())


def status_text(status: int) -> str:
    return _str(lib.rd2h_status_text(status))


def status_name(status: int) -> str:
    return _str(lib.rd2h_status_name(status))


def _str(p) -> str:
    return ffi.string(p).decode("utf-8", "replace") if p != ffi.NULL else ""


def _bytes(s: str | None):
    return ffi.NULL if s is None else s.encode()


def _check(status: int, err) -> int:
    if status < 0:
        raise Rd2hError(status, _str(err.text))
    return status


def _error():
    return ffi.new("struct rd2h_error *")


def external_id(request_id: str) -> str:
    """The id that travels on the wire: without vLLM's random suffix, a dash and 8 hex digits."""
    raw = request_id.encode()
    return raw[: lib.rd2h_external_id_len(raw, True)].decode()


def rank_port(kv_port: int, dp_rank: int, tp_rank: int, tp_size: int) -> int:
    """The control port of a Decode rank: kv_port + dp_rank * tp_size + tp_rank, checked for all ranks of the engine."""
    err, port = _error(), ffi.new("uint16_t *")
    for value, name in ((kv_port, "kv_port"), (dp_rank, "data parallel rank"), (tp_size, "tensor parallel size")):
        if not 0 <= value <= 0xFFFFFFFF:
            raise Rd2hError(lib.RD2H_RANGE, f"{name} {value} is no port or rank: use 1..65535")
    _check(lib.rd2h_plan_base_port(kv_port, dp_rank, tp_size, port, err), err)
    _check(lib.rd2h_plan_port(port[0], tp_rank, tp_size, port, err), err)
    return port[0]


@dataclass(frozen=True)
class KvTensor:
    """One KV tensor: `rows` contiguous rows of `row_bytes` bytes at address `base`; rows is a multiple of the number of
    blocks."""

    layer: str
    group: int
    base: int
    row_bytes: int
    rows: int


@dataclass(frozen=True)
class Outcome:
    """How a request ended on this rank: status 0 when complete, else why not (``text``: one line)."""

    id: str
    status: int
    text: str = ""


@dataclass(frozen=True)
class Transport:
    """How many peers are read by a transfer engine in one of its ways."""

    engine: str
    way: str
    peers: int


@dataclass(frozen=True)
class Peers:
    """A rank's peers in a few rows (include/rd2h/peers.h). waits: (peer, what waits for it, seconds of the oldest), longest first."""

    transports: tuple[Transport, ...]
    waits: tuple[tuple[str, int, float], ...]
    connected: int
    awaited: int


class _Owned:
    """A C object with its destructor, and what must outlive it."""

    _destroy = None

    def __init__(self) -> None:
        self._p = ffi.NULL
        self._keep: list = []

    def close(self) -> None:
        p, self._p = self._p, ffi.NULL
        if p != ffi.NULL:
            type(self)._destroy(p)
        self._keep = []

    def __del__(self) -> None:
        if getattr(self, "_p", ffi.NULL) != ffi.NULL:
            self.close()

    def _create(self, create, opts, ctype: str) -> None:
        out, err = ffi.new(f"{ctype} **"), _error()
        _check(create(opts, out, err), err)
        self._p = out[0]

    def _options(self, ctype: str, **fields):
        """A C options struct; strings and arrays stay alive as long as this object."""
        opts = ffi.new(f"struct {ctype} *")
        opts.size = ffi.sizeof(f"struct {ctype}")
        for name, value in fields.items():
            if value is None:
                continue
            if isinstance(value, str):
                value = ffi.new("char[]", value.encode())
                self._keep.append(value)
            setattr(opts, name, value)
        return opts


def _stats(ctype: str, fill) -> dict[str, int]:
    s = ffi.new(f"struct {ctype} *")
    fill(s)
    return {name: getattr(s, name) for name, _ in ffi.typeof(f"struct {ctype}").fields}


def _dump(fill, p) -> str:
    """What a rank says of its state, a line each."""
    if p == ffi.NULL:
        return ""
    text = ffi.new("char[]", DUMP_MAX)
    fill(p, text, DUMP_MAX)
    return ffi.string(text).decode("utf-8", "replace")


def gauges(ctype: str) -> tuple[str, ...]:
    """Names of a statistics struct that say how things stand now (32 bits wide)."""
    return tuple(n for n, f in ffi.typeof(f"struct {ctype}").fields if f.type.cname == "uint32_t")


def counters(ctype: str) -> tuple[str, ...]:
    """Names of a statistics struct that only ever grow (64 bits wide); the others say how things stand now."""
    return tuple(n for n, f in ffi.typeof(f"struct {ctype}").fields if f.type.cname == "uint64_t")


def layout_groups(groups: Sequence[Sequence[str]]) -> tuple[int, int]:
    """(main group, indexer group) of layer names by KV cache group."""
    names = [ffi.new("char[]", n.encode()) for g in groups for n in g]
    main, indexer, err = ffi.new("uint32_t *"), ffi.new("uint32_t *"), _error()
    _check(lib.rd2h_layout_groups(names, [len(g) for g in groups], len(groups), main, indexer, err), err)
    return main[0], indexer[0]


class Layout(_Owned):
    """KV tensors sorted into cache layers. heads: (first, count, total) of a layout sharded by attention heads."""

    _destroy = staticmethod(lambda p: lib.rd2h_layout_destroy(p))

    def __init__(
        self,
        tensors: Sequence[KvTensor],
        num_blocks: int,
        main_group: int,
        indexer_group: int,
        heads: tuple[int, int, int] = (0, 0, 0),
        fingerprint: str = "",
    ) -> None:
        super().__init__()
        array = ffi.new("struct rd2h_kv_tensor[]", max(len(tensors), 1))
        for c, t in zip(array, tensors):
            name = ffi.new("char[]", t.layer.encode())
            self._keep.append(name)
            c.layer, c.group, c.base, c.row_bytes, c.rows = name, t.group, t.base, t.row_bytes, t.rows
        opts = self._options(
            "rd2h_layout_opts",
            num_blocks=num_blocks,
            main_group=main_group,
            indexer_group=indexer_group,
            head_first=heads[0],
            head_count=heads[1],
            head_total=heads[2],
            fingerprint=fingerprint,
        )
        out, err = ffi.new("rd2h_layout **"), _error()
        _check(lib.rd2h_layout_create(array, len(tensors), opts, out, err), err)
        self._p = out[0]

    def __len__(self) -> int:
        return lib.rd2h_layout_layers(self._p)

    @property
    def slots(self) -> int:
        """Number of distinct storage slots."""
        return lib.rd2h_layout_slots(self._p)

    def shares_storage(self) -> bool:
        """Whether any two layers lie in one storage slot, so that writing one overwrites the other."""
        slot = ffi.new("uint32_t[2]")
        return sum(lib.rd2h_layout_layer_slots(self._p, i, slot) for i in range(len(self))) > self.slots

    def layer_name(self, layer: int) -> str:
        return _str(lib.rd2h_layout_layer_name(self._p, layer))

    def find(self, name: str) -> int | None:
        """Ordinal of the cache layer that a tensor name belongs to."""
        i = lib.rd2h_layout_find(self._p, name.encode())
        return None if i == 0xFFFFFFFF else i  # RD2H_NONE


class _Blocks:
    """A C block table over lists of block ids by KV group; ids are copied."""

    def __init__(self, groups: Iterable[Sequence[int]]) -> None:
        self.ids = [ffi.new("uint32_t[]", list(g)) if g else ffi.NULL for g in groups]
        self.table = ffi.new("struct rd2h_block_table *")
        self.table.n_groups = len(self.ids)
        for g, ids in enumerate(self.ids):
            self.table.ids[g] = ids
            self.table.count[g] = 0 if ids == ffi.NULL else len(ids)


def _payload(b) -> bytes:
    return ffi.buffer(b.p, b.len)[:] if b.len else b""


class PrefillScheduler(_Owned):
    """include/rd2h/scheduler.h, Prefill half."""

    _destroy = staticmethod(lambda p: lib.rd2h_prefill_scheduler_destroy(p))

    def __init__(self, block_sizes: Sequence[int], main_group: int, indexer_group: int, **options) -> None:
        super().__init__()
        opts = self._options(
            "rd2h_prefill_scheduler_opts",
            n_groups=len(block_sizes),
            block_size=list(block_sizes),
            main_group=main_group,
            indexer_group=indexer_group,
            **options,
        )
        self._create(lib.rd2h_prefill_scheduler_create, opts, "rd2h_prefill_scheduler")

    def alloc(self, request_id: str, params: str | None, num_tokens: int, blocks: Iterable[Sequence[int]]) -> bool:
        err, b = _error(), _Blocks(blocks)
        return bool(
            _check(lib.rd2h_prefill_scheduler_alloc(self._p, request_id.encode(), _bytes(params), num_tokens, b.table, err), err)
        )

    def step_begin(self) -> None:
        lib.rd2h_prefill_scheduler_step_begin(self._p)

    def step_add(
        self, request_id: str, computed: int, scheduled: int, spec: int, blocks: Iterable[Sequence[int]] | None, resumed: bool
    ) -> None:
        err, b = _error(), None if blocks is None else _Blocks(blocks)
        table = ffi.NULL if b is None else b.table
        _check(
            lib.rd2h_prefill_scheduler_step_add(self._p, request_id.encode(), computed, scheduled, spec, table, resumed, err), err
        )

    def step_preempted(self, request_id: str) -> None:
        lib.rd2h_prefill_scheduler_step_preempted(self._p, request_id.encode())

    def step_end(self) -> bytes:
        out, err = ffi.new("struct rd2h_bytes *"), _error()
        _check(lib.rd2h_prefill_scheduler_step_end(self._p, out, err), err)
        return _payload(out)

    def finish(self, request_id: str, aborted: bool) -> bool:
        """True when the request's blocks must be held until every worker reports it."""
        return lib.rd2h_prefill_scheduler_finish(self._p, request_id.encode(), aborted) == 1

    def released(self, request_id: str) -> None:
        lib.rd2h_prefill_scheduler_released(self._p, request_id.encode())

    @property
    def held(self) -> int:
        return lib.rd2h_prefill_scheduler_held(self._p)


class DecodeScheduler(_Owned):
    """include/rd2h/scheduler.h, Decode half."""

    _destroy = staticmethod(lambda p: lib.rd2h_decode_scheduler_destroy(p))

    def __init__(self, block_sizes: Sequence[int], main_group: int, indexer_group: int, **options) -> None:
        super().__init__()
        opts = self._options(
            "rd2h_decode_scheduler_opts",
            n_groups=len(block_sizes),
            block_size=list(block_sizes),
            main_group=main_group,
            indexer_group=indexer_group,
            **options,
        )
        self._create(lib.rd2h_decode_scheduler_create, opts, "rd2h_decode_scheduler")

    def matched(self, request_id: str, params: str | None, prompt_tokens: int, computed: int) -> int:
        tokens, err = ffi.new("uint64_t *"), _error()
        _check(
            lib.rd2h_decode_scheduler_matched(self._p, request_id.encode(), _bytes(params), prompt_tokens, computed, tokens, err),
            err,
        )
        return tokens[0]

    def alloc(
        self, request_id: str, params: str | None, prompt_tokens: int, external: int, blocks: Iterable[Sequence[int]]
    ) -> bool:
        """True when the request waits for KV now."""
        err, b = _error(), _Blocks(blocks)
        return bool(
            _check(
                lib.rd2h_decode_scheduler_alloc(
                    self._p, request_id.encode(), _bytes(params), prompt_tokens, external, b.table, err
                ),
                err,
            )
        )

    def step_end(self) -> bytes:
        out, err = ffi.new("struct rd2h_bytes *"), _error()
        _check(lib.rd2h_decode_scheduler_step_end(self._p, out, err), err)
        return _payload(out)

    def finish(self, request_id: str) -> None:
        lib.rd2h_decode_scheduler_finish(self._p, request_id.encode())

    def received(self, request_id: str, failed: bool) -> None:
        lib.rd2h_decode_scheduler_received(self._p, request_id.encode(), failed)

    @property
    def waiting(self) -> int:
        return lib.rd2h_decode_scheduler_waiting(self._p)


class _Worker(_Owned):
    """What both ranks share: the layout and the storage areas (address, bytes) to register, and a state that any thread may ask for:
    the end waits for who is asking."""

    def __init__(self) -> None:
        self._asked = threading.Lock()
        super().__init__()

    def close(self) -> None:
        with self._asked:
            super().close()

    def _state(self, fill) -> str:
        with self._asked:
            return _dump(fill, self._p)

    def _peers(self, ask, timeout_ms: int) -> Peers:
        p = ffi.new("struct rd2h_peers *")
        ask(self._p, timeout_ms, p)
        return Peers(
            tuple(Transport(_str(t.engine), _str(t.way), t.peers) for t in p.transport[0 : p.n_transports]),
            tuple((_str(w.peer), w.waiting, w.wait_ms / 1000) for w in p.wait[0 : p.n_waits]),
            p.connected,
            p.awaited,
        )

    def _areas(self, layout: Layout, memory: Sequence[tuple[int, int]]) -> dict:
        array = ffi.new("struct rd2h_memory[]", max(len(memory), 1))
        for c, (base, length) in zip(array, memory):
            c.base, c.len = base, length
        self._keep += [layout, array]
        return {"layout": layout._p, "memory": array, "n_memory": len(memory)}


class Prefill(_Worker):
    """include/rd2h/prefill.h."""

    _destroy = staticmethod(lambda p: lib.rd2h_prefill_destroy(p))

    def __init__(self, layout: Layout, memory: Sequence[tuple[int, int]], **options) -> None:
        super().__init__()
        opts = self._options("rd2h_prefill_opts", **self._areas(layout, memory), **options)
        self._create(lib.rd2h_prefill_create, opts, "rd2h_prefill")
        self._out = ffi.new("struct rd2h_settled[]", COLLECT)

    def step(self, meta: bytes) -> None:
        err = _error()
        _check(lib.rd2h_prefill_step(self._p, meta, len(meta), err), err)

    def layer(self, layer: int) -> None:
        err = _error()
        _check(lib.rd2h_prefill_layer(self._p, layer, err), err)

    def layer_on(self, layer: int, stream: int) -> None:
        """The layer is complete once the device's stream (its address) has done what it was given so far."""
        err = _error()
        _check(lib.rd2h_prefill_layer_on(self._p, layer, ffi.cast("void *", stream), err), err)

    def wait_layer(self, layer: int, timeout_ms: int) -> None:
        err = _error()
        _check(lib.rd2h_prefill_wait_layer(self._p, layer, timeout_ms, err), err)

    def wait_preempted(self, meta: bytes, timeout_ms: int) -> None:
        err = _error()
        _check(lib.rd2h_prefill_wait_preempted(self._p, meta, len(meta), timeout_ms, err), err)

    def collect(self) -> list[Outcome]:
        done: list[Outcome] = []
        while True:
            n = lib.rd2h_prefill_collect(self._p, self._out, COLLECT)
            done += [Outcome(_str(o.id), o.status) for o in self._out[0:n]]
            if n < COLLECT:
                return done

    @property
    def fd(self) -> int:
        """Readable when collect() would return something."""
        return lib.rd2h_prefill_fd(self._p)

    @property
    def stats(self) -> dict[str, int]:
        return _stats("rd2h_prefill_stats", lambda s: lib.rd2h_prefill_stats(self._p, s))

    def peers(self, timeout_ms: int) -> Peers:
        """0: what the last call has made the rank say, without a wait."""
        return self._peers(lib.rd2h_prefill_peers, timeout_ms)

    def dump(self) -> str:
        return self._state(lib.rd2h_prefill_dump)


class Decode(_Worker):
    """include/rd2h/decode.h."""

    _destroy = staticmethod(lambda p: lib.rd2h_decode_destroy(p))

    def __init__(self, layout: Layout, memory: Sequence[tuple[int, int]], **options) -> None:
        super().__init__()
        opts = self._options("rd2h_decode_opts", **self._areas(layout, memory), **options)
        self._create(lib.rd2h_decode_create, opts, "rd2h_decode")
        self._out = ffi.new("struct rd2h_outcome[]", COLLECT)

    @property
    def port(self) -> int:
        return lib.rd2h_decode_port(self._p)

    def step(self, meta: bytes) -> None:
        err = _error()
        _check(lib.rd2h_decode_step(self._p, meta, len(meta), err), err)

    def collect(self) -> list[Outcome]:
        done: list[Outcome] = []
        while True:
            n = lib.rd2h_decode_collect(self._p, self._out, COLLECT)
            done += [Outcome(_str(o.id), o.status, _str(o.text)) for o in self._out[0:n]]
            if n < COLLECT:
                return done

    @property
    def fd(self) -> int:
        """Readable when collect() would return something."""
        return lib.rd2h_decode_fd(self._p)

    @property
    def stats(self) -> dict[str, int]:
        return _stats("rd2h_decode_stats", lambda s: lib.rd2h_decode_stats(self._p, s))

    def peers(self, timeout_ms: int) -> Peers:
        """0: what the last call has made the rank say, without a wait."""
        return self._peers(lib.rd2h_decode_peers, timeout_ms)

    def dump(self) -> str:
        return self._state(lib.rd2h_decode_dump)
