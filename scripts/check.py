#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the test suites one after the other and counts their cases: check.py [SUITE...], --list names them.

A new suite is a line of SUITES: its commands (the last one's output is read, the others set up) and how its cases are counted.
What suites set up is made ahead, beside the suites before them. Logs: build/check/.
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build/check"
PYTHON = ".venv/bin/python"
FUZZ_SECONDS = os.environ.get("FUZZ_SECONDS", "10")
BAD_LINES = 400  # of one failing command


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)  # what to show of the failures

    def add(self, other: "Counts") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.details += other.details


@dataclass(frozen=True)
class Suite:
    name: str
    what: str
    commands: list[list[str]]
    count: Callable[[int, str, Path], Counts]  # of the last command: exit status, output, the file it leaves
    result: str = ""  # that file, removed before
    needs: str = ""  # a path without which there is nothing to run
    limit: int = 900  # seconds for each command
    env: dict[str, str] = field(default_factory=dict)

    def there(self) -> bool:
        return not self.needs or (ROOT / self.needs).exists()


# ---- how cases are counted ----
TAP_CASE = re.compile(r"^(ok|not ok) \d+(?: -)? *(?P<name>[^#\n]*)(?:# *(?P<skip>skip) *(?P<why>.*))?", re.I | re.M)
TAP_PLAN = re.compile(r"^1\.\.(\d+)", re.M)


def count_tap(status: int, output: str, _result: Path) -> Counts:
    """Cases of TAP; a skip counts as one whatever stands before it. A missing case, no plan or a bad exit are failures, too."""
    counts = Counts()
    for match in TAP_CASE.finditer(output):
        if match["skip"]:
            counts.skipped.append(" ".join(filter(None, (match["name"].strip(" -"), match["why"].strip()))))
        elif match[1].lower() == "ok":
            counts.passed += 1
        else:
            counts.failed += 1
    seen = counts.passed + counts.failed + len(counts.skipped)
    planned = sum(map(int, TAP_PLAN.findall(output)))
    if seen < planned or not TAP_PLAN.search(output):
        counts.failed += 1
        counts.details.append(f"ended with status {status} after {seen} of {planned} cases")
    elif status and not counts.failed:
        counts.failed += 1
        counts.details.append(f"all cases passed, and yet it ended with status {status}")
    if counts.failed:
        counts.details.append(output)
    return counts


def count_exit(status: int, output: str, _result: Path) -> Counts:
    return Counts(passed=1) if status == 0 else Counts(failed=1, details=[output])


def count_meson(status: int, output: str, log: Path) -> Counts:
    """Cases of every program that `meson test` ran, from its log."""
    counts = Counts()
    for line in log.read_text().splitlines() if log.exists() else ():
        test = json.loads(line)
        name = test["name"].split(":")[-1]
        one = count_tap(test["returncode"], test.get("stdout", ""), log)
        if one.failed:
            text = "\n".join([*one.details, test.get("stderr", "")])
            one.details = [f"-- {name}: {test['result']}\n{text}"]
        one.skipped = [f"{name}: {skip}" for skip in one.skipped]
        counts.add(one)
    if status and not counts.failed or not counts.passed:
        counts.failed += 1
        counts.details.append(output)
    return counts


def count_rows(status: int, output: str, file: Path) -> Counts:
    """Rows of a JSON array, each a case: passed when what it compares is equal and not a byte too many was pulled."""
    counts = Counts()
    rows = json.loads(file.read_text()) if file.exists() else []
    for row in rows:
        good = all(row.get(key, True) for key in ("ok", "equal", "kv_equal"))
        good = good and row.get("pulled_bytes") == row.get("oracle_bytes")
        counts.passed += good
        counts.failed += not good
        if not good:
            counts.details.append(json.dumps(row))
    if status and not counts.failed or not rows:
        counts.failed += 1
    if counts.failed:
        counts.details.append(output)
    return counts


# ---- the table ----
REFERENCES = ["0.26.0rc1", "0.29.0rc1"]  # of protocol v0 and v1
MESON_LOG = "{}/meson-logs/testlog.json"


def meson_test(folder: str, *args: str) -> list[str]:
    processes = (os.cpu_count() or 1) * 3 // 2  # a third of the time is waiting
    return [".venv/bin/meson", "test", "-C", folder, "--no-rebuild", "--num-processes", str(processes), *args]


def tsan_prefix() -> list[str]:
    """ThreadSanitizer of gcc 12 and clang 14 cannot place its shadow memory when addresses are randomised by more bits."""
    bits = int(Path("/proc/sys/vm/mmap_rnd_bits").read_text())
    return ["setarch", "-R"] if bits > 28 else []


SIM_SEEDS, SIM_SHARDS = int(os.environ.get("SIM_SEEDS", "50000")), 80


def sim() -> list[str]:
    """Another shard of four million seeds for every commit, the same for the same commit; FIRST_SEED chooses one."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    shard = int(head[:8] or "0", 16) % SIM_SHARDS
    return ["build/tests/sim/sim", "--seeds", str(SIM_SEEDS), "--first", os.environ.get("FIRST_SEED", str(1 + shard * SIM_SEEDS))]


def build(variant: str) -> list[str]:
    return ["scripts/build.sh", variant]


SUITES = [
    # In an order that has suites which wait (proxy, faults, topology; memfabric) beside builds (asan, tsan; fuzz).
    Suite("layers", "who includes whom", [[PYTHON, "scripts/check_layers.py"]], count_exit),
    Suite("style", "licence lines, sizes, words", [[PYTHON, "scripts/check_style.py"]], count_exit),
    Suite("cases", "every known fault has a test that carries its id", [[PYTHON, "scripts/check_cases.py"]], count_tap),
    Suite("unit", "release build, warnings are errors", [["scripts/setup_ucx.sh"], build("release"),
                                                              meson_test("build", "--no-suite", "sim")],
          count_meson, MESON_LOG.format("build")),
    Suite("exports", "exported symbols are the public API", [build("release"), [PYTHON, "scripts/check_exports.py"]], count_exit),
    Suite("examples", "built outside the tree against an installed copy", [build("release"), ["scripts/check_examples.sh"]], count_tap),
    Suite("proxy", "rd2h-proxy between scripted engines", [build("release"), [PYTHON, "tests/proxy/run.py"]], count_tap,
          needs="tests/proxy/run.py"),
    Suite("faults", "processes killed, stopped, cut off",
          [build("release"), ["build/tests/faults/faults", "--json", "build/faults.json"]], count_tap,
          needs="tests/faults/meson.build", env={"RD2H_LOG": "error"}),
    Suite("topology", "every pair of TP sizes, every byte checked",
          [build("release"), [PYTHON, "tests/topology/run.py", "--json", "build/topology.json"]], count_rows, "build/topology.json",
          needs="tests/topology/run.py"),
    Suite("wheel", "built, installed, imported", [["scripts/wheel.sh"], ["scripts/check_wheel.sh"]], count_tap),
    Suite("sim", "simulated clusters with faults", [build("release"), sim()], count_tap, needs="tests/sim/meson.build"),
    Suite("mutations", "faults made on purpose, each found by the simulation",
          [build("release"), [PYTHON, "tests/sim/mutations.py"]], count_tap, needs="tests/sim/mutations.py"),
    Suite("model", "every state of gate, done, fence and completion", [["scripts/bootstrap.sh", "spin"], [PYTHON, "tests/model/run.py"]],
          count_tap, needs="tests/model/run.py"),
    Suite("asan", "AddressSanitizer, UndefinedBehaviorSanitizer",
          [["scripts/setup_ucx.sh"], build("asan"), meson_test("build-asan", "--no-suite", "sim", "-t", "3")], count_meson,
          MESON_LOG.format("build-asan")),
    Suite("tsan", "ThreadSanitizer",
          [["scripts/setup_ucx.sh"], build("tsan"), [*tsan_prefix(), *meson_test("build-tsan", "--no-suite", "sim", "-t", "5")]],
          count_meson, MESON_LOG.format("build-tsan"), env={"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"}),
    Suite("python", "the vLLM adapters against vLLM's own scheduler",
          [["scripts/setup_vllm.sh"], [".venv-vllm/bin/python", "tests/python/run.py"]], count_tap, needs="tests/python/run.py"),
    Suite("interop", "against the reference connector, in both roles",
          [["scripts/setup_vllm.sh"], ["scripts/setup_reference.sh", "build-reference", *REFERENCES],
           [".venv-vllm/bin/python", "tests/interop/run.py", "--json", "build/interop.json",
            *(f"--reference={version}=build-reference/{version}" for version in REFERENCES)]],
          count_rows, "build/interop.json", needs="tests/interop/run.py"),
    Suite("memfabric", "the real MemFabric library, without an NPU",
          [["scripts/setup_vllm.sh"], build("release"), ["scripts/setup_reference.sh", "build-reference", *REFERENCES],
           ["scripts/setup_memfabric.sh", "build-memfabric"],
           [".venv-vllm/bin/python", "tests/memfabric/run.py", f"--reference=build-reference/{REFERENCES[0]}"]],
          count_tap, needs="tests/memfabric/run.py"),
    Suite("fuzz", f"{FUZZ_SECONDS} s a target", [build("fuzz"), [PYTHON, "scripts/fuzz.py", FUZZ_SECONDS]], count_tap,
          limit=900 + 30 * int(FUZZ_SECONDS)),
    Suite("e2e", "two vLLM engines", [["scripts/setup_vllm.sh"], [".venv-vllm/bin/python", "tests/e2e/run.py"]],
          count_rows, "build/e2e.json", needs="tests/e2e/run.py", limit=1500),
    Suite("vfaults", "vLLM engines killed, with reads that fail or are slow",
          [["scripts/setup_vllm.sh"], [".venv-vllm/bin/python", "tests/faults/engines.py"]], count_tap,
          needs="tests/faults/engines.py", env={"RD2H_LOG": "error"}),
    Suite("http", "two vLLM servers behind rd2h-proxy, also with TP 2",
          [["scripts/setup_vllm.sh"], build("release"), [".venv-vllm/bin/python", "tests/e2e/http_proxy.py"]],
          count_rows, "build/http.json", needs="tests/e2e/http_proxy.py"),
]


# ---- running ----
class Progress:
    """The line of the suite at work: rewritten once in a while on a terminal, else its beginning at once and the rest at the end."""

    def __init__(self, suite: Suite) -> None:
        self.suite, self.start, self.last = suite, time.monotonic(), ""
        self.live = sys.stdout.isatty()
        self.head = f"{suite.name:<9} {suite.what:<50}"
        self.show(self.head if not self.live else "")

    def show(self, text: str) -> None:
        print(text, end="", flush=True)

    def seconds(self) -> float:
        return time.monotonic() - self.start

    def tick(self, last: str) -> None:
        if self.live:
            room = max(0, os.get_terminal_size().columns - len(self.head) - 12)
            self.show(f"\r\033[K{self.head} {self.seconds():5.0f} s  {last[:room]}")

    def end(self, text: str) -> None:
        lead = f"\r\033[K{self.head}" if self.live else ""
        print(f"{lead} {text:<34} {self.seconds():6.1f} s", flush=True)


class Command:
    """A command of a suite in a session of its own, which ends with it. Its output goes to the suite's log and is kept."""

    def __init__(self, words: list[str], suite: Suite) -> None:
        self.words, self.limit, self.last, self.late = words, suite.limit, "", False
        self.log = LOGS / f"{suite.name}.log"
        self.process = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1", **suite.env},
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        errors="replace", start_new_session=True)

    def kill(self) -> None:
        if self.process.poll() is not None:
            return  # its number may be another's by now
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _watch(self, tick: Callable[[str], None]) -> None:
        deadline = time.monotonic() + self.limit
        while self.process.poll() is None:
            time.sleep(0.5)
            tick(self.last)
            if time.monotonic() > deadline:
                self.late = True
                self.kill()

    def run(self, tick: Callable[[str], None] = lambda _last: None) -> tuple[int, str]:
        threading.Thread(target=self._watch, args=(tick,), daemon=True).start()
        lines = []
        try:
            with open(self.log, "a") as log:
                for line in self.process.stdout:
                    lines.append(line)
                    log.write(line)
                    self.last = line.strip()
        except KeyboardInterrupt:
            self.kill()
            raise
        status = self.process.wait()
        if self.late:
            lines.append(f"{' '.join(self.words)}: not done after {self.limit} s, ended\n")
        return status, "".join(lines)


def aside() -> list[str]:
    """What a command beside a suite at work begins with: it gets processors that would be idle, and the suite hardly notices."""
    idle = ["chrt", "--idle", "0"]
    possible = shutil.which("chrt") and not subprocess.run([*idle, "true"], stderr=subprocess.DEVNULL).returncode
    return idle if possible else ["nice", "-n", "19"]


class SetUp(threading.Thread):
    """What the suites set up, each command once, in the order of the suites and beside them: much of a suite is waiting."""

    def __init__(self, suites: list[Suite]) -> None:
        super().__init__(daemon=True)
        self.suites, self.aside, self.stopped = suites, aside(), False
        self.command: Command | None = None
        # Command -> the first suite that has it, and what went wrong, or nothing.
        self.ends: dict[str, futures.Future] = {" ".join(words): futures.Future() for suite in suites for words in suite.commands[:-1]}

    def run(self) -> None:
        for suite in self.suites:
            for words in suite.commands[:-1]:
                end = self.ends[" ".join(words)]
                if not end.done() and not self.stopped:
                    end.set_result((suite.name, self._trouble(words, suite)))
                if self.stopped or end.result()[1]:
                    break

    def _trouble(self, words: list[str], suite: Suite) -> str:
        try:
            self.command = Command([*self.aside, *words], suite)
            status, output = self.command.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the suites that need this must not wait for it
            return f"{' '.join(words)}: {error}"
        return f"{' '.join(words)} ended with status {status}\n{output}" if status else ""

    def wait(self, words: list[str], suite: Suite, progress: Progress) -> str:
        line = " ".join(words)
        while not futures.wait([self.ends[line]], timeout=0.5).done:
            progress.tick(self.command.last if self.command else "")
        owner, trouble = self.ends[line].result()
        return f"{line} failed before, for {owner}" if trouble and owner != suite.name else trouble

    def stop(self) -> None:
        self.stopped = True
        if self.command:
            self.command.kill()


def run_suite(suite: Suite, set_up: SetUp) -> Counts:
    progress = Progress(suite)
    if not suite.there():
        progress.end("skipped")
        return Counts(skipped=[f"{suite.name}: {suite.needs} is not there"])
    for words in suite.commands[:-1]:
        if trouble := set_up.wait(words, suite, progress):
            progress.end("set-up failed")
            return Counts(failed=1, details=[trouble])
    prepared = progress.seconds()
    result = ROOT / (suite.result or os.devnull)
    if suite.result:
        result.unlink(missing_ok=True)
    counts = suite.count(*Command(suite.commands[-1], suite).run(progress.tick), result)
    text = f"{counts.passed:5} passed, {counts.failed} failed" + (f", {len(counts.skipped)} skipped" if counts.skipped else "")
    progress.end(f"{text:<34} {'set-up ' + format(prepared, '.1f') + ' s' if len(suite.commands) > 1 else ''}")
    return counts


def show_details(suite: Suite, counts: Counts) -> None:
    if not counts.failed:
        return
    print(f"==== {suite.name} failed; all of it: build/check/{suite.name}.log")
    for text in counts.details:
        lines = text.rstrip().splitlines()
        if len(lines) > BAD_LINES:
            print(f"[{len(lines) - BAD_LINES} lines before these are in the log]")
        print("\n".join(lines[-BAD_LINES:]))
    print("====", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="suites to run, in this order; none: all")
    parser.add_argument("--list", action="store_true", help="name the suites and end")
    args = parser.parse_args()
    table = {suite.name: suite for suite in SUITES}
    if args.list:
        print("\n".join(f"{suite.name:<9} {suite.what}" for suite in SUITES))
        return 0
    for name in args.suites:
        if name not in table:
            parser.error(f"no suite {name}: {', '.join(table)}")
    suites = [table[name] for name in args.suites] or SUITES
    LOGS.mkdir(parents=True, exist_ok=True)
    for suite in suites:
        (LOGS / f"{suite.name}.log").write_text("")
    start, total = time.monotonic(), Counts()
    set_up = SetUp([suite for suite in suites if suite.there()])
    set_up.start()
    try:
        for suite in suites:
            counts = run_suite(suite, set_up)
            show_details(suite, counts)
            total.add(counts)
    finally:
        set_up.stop()
    print(f"{time.monotonic() - start:.0f} s" + "".join(f"\nskipped: {skip}" for skip in total.skipped))
    skipped = f", {len(total.skipped)} skipped" if total.skipped else ""
    print(f"{total.passed} passed, {total.failed} failed{skipped}")
    return total.failed > 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
