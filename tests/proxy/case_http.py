# SPDX-License-Identifier: Apache-2.0
"""HTTP itself: framing that could be read in two ways, limits, time-outs."""
from __future__ import annotations

import time

from bench import Bench, wait_for
from cases import case, equal, true

H = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
BODY = b'{"model":"silent","prompt":"x"}'
TAIL = b"Content-Length: 31\r\n\r\n" + BODY

REFUSED = {
    "two lengths that differ": (400, H + b"Content-Length: 3\r\n" + TAIL),
    "two equal lengths": (400, H + b"Content-Length: 31\r\n" + TAIL),
    "a list of lengths": (400, H + b"Content-Length: 31, 31\r\n\r\n" + BODY),
    "a signed length": (400, H + b"Content-Length: +31\r\n\r\n" + BODY),
    "a negative length": (400, H + b"Content-Length: -1\r\n\r\n"),
    "a length in hex": (400, H + b"Content-Length: 0x1f\r\n\r\n" + BODY),
    "an empty length": (400, H + b"Content-Length: \r\n\r\n"),
    "a length past 64 bits": (400, H + b"Content-Length: 18446744073709551647\r\n\r\n" + BODY),
    "length and coding": (400, H + b"Transfer-Encoding: chunked\r\n" + TAIL),
    "an unknown coding": (501, H + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "two codings": (501, H + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "coding twice": (400, H + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "a coding behind a control character": (400, H + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    "coding in HTTP/1.0": (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "two hosts": (400, H + b"Host: y\r\n" + TAIL),
    "no host": (400, b"POST /v1/completions HTTP/1.1\r\n" + TAIL),
    "bare LF": (400, H.replace(b"\r\n", b"\n") + b"Content-Length: 31\n\n" + BODY),
    "one bare LF": (400, H + b"A: b\n" + TAIL),
    "a bare CR": (400, H + b"A: b\rC: d\r\n" + TAIL),
    "a folded line": (400, H + b"A: b\r\n c\r\n" + TAIL),
    "a blank before the colon": (400, H + b"Content-Length : 31\r\n\r\n" + BODY),
    "no colon": (400, H + b"Content-Length 31\r\n\r\n" + BODY),
    "no name": (400, H + b": 31\r\n\r\n" + BODY),
    "a control character": (400, H + b"A: b\x00\r\n" + TAIL),
    "a blank in the target": (400, b"GET / x HTTP/1.1\r\nHost: x\r\n\r\n"),
    "two blanks": (400, b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "an absolute target": (400, b"GET http://y/ HTTP/1.1\r\nHost: x\r\n\r\n"),
    "no version": (400, b"GET /\r\n\r\n"),
    "HTTP/2.0": (505, b"GET / HTTP/2.0\r\nHost: x\r\n\r\n"),
    "http/1.1": (400, b"GET / http/1.1\r\nHost: x\r\n\r\n"),
    "HTTP/1.10": (400, b"GET / HTTP/1.10\r\nHost: x\r\n\r\n"),
    "HTTP/2's preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "no HTTP": (400, b"\x16\x03\x01\x02\x00\n\n"),
    "an empty line first": (400, b"\r\n\r\n" + H + TAIL),
    "an unknown expectation": (417, H + b"Expect: x\r\n" + TAIL),
    "101 headers": (431, H + b"".join(b"A%d: b\r\n" % i for i in range(100)) + TAIL),
    "a long head": (431, H + b"A: " + b"b" * 33000 + b"\r\n" + TAIL),
    "a head without an end": (431, H + b"A: " + b"b" * 40000),
    "a large body": (413, H + b"Content-Length: 99999999999\r\n\r\n"),
}

CHUNKS = {
    "0x in a size": b"0x1f\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a sign in a size": b"+1f\r\n" + BODY + b"\r\n0\r\n\r\n",
    "no size": b"\r\n" + BODY,
    "a blank in a size": b"1f \r\n" + BODY + b"\r\n0\r\n\r\n",
    "a huge size": b"fffffffffffffffff\r\n",
    "bare LF behind a size": b"1f\n" + BODY + b"\r\n0\r\n\r\n",
    "no CRLF behind data": b"1f\r\n" + BODY + b"0\r\n\r\n",
    "a trailer": b"1f\r\n" + BODY + b"\r\n0\r\nA: b\r\n\r\n",
    "LF at the end": b"1f\r\n" + BODY + b"\r\n0\r\n\n",
    "a long extension": b"1f;" + b"x" * 300 + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a LF in an extension": b"1f;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n",
}


@case("framing tricks are refused, and nothing behind them is read")
def tricks() -> None:
    with Bench() as b:
        cases = REFUSED | {f"chunks: {k}": (400, H + b"Transfer-Encoding: chunked\r\n\r\n" + v) for k, v in CHUNKS.items()}
        for name, (status, raw) in cases.items():
            c = b.connect().send(raw + b.request("GET", "/health"))
            a = c.answer()
            equal((a.status, a.headers["connection"], list(a.json), c.f.read()), (status, "close", ["error"], b""), name)
            c.close()
        equal(len(b.d[0].seen), 0, "requests that came through")
        refused = b.gauges()
        equal(sum(v for k, v in refused.items() if "refused_total" in k), len(cases))
        good = H + b"Transfer-Encoding: Chunked\r\n\r\n1F;a=b\r\n" + BODY + b"\r\n000\r\n\r\n"
        c = b.connect().send(good + H + b"Expect: 100-continue\r\n" + TAIL)
        equal([c.answer().status, c.answer().status], [200, 200])
        c.close()


@case("every byte on its own")
def byte_by_byte() -> None:
    with Bench() as b:
        c = b.connect()
        for byte in H + b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + BODY[:16] + b"\r\nf\r\n" + BODY[16:] + b"\r\n0\r\n\r\n":
            c.send(bytes([byte]))
            time.sleep(0.001)
        equal(c.answer().text, "t0 t1 t2 ")
        c.close()


@case("slow loris: 408 for head and body; idle connections are closed")
def slow() -> None:
    with Bench(header_timeout=0.4, body_timeout=0.4, body_total_timeout=1.2, keepalive_timeout=0.5) as b:
        for what, raw, within in (("head", H, 2), ("body", H + b"Content-Length: 31\r\n\r\n{", 2),
                                  ("dribbled body", H + b"Content-Length: 3000\r\n\r\n{", 3)):
            begin = time.monotonic()
            c = b.connect().send(raw)
            for _ in range(5 if "dribbled" in what else 0):
                time.sleep(0.25)
                c.send(b" ")
            a = c.answer()
            equal((a.status, list(a.json)), (408, ["error"]), what)
            true(time.monotonic() - begin < within, f"{what}: too late")
            c.close()
        c = b.connect()
        equal(c.f.read(), b"", "a connection without a byte")
        c.close()
        c = b.connect().send(b.request("GET", "/health"))
        equal((c.answer().status, c.f.read()), (200, b""), "an idle connection")
        c.close()


@case("limits: body, chunked body, sum of buffers, connections, requests, children, answer")
def limits() -> None:
    with Bench(max_body=1000, max_children=10) as b:
        equal(b.complete("silent", prompt="x" * 2000).status, 413)
        c = b.connect().send(H + b"Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + b" " * 2000 + b"\r\n0\r\n\r\n")
        equal(c.answer().status, 413)
        c.close()
        equal((b.complete(prompt=["x"] * 11).status, b.complete(n=11).status, b.complete(n=4, prompt=["a"] * 3).status), (400, 400, 400))
    with Bench(max_buffered="3K", max_answer=2000) as b:
        a = b.complete("silent", prompt="x" * 4000)
        equal((a.status, a.headers["retry-after"]), (503, "1"))
        equal(b.complete("silent,big=9000").status, 502)
    with Bench(max_buffered="1M") as b:
        first, second = (b.connect().send(H + b"Content-Length: 700000\r\n\r\n") for _ in range(2))
        first.send(b" " * 500000)
        wait_for(lambda: b.gauges()["rd2h_proxy_buffered_bytes"] >= 500000, what="the first body")
        a = second.send(b" " * 690000).answer()
        equal((a.status, a.headers["retry-after"]), (503, "1"), "there was room for both when they began")
        first.close()
        second.close()
    with Bench(max_requests=2, max_connections=6) as b:
        held = [b.connect().send(b.request("POST", "/v1/completions", {"model": "pslow=1", "prompt": "x"})) for _ in range(2)]
        time.sleep(0.2)
        a = b.complete()
        equal((a.status, a.headers["retry-after"], list(a.json)), (503, "1", ["error"]), "max-requests")
        idle = [b.connect() for _ in range(4)]
        time.sleep(0.1)
        full = b.connect().answer()
        equal((full.status, full.headers["retry-after"], full.json["error"]["code"]), (503, "1", 503), "max-connections")
        for c in idle:
            c.close()
        equal([c.answer().status for c in held], [200, 200])
        true(b.gauges()["rd2h_proxy_connections_refused_total"] >= 1, "refused connections are not counted")
    with Bench(max_children=4, max_open_children=6) as b:
        held = b.connect().send(b.request("POST", "/v1/completions", {"model": "pslow=1", "prompt": ["a"] * 4}))
        wait_for(lambda: b.gauges()["rd2h_proxy_open_children"] == 4, what="the first request")
        a = b.complete(n=3)
        equal((a.status, a.headers["retry-after"]), (503, "1"), "max-open-children")
        equal((b.complete(n=2).status, held.answer().status), (200, 200))
        equal(b.access_lines(1)[0]["status"], 503)
    with Bench(max_buffered="3M") as b:
        a = b.complete("silent,big=6000000")
        equal((a.status, "max-buffered" in a.json["error"]["message"]), (502, True), "answers count, too")


@case("an answer that the client takes slowly is whole: on a connection that ends, on one that is kept, and after SIGTERM")
def slow_client() -> None:
    with Bench(keepalive_timeout=2, send_timeout=2) as b:
        body = {"model": "silent,big=9000000", "prompt": "x"}
        clients = [b.connect().send(b.request("POST", "/v1/completions", body, h)) for h in ({"Connection": "close"}, {})]
        left = [int(c.head()[1]["content-length"]) for c in clients]
        true(min(left) >= 9_000_000, "longer than what the system buffers")
        b.process.terminate()
        for _ in range(26):  # all the while something is taken, for longer than any limit
            left = [n - len(c.f.read(300_000)) for n, c in zip(left, clients)]
            time.sleep(0.1)
        equal([n - len(c.f.read(n)) for n, c in zip(left, clients)], [0, 0])
        for c in clients:
            c.close()
        equal(b.process.wait(5), 0)
        b.settled = lambda: None


@case("a head may be as long as max-header says, also above 64 KiB")
def long_head() -> None:
    with Bench(max_header="256K", header_timeout=2) as b:
        long = b"Keep-Alive: " + b"b" * 200_000 + b"\r\n"  # not passed on
        c = b.connect().send(H + long[:90_000])
        time.sleep(0.05)
        equal(c.send(long[90_000:] + TAIL).answer().status, 200)
        c.close()


@case("paths and methods")
def paths() -> None:
    with Bench() as b:
        for method, path, status in (("GET", "/x", 404), ("POST", "/", 404), ("GET", "/v1/completions", 405), ("DELETE", "/health", 405),
                                     ("PUT", "/v1/metaserver", 405), ("OPTIONS", "/v1/chat/completions", 405)):
            a = b.send(method, path)
            equal((a.status, list(a.json)), (status, ["error"]), f"{method} {path}")
        c = b.connect().send(b.request("HEAD", "/health") + b.request("GET", "/health"))
        equal(c.head()[0], 200)
        equal(c.answer().json, {"status": "ok"})
        c.close()
