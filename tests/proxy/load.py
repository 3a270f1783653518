# SPDX-License-Identifier: Apache-2.0
"""The program proxy-load (load.c): clients and engines that cost little, for many streams and for measuring."""
from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any


class Load:
    """Use as a context manager. prefix: command that it is started with, such as taskset."""

    def __init__(self, program: Path, prefix: list[str] = ()) -> None:
        self._p = subprocess.Popen([*prefix, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ports = self._read()
        self.prefill, self.decode, self.descriptors = ports["prefill"], ports["decode"], ports["descriptors"]

    def _read(self) -> dict[str, Any]:
        line = self._p.stdout.readline()
        if not line:
            raise RuntimeError("proxy-load has ended")
        return json.loads(line)

    def ask(self, *words: object) -> dict[str, Any]:
        print(*words, file=self._p.stdin, flush=True)
        return self._read()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._p.stdin.close()
        self._p.wait(10)


def cpu_ms(pid: int) -> float:
    """What the process has had of a CPU, to the nanosecond."""
    return sum(int(t.read_text().split()[0]) for t in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e6


def rss_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])
