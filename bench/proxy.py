#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a request costs in the proxy: CPU time of its process and latency, with scripted engines; beside another proxy when one is named.

proxy.py [--proxy PROGRAM] [--reference COMMAND] [--clients 1,32,128] [--requests N] [--json FILE]
COMMAND is a shell command that starts the other proxy in the foreground; {port}, {prefill} and {decode} are filled in. Both are measured
in turn, on the same engines. Ratios of one run are what counts: everything shares the machine.
"""
from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/proxy"))
from bench import free_port  # noqa: E402
from engines import Decode, Loop, Prefill, read_head  # noqa: E402

LOADS = {"plain": {"model": "", "stream": False}, "events-64": {"model": "events=64", "stream": True}}
TIMEOUT_S = 60.0


def serve_engines(pipe) -> None:
    loop = Loop()
    pipe.send((Prefill(loop).start().port, Decode(loop).start().port))
    pipe.recv()


async def request(port: int, raw: bytes) -> float:
    """Seconds of one request on a connection of its own; an incomplete answer is an error."""
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        writer.write(raw)
        (_, status, *_), headers = await read_head(reader)
        if status != "200":
            raise RuntimeError(f"status {status}")
        if "content-length" in headers:
            await reader.readexactly(int(headers["content-length"]))
        else:
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
        return time.perf_counter() - begin
    finally:
        writer.close()


async def load(port: int, raw: bytes, clients: int, requests: int) -> tuple[list[float], int]:
    times, failed, left = [], 0, requests

    async def client() -> None:
        nonlocal left, failed
        while left > 0:
            left -= 1
            try:
                times.append(await asyncio.wait_for(request(port, raw), TIMEOUT_S))
            except (OSError, RuntimeError, ValueError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                failed += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    return times, failed


@dataclass
class Proxy:
    process: subprocess.Popen
    port: int

    def cpu(self) -> float:
        """Seconds of user and system time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_kib(self) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0])

    def measure(self, name: str, clients: int, requests: int) -> dict[str, float]:
        body = json.dumps({**LOADS[name], "prompt": "x" * 200, "max_tokens": 64 if "events" in name else 1}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        raw = head.encode() + body
        before = self.cpu()
        times, failed = asyncio.run(load(self.port, raw, clients, requests))
        used = self.cpu() - before
        times.sort()
        at = lambda q: round(1000 * times[min(len(times) - 1, int(q * len(times)))], 2) if times else None  # noqa: E731
        return {"cpu_ms": round(1000 * used / max(1, len(times)), 4), "p50_ms": at(0.5), "p99_ms": at(0.99), "failed": failed}


def start(argv: list[str], port: int) -> Proxy:
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            asyncio.run(asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 2))
            return Proxy(process, port)
        except (OSError, asyncio.TimeoutError):
            time.sleep(0.1)
    process.kill()
    raise SystemExit(f"proxy.py: not up: {shlex.join(argv)}")


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--proxy", default=str(ROOT / "build/proxy/rd2h-proxy"))
    ask.add_argument("--reference")
    ask.add_argument("--clients", default="1,32,128")
    ask.add_argument("--requests", type=int, default=300)
    ask.add_argument("--json", type=Path, default=ROOT / "build/proxy.json")
    a = ask.parse_args()
    ours, theirs = multiprocessing.Pipe()
    engines = multiprocessing.Process(target=serve_engines, args=(theirs,), daemon=True)
    engines.start()
    p, d = ours.recv()
    port, rows = free_port(), []
    proxies = {"": start([a.proxy, "--host", "127.0.0.1", "--port", str(port), "--prefiller-hosts", "127.0.0.1", "--prefiller-ports",
                          str(p), "--decoder-hosts", "127.0.0.1", "--decoder-ports", str(d), "--access-log", os.devnull], port)}
    if a.reference:
        port = free_port()
        proxies["reference_"] = start(["/bin/sh", "-c", "exec " + a.reference.format(port=port, prefill=p, decode=d)], port)
    try:
        for name in LOADS:
            for clients in map(int, a.clients.split(",")):
                row = {"load": name, "clients": clients}
                for prefix, proxy in proxies.items():
                    row |= {prefix + k: v for k, v in proxy.measure(name, clients, max(a.requests // 2, clients)).items()}
                print("  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
                rows.append(row)
        for prefix, proxy in proxies.items():
            print(f"{prefix or 'rd2h-proxy '}resident {proxy.rss_kib()} KiB")
    finally:
        for proxy in proxies.values():
            proxy.process.terminate()
        ours.send(None)
    a.json.parent.mkdir(exist_ok=True)
    a.json.write_text(json.dumps(rows, indent=1) + "\n")
    return any(row["failed"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
