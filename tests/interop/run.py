# SPDX-License-Identifier: Apache-2.0
"""Our ranks against the reference connector, unmodified, in both roles: handshake, batches, bytes really moved and compared.

    run.py --reference VERSION=FOLDER [--reference ...] [--json FILE]

FOLDER: where that version's package is unpacked (scripts/setup_reference.sh). Our side runs in this process over rd2h.core; the
reference is a process of its own (peers.py). Writes rows {"version", "our_role", "scenario", "ok", "detail"}.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from rd2h import core

HERE = Path(__file__).resolve().parent
BLOCKS, BLOCK_TOKENS, WAIT_S = 32, 16, 60
SOURCE = {"main": [7, 8, 9, 12, 30], "indexer": [4, 5, 6, 1, 31]}
TARGET = {"main": [3, 4, 5, 9, 0], "indexer": [1, 2, 3, 20, 31]}
TENSORS = ("k", "v", "indexer", "scale")


@dataclass(frozen=True)
class Scenario:
    name: str
    layers: int
    sizes: tuple[int, ...]  # bytes of a block: K, V, indexer, scale
    move: bool = True
    fail: bool = False      # the reference's engine fails every read


SCENARIOS = (
    Scenario("handshake and one batch, no-op engine", 1, (4096, 512, 1024), move=False),
    Scenario("bf16 indexer, 3 layers, bytes compared", 3, (4096, 512, 1024)),
    Scenario("LIC8 indexer with scale, 4 layers, bytes compared", 4, (8192, 1024, 1024, 16)),
    Scenario("no indexer, 2 layers, bytes compared", 2, (4096, 512)),
)
FAILING = Scenario("reads fail on Decode", 2, (4096, 512, 1024), fail=True)


class Peer:
    """A reference rank in its own process: JSON lines in and out."""

    def __init__(self, role: str, source: Path, config: dict):
        env = dict(os.environ, REFERENCE_SRC=str(source), VLLM_HOST_IP="127.0.0.1")
        self._p = subprocess.Popen([sys.executable, HERE / "peers.py", role], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True, env=env)
        self._lines: queue.Queue = queue.Queue()
        self.seen: list[dict] = []
        threading.Thread(target=self._read, daemon=True).start()
        self.say(json.dumps(config))

    def _read(self) -> None:
        for line in self._p.stdout:
            self._lines.put(json.loads(line))
        self._lines.put({"ev": "exit"})

    def say(self, line: str) -> None:
        self._p.stdin.write(line + "\n")
        self._p.stdin.flush()

    def wait(self, *events: str) -> dict:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                e = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            self.seen.append(e)
            if e["ev"] in events:
                return e
            if e["ev"] == "exit":
                break
        raise AssertionError(f"the reference said no {' or '.join(events)}; it said {json.dumps(self.seen)[-400:]}")

    def close(self) -> None:
        self._p.kill()
        self._p.wait()


class Memory:
    """Our tensors: one buffer a tensor, filled with bytes that name their place or with zeros."""

    def __init__(self, s: Scenario, filled: bool):
        self.s, self.buffers, tensors = s, {}, []
        for i in range(s.layers):
            for t, size in zip(TENSORS, s.sizes):
                raw = ctypes.create_string_buffer(size * BLOCKS)
                for b in range(BLOCKS if filled else 0):
                    ctypes.memset(ctypes.addressof(raw) + b * size, (17 * i + 5 * TENSORS.index(t) + 3 * b + 2) & 255, size)
                self.buffers[i, t] = raw
                indexer = t in ("indexer", "scale")
                name = f"model.layers.{i}.self_attn" + (".indexer" if indexer else "")
                tensors.append(core.KvTensor(name, int(indexer), ctypes.addressof(raw), size, BLOCKS))
        self.layout = core.Layout(tensors, BLOCKS, 0, 1 if len(s.sizes) > 2 else 0)
        self.areas = [(ctypes.addressof(raw), len(raw)) for raw in self.buffers.values()]

    def sums(self) -> dict[str, list[int]]:
        size = dict(zip(TENSORS, self.s.sizes))
        return {f"{i}/{t}": [zlib.crc32(raw.raw[b * size[t]:(b + 1) * size[t]]) for b in range(BLOCKS)]
                for (i, t), raw in self.buffers.items()}


def compare(source: dict, target: dict, s: Scenario) -> None:
    """Every destination block is its source block; every other block is as it was (zeros)."""
    for i in range(s.layers):
        for t, size in zip(TENSORS, s.sizes):
            part = "main" if t in ("k", "v") else "indexer"
            want = [zlib.crc32(bytes(size))] * BLOCKS
            for a, b in zip(SOURCE[part], TARGET[part]):
                want[b] = source[f"{i}/{t}"][a] if s.move else want[b]
            assert target[f"{i}/{t}"] == want, f"layer {i} {t}: destination blocks differ from their sources"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def config(s: Scenario, port: int, blocks: dict) -> dict:
    keys = dict(zip(("k_bytes", "v_bytes", "indexer_bytes", "scale_bytes"), s.sizes))
    return dict(layers=s.layers, num_blocks=BLOCKS, port=port, move=s.move, fail=s.fail,
                requests={"req-0": [blocks["main"], blocks["indexer"] if len(s.sizes) > 2 else []]}, **keys)


def outcomes(worker) -> list[core.Outcome]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if done := worker.collect():
            return done
        select.select([worker.fd], [], [], 1.0)
    raise AssertionError(f"no outcome within {WAIT_S} s, statistics {worker.stats}")


def groups(s: Scenario) -> int:
    return 2 if len(s.sizes) > 2 else 1


def our_decode(s: Scenario, source: Path) -> str:
    mem = Memory(s, filled=False)
    d = core.Decode(mem.layout, mem.areas, port=0, tp_size=1, main_ranks=1, engine="local" if s.move else "noop", legacy_session=True)
    half = core.DecodeScheduler([BLOCK_TOKENS] * groups(s), 0, groups(s) - 1, host="127.0.0.1", kv_port=d.port, tp_size=1,
                                engine_id="interop")
    params = json.dumps({"do_remote_prefill": True, "do_virtual": True, "metaserver": "http://127.0.0.1:1/v1/metaserver"})
    tokens = BLOCK_TOKENS * len(TARGET["main"])
    half.alloc("req-0-12345678", params, tokens, tokens, [TARGET["main"], TARGET["indexer"]][:groups(s)])
    d.step(half.step_end())
    peer = Peer("prefill", source, config(s, d.port, SOURCE))
    try:
        answers = [peer.wait("acked") for _ in range(s.layers)]
        assert all(a["ok"] for a in answers), f"the reference's Prefill was not content: {answers}"
        done = outcomes(d)
        assert [(o.id, o.status) for o in done] == [("req-0-12345678", 0)], f"outcome {done}"
        compare(peer.wait("sums")["sums"], mem.sums(), s)
        return f"{d.stats['bytes']} bytes"
    finally:
        peer.close()
        half.close()
        d.close()


def our_prefill(s: Scenario, source: Path) -> str:
    mem = Memory(s, filled=True)
    p = core.Prefill(mem.layout, mem.areas, tp_size=1, pp_size=1, engine="local" if s.move else "noop")
    half = core.PrefillScheduler([BLOCK_TOKENS] * groups(s), 0, groups(s) - 1)
    port = free_port()
    peer = Peer("decode", source, config(s, port, TARGET))
    try:
        peer.wait("listening")
        params = json.dumps({"do_remote_decode": True, "remote_host": "127.0.0.1", "remote_port": port, "remote_tp_size": 1,
                             "remote_engine_id": "reference", "remote_cached_tokens": 0})
        tokens = BLOCK_TOKENS * len(SOURCE["main"])
        half.alloc("req-0-12345678", params, tokens, [SOURCE["main"], SOURCE["indexer"]][:groups(s)])
        half.step_begin()
        half.step_add("req-0-12345678", 0, tokens, 0, None, False)
        p.step(half.step_end())
        for i in range(s.layers):
            p.layer(i)
        held = half.finish("req-0-12345678", False)
        half.step_begin()
        p.step(half.step_end())
        settled = outcomes(p) if held else []
        told = peer.wait("done", "failed")
        assert told["ids"] == ["req-0"] and told["ev"] == ("failed" if s.fail else "done"), f"the reference's Decode said {told}"
        assert [o.id for o in settled] == ["req-0-12345678"] and (settled[0].status != 0) == s.fail, f"settled {settled}"
        peer.say("sums")
        sums = peer.wait("sums")
        if not s.fail:
            compare(mem.sums(), sums["sums"], s)
        return f"{sums['bytes']} bytes in {sums['calls']} reads"
    finally:
        peer.close()
        half.close()
        p.close()


def run(version: str, source: Path, role: str, s: Scenario) -> dict:
    row = {"version": version, "our_role": role, "scenario": s.name, "ok": False, "detail": ""}
    try:
        row["detail"] = {"decode": our_decode, "prefill": our_prefill}[role](s, source)
        row["ok"] = True
    except Exception as e:  # any failure is a row, and the others still run
        row["detail"] = f"{type(e).__name__}: {e}"
    return row


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--reference", action="append", required=True, metavar="VERSION=FOLDER")
    ap.add_argument("--json", type=Path, help="file for the rows")
    args = ap.parse_args()
    rows = []
    for version, _, folder in (r.partition("=") for r in args.reference):
        for role, scenarios in (("decode", SCENARIOS), ("prefill", (*SCENARIOS, FAILING))):
            for s in scenarios:
                rows.append(run(version, Path(folder), role, s))
                r = rows[-1]
                print(f"{'ok  ' if r['ok'] else 'FAIL'}  {version:10} our {role:8} {s.name:50} {r['detail']}", flush=True)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    failed = sum(not r["ok"] for r in rows)
    print(f"interop: {len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
