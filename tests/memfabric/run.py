# SPDX-License-Identifier: Apache-2.0
"""The engine memfabric over the real library, without an NPU: run.py --build FOLDER --library FOLDER [--python PYTHON --reference
FOLDER] [PART...]. Speaks TAP.

--build: a build of rd2h; --library: what scripts/setup_memfabric.sh made; --python, --reference: an interpreter with what the reference
connector needs, and its package (scripts/setup_reference.sh). PART: runs only cases whose name holds it. Nearly all of a case is
waiting for the library, so several run at once.
"""
from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
WAIT_S, CASES_AT_ONCE = 90, 6
BYTES = 3_000_000


class Skipped(Exception):
    pass


class Peer:
    """A process that says JSON lines among the library's own."""

    def __init__(self, command: list, **env: str) -> None:
        self._command = command
        self._process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, text=True, errors="replace", env={**os.environ, **env})
        self._lines: queue.Queue = queue.Queue()
        self._seen: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._seen.append(line)
            if line.startswith("{"):
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def hear(self) -> dict:
        try:
            said = self._lines.get(timeout=WAIT_S)
        except queue.Empty:
            said = None
        if said is None:
            raise AssertionError(f"{self._command[2:]} said nothing: {''.join(self._seen)[-1500:]}")
        return said

    def release(self, text: str = "") -> None:
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_) -> None:
        self._process.kill()
        self._process.wait()


class Suite:
    def __init__(self, args: argparse.Namespace) -> None:
        self.run, self.build = (args.library / "run").resolve(), args.build.resolve()
        self.python, self.reference = args.python, args.reference
        self.ours = self.build / "tests/memfabric/memfabric_ours"

    # ---- conformance, faults: programs of cases ----
    def cases_of(self, program: str) -> list[str]:
        path = self.build / "tests/memfabric" / program
        return subprocess.run([path, "--list"], capture_output=True, text=True, check=True).stdout.split()

    def case_of(self, program: str, case: str) -> str:
        env = {**os.environ, "CMOCKA_MESSAGE_OUTPUT": "tap", "RD2H_LOG": "error"}
        done = subprocess.run([self.run, self.build / "tests/memfabric" / program, case], capture_output=True, text=True, env=env,
                              timeout=2 * WAIT_S, errors="replace")
        if "# SKIP" in done.stdout:
            raise Skipped(done.stdout.split(": ", 1)[-1].splitlines()[0])
        assert done.returncode == 0 and "\nok 1" in done.stdout, f"status {done.returncode}\n{done.stdout}{done.stderr[-1500:]}"
        return ""

    # ---- the command line ----
    def demo(self, *options: str) -> str:
        command = [self.run, self.build / "rd2h", "demo", "--engine", "memfabric,protocol=host_tcp", "--prefill-tp", "2", "--decode-tp",
                   "2", "--layers", "6", "--requests", "3", "--prompt-tokens", "1024", "--json", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr[-1500:]
        told = json.loads(done.stdout)
        assert told["ok"] and told["moved_bytes"] == told["oracle_bytes"] and not told["wrong_bytes"], told
        return f"{told['checked_bytes']} bytes compared"

    # ---- the library's Python engine ----
    def python_prefill(self) -> str:
        with Peer([self.run, sys.executable, HERE / "python_engine.py", "prefill", BYTES], HCOM="tcp") as p:
            at = p.hear()
            with Peer([self.run, self.ours, "engine-decode", at["session"], at["base"], BYTES], HCOM="tcp") as d:
                told = d.hear()
                assert told["status"] == 0 and told["wrong"] == 0, told
                return f"{told['bytes']} bytes"

    def python_decode(self) -> str:
        with Peer([self.run, self.ours, "engine-prefill", BYTES], HCOM="tcp") as p:
            at = p.hear()
            with Peer([self.run, sys.executable, HERE / "python_engine.py", "decode", at["session"], at["base"], BYTES], HCOM="tcp") as d:
                told = d.hear()
                assert told["status"] == 0 and told["wrong"] == 0, told
                return f"{BYTES} bytes"

    # ---- the pool by rd2h's Python face ----
    def python_pool(self) -> str:
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
        with Peer([self.run, self.python, HERE / "python_pool.py", 0, port]) as zero, \
             Peer([self.run, self.python, HERE / "python_pool.py", 1, port]) as one:
            made = zero.hear()
            one.release(made["handle"])
            attached = one.hear()
            zero.release()
            assert zero.hear()["read"] == "from one"
            assert made["creator"] and not attached["creator"] and made["base"] == attached["base"], (made, attached)
            one.release()
            zero.release()
            return f"one memory at {made['base']:#x} in both"

    # ---- the reference connector ----
    def _reference(self, *role) -> Peer:
        if not self.reference or not (self.reference / "vllm_ascend").is_dir():
            raise Skipped("no package of the reference connector")
        return Peer([self.run, self.python, HERE / "reference.py", *role], HCOM="tcp", VLLM_HOST_IP="127.0.0.1",
                    REFERENCE_SRC=str(self.reference.resolve()))

    def reference_prefill(self) -> str:
        with Peer([self.run, self.ours, "decode"], HCOM="tcp") as d, self._reference("prefill", d.hear()["port"]) as p:
            told, sent = d.hear(), p.hear()
            assert told["status"] == 0 and sent["status"] == 0, (told, sent)
            return f"{told['bytes']} bytes"

    def reference_decode(self) -> str:
        with self._reference("decode") as d, Peer([self.run, self.ours, "prefill", d.hear()["port"]], HCOM="tcp") as p:
            told, sent = d.hear(), p.hear()
            assert told["status"] == 0 and told["wrong"] == 0 and sent["status"] == 0, (told, sent)
            return "every block compared"

    def table(self) -> list[tuple[str, Callable[[], str]]]:
        rows: list[tuple[str, Callable[[], str]]] = []
        for program in ("memfabric_faults", "memfabric_pool", "memfabric_conformance"):
            rows += [(f"{program.split('_')[1]}: {c}", lambda p=program, c=c: self.case_of(p, c)) for c in self.cases_of(program)]
        return [("demo: Prefill TP 2, Decode TP 2", self.demo),
                ("demo: storage shared by layers", lambda: self.demo("--reuse-buffers", "2")),
                ("interop: the library's Python engine is Prefill, ours Decode", self.python_prefill),
                ("interop: the library's Python engine is Decode, ours Prefill", self.python_decode),
                ("pool: two ranks by the Python face", self.python_pool),
                ("interop: the reference connector is Prefill, ours Decode", self.reference_prefill),
                ("interop: the reference connector is Decode, ours Prefill", self.reference_decode), *rows]


def attempt(row: tuple[str, Callable[[], str]]) -> tuple[str, str, str, float]:
    name, function = row
    start = time.monotonic()
    try:
        result, text = "ok", function()
    except Skipped as e:
        result, text = "skip", str(e)
    except Exception as e:  # any failure is a case, and the others still run
        result, text = "not ok", f"{type(e).__name__}: {e}"
    return name, result, text, time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--library", type=Path, default=Path("build-memfabric"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART")
    args = parser.parse_args()
    table = [r for r in Suite(args).table() if not args.parts or any(p in r[0] for p in args.parts)]
    missing = args.library / "missing"
    print(f"1..{len(table)}", flush=True)
    failed = 0
    with ThreadPoolExecutor(CASES_AT_ONCE) as pool:
        told = ((n, "skip", missing.read_text().strip(), 0.0) for n, _ in table) if missing.exists() else pool.map(attempt, table)
        for i, (name, result, text, seconds) in enumerate(told, 1):
            failed += result == "not ok"
            head = f"not ok {i} # SKIP {name}: {text}" if result == "skip" else f"{result} {i} - {name} ({seconds:.1f} s)"
            print(head, "".join(f"\n# {line}" for line in text.splitlines()) if result != "skip" else "", sep="", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
