# SPDX-License-Identifier: Apache-2.0
"""The engines of one model under test: Prefill and Decode in two processes with a metaserver between them, and a single engine
beside them that says what is right."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import re
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import driver
from metaserver import Metaserver, Plan
from models import WORDS, Model
from ports import free_port

HERE = Path(__file__).resolve().parent
TOKENS = 24  # generated for each prompt, greedily
START_S, ANSWER_S, CLOSE_S = 300.0, 120.0, 10.0
RANDOM_SUFFIX = re.compile(r"-[0-9a-f]{8}$")  # what vLLM appends to a request id


class EngineError(RuntimeError):
    """An engine process ended or did not answer; the text ends with its last output."""


ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_PLUGINS": "rd2h_cpu_sparse",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


@functools.cache
def processes() -> multiprocessing.context.ForkServerContext:
    """Engine processes are forks of one that has imported vLLM: no network, one thread each, this folder's modules."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), str(HERE / "cpu_sparse"), os.environ.get("PYTHONPATH")]))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preload"])
    return context


class Engine:
    """A driver process. What it says of a request waits in `_done` until somebody asks."""

    def __init__(self, name: str, config: dict[str, Any], log: Path) -> None:
        self.name, self._log = name, log
        self._pipe, theirs = processes().Pipe()
        self._process = processes().Process(target=driver.serve, args=(config, theirs, str(log)), name=name, daemon=True)
        self._process.start()
        theirs.close()
        self._cond = threading.Condition()
        self._seq, self._ready, self._ended = 0, False, False
        self._replies: dict[int, dict] = {}
        self._done: dict[str, dict] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                self._take(self._pipe.recv())
        except (EOFError, OSError):
            with self._cond:
                self._ended = True
                self._cond.notify_all()

    def _take(self, event: dict) -> None:
        with self._cond:
            kind = event["event"]
            if kind == "ready":
                self._ready = True
            elif kind == "finished":
                self._done[event["id"]] = event
            else:
                self._replies[event["seq"]] = event
            self._cond.notify_all()

    def _wait(self, condition, timeout: float, what: str) -> None:
        with self._cond:
            self._cond.wait_for(lambda: condition() or self._ended, timeout)
            if condition():
                return
            ended = self._ended
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-12:]) if self._log.exists() else ""
        how = "ended" if ended else f"did not answer in {timeout:.0f} s"
        raise EngineError(f"engine {self.name} {how} ({what}); its log {self._log} ends with:\n{tail}")

    def wait_ready(self) -> None:
        self._wait(lambda: self._ready, START_S, "start")

    def call(self, cmd: str, **arguments: Any) -> Any:
        """Sends a command and returns its answer; RuntimeError with the engine's text when it was refused."""
        with self._cond:
            self._seq += 1
            seq = self._seq
            self._pipe.send({"cmd": cmd, "seq": seq, **arguments})
        self._wait(lambda: seq in self._replies, ANSWER_S, cmd)
        answer = self._replies.pop(seq)
        if answer["event"] == "error":
            raise RuntimeError(answer["text"])
        return answer["value"]

    def finished(self, request_id: str, timeout: float = ANSWER_S) -> dict:
        self._wait(lambda: request_id in self._done, timeout, f"request {request_id}")
        with self._cond:
            return self._done.pop(request_id)

    def close(self) -> None:
        try:
            self._pipe.send({"cmd": "quit"})
        except OSError:
            pass  # it has ended already
        self._process.join(CLOSE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def prompt(seed: str, length: int) -> list[int]:
    """Random words, the same for the same seed."""
    source = random.Random(seed)
    return [source.randrange(4, WORDS) for _ in range(length)]


@dataclass
class Answer:
    tokens: list[int]
    reason: str


@dataclass
class Flight:
    """A request that was sent to Decode. children: the ids under which it posts, one for each of its n answers."""

    id: str
    children: list[str]
    prompt: list[int]


OFFLOADING = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"spec_name": "MemcpySpec", "spec_module_path": "cpu_offload", "cpu_bytes_to_use": 64 << 20},
}


def transfer_config(role: str, port: int, model: Model) -> dict[str, Any]:
    """Of a model with offload: beside vLLM's OffloadingConnector. On Prefill that stands first, so that it is the one that loads what
    it has; on Decode ours does, so that a prompt is pulled."""
    ours = {
        "kv_connector": "SfaRemoteD2HConnector",
        "kv_connector_module_path": "rd2h.vllm",
        "kv_role": role,
        "kv_port": port,
        "kv_connector_extra_config": {"transfer_backend": "auto"} | ({"shared_memory": True} if model.shared else {}),
    }
    if not model.offload:
        return ours
    children = [OFFLOADING, ours] if role == "kv_producer" else [ours, OFFLOADING]
    return {
        "kv_connector": "MultiConnector",
        "kv_connector_module_path": "rd2h.vllm",
        "kv_role": role,
        "kv_connector_extra_config": {"connectors": children},
    }


class Bench:
    """Prefill, Decode and the single engine of one model, a context manager. single: else Prefill's stands in for it."""

    def __init__(self, model: Model, models: Path, logs: Path, engine: dict[str, Any] | None = None, single: bool = True) -> None:
        self.model = model
        logs.mkdir(parents=True, exist_ok=True)
        cores = sorted(os.sched_getaffinity(0))
        port = free_port()

        def start(name: str, core: int, role: str | None) -> Engine:
            config = {
                "model": str(models / model.folder),
                "overrides": model.overrides,
                "kv": role and transfer_config(role, port, model),
                "core": core,
                "engine": engine or {},
            }
            return Engine(name, config, logs / f"{model.name}-{name}.log")

        self.p = start("prefill", cores[0], "kv_producer")
        self.d = start("decode", cores[-1], "kv_consumer")
        self.single = start("single", cores[0], None) if single else self.p
        self.engines = {self.p, self.d, self.single}
        self.meta = Metaserver(self._prefill)
        self._asked: dict[tuple[int, ...], str] = {}  # prompt -> the single engine's request
        self._right: dict[str, list[int]] = {}
        self._right_kv: dict[str, dict[str, list[str]]] = {}

    def __enter__(self) -> Bench:
        try:
            for engine in self.engines:
                engine.wait_ready()
            self.restore()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.meta.close()
        for engine in self.engines:
            engine.close()

    def restore(self) -> None:
        """One request at a time where numbers depend on what runs beside a request."""
        for engine in self.engines:
            engine.call("set", active=4 if self.model.batch_invariant else 1)

    # ---- the single engine ----
    def oracle(self, prompts: Iterable[list[int]]) -> None:
        """Has the single engine compute what is right for prompts; it works while Prefill and Decode do."""
        for tokens in prompts:
            if tuple(tokens) not in self._asked:
                request_id = self._asked[tuple(tokens)] = f"oracle-{len(self._asked)}"
                self.single.call("add", id=request_id, prompt=tokens, max_tokens=TOKENS)

    def right(self, tokens: list[int]) -> list[int]:
        request_id = self._asked[tuple(tokens)]
        if request_id not in self._right:
            self._right[request_id] = self.single.finished(request_id)["tokens"][0]
        return self._right[request_id]

    def right_kv(self, tokens: list[int]) -> dict[str, list[str]]:
        """Hashes of the prompt's full blocks."""
        self.right(tokens)
        self._right_kv.update(self.digests(self.single))
        return self._right_kv[self._asked[tuple(tokens)]]

    # ---- Prefill, as the metaserver asks for it ----
    def _prefill(self, request_id: str, plan: Plan, params: dict):
        self.p.call("add", id=request_id, prompt=plan.prompt, max_tokens=1, params=params, abort_after=plan.abort_after)

        def wait(timeout: float) -> bool:
            try:
                return self.p.finished(request_id, timeout)["reasons"] == ["length"]
            except EngineError:
                return False

        return wait

    # ---- Decode ----
    def params(self) -> dict[str, Any]:
        return {"do_remote_decode": False, "do_remote_prefill": True, "metaserver": self.meta.url}

    def send(self, tokens: list[int], n: int = 1, status: int = 0, abort_prefill_after: int = 0) -> Flight:
        """One request through the whole chain. status: the metaserver's answer without a prefill. abort_prefill_after: so many
        engine steps, and Prefill's request is aborted."""
        request_id = f"cmpl-{uuid.uuid4()}-0"
        children = [request_id] if n == 1 else [f"{i}_{request_id}" for i in range(n)]
        for child in children:
            self.meta.register(child, Plan(tokens, status=status, abort_after=abort_prefill_after))
        self.d.call("add", id=request_id, prompt=tokens, max_tokens=TOKENS, n=n, params=self.params())
        return Flight(request_id, children, tokens)

    def send_list(self, prompts: list[list[int]]) -> list[Flight]:
        """A prompt list: its children go to Prefill in one piece when all of them have posted."""
        parent = f"cmpl-{uuid.uuid4()}"
        ids = tuple(f"{parent}-{k}" for k in range(len(prompts)))
        for child, tokens in zip(ids, prompts):
            self.meta.register(child, Plan(tokens, siblings=ids))
        for child, tokens in zip(ids, prompts):
            self.d.call("add", id=child, prompt=tokens, max_tokens=TOKENS, params=self.params())
        return [Flight(child, [child], tokens) for child, tokens in zip(ids, prompts)]

    def answers(self, flight: Flight) -> list[Answer]:
        event = self.d.finished(flight.id)
        return [Answer(t, r) for t, r in zip(event["tokens"], event["reasons"])]

    def settled(self, timeout: float = 30.0) -> bool:
        """Waits until no rendezvous is open and neither engine holds a request any more."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not (self.meta.open or self.d.call("state")["requests"] or self.p.call("state")["requests"]):
                return True
            time.sleep(0.01)
        return False

    def digests(self, engine: Engine) -> dict[str, dict[str, list[str]]]:
        """External request id -> layer -> hashes."""
        return {RANDOM_SUFFIX.sub("", i): kv for i, kv in engine.call("digests").items()}
