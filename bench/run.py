# SPDX-License-Identifier: Apache-2.0
"""Everything measured beside its peers, in turns: build/bench.json, docs/benchmarks.md and the plots in docs/img.

    run.py [--rounds N] [--only control,pair,plan,read,e2e,peers,ucx] [--small] [--resume] [--page-only]

Peers are installed into build-bench as far as they can be had; what cannot is named and left out. Decode ranks run on the first CPU
of the process, everything that drives them on the last one.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build-bench"
VENV = FOLDER / "venv/bin/python"
REFERENCE = "0.29.0rc1"
SIZES = [(1, 32), (1, 256), (1, 1024), (16, 256), (64, 256), (256, 256), (256, 1024)]
SMALL = [((1, 32), "scatter"), ((1, 256), "scatter"), ((16, 256), "scatter"), ((64, 256), "scatter"), ((64, 256), "contig"),
         ((256, 1024), "scatter")]
BLOCKS = [256, 4096, 16384, 65536, 131072, 1048576, 16777216]
PACKAGES = {
    "drivers and plots": ["pyzmq", "msgspec", "numpy", "matplotlib"],
    "UCX": ["libucx-cu12"],
    "NIXL": ["--no-deps", "nixl-cu12"],  # what it wants for tensors is gigabytes and is not used
    "Mooncake": ["mooncake-transfer-engine-non-cuda"],
}
skipped: dict[str, str] = {}


def say(text: str) -> None:
    print(f"bench: {text}", flush=True)


def run(args, seconds=600, **env) -> str:
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=seconds, env={**os.environ, **env}, cwd=ROOT)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip() and not re.match(r"[IWE]\d{4} ", line)]
        raise RuntimeError(lines[-1][:200] if lines else f"it ended with status {done.returncode}")
    return done.stdout


def attempt(name: str, what):
    """What a peer gives, or None and the reason why it is left out."""
    try:
        return what()
    except (RuntimeError, OSError, subprocess.TimeoutExpired, ValueError) as why:
        skipped.setdefault(name, str(why)[:200])
        say(f"{name} is left out: {why}")
        return None


# ---- peers ----
def install(name: str) -> None:
    stamp = FOLDER / f"venv/{name.split()[0]}.stamp"
    if stamp.exists() and stamp.read_text() == " ".join(PACKAGES[name]):
        return
    run([VENV, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES[name]], seconds=1800)
    stamp.write_text(" ".join(PACKAGES[name]))


def setup_ucx() -> Path:
    home = next((VENV.parent.parent / "lib").glob("python3*/site-packages/libucx"))
    run(["cc", "-O2", f"-I{home}/include", "-o", FOLDER / "ucx_get", "bench/peers/ucx_get.c", f"-L{home}/lib", "-lucp", "-lucs",
         f"-Wl,-rpath,{home}/lib", "-Wl,--disable-new-dtags"])
    run(["cc", "-O2", "-D_GNU_SOURCE", "-Iinclude", "-Isrc", "-I.", f"-I{home}/include", "-o", FOLDER / "ucx_raw", "bench/ucx_raw.c",
         "build/librd2h.a", f"-L{home}/lib", "-lucp", "-lucs", f"-Wl,-rpath,{home}/lib", "-Wl,--disable-new-dtags", "-lzmq", "-lcurl",
         "-ljansson", "-lpthread"])
    os.environ["RD2H_UCX_LIBRARY"] = f"{home}/lib/libucp.so.0"
    return FOLDER / "ucx_get"


def setup_reference() -> dict:
    python = Path(os.environ.get("REFERENCE_PYTHON", ROOT / ".venv-vllm/bin/python"))
    if not python.exists():
        say("making .venv-vllm, whose torch the reference runs with (about two minutes, 2 GB)")
        run(["scripts/setup_vllm.sh"], seconds=1800)
    run([python, "-c", "import torch, zmq, msgspec"])
    source = os.environ.get("REFERENCE_SRC")
    if not source:
        run(["scripts/setup_reference.sh", "build-reference", REFERENCE], seconds=900)
        source = str(ROOT / "build-reference" / REFERENCE)
    return {"python": python, "env": {"REFERENCE_SRC": source, "VLLM_HOST_IP": "127.0.0.1"}}


def setup(peers: bool) -> dict:
    if not VENV.exists():
        say("making build-bench/venv")
        run([sys.executable, "-m", "venv", FOLDER / "venv"])
    install("drivers and plots")
    have: dict = {}
    if not peers:
        return have
    have["reference"] = attempt("reference", setup_reference)
    for name in ("UCX", "NIXL", "Mooncake"):
        have[name] = attempt(name, lambda n=name: (install(n), True)[1])
    have["UCX"] = have["UCX"] and attempt("UCX", setup_ucx)
    have["Mooncake"] = have["Mooncake"] and attempt("Mooncake", lambda: (run(["scripts/bootstrap.sh", "libibverbs1"]), True)[1])
    return have


# ---- the control path ----
class Decode:
    """A Decode rank, ours or the reference's, with the same talk."""
    port = 21000 + os.getpid() % 8000

    def __init__(self, program: list, requests: int, blocks: int, pattern: str, env: dict):
        Decode.port += 1
        self._p = subprocess.Popen([str(a) for a in program] + [str(Decode.port), str(requests), str(blocks), pattern], text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **env},
                                   cwd=ROOT)
        if self._p.stdout.readline().strip() != "ready":
            self.stop()
            raise RuntimeError("the Decode rank does not start")

    def stat(self) -> list:
        print("stat", file=self._p.stdin, flush=True)
        return json.loads(self._p.stdout.readline())

    def stop(self) -> None:
        self._p.stdin.close()
        self._p.wait(30)


def control_once(who: str, program: list, env: dict, size: tuple, pattern: str) -> dict:
    requests, blocks = size
    rank = Decode(program, requests, blocks, pattern, env)
    try:
        before = rank.stat()
        seen = json.loads(run([VENV, "bench/control.py", "drive", Decode.port, requests, blocks, pattern]))
        after = rank.stat()
    finally:
        rank.stop()
    calls, descriptors, cpu = (b - a for a, b in zip(before, after))
    return {"who": who, "requests": requests, "blocks": blocks, "pattern": pattern, "cpu_us": 1e6 * cpu / calls,
            "descriptors": descriptors / calls, **seen}


def medians(rows: list[dict]) -> dict:
    return {k: statistics.median(r[k] for r in rows) if isinstance(v, float) else v for k, v in rows[0].items()}


def control(have: dict, rd2h: Path, rounds: int, small: bool) -> list[dict]:
    ranks = {"rd2h": ([rd2h, "bench", "decode"], {})}
    if have.get("reference"):
        ranks["reference"] = ([have["reference"]["python"], "bench/control.py", "decode"], have["reference"]["env"])
    out = []
    cases = SMALL if small else [(s, p) for s in SIZES for p in ("scatter", "contig")]
    for size, pattern in cases:
        say(f"control path, {size[0]} x {size[1]} {pattern}")
        rows: dict = {w: [] for w in ranks}
        for _ in range(rounds):
            for who, (program, env) in ranks.items():
                row = attempt(f"{who} at {size[0]} x {size[1]} {pattern}",
                              lambda w=who, p=program, e=env: control_once(w, p, e, size, pattern))
                rows[who] += [row] if row else []
        both = [a["cpu_us"] / b["cpu_us"] for a, b in zip(rows.get("reference", []), rows["rd2h"])]
        for got in rows.values():
            if got:
                out.append({**medians(got), "rounds": len(got), "times_rd2h": statistics.median(both) if both else None})
    return out


def pair(have: dict, rd2h: Path, rounds: int) -> dict:
    rows: dict = {"rd2h": [], "reference": []}
    for _ in range(rounds):
        rows["rd2h"].append(json.loads(run([rd2h, "bench", "pair", "--json"])))
        ref = have.get("reference")
        if not ref:
            continue

        def reference() -> dict:
            rank = Decode([ref["python"], "bench/control.py", "decode"], 1, 32, "scatter", ref["env"])
            try:
                return json.loads(run([ref["python"], "bench/control.py", "prefill", Decode.port, 32], **ref["env"]))
            finally:
                rank.stop()
        row = attempt("reference pair", reference)
        rows["reference"] += [row] if row else []
    out = medians([{k: float(v) for k, v in r.items() if not isinstance(v, str)} for r in rows["rd2h"]])
    if rows["reference"]:
        out["reference_us"] = statistics.median(r["pair_us"] for r in rows["reference"])
        out["reference_times"] = statistics.median(a["pair_us"] / b["pair_us"] for a, b in zip(rows["reference"], rows["rd2h"]))
    return out


# ---- moving bytes ----
def read_ways(have: dict, rd2h: Path) -> dict:
    """Name, program, environment; a program prints rows when block size and pattern are given."""
    ways = {"rd2h": lambda block, pattern: json.loads(run([rd2h, "bench", "read", "--json", "--runs", 1, "--block", block, "--pattern",
                                                           pattern]))["rows"]}
    peers = {"UCX, cma": ("UCX", [have.get("UCX")], {"UCX_TLS": "posix,cma", "UCX_LOG_LEVEL": "error"}),
             "UCX, tcp": ("UCX", [have.get("UCX")], {"UCX_TLS": "tcp", "UCX_LOG_LEVEL": "error"}),
             "NIXL": ("NIXL", [VENV, "bench/peers/nixl_read.py"], {}),
             "Mooncake, tcp": ("Mooncake", [VENV, "bench/peers/mooncake_read.py"], {})}
    for name, (needs, program, env) in peers.items():
        if have.get(needs):
            ways[name] = lambda block, pattern, n=name, p=program, e=env: [
                {"way": n, **json.loads(run([*p, 1, pattern, block], seconds=120, **e).splitlines()[-1])}]
    return ways


def read(have: dict, rd2h: Path, rounds: int, small: bool) -> list[dict]:
    ways, out = read_ways(have, rd2h), []
    for pattern, block in [(p, b) for p in ("scatter", "contig") for b in (BLOCKS[:5:2] if small else BLOCKS)]:
        say(f"reads of {block} bytes, {pattern}")
        rows: dict = {}
        for _ in range(rounds):
            for name, way in ways.items():
                key = f"{name} at {block} bytes, {pattern}"
                for row in (attempt(key, lambda w=way: w(block, pattern)) if key not in skipped else None) or []:
                    rows.setdefault(row["way"], []).append(row)
        out += [{**medians(got), "best_gb_s": max(r["best_gb_s"] for r in got)} for got in rows.values()]
    return out


def e2e(rd2h: Path, rounds: int) -> list[dict]:
    """What of a prompt's transfer is visible, by engine."""
    out = []
    for name, words in (("local, foreign memory", []), ("local, shared mapping", ["--shared"]), ("tcp", ["--engine", "tcp"])):
        say(f"a prompt from end to end, {name}")
        row = attempt(f"a prompt from end to end, {name}",
                      lambda w=words: json.loads(run([rd2h, "bench", "e2e", "--json", "--runs", 2 * rounds + 1, *w])))
        out += [{"way": name, **row}] if row else []
    return out


def peers(rd2h: Path, rounds: int, small: bool) -> list[dict]:
    out = []
    for n in (10, 100, 1000):
        say(f"{n} Prefill ranks")
        words = ["--peers", n, "--requests", 10 * n, "--runs", min(rounds, 3 if small else 5)]
        row = attempt(f"{n} Prefill ranks", lambda w=words: json.loads(run([rd2h, "bench", "peers", "--json", *w], seconds=1200)))
        out += [row] if row else []
    return out


def ucx(have: dict, rounds: int) -> list[dict]:
    """Engine ucx beside a bare UCX reader, which alternate in one process."""
    out = []
    for name, tls in (("shared memory (cma)", "posix,cma"), ("TCP", "tcp")) if have.get("UCX") else ():
        say(f"engine ucx beside bare UCX, {name}")
        lines = attempt(f"engine ucx over {name}",
                        lambda t=tls: run([FOLDER / "ucx_raw", 8 * rounds - 1], UCX_TLS=t, UCX_LOG_LEVEL="error"))
        out += [{"way": name, **json.loads(line)} for line in (lines or "").splitlines()]
    return out


def machine() -> dict:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {"cpu": model, "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release().split("-")[0],
            "load": [round(x, 1) for x in os.getloadavg()]}


def measure(a, have: dict, result: dict, path: Path) -> None:
    begin = machine()
    parts = {"control": lambda: control(have, a.rd2h, a.rounds, a.small), "pair": lambda: pair(have, a.rd2h, a.rounds),
             "plan": lambda: json.loads(run([a.rd2h, "bench", "plan", "--json"])),
             "read": lambda: read(have, a.rd2h, a.rounds, a.small), "e2e": lambda: e2e(a.rd2h, a.rounds),
             "peers": lambda: peers(a.rd2h, a.rounds, a.small), "ucx": lambda: ucx(have, min(a.rounds, 8))}
    done = result.get("done", []) if a.resume else []
    if not a.resume:
        result["skipped"] = skipped
    skipped.update(result.get("skipped", {}))
    for number, part in enumerate(wanted := [p for p in a.only.split(",") if p not in done], 1):
        say(f"part {number} of {len(wanted)}: {part}")
        result[part] = parts[part]()
        result["done"] = done = [*done, part]
        result.update(rounds=a.rounds, skipped=skipped, date=time.strftime("%Y-%m-%d"),
                      machine={**begin, "load_after": machine()["load"]})
        path.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=5, help="each measurement so often, in turns; medians are taken (5)")
    p.add_argument("--only", default="control,pair,plan,read,e2e,peers,ucx",
                   help="parts, comma-separated; the others keep their last figures")
    p.add_argument("--small", action="store_true", help="fewer sizes: minutes instead of half an hour")
    p.add_argument("--resume", action="store_true", help="go on behind the last part that an interrupted run has finished")
    p.add_argument("--no-peers", action="store_true", help="install and measure no peer")
    p.add_argument("--rd2h", type=Path, default=ROOT / "build/rd2h", help="program to measure")
    p.add_argument("--page-only", action="store_true", help="write page and plots from build/bench.json")
    a = p.parse_args()
    path = ROOT / "build/bench.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(exist_ok=True)
    have = setup(not a.no_peers and not a.page_only)
    if not a.page_only:
        measure(a, have, result, path)
    run([VENV, "bench/page.py", path])
    say("build/bench.json, docs/benchmarks.md and docs/img are written")


if __name__ == "__main__":
    main()
