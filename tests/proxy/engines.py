# SPDX-License-Identifier: Apache-2.0
"""Scripted Prefill and Decode engines in one thread: asyncio, standard library only.

What an engine does is told by the request's "model": words joined by commas, each `word` or `word=value` (see `Decode` and `Prefill`).
Everything that comes in is kept for the tests to look at."""
from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Seen:
    """A request as it came in."""

    path: str
    headers: dict[str, str]
    raw: bytes
    begun: float = 0.0
    cancelled: bool = False  # the proxy hung up before the answer was whole
    answered: bool = False

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Loop:
    """An event loop in a thread of its own; engines live on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine, timeout: float = 30.0):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def close(self) -> None:
        async def cancel() -> None:
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)


async def read_head(reader: asyncio.StreamReader) -> tuple[list[str], dict[str, str]]:
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = text.split("\r\n")[:-2]
    return first.split(" "), {k.strip().lower(): v.strip() for k, v in (line.split(":", 1) for line in lines)}


async def post(url: str, message: Any, timeout: float | None = None, source: str | None = None,
               tls: Any = None) -> tuple[int, bytes]:
    """POST of a JSON value (or bytes as they are) on a connection of its own, from the address `source`; tls: for https."""
    host, port, path = re.fullmatch(r"https?://(\[.*?\]|[^:/]+):(\d+)(/.*)", url).groups()
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=1 << 20,
                                                   local_addr=(source, 0) if source else None,
                                                   ssl=tls if url.startswith("https") else None)
    try:
        raw = message if isinstance(message, bytes) else json.dumps(message).encode()
        writer.write(f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
                     f"Content-Length: {len(raw)}\r\nConnection: close\r\n\r\n".encode() + raw)
        (_, status, *_), headers = await asyncio.wait_for(read_head(reader), timeout)
        return int(status), await reader.readexactly(int(headers.get("content-length", 0)))
    finally:
        writer.close()


@dataclass
class Engine:
    """An HTTP server whose `answer` is the script. role-specific below."""

    loop: Loop
    host: str = "127.0.0.1"
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    healthy: bool = True
    raw: bytes | None = None  # said instead of any answer, then the end
    connections: list = field(default_factory=list)
    tls: Any = None          # context: serve https
    client_tls: Any = None   # context: of the rendezvous
    open: int = 0
    _server: Any = None
    _writers: set = field(default_factory=set)

    def start(self) -> Engine:
        async def begin() -> None:
            self._server = await asyncio.start_server(self._serve, self.host, self.port, limit=1 << 26, backlog=4096, ssl=self.tls)
            self.port = self._server.sockets[0].getsockname()[1]

        self.loop.run(begin())
        return self

    def stop(self) -> None:
        """As a crash: all connections are cut."""
        async def end() -> None:
            if self._server:
                self._server.close()
                self._server = None
            for w in list(self._writers):
                w.transport.abort()

        self.loop.run(end())

    def clear(self) -> None:
        self.seen.clear()

    async def _serve(self, reader, writer) -> None:
        self._writers.add(writer)
        self.connections.append(writer)
        try:
            while True:
                (method, target, *_), headers = await read_head(reader)
                raw = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._one(method, target, headers, raw, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, method: str, target: str, headers: dict[str, str], raw: bytes, reader, writer) -> None:
        if target == "/health":
            return await self.reply(writer, 200 if self.healthy else 503, {})
        if target == "/v1/models":
            return await self.reply(writer, 200, {"object": "list", "data": [{"id": "tiny"}]})
        if self.raw is not None:
            writer.write(self.raw)
            await writer.drain()
            return writer.close()
        seen = Seen(target, headers, raw, asyncio.get_running_loop().time())
        self.seen.append(seen)
        if target.startswith("/reset_prefix_cache"):
            return await self.reply(writer, 200, {})
        self.open += 1
        work = asyncio.ensure_future(self.answer(seen, writer))
        hung_up = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({work, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                seen.cancelled = True
                raise ConnectionError
            hung_up.cancel()
            await asyncio.gather(hung_up, return_exceptions=True)
            work.result()
            seen.answered = True
        finally:
            self.open -= 1
            for task in (work, hung_up):
                task.cancel()
            await asyncio.gather(work, hung_up, return_exceptions=True)

    async def answer(self, seen: Seen, writer) -> None:
        raise NotImplementedError

    async def reply(self, writer, status: int, value: Any, kind: str = "application/json", extra: str = "") -> None:
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(raw)}\r\n{extra}\r\n".encode() + raw)
        await writer.drain()


def script(body: Any) -> dict[str, str]:
    return dict((w.split("=", 1) + [""])[:2] for w in str(body.get("model", "")).split(",") if w)


def is_list(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)


ODD = [{"choices": []}, {"choices": [None]}, {"choices": None}, {"choices": [{"index": 0}]}, {"choices": [{"delta": None}], "usage": None},
       {}, [], 1, {"choices": [{"text": 7, "stop_reason": {"a": 1}}], "usage": {"completion_tokens": "x"}}]


class Prefill(Engine):
    """Words: p=STATUS (answer with it), pslow=SECONDS, pdie (cut the connection), pfail=N (the first N answer 500), cached=N (tokens that
    its prefix cache had)."""

    async def answer(self, seen: Seen, writer) -> None:
        words = script(seen.body)
        await asyncio.sleep(float(words.get("pslow", 0.0)))
        if "pdie" in words:
            writer.transport.abort()
            return
        failures = int(words.get("pfail", 0))
        if len([s for s in self.seen if s.body.get("model") == seen.body.get("model")]) <= failures:
            return await self.reply(writer, 500, {"error": "not yet"})
        status = int(words.get("p", 200))
        if status != 200:
            return await self.reply(writer, status, {"error": {"message": f"P says {status}"}}, extra="Retry-After: 7\r\n")
        usage = {"prompt_tokens_details": {"cached_tokens": int(words["cached"])}} if "cached" in words else {}
        await self.reply(writer, 200, {"choices": [{"text": "x"}], "usage": usage, "kv_transfer_params": {}})


class Decode(Engine):
    """Posts the children's rendezvous, then answers. Words:
    d=STATUS: that answer at once. ddie, dhang: no answer. dfail=N: the first N requests get 503.
    events=N, drop=K: N events, cut after K of them. gap=SECONDS between events. bytes: events byte by byte.
    silent: no rendezvous at all. miss=K: child K never posts. twice: every child posts two times.
    blocks=N: only N children may wait for KV at once. ours: rendezvous of engines of this project. threads=N: rendezvous at once.
    clock: events carry the time when they were sent.
    pool: 32 rendezvous at once, of all requests together.
    recomputed=K: gives up after K tokens, until asked with the text so far. big=BYTES: size of the answer.
    retry: posts again after 502.
    details: usage with the count of cached tokens as Decode sees it, details=null: without. odd: answers of unusual form.
    close: the answer has neither length nor chunks and ends with the connection. early: 100 Continue and 103 before it.
    trailer: after it. cut: in the middle of an event it ends as if whole."""

    extra: dict[str, Any] = {}

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.posts: list[tuple[str, int]] = []
        self.pool: asyncio.Semaphore | None = None

    def message(self, child: str, words: dict[str, str]) -> dict[str, Any]:
        ours = {"rd2h": {"v": 1, "attempt": "00" * 8, "inc": "11" * 8}} if "ours" in words else {}
        return {"request_id": child, "do_remote_prefill": False, "do_remote_decode": True, "remote_engine_id": f"e{self.port}",
                "remote_host": "127.0.0.1", "remote_port": 20050, "remote_tp_size": 1, "remote_pcp_size": 1, "remote_dcp_size": 1,
                "remote_cached_tokens": 0, **ours}

    def children(self, seen: Seen) -> list[str]:
        body, rid = seen.body, seen.headers["x-request-id"]
        prompts = len(body["prompt"]) if is_list(body.get("prompt")) else 1
        ids = [f"cmpl-{rid}-{k}" for k in range(prompts)] if "prompt" in body else [f"chatcmpl-{rid}"]
        n = body.get("n") or 1
        return ids if n == 1 else [f"{i}_{child}" for child in ids for i in range(n)]

    async def rendezvous(self, seen: Seen, words: dict[str, str]) -> None:
        url = seen.body["kv_transfer_params"]["metaserver"]
        blocks = asyncio.Semaphore(int(words.get("blocks", 100000)))
        threads = asyncio.Semaphore(int(words.get("threads", 100000)))
        if "pool" in words:
            threads = self.pool = self.pool or asyncio.Semaphore(32)

        async def one(k: int, child: str) -> None:
            if words.get("miss") == str(k):
                await asyncio.sleep(60)
            async with blocks, threads:
                status, _ = await post(url, self.message(child, words), tls=self.client_tls)
                self.posts.append((child, status))
                if status == 502 and "retry" in words:
                    status, _ = await post(url, self.message(child, words), tls=self.client_tls)
                    self.posts.append((child, status))
                if status != 200:
                    raise RuntimeError(f"rendezvous of {child}: {status}")

        ids = self.children(seen)
        twice = ids if "twice" in words else []
        await asyncio.gather(*(one(k, child) for k, child in enumerate(ids + twice)))

    async def answer(self, seen: Seen, writer) -> None:
        body = seen.body
        words = script(body)
        if "d" in words:
            return await self.reply(writer, int(words["d"]), {"error": {"message": "context too long"}}, extra="Retry-After: 9\r\n")
        if "ddie" in words:
            return writer.transport.abort()
        if "dhang" in words:
            await asyncio.sleep(60)
        if len([s for s in self.seen if s.body.get("model") == body.get("model")]) <= int(words.get("dfail", 0)):
            return await self.reply(writer, 503, {"error": "busy"})
        if "silent" not in words:
            try:
                await self.rendezvous(seen, words)
            except RuntimeError as e:
                return await self.reply(writer, 500, {"error": {"message": str(e)}})
        if body.get("stream"):
            return await self.stream(seen, words, writer)
        await self.whole(seen, words, writer)

    def tokens(self, body: Any) -> tuple[list[str], bool]:
        """The words still to be generated, and whether to give up before the end. The answer to every prompt is t0 t1 t2 …"""
        words = script(body)
        budget = body.get("max_completion_tokens") or body.get("max_tokens") or int(words.get("events", 3))
        text = body["prompt"] if isinstance(body.get("prompt"), str) else str(body.get("messages"))
        done = len(re.findall(r"t\d+ ", text))
        give_up = "recomputed" in words and done == 0
        return [f"t{done + i} " for i in range(int(words["recomputed"]) if give_up else budget)], give_up

    async def whole(self, seen: Seen, words: dict[str, str], writer) -> None:
        body = seen.body
        tokens, give_up = self.tokens(body)
        text = "".join(tokens) + "x" * int(words.get("big", 0))
        choice = {"index": 0, "stop_reason": "recomputed" if give_up else None}
        choice |= {"text": text} if "prompt" in body else {"message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 5, "completion_tokens": len(tokens), "total_tokens": 5 + len(tokens), **self.details(words)}
        value = {"id": "cmpl-" + seen.headers["x-request-id"], "choices": [choice], "usage": usage}
        if "odd" in words:
            value = ODD[int(words["odd"])]
        if "early" in words:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        if "close" in words:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + json.dumps(value).encode())
            await writer.drain()
            return writer.close()
        await self.reply(writer, 200, value)

    @staticmethod
    def details(words: dict[str, str]) -> dict[str, Any]:
        if "details" not in words:
            return {}
        return {"prompt_tokens_details": None if words["details"] == "null" else {"audio_tokens": 1, "cached_tokens": 4}}

    async def stream(self, seen: Seen, words: dict[str, str], writer) -> None:
        body = seen.body
        chat = "messages" in body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
        tokens, give_up = self.tokens(body)
        for i, token in enumerate(tokens):
            if str(i) == words.get("drop"):
                await writer.drain()
                return writer.transport.abort()
            choice = {"index": 0} | ({"delta": {"content": token}} if chat else {"text": token + "é€" if "bytes" in words else token})
            stamp = {"sent": time.monotonic()} if "clock" in words else {}
            await self.event(writer, {"id": seen.headers["x-request-id"], "choices": [choice], **stamp}, "bytes" in words)
            await asyncio.sleep(float(words.get("gap", 0)))
        if give_up:
            choice = {"index": 0, "stop_reason": "recomputed", "finish_reason": "stop"} | ({"delta": {}} if chat else {"text": ""})
            await self.event(writer, {"choices": [choice]}, False)
        if "details" in words:
            await self.event(writer, {"choices": [], "usage": {"prompt_tokens": 5, **self.details(words)}}, False)
        for value in ODD if "odd" in words else []:
            await self.event(writer, value, False)
        if "cut" in words:
            writer.write(b'9\r\ndata: {"c\r\n0\r\n\r\n')
            return await writer.drain()
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n" + (b"X-Sum: 1\r\n" if "trailer" in words else b"") + b"\r\n")
        await writer.drain()

    async def event(self, writer, value: Any, dribble: bool) -> None:
        raw = b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
        for part in ([raw[i:i + 1] for i in range(len(raw))] if dribble else [raw]):
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            if dribble:
                await writer.drain()
        await writer.drain()
