# SPDX-License-Identifier: Apache-2.0
"""Eight inputs on which a proxy can go wrong, each given to every proxy, between scripted engines (tests/proxy/engines.py)."""
from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bench import Connection
from engines import Decode, Loop, Prefill, post

TIMEOUT_S = 5.0


class Scene:
    """A proxy between two Prefill engines and a Decode engine; short words for what a client sees."""

    def __init__(self, loop: Loop, start: Callable[[list[int], list[int]], Any]) -> None:
        self.loop, self.p, self.d = loop, [Prefill(loop).start() for _ in range(2)], Decode(loop).start()
        self.proxy = start([e.port for e in self.p], [self.d.port])

    def close(self) -> None:
        self.proxy.close()
        for e in [*self.p, self.d]:
            e.stop()

    def send(self, method: str, path: str, body: Any = None, headers: str = ""):
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        c = Connection("127.0.0.1", self.proxy.port, TIMEOUT_S)
        try:
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
            return c.send(head.encode() + raw).answer()
        finally:
            c.close()

    def complete(self, model: str = "", headers: str = "", **more):
        return self.send("POST", "/v1/completions", {"model": model, "prompt": "hello", **more}, headers)

    def said(self, ask: Callable[[], Any]) -> str:
        try:
            a = ask()
        except (TimeoutError, OSError) as e:
            return f"nothing within {TIMEOUT_S:.0f} s" if isinstance(e, TimeoutError) else "the connection is cut"
        kind = a.headers.get("content-type", "").split(";")[0] or "no type"
        return f"{a.status}, {'empty body' if not a.body else kind}"


def engine_error(s: Scene) -> str:
    return "; ".join(s.said(lambda status=status: s.complete(f"d={status}")) for status in (400, 500))


def dies(s: Scene) -> str:
    a = s.complete("drop=3,events=9", stream=True)
    text = a.text if a.body.startswith(b"data:") else ""
    end = "an error event" if b'"error"' in a.body else "cut" if not a.whole else "an end as if whole"
    return f"{' '.join(text.split())}, then {end}; {len(s.d.seen)} request{'s' if len(s.d.seen) > 1 else ''} to Decode"


def many_prompts(s: Scene, engine: str = "pool") -> str:
    first = s.said(lambda: s.complete(engine, prompt=[f"p{i}" for i in range(33)]))
    return f"{first}; the next request: {s.said(lambda: s.complete(engine))}"


def many_prompts_here(s: Scene) -> str:
    return many_prompts(s, "pool,ours")


def turns(s: Scene) -> str:
    for _ in range(20):
        s.complete()
    return " : ".join(str(len(e.seen)) for e in s.p)


def authorization(s: Scene) -> str:
    s.complete(headers="Authorization: Bearer mine\r\n")
    return s.d.seen[0].headers.get("authorization", "none")


def bad_bodies(s: Scene) -> str:
    empty = lambda: s.send("POST", "/v1/chat/completions", {"model": "silent", "messages": []})  # noqa: E731
    return f"{s.said(lambda: s.send('POST', '/v1/completions', b'{'))}; {s.said(empty)}"


def paths(s: Scene) -> str:
    return ", ".join(str(s.send("GET", path).status) for path in ("/v1/models", "/metrics"))


def array(s: Scene) -> str:
    return str(s.loop.run(post(f"http://127.0.0.1:{s.proxy.port}/v1/metaserver", [], TIMEOUT_S))[0])


INPUTS = {
    "Decode answers 400, 500": engine_error,
    "Decode dies after three events": dies,
    "33 prompts in one list, Decode of rd2h, 32 rendezvous at once": many_prompts_here,
    "33 prompts in one list, Decode of the reference, 32 rendezvous at once": many_prompts,
    "20 requests, two idle Prefill engines": turns,
    "Authorization: Bearer mine, at Decode": authorization,
    "bad JSON; messages: [] that Decode takes": bad_bodies,
    "/v1/models, /metrics": paths,
    "rendezvous with a JSON array": array,
}


def compare(starts: dict[str, Callable]) -> list[dict]:
    """starts: name of a proxy -> what starts it between the ports of Prefill and Decode engines."""
    rows, loop = [], Loop()
    print()
    for name, look in INPUTS.items():
        row = {"input": name}
        for who, start in starts.items():
            scene = Scene(loop, start)
            try:
                row[who] = look(scene)
            except (OSError, RuntimeError, TimeoutError) as e:
                row[who] = f"no answer ({type(e).__name__})"
            finally:
                scene.close()
        rows.append(row)
        print(name + "".join(f"\n    {who:<10}{row[who]}" for who in starts), flush=True)
    loop.close()
    return rows
