#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole system over HTTP: two vLLM OpenAI servers with the connector, rd2h-proxy in front of them, the official client; compared with
what Decode's server answers alone, without a proxy.

http_proxy.py [--models FOLDER] [--proxy PROGRAM] [--json FILE] [TP ...]. TP: tensor parallel sizes of Prefill and Decode, such as 2:1.
Needs an interpreter that has vLLM, openai and rd2h.
"""
from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import alerts
import models as tiny
from models import WORDS
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
TOKENS = 16
START_S = 600.0
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def words(seed: int, n: int) -> str:
    """A prompt of n words of the tiny tokenizer, the same for the same seed."""
    return " ".join(f"w{4 + (seed * 7919 + i * 104729 + i * i * 31) % (WORDS - 4)}" for i in range(n))


ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1",
               "TOKENIZERS_PARALLELISM": "false", "VLLM_PLUGINS": "rd2h_cpu_sparse", "VLLM_WORKER_MULTIPROC_METHOD": "fork"}


def plugin(folder: Path) -> Path:
    """Tells vLLM's workers, which are processes of their own, of the plugin for sparse attention, installed or not."""
    info = folder / "rd2h_cpu_sparse-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rd2h-cpu-sparse\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nrd2h_cpu_sparse = rd2h_cpu_sparse:register\n")
    return folder


@functools.cache
def processes(folder: Path) -> multiprocessing.context.ForkServerContext:
    """Servers are forks of one process that has imported vLLM."""
    os.environ.update(ENVIRONMENT)
    paths = [HERE, HERE / "cpu_sparse", plugin(folder / "plugin")]
    sys.path[:0] = map(str, paths)  # which those processes get, whatever PYTHONPATH says
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preload", "vllm.entrypoints.openai.api_server"])
    return context


def serve(argv: list[str], log: str, cores: str) -> None:
    """Main function of a server's process, which leads a process group of its own."""
    os.setpgid(0, 0)
    with open(log, "w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = cores
    sys.argv = ["api_server", *argv]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


class Process:
    """Something that serves HTTP."""

    def __init__(self, name: str, log: Path, pid: int, alive: Callable[[], bool], group: bool) -> None:
        self.name, self.log, self._pid, self._alive, self._group = name, log, pid, alive, group

    def wait(self, url: str) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._alive():
            try:
                if urllib.request.urlopen(url, timeout=2).status == 200:
                    return
            except OSError:
                time.sleep(0.3)
        raise RuntimeError(f"{self.name} is not up; its log {self.log} ends with:\n" + "\n".join(self.log.read_text().splitlines()[-15:]))

    def close(self) -> None:
        """First asked, then made to."""
        for number, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
            deadline = time.monotonic() + seconds
            try:
                (os.killpg if self._group else os.kill)(self._pid, number)
            except ProcessLookupError:
                return
            while self._alive() and time.monotonic() < deadline:
                time.sleep(0.1)


def server(name: str, port: int, model: Path, role: str, kv_port: int, cores: list[int], logs: Path) -> Process:
    """cores: one for each tensor parallel rank."""
    kv = {"kv_connector": "SfaRemoteD2HConnector", "kv_connector_module_path": "rd2h.vllm", "kv_role": role, "kv_port": kv_port,
          "kv_connector_extra_config": {"transfer_backend": "auto"}}
    argv = ["--model", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--enforce-eager",
            "--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(64 << 20),
            "--compilation-config", '{"custom_ops":["none"]}', "--chat-template", TEMPLATE, "--kv-transfer-config", json.dumps(kv),
            "--tensor-parallel-size", str(len(cores))]
    log = logs / f"http-{name}.log"
    process = processes(logs).Process(target=serve, args=(argv, str(log), "|".join(map(str, cores))), name=name)
    process.start()
    return Process(name, log, process.pid, process.is_alive, True)


def program(name: str, argv: list[str], log: Path) -> Process:
    p = subprocess.Popen(argv, stdout=open(log, "w"), stderr=subprocess.STDOUT)
    return Process(name, log, p.pid, lambda: p.poll() is None, False)


@dataclass
class Row:
    scenario: str
    ok: bool = False
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


class System:
    """Prefill, Decode and the proxy; `alone` asks Decode's server itself, which then computes everything."""

    def __init__(self, model: Path, proxy: str, logs: Path, tp: tuple[int, int]) -> None:
        from openai import OpenAI

        cores = sorted(os.sched_getaffinity(0))
        p_cores = [cores[i % len(cores)] for i in range(tp[0])]
        d_cores = [cores[-1 - i % len(cores)] for i in range(tp[1])]
        kv_port, p, d, self.port = free_port(tp[1]), free_port(), free_port(), free_port()
        self.parts = [server("prefill", p, model, "kv_producer", kv_port, p_cores, logs),
                      server("decode", d, model, "kv_consumer", kv_port, d_cores, logs)]
        try:
            for part, port in zip(self.parts, (p, d)):
                part.wait(f"http://127.0.0.1:{port}/health")
            argv = [proxy, "--host", "127.0.0.1", "--port", str(self.port), "--prefiller-hosts", "127.0.0.1", "--prefiller-ports", str(p),
                    "--decoder-hosts", "127.0.0.1", "--decoder-ports", str(d), "--rendezvous-timeout", "60"]
            self.parts.append(program("proxy", argv, logs / "http-proxy.log"))
            self.parts[-1].wait(f"http://127.0.0.1:{self.port}/health")
        except BaseException:
            self.close()
            raise
        self.client = OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="unused", max_retries=0, timeout=120)
        self.alone = OpenAI(base_url=f"http://127.0.0.1:{d}/v1", api_key="unused", max_retries=0, timeout=120)
        self.ports = {"proxy": self.port, "prefill": p, "decode": d}
        self.first = self._warm_up()

    def _warm_up(self) -> int:
        """Prefill computes something while Decode rests: while Decode waits it leaves the cores to nobody, and the first steps of all are
        the longest. Returns how many prompt tokens that were."""
        prefill = self.alone.with_options(base_url=f"http://127.0.0.1:{self.ports['prefill']}/v1", timeout=START_S)
        prefill.completions.create(prompt=words(0, 40), **(ASK | {"max_tokens": 1}))
        return self.prompts_of_prefill()

    def page(self, part: str) -> str:
        return urllib.request.urlopen(f"http://127.0.0.1:{self.ports[part]}/metrics").read().decode()

    def metric(self, pattern: str) -> float:
        text = self.page("proxy")
        return sum(float(v) for v in re.findall(rf"^rd2h_proxy_{pattern} (\S+)$", text, re.M))

    def prompts_of_prefill(self) -> int:
        """Prompt tokens that Prefill has computed, by its own count."""
        text = self.page("prefill")
        return int(sum(float(v) for v in re.findall(r"^vllm:prompt_tokens_total\{[^}]*\} (\S+)$", text, re.M)))

    def close(self) -> None:
        for part in reversed(self.parts):
            part.close()


# ---- scenarios: each returns what differs ----
ASK = {"model": "tiny", "max_tokens": TOKENS, "temperature": 0, "seed": 1, "extra_body": {"ignore_eos": True}}


def completion(s: System, stream: bool, prompt) -> list[str]:
    want = [c.text for c in s.alone.completions.create(prompt=prompt, **ASK).choices]
    got = [""] * len(want)
    if stream:
        for chunk in s.client.completions.create(prompt=prompt, stream=True, **ASK):
            for c in chunk.choices:
                got[c.index] += c.text
    else:
        got = [c.text for c in s.client.completions.create(prompt=prompt, **ASK).choices]
    return [f"prompt {i}: {g!r}, alone {w!r}" for i, (g, w) in enumerate(zip(got, want)) if g != w]


def chat(s: System, stream: bool) -> list[str]:
    messages = [{"role": "user", "content": words(5, 60)}]
    want = s.alone.chat.completions.create(messages=messages, **ASK).choices[0].message.content
    if stream:
        got = "".join(c.choices[0].delta.content or "" for c in s.client.chat.completions.create(messages=messages, stream=True, **ASK))
    else:
        got = s.client.chat.completions.create(messages=messages, **ASK).choices[0].message.content
    return [] if got == want else [f"{got!r}, alone {want!r}"]


def several(s: System) -> list[str]:
    """All of a list's answers come, each as long as asked; sparse attention on CPU is not batch-invariant, so no texts are compared."""
    answer = s.client.completions.create(prompt=[words(i, 40) for i in range(40)], **ASK)
    early = [c.index for c in answer.choices if c.finish_reason != "length"]
    tokens = answer.usage.completion_tokens
    good = len(answer.choices) == 40 and not early and tokens == 40 * TOKENS
    return [] if good else [f"{len(answer.choices)} answers with {tokens} tokens, not ended by length: {early}"]


def refused(s: System) -> list[str]:
    from openai import BadRequestError

    try:
        s.client.completions.create(prompt=words(1, 5000), **ASK)
    except BadRequestError as e:
        return [] if "1024" in str(e) else [f"another error: {e}"]
    return ["a prompt that is too long was served"]


def hung_up(s: System) -> list[str]:
    stream = s.client.completions.create(prompt=words(9, 50), stream=True, **(ASK | {"max_tokens": 800}))
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 1
    while s.metric("open_engine_requests") and time.monotonic() < deadline:
        time.sleep(0.02)
    left = s.metric("open_engine_requests")
    return [f"{left:.0f} requests to engines are still open"] if left else []


SCENARIOS: dict[str, Callable[[System], list[str]]] = {
    "models": lambda s: [] if [m.id for m in s.client.models.list()] == ["tiny"] else ["another list of models"],
    "completion": lambda s: completion(s, False, words(1, 100)),
    "completion, stream": lambda s: completion(s, True, words(2, 100)),
    "completion, token ids": lambda s: completion(s, False, [4 + i % 500 for i in range(77)]),
    "chat": lambda s: chat(s, False),
    "chat, stream": lambda s: chat(s, True),
    "list of 3": lambda s: completion(s, False, [words(i, 50) for i in range(3)]),
    "list of 3, stream": lambda s: completion(s, True, [words(i, 60) for i in range(3)]),
    "list of 40": several,
    "too long a prompt": refused,
    "client hangs up": hung_up,
    "completion again": lambda s: completion(s, False, words(3, 100)),
}


# What a pair of other tensor parallel sizes is asked.
SHORT = ("completion", "completion, stream", "list of 3", "completion again")


def transports(s: System, tp: str) -> Row:
    """Decode's page has a connection to every Prefill rank that it reads: a rank for each where TP is equal, else more."""
    found = re.findall(r"^vllm:rd2h_decode_transport_peers\{(.*)\} (\S+)$", s.page("decode"), re.M)
    right = [float(n) for labels, n in found if 'backend="local"' in labels and 'transport="process_vm_readv"' in labels]
    waits = re.findall(r"^vllm:rd2h_\w+_peer_wait_seconds\{.*$", s.page("decode") + s.page("prefill"), re.M)
    return Row(f"TP {tp}: the page says what Decode reads by, and that nobody waits", right == [max(map(int, tp.split(":")))] and not waits,
               0, [f"{found}, {waits}"])


def alerting(s: System) -> Row:
    known = {metric: labels for part in s.ports for metric, labels in alerts.page(s.page(part)).items()}
    rules = alerts.load()
    wrong = alerts.complaints(rules, known, "") + [f"no page has {m}" for m in sorted(alerts.mentioned(rules) - known.keys())]
    return Row("every metric of docs/alerts.yml is on a page", not wrong, 0, wrong or [f"{len(rules)} rules"])


def run(s: System, tp: str) -> list[Row]:
    rows = []
    for name, scenario in SCENARIOS.items():
        if tp != "1:1" and name not in SHORT:
            continue
        row, begin = Row(name if tp == "1:1" else f"TP {tp.replace(':', ' to ')}, {name}"), time.monotonic()
        try:
            row.notes = scenario(s)
            row.ok = not row.notes
        except Exception as e:  # a scenario that breaks is a failed row, the next one goes on
            row.notes = [f"{type(e).__name__}: {e}"]
        row.seconds = round(time.monotonic() - begin, 2)
        print(f"{row.scenario:<36} {'right' if row.ok else 'WRONG':<6} {row.seconds:6.1f} s", *row.notes[:3],
              sep="\n     " if row.notes else " ", flush=True)
        rows.append(row)
    computed, left = s.prompts_of_prefill() - s.first, s.metric("open_requests") + s.metric("open_children") + s.metric("open_dispatches")
    least = 1500 if tp == "1:1" else 400
    rows.append(Row(f"TP {tp}: Prefill computed the prompts", computed > least, 0, [f"{computed} prompt tokens"]))
    rows.append(Row(f"TP {tp}: nothing is left in the proxy", left == 0, 0, [f"{left:.0f} entries"]))
    rows.append(transports(s, tp))
    if tp == "1:1":
        rows.append(alerting(s))
    return rows


def served(model: Path, proxy: str, logs: Path, tp: str) -> list[Row]:
    begin = time.monotonic()
    print(f"-- starting Prefill and Decode (DeepSeek-V3.2) as OpenAI servers, TP {tp.replace(':', ' to ')}", flush=True)
    p, d = map(int, tp.split(":"))
    system = System(model, proxy, logs, (p, d))
    print(f"-- up after {time.monotonic() - begin:.0f} s", flush=True)
    try:
        return run(system, tp)
    finally:
        system.close()


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--models", type=Path, default=ROOT / "build/e2e-models")
    ask.add_argument("--proxy", default=str(ROOT / "build/proxy/rd2h-proxy"))
    ask.add_argument("--json", type=Path, default=ROOT / "build/http.json")
    ask.add_argument("tp", nargs="*", metavar="TP", default=["1:1", "2:1"])
    a = ask.parse_args()
    logs = a.json.resolve().parent / "e2e-logs"
    logs.mkdir(parents=True, exist_ok=True)
    tiny.ensure(a.models, ["dsv32"])
    begin = time.monotonic()
    rows = [row for tp in a.tp for row in served(a.models / "dsv32", a.proxy, logs, tp)]
    a.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    good = sum(r.ok for r in rows)
    print(f"http: {good} of {len(rows)} rows right in {time.monotonic() - begin:.0f} s; {a.json}")
    return good != len(rows)


if __name__ == "__main__":
    sys.exit(main())
