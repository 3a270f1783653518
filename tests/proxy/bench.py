# SPDX-License-Identifier: Apache-2.0
"""A proxy between scripted engines, and a client that sends raw bytes."""
from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import Decode, Loop, Prefill


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.bind((host, 0))
        return s.getsockname()[1]


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool = True  # the connection was not cut before the answer's end

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        return [e.removeprefix("data: ") for e in self.body.decode().split("\n\n") if e]

    @property
    def text(self) -> str:
        """What the events (or the whole answer) say, joined."""
        values = [self.json] if not self.body.startswith(b"data:") else [json.loads(e) for e in self.events if e.startswith("{")]
        choices = [c for v in values for c in v.get("choices", [])]
        return "".join(c.get("text") or (c.get("delta") or c.get("message") or {}).get("content") or "" for c in choices)


class Connection:
    """A client's connection; bytes are sent as they are."""

    def __init__(self, host: str, port: int, timeout: float = 20.0, tls: Any = None) -> None:
        self.s = socket.create_connection((host, port), timeout)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            self.s = tls.wrap_socket(self.s, server_hostname=host)
        self.f = self.s.makefile("rb")

    def send(self, raw: bytes) -> Connection:
        self.s.sendall(raw)
        return self

    def head(self) -> tuple[int, dict[str, str]]:
        line = self.f.readline()
        if not line:
            raise ConnectionError("closed without an answer")
        headers = {}
        while (h := self.f.readline()) not in (b"\r\n", b""):
            k, v = h.decode("latin-1").split(":", 1)
            headers[k.lower()] = v.strip()
        return int(line.split()[1]), headers

    def answer(self) -> Answer:
        status, headers = self.head()
        if status == 100:
            status, headers = self.head()
        if "content-length" in headers:
            n = int(headers["content-length"])
            body = self.f.read(n)
            return Answer(status, headers, body, len(body) == n)
        if headers.get("transfer-encoding") == "chunked":
            return self.chunks(status, headers)
        return Answer(status, headers, self.f.read())

    def chunks(self, status: int, headers: dict[str, str]) -> Answer:
        body = b""
        while size := self.f.readline():
            n = int(size, 16)
            part = self.f.read(n)
            self.f.readline()
            body += part
            if n == 0:
                return Answer(status, headers, body)
        return Answer(status, headers, body, False)

    def close(self) -> None:
        self.f.close()
        self.s.close()


class Bench:
    """p Prefill and d Decode engines with a proxy in front of them. Use as a context manager: at the end nothing may be left over."""

    program = os.environ.get("RD2H_PROXY", "build/proxy/rd2h-proxy")

    def __init__(self, p: int = 1, d: int = 1, host: str = "127.0.0.1", env: dict[str, str] | None = None, engine_cert: Any = None,
                 cert: Any = None, descriptors: int = 0, **options: Any) -> None:
        """cert, engine_cert: certificates of the proxy and of engines, which then speak https. descriptors: the proxy's limit."""
        self.loop = Loop()
        self.host = host
        self.cert = cert
        tls = {"tls": engine_cert and engine_cert.server(), "client_tls": cert and cert.client()}
        self.p = [Prefill(self.loop, host=host, **tls).start() for _ in range(p)]
        self.d = [Decode(self.loop, host=host, **tls).start() for _ in range(d)]
        if cert:
            options |= {"tls-cert": cert.cert, "tls-key": cert.key}
        if engine_cert:
            options = {"engine-tls": "true", "engine-ca": engine_cert.cert, **{k.replace("_", "-"): v for k, v in options.items()}}
        self.folder = tempfile.TemporaryDirectory(prefix="rd2h-proxy-")
        self.log = Path(self.folder.name) / "log"
        self.access = Path(self.folder.name) / "access"
        arguments = {"host": host, "port": 0, "prefiller-hosts": [host] * p, "prefiller-ports": [e.port for e in self.p],
                     "decoder-hosts": [host] * d, "decoder-ports": [e.port for e in self.d], "access-log": self.access,
                     **{k.replace("_", "-"): v for k, v in options.items()}}
        argv = [*(["prlimit", f"--nofile={descriptors}:{descriptors}"] if descriptors else []), self.program]
        for name, value in arguments.items():
            argv += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
        self.process = subprocess.Popen(argv, stderr=open(self.log, "w"), env={**os.environ, **(env or {})})
        self.port = self._wait_port()

    def _wait_port(self) -> int:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := re.search(r" port (\d+);", self.log.read_text()):
                return int(found[1])
            time.sleep(0.01)
        raise RuntimeError(f"the proxy did not start:\n{self.log.read_text()}")

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, kind, *rest: object) -> None:
        try:
            if kind is None:
                self.settled()
        finally:
            self.process.terminate()
            try:
                code = self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                code = "none after SIGTERM"
            log = self.log.read_text()
            for e in self.p + self.d:
                e.stop()
            self.loop.close()
            self.folder.cleanup()
        if kind is None and (code != 0 or "ERROR: " in log or "runtime error" in log):
            raise AssertionError(f"the proxy ended with {code}:\n{log[-6000:]}")

    # ---- requests ----
    def connect(self, timeout: float = 20.0) -> Connection:
        return Connection(self.host, self.port, timeout, self.cert and self.cert.client())

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> bytes:
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"Host": "proxy", **({"Content-Length": str(len(raw))} if body is not None else {}), **(headers or {})}
        return f"{method} {path} HTTP/1.1\r\n".encode() + "".join(f"{k}: {v}\r\n" for k, v in lines.items()).encode() + b"\r\n" + raw

    def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 20.0) -> Answer:
        c = self.connect(timeout)
        try:
            return c.send(self.request(method, path, body, headers)).answer()
        finally:
            c.close()

    def get(self, path: str) -> Answer:
        return self.send("GET", path)

    def complete(self, model: str = "", stream: bool = False, prompt: Any = "hello", headers: dict[str, str] | None = None,
                 timeout: float = 20.0, **more: Any) -> Answer:
        return self.send("POST", "/v1/completions", {"model": model, "prompt": prompt, "stream": stream, **more}, headers, timeout)

    def chat(self, model: str = "", stream: bool = False, **more: Any) -> Answer:
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "stream": stream, **more}
        return self.send("POST", "/v1/chat/completions", body)

    # ---- what is left ----
    def gauges(self) -> dict[str, float]:
        lines = self.get("/metrics").body.decode().splitlines()
        return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}

    def leftovers(self) -> dict[str, float]:
        g = self.gauges()
        names = ("open_requests", "open_children", "open_dispatches", "buffered_bytes")
        left = {n: g["rd2h_proxy_" + n] for n in names if g["rd2h_proxy_" + n]}
        return left | {k: v for k, v in g.items() if v and k.startswith(("rd2h_proxy_engine_open", "rd2h_proxy_engine_load"))}

    def settled(self, within: float = 2.0) -> None:
        """No request, score, entry or byte is kept any more, and no engine works for nobody."""
        deadline = time.monotonic() + within
        while True:
            left = self.leftovers()
            busy = [e.open for e in self.p + self.d]
            if not left and not any(busy):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"left over: {left}, engines at work: {busy}\n{self.log.read_text()[-3000:]}")
            time.sleep(0.02)

    def access_lines(self, n: int) -> list[dict]:
        """The first n lines; an answer may be here before its line is."""
        wait_for(lambda: len(self.access.read_text().splitlines()) >= n, what=f"line {n} of the access log")
        return [json.loads(line) for line in self.access.read_text().splitlines()[:n]]


def wait_for(condition, within: float = 3.0, what: str = "a condition") -> None:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {within} s")
        time.sleep(0.005)
