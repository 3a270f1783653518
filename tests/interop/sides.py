# SPDX-License-Identifier: Apache-2.0
"""Both sides of a transfer, ours and the reference's, behind one face: the Prefill ranks of an engine, the Decode ranks of another."""
from __future__ import annotations

import itertools
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from memory import BLOCK_TOKENS, BLOCKS, TENSORS, Memory, Model, Request, content, contributors, layer_name
from rd2h import core

HERE = Path(__file__).resolve().parent
WAIT_S = 30
# What a request of Decode carries; virtual: no rendezvous is posted.
PULL = json.dumps({"do_remote_prefill": True, "do_virtual": True, "metaserver": "http://127.0.0.1:1/v1/metaserver"})


# ---- processes of the reference ----
class Peer:
    """One rank of the reference in a process of its own."""

    def __init__(self, pid: int, connection: socket.socket, config: dict) -> None:
        self.pid, self._socket = pid, connection
        self._file = connection.makefile("rw")
        self._lines: queue.Queue = queue.Queue()
        self.seen: list[dict] = []
        threading.Thread(target=self._read, daemon=True).start()
        self.say(**config)
        if error := self.wait("listening")["error"]:
            raise AssertionError(f"a rank of the reference did not start: {error}")

    def _read(self) -> None:
        try:
            for line in self._file:
                self._lines.put(json.loads(line))
        except (OSError, ValueError):
            pass
        self._lines.put({"ev": "exit"})

    def say(self, **what) -> None:
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()

    def wait(self, *events: str, seconds: float = WAIT_S, **fields) -> dict:
        """The first line of such an event with these fields, heard before or now."""
        deadline = time.monotonic() + seconds
        looked = 0
        while True:
            for e in self.seen[looked:]:
                if e["ev"] in events and all(e.get(k) == v for k, v in fields.items()):
                    self.seen.remove(e)
                    return e
            looked = len(self.seen)
            try:
                self.seen.append(self._lines.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                raise AssertionError(f"the reference said no {' or '.join(events)} {fields or ''} in {seconds} s;"
                                     f" it said {json.dumps(self.seen)[-400:]}") from None
            if self.seen[-1]["ev"] == "exit":
                raise AssertionError(f"a rank of the reference ended; it said {json.dumps(self.seen)[-400:]}")

    def heard(self, event: str, seconds: float = 0.0, **fields) -> bool:
        try:
            self.wait(event, seconds=seconds, **fields)
            return True
        except AssertionError:
            return False

    def stop(self) -> None:
        """Returns when it stands still: each of its threads stops when it gets a core, and until then goes on."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + WAIT_S
        while any(t.read_text().rpartition(") ")[2][0] != "T" for t in Path(f"/proc/{self.pid}/task").glob("*/stat")):
            assert time.monotonic() < deadline, "a rank of the reference does not stop"
            time.sleep(0.005)

    def kill(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        self.kill()
        self._socket.close()


class Reference:
    """A version of the reference, imported once; ranks are forked from it."""

    def __init__(self, version: str, source: Path, folder: Path) -> None:
        self.version, self._folder, self._count, self._lock = version, folder, itertools.count(), threading.Lock()
        env = dict(os.environ, REFERENCE_SRC=str(source), VLLM_HOST_IP="127.0.0.1")
        self._process = subprocess.Popen([sys.executable, HERE / "peers.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                         stderr=subprocess.DEVNULL, env=env)

    @property
    def pipeline(self) -> bool:
        """Whether this version knows pipeline stages."""
        return self.version != "0.26.0rc1"

    def ready(self) -> None:
        assert json.loads(self._process.stdout.readline() or '{"ev": "gone"}')["ev"] == "ready", f"{self.version} cannot be imported"

    def rank(self, config: dict) -> Peer:
        path = str(self._folder / f"{self.version}-{next(self._count)}.sock")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen(1)
            server.settimeout(WAIT_S)
            with self._lock:
                self._process.stdin.write(json.dumps({"socket": path}) + "\n")
                self._process.stdin.flush()
                pid = json.loads(self._process.stdout.readline())["pid"]
            return Peer(pid, server.accept()[0], config)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


# ---- what both sides need ----
_next_port = 20000 + os.getpid() % 900 * 10
_port_lock = threading.Lock()


def free_ports(n: int) -> int:
    """The first of n ports in a row that nobody has; below those that outgoing connections take."""
    global _next_port
    with _port_lock:
        while True:
            base, _next_port = _next_port, _next_port + n
            try:
                for port in range(base, base + n):
                    with socket.socket() as s:
                        s.bind(("127.0.0.1", port))
                return base
            except OSError:
                continue


class Area:
    """The memory of both sides of one transfer."""

    def __init__(self, folder: Path, model: Model, p: int, pp: int, d: int) -> None:
        self.model, self.p, self.pp, self.d = model, p, pp, d
        folder.mkdir()
        every = list(range(len(model.layers)))
        self.stages = [model.stage(s, pp) for s in range(pp)]
        self.source = {(s, q): Memory(folder / f"source-{s}-{q}", model.tensors(self.stages[s]), model.ring)
                       for s in range(pp) for q in range(p)}
        self.pool = Memory(folder / "pool", model.tensors(every, ("k", "v")))
        self.own = [Memory(folder / f"own-{r}", model.tensors(every, ("indexer", "scale"))) for r in range(d)]

    def compute(self, stage: int, rank: int, layer: int, requests: list[Request], step: int) -> None:
        """What a forward writes of one layer: the blocks of the step's chunks."""
        memory = self.source[stage, rank]
        for r in requests:
            start, n = r.chunks[step] if step < len(r.chunks) else (0, 0)
            for position in range(start, start + n):
                for tensor in TENSORS:
                    if (layer, tensor) in memory.place:
                        memory.write(layer, tensor, r.source[tensor not in ("k", "v")][position],
                                     content(rank, layer, tensor, r, position, memory.place[layer, tensor][1]))


def layout(model: Model, layers: list[int], memories: list[Memory], rows: int = 1) -> core.Layout:
    """rows: so many rows make a block on our side."""
    tensors = []
    for i in layers:
        for t in TENSORS:
            for memory in memories:
                if (i, t) in memory.place:
                    indexer = t in ("indexer", "scale")
                    tensors.append(core.KvTensor(layer_name(i) + (".indexer" if indexer else ""), int(indexer), memory.base(i, t),
                                                 memory.place[i, t][1] // rows, BLOCKS * rows))
    return core.Layout(tensors, BLOCKS, 0, model.groups - 1)


def collect(worker, ids: set[str], seconds: float = WAIT_S) -> dict[str, core.Outcome]:
    """How these requests ended on a rank of ours."""
    found, deadline = {}, time.monotonic() + seconds
    while ids - found.keys() and time.monotonic() < deadline:
        for outcome in worker.collect():
            assert outcome.id not in found, f"{outcome.id} was reported twice"
            found[outcome.id] = outcome
        if ids - found.keys():
            select.select([worker.fd], [], [], max(0.0, min(1.0, deadline - time.monotonic())))
    if missing := ids - found.keys():
        raise AssertionError(f"{sorted(missing)} not reported in {seconds} s: {worker.stats}")
    return found


# ---- Decode ----
class OurDecode:
    def __init__(self, area: Area, **options) -> None:
        self.area, self.base = area, options.pop("base", 0) or free_ports(area.d)
        every = list(range(len(area.model.layers)))
        rows = options.pop("rows", 1)
        options = {"engine": "local", "legacy_session": True, **options}
        self.ranks = []
        for r in range(area.d):
            memories = [area.pool, area.own[r]]
            self.ranks.append(core.Decode(layout(area.model, every, memories, rows), [m.area for m in memories], port=self.base + r,
                                          tp_rank=r, tp_size=area.d, main_rank=r, main_ranks=area.d, **options))
        self.half = core.DecodeScheduler([BLOCK_TOKENS] * area.model.groups, 0, area.model.groups - 1, host="127.0.0.1",
                                         kv_port=self.base, tp_size=area.d, engine_id="interop")

    def install(self, requests: list[Request]) -> None:
        for r in requests:
            self.half.alloc(r.id, PULL, r.tokens, r.tokens - r.cached, r.target[:self.area.model.groups])
        self.step()

    def step(self) -> None:
        meta = self.half.step_end()
        for rank in self.ranks:
            rank.step(meta)

    def abort(self, request: Request) -> None:
        self.half.finish(request.id)
        self.step()

    def ends(self, requests: list[Request], seconds: float = WAIT_S) -> list[list[core.Outcome]]:
        """By request: its outcome on every rank."""
        found = [collect(rank, {r.id for r in requests}, seconds) for rank in self.ranks]
        for r in requests:
            self.half.received(r.id, any(f[r.id].status for f in found))
        return [[f[r.id] for f in found] for r in requests]

    def settle(self, requests: list[Request]) -> None:
        for r, outcomes in zip(requests, self.ends(requests)):
            assert not any(o.status for o in outcomes), f"{r.id} ended {outcomes}"

    def moved(self) -> int:
        return sum(rank.stats["bytes"] for rank in self.ranks)

    def close(self) -> None:
        for x in (self.half, *self.ranks):
            x.close()


class TheirDecode:
    def __init__(self, area: Area, reference: Reference, base: int = 0, move: bool = True, fail_on=()) -> None:
        self.area, self.base = area, base or free_ports(area.d)
        self.ranks = [reference.rank({
            "role": "decode", "layers": list(range(len(area.model.layers))), "blocks": BLOCKS, "port": self.base, "tp_rank": r,
            "tp_size": area.d, "memory": [area.pool.described(), area.own[r].described()], "move": move, "fail_on": list(fail_on)})
            for r in range(area.d)]

    def install(self, requests: list[Request]) -> None:
        two = self.area.model.groups > 1
        for rank in self.ranks:
            rank.say(cmd="install", requests={r.ext: [r.target[0], r.target[1] if two else []] for r in requests})
        for rank in self.ranks:
            rank.wait("install")

    def ends(self, requests: list[Request], seconds: float = WAIT_S) -> list[list[str]]:
        return [[rank.wait("done", "failed", id=r.ext, seconds=seconds)["ev"] for rank in self.ranks] for r in requests]

    def settle(self, requests: list[Request]) -> None:
        for r, ends in zip(requests, self.ends(requests)):
            assert set(ends) == {"done"}, f"{r.ext} ended {ends} on the reference's ranks"

    def moved(self) -> int:
        total = 0
        for rank in self.ranks:
            rank.say(cmd="count")
            total += rank.wait("count")["bytes"]
        return total

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()


# ---- Prefill ----
class OurPrefill:
    """decode: the engine of requests that alloc() gave no other."""

    def __init__(self, area: Area, decode, engine: str = "local", rows: int = 1, **options) -> None:
        self.area, self.decode = area, decode
        self.ranks = {(s, q): core.Prefill(layout(area.model, area.stages[s], [m], rows), [m.area], tp_rank=q, tp_size=area.p,
                                           pp_rank=s, pp_size=area.pp, engine=engine, **options)
                      for (s, q), m in area.source.items()}
        self.half = core.PrefillScheduler([BLOCK_TOKENS] * area.model.groups, 0, area.model.groups - 1)
        self.known: set[str] = set()

    def alloc(self, requests: list[Request], decode=None, **params) -> None:
        to = decode or self.decode
        for r in requests:
            fields = {"do_remote_decode": True, "remote_host": "127.0.0.1", "remote_port": to.base, "remote_tp_size": to.area.d,
                      "remote_engine_id": "reference", "remote_cached_tokens": r.cached, **params}
            assert self.half.alloc(r.id, json.dumps(fields), r.tokens, r.source[:self.area.model.groups]), f"{r.id} is not tracked"
            self.known.add(r.id)

    def step(self, requests: list[Request], step: int, wait_ms: int = 1000 * WAIT_S) -> None:
        """One engine step: every layer computed, handed over, and its gate waited for."""
        self.alloc([r for r in requests if r.id not in self.known])
        self.begin(requests, step)
        for n in range(max(map(len, self.area.stages))):
            self.layer(requests, step, n, wait_ms)
        for (s, _), rank in self.ranks.items():
            for n in range(len(self.area.stages[s])):
                rank.wait_layer(n, wait_ms)

    def begin(self, requests: list[Request], step: int) -> None:
        self.half.step_begin()
        for r in requests:
            if step < len(r.steps):
                self.half.step_add(r.id, sum(r.steps[:step]), r.steps[step], 0, None, False)
        self.hand_over()

    def hand_over(self) -> None:
        meta = self.half.step_end()
        for rank in self.ranks.values():
            rank.step(meta)

    def layer(self, requests: list[Request], step: int, n: int, wait_ms: int = 1000 * WAIT_S) -> None:
        for (s, q), rank in self.ranks.items():
            if n < len(self.area.stages[s]):
                rank.wait_layer(n, wait_ms)
                self.area.compute(s, q, self.area.stages[s][n], requests, step)
                rank.layer(n)

    def finish(self, requests: list[Request], aborted: bool = False) -> None:
        self.held = {r.id for r in requests if self.half.finish(r.id, aborted)}
        self.half.step_begin()
        self.hand_over()

    def ends(self, seconds: float = WAIT_S) -> list[core.Outcome]:
        """Outcomes of the requests that finish() held, of every rank."""
        found = [o for rank in self.ranks.values() for o in collect(rank, self.held, seconds).values()]
        for held in self.held:
            self.half.released(held)
        return found

    def settle(self, requests: list[Request]) -> None:
        self.finish(requests)
        bad = [o for o in self.ends() if o.status]
        assert not bad, f"Prefill's requests ended {bad}"

    def close(self) -> None:
        for x in (self.half, *self.ranks.values()):
            x.close()


class TheirPrefill:
    """shift: added to every address that it tells; pp_size: what it tells instead of the true one."""

    def __init__(self, area: Area, decode, reference: Reference, shift: int = 0, pp_size: int = 0) -> None:
        self.area, self.decode = area, decode
        self.ranks = {(s, q): reference.rank({
            "role": "prefill", "layers": area.stages[s], "memory": [m.described()], "groups": area.model.groups,
            "block_tokens": BLOCK_TOKENS, "pp_rank": s, "pp_size": pp_size or area.pp, "shift": shift})
            for (s, q), m in area.source.items()}

    def fields(self, r: Request, step: int, q: int) -> dict:
        p, d = self.area.p, self.area.d
        group = contributors(p, d, q * d // p)
        done = sum(r.steps[:step + 1])
        return {"local_block_ids": list(r.source[:self.area.model.groups]), "remote_port": self.decode.base + q * d // p,
                "chunk_finish": done >= r.tokens, "local_computed_tokens": done, "local_transed_tokens": sum(r.steps[:step]),
                "remote_cache_tokens": r.cached, "tp_ratio": len(group), "group_member_idx": group.index(q)}

    def start(self, requests: list[Request], step: int, **change) -> None:
        """One engine step of every rank; answers() ends it."""
        for (s, q), rank in self.ranks.items():
            for layer in self.area.stages[s]:
                self.area.compute(s, q, layer, requests, step)
            rank.say(cmd="step", requests={r.id: {**self.fields(r, step, q), **change} for r in requests if step < len(r.steps)})

    def answers(self, seconds: float = WAIT_S) -> list[str]:
        """What its forward was told: the errors of all layers and ranks."""
        deadline = time.monotonic() + seconds
        return [e for rank in self.ranks.values()
                for e in rank.wait("step", seconds=max(0.0, deadline - time.monotonic()))["errors"].values() if e is not None]

    def step(self, requests: list[Request], step: int) -> None:
        self.start(requests, step)
        errors = self.answers()
        assert not errors, f"the reference's forward was told {errors}"

    def settle(self, requests: list[Request]) -> None:
        pass  # it says done by itself

    def close(self) -> None:
        for rank in self.ranks.values():
            rank.close()
