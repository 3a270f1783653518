#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a request costs in rd2h-proxy, beside the reference's proxy, and what each makes of faults: build/proxy.json, docs/proxy-bench.md.

proxy.py [--proxy PROGRAM] [--rounds N] [--no-reference] [--page] [--json FILE] [--only PIECE...]
Both proxies stand between the same engines (tests/proxy/load.c) and take turns. Each has the first CPU of this process while it is
measured, clients and engines have the last. The reference's proxy is had from its package (scripts/setup_reference.sh); where it is not to
be had it is left out. --page also writes the page and its plot. --only: these loads, "streams" or "faults"; the rest stays as the files
have it, so that a machine need not be quiet for long at a time.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests/proxy")]
import proxy_faults  # noqa: E402
import run as peers  # noqa: E402
from load import Load, cpu_ms, rss_kib  # noqa: E402

# name: events of the answer (0: no stream), ms between them
LOADS = {"not streamed": (0, 0), "64 events": (64, 0), "64 events, 20 ms apart": (64, 20)}
CLIENTS = (1, 32, 128)
REQUESTS = {"rd2h": 1500, "reference": 150}
STREAMS = 4000
CPUS = sorted(os.sched_getaffinity(0))
REFERENCE_PACKAGES = ["fastapi", "uvicorn", "httpx"]


def prefix(cpu: int) -> list[str]:
    """Pinned, and before all else on its CPU where that is allowed."""
    real_time = ["chrt", "-r", "20"] if os.geteuid() == 0 and shutil.which("chrt") else []
    return ["taskset", "-c", str(cpu), *real_time]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Proxy:
    def __init__(self, command: list, prefill: list[int], decode: list[int], more: list = ()) -> None:
        self.port = free_port()
        hosts = lambda n: ["127.0.0.1"] * n  # noqa: E731
        argv = [*command, "--host", "127.0.0.1", "--port", self.port, "--prefiller-hosts", *hosts(len(prefill)),
                "--prefiller-ports", *prefill, "--decoder-hosts", *hosts(len(decode)), "--decoder-ports", *decode, *more]
        self.process = subprocess.Popen([*prefix(CPUS[0]), *map(str, argv)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 2).close()
                return
            except OSError:
                time.sleep(0.1)
        self.close()
        raise RuntimeError(f"not up: {command}")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def reference_command() -> list:
    """Its requirements in a virtual environment of their own; its source as packed, unmodified."""
    venv = peers.FOLDER / "venv-proxy"
    python, whole = Path(os.environ.get("REFERENCE_PROXY_PYTHON", venv / "bin/python")), venv / "whole.stamp"
    if "REFERENCE_PROXY_PYTHON" not in os.environ and not whole.exists():
        peers.run([sys.executable, "-m", "venv", "--clear", venv])
        peers.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REFERENCE_PACKAGES])
        whole.touch()
    source = os.environ.get("REFERENCE_SRC")
    if not source:
        peers.run(["scripts/setup_reference.sh", "build-reference", peers.REFERENCE], seconds=900)
        source = ROOT / "build-reference" / peers.REFERENCE
    if not (Path(source) / "examples/disaggregated_prefill_v1").is_dir():
        raise RuntimeError("its package holds no example proxy")
    return [python, ROOT / "bench/peers/reference_proxy.py", source]


def measure(engines: Load, who: str, proxy: Proxy, name: str, clients: int) -> dict:
    events, gap = LOADS[name]
    requests = 2 * clients if gap else max(clients, REQUESTS[who])
    before = cpu_ms(proxy.process.pid)
    got = engines.ask("run", proxy.port, clients, requests, events, gap)
    return {**got, "cpu_ms": (cpu_ms(proxy.process.pid) - before) / max(1, got["done"])}


def compare(engines: Load, proxies: dict[str, Proxy], rounds: int, loads: list[str]) -> list[dict]:
    for proxy in proxies.values():
        engines.ask("run", proxy.port, 4, 40, 4, 0)
    rows = []
    for name in loads:
        for clients in CLIENTS[1:] if LOADS[name][1] else CLIENTS:
            got = {who: [] for who in proxies}
            for _ in range(rounds):
                for who, proxy in proxies.items():
                    got[who].append(measure(engines, who, proxy, name, clients))
            row = {"load": name, "clients": clients}
            for who, lead in (("rd2h", ""), ("reference", "reference_")):
                for key in ("cpu_ms", "p50_ms", "p99_ms"):
                    row[lead + key] = round(statistics.median(g[key] for g in got[who]), 4) if who in got else None
                row[lead + "failed"] = sum(g["failed"] for g in got[who]) if who in got else None
            rows.append(row)
            print(table_line(row), flush=True)
    return rows


def times(row: dict, key: str) -> str:
    return f"{row['reference_' + key] / row[key]:.0f}" if row["reference_" + key] and row[key] else "–"


def table_line(row: dict) -> str:
    other = lambda key: f"{row['reference_' + key]:10.2f}" if row["reference_" + key] is not None else f"{'–':>10}"  # noqa: E731
    return (f"{row['load']:<24}{row['clients']:>8}{row['cpu_ms']:>10.3f}{other('cpu_ms')}{times(row, 'cpu_ms'):>7}"
            f"{row['p99_ms']:>12.2f}{other('p99_ms')}{times(row, 'p99_ms'):>7}")


def hold(engines: Load, proxy: Proxy) -> dict:
    before = rss_kib(proxy.process.pid)
    held = engines.ask("hold", proxy.port, STREAMS)
    each = (rss_kib(proxy.process.pid) - before) / STREAMS
    end = engines.ask("release")
    return {"streams": STREAMS, "failed": STREAMS - end["done"], "held": held["held"], "kib_a_stream": round(each, 1)}


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--proxy", type=Path, default=ROOT / "build/proxy/rd2h-proxy")
    ask.add_argument("--rounds", type=int, default=3)
    ask.add_argument("--no-reference", action="store_true")
    ask.add_argument("--page", action="store_true")
    ask.add_argument("--json", type=Path, default=ROOT / "build/proxy.json")
    ask.add_argument("--only", nargs="+", choices=[*LOADS, "streams", "faults"], default=[*LOADS, "streams", "faults"])
    a = ask.parse_args()
    loads = [name for name in LOADS if name in a.only]
    more_file = a.json.with_name("proxy-more.json")
    old, more = (json.loads(f.read_text()) if f.exists() and len(a.only) < len(LOADS) + 2 else {} for f in (a.json, more_file))
    reference = None if a.no_reference else peers.attempt("the reference's proxy", reference_command)
    commands = {"rd2h": [a.proxy]} | ({"reference": reference} if reference else {})
    quiet = {"rd2h": ["--access-log", "/dev/null"], "reference": []}
    begin, proxies = os.getloadavg(), {}
    with Load(a.proxy.parent / "proxy-load", prefix(CPUS[-1])) as engines:
        try:
            proxies["rd2h"] = Proxy(commands["rd2h"], [engines.prefill], [engines.decode], quiet["rd2h"])
            if reference:
                started = peers.attempt("the reference's proxy", lambda: Proxy(reference, [engines.prefill], [engines.decode]))
                proxies |= {"reference": started} if started else {}
                commands = {who: commands[who] for who in proxies}
            print(f"\n{'':<32}{'CPU ms a request':>20}{'':>7}{'p99 ms':>22}\n{'load':<24}{'clients':>8}{'rd2h':>10}{'reference':>10}"
                  f"{'times':>7}{'rd2h':>12}{'reference':>10}{'times':>7}")
            rows = compare(engines, proxies, a.rounds, loads)
            streams = hold(engines, proxies["rd2h"]) if "streams" in a.only else more["streams"]
            print(f"\n{STREAMS} streams at once: {streams['failed']} failed, {streams['kib_a_stream']} KiB each")
        finally:
            for proxy in proxies.values():
                proxy.close()
    quiet["rd2h"] += ["--rendezvous-timeout", "3"]  # else it waits for longer than the client
    faults = more.get("faults")
    if "faults" in a.only:
        make = {who: lambda p, d, c=command, m=quiet[who]: Proxy(c, p, d, m) for who, command in commands.items()}
        faults = proxy_faults.compare(make)
    rows += [row for row in old if row["load"] not in loads]
    rows.sort(key=lambda row: (list(LOADS).index(row["load"]), row["clients"]))
    a.json.parent.mkdir(exist_ok=True)
    a.json.write_text(json.dumps(rows, indent=1) + "\n")
    rest = {"streams": streams, "faults": faults, "load": [more.get("load", [begin])[0], os.getloadavg()], "rounds": a.rounds}
    more_file.write_text(json.dumps(rest, indent=1) + "\n")
    if a.page:
        peers.setup(False)
        peers.run([peers.VENV, ROOT / "bench/proxy_page.py", a.json])
        print("\ndocs/proxy-bench.md and docs/img/proxy-cost.svg are written")
    return int(any(row["failed"] for row in rows) or streams["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
