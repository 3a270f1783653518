# SPDX-License-Identifier: Apache-2.0
"""A test metaserver: Decode posts where its destinations wait, Prefill is told, the answer comes when Prefill has finished.

It plays the part of a proxy: requests are registered before they go to Decode. What happens to each is scripted by `Plan`."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LONGEST_BODY = 1 << 20
PREFILL_S = 120.0


@dataclass
class Plan:
    """What Prefill does for one request. status: answer at once with it, Prefill is not told.
    abort_after: engine steps after which Prefill aborts it. siblings: ids of one prompt list, which
    goes to Prefill in one piece when the last of them has posted."""

    prompt: list[int]
    status: int = 0
    abort_after: int = 0
    siblings: tuple[str, ...] = ()
    posted: threading.Event = field(default_factory=threading.Event)
    body: dict[str, Any] = field(default_factory=dict)


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address) -> None:
        """A client that hung up is no error of the server's."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Metaserver:
    """prefill(request id, plan, params) starts a prefill and returns a function that waits for its end: True when it
    succeeded."""

    def __init__(self, prefill: Callable[[str, Plan, dict], Callable[[float], bool]]) -> None:
        self._prefill = prefill
        self._lock = threading.Lock()
        self._plans: dict[str, Plan] = {}
        self._waits: dict[str, Callable[[float], bool]] = {}
        self.posts: list[str] = []
        self.open = 0  # posts that have no answer yet
        self._http = _Http(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1/metaserver"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def register(self, request_id: str, plan: Plan) -> None:
        with self._lock:
            self._plans[request_id] = plan

    def plan(self, request_id: str) -> Plan:
        return self._plans[request_id]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                status, answer = server._post(self.path, self._body())
                data = json.dumps(answer).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    self.close_connection = True  # Decode has aborted the request and hung up

            def _body(self) -> Any:
                length = int(self.headers.get("Content-Length") or 0)
                if not 0 < length <= LONGEST_BODY:
                    return None
                try:
                    return json.loads(self.rfile.read(length))
                except ValueError:
                    return None

            def log_message(self, *args: Any) -> None:
                """Quiet."""

        return Handler

    def _post(self, path: str, body: Any) -> tuple[int, dict]:
        with self._lock:
            self.open += 1
        try:
            return self._answer(path, body)
        finally:
            with self._lock:
                self.open -= 1

    def _answer(self, path: str, body: Any) -> tuple[int, dict]:
        if path != "/v1/metaserver":
            return 404, {"error": f"no such path: {path}"}
        if not isinstance(body, dict) or not isinstance(body.get("request_id"), str):
            return 400, {"error": "a JSON object with request_id is needed"}
        request_id = body["request_id"]
        with self._lock:
            self.posts.append(request_id)
            plan = self._plans.get(request_id)
        if plan is None:
            return 404, {"error": f"unknown request {request_id}"}
        plan.body = body
        plan.posted.set()
        if plan.status:
            return plan.status, {"error": "scripted"}
        if not self._dispatch(request_id, plan):
            return 502, {"error": "a sibling never posted"}
        if not self._waits[request_id](PREFILL_S):
            return 502, {"error": "prefill failed"}
        return 200, {"status": "ok"}

    def _dispatch(self, request_id: str, plan: Plan) -> bool:
        """Starts the prefill of the request, or of its whole list once all siblings are here; True when it was started."""
        ids = plan.siblings or (request_id,)
        plans = [self._plans[i] for i in ids]
        if not all(p.posted.wait(PREFILL_S) for p in plans):
            return False
        params = plan.body
        if plan.siblings:
            params = {**plans[0].body, "batch_kv_transfer_params": {i: p.body for i, p in zip(ids, plans)}}
        with self._lock:
            for i, p in zip(ids, plans):
                if i not in self._waits:
                    self._waits[i] = self._prefill(i, p, params)
        return True
