# SPDX-License-Identifier: Apache-2.0
"""What clients see: headers, streams, hanging up, large bodies, many at once."""
from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from pathlib import Path

from bench import Bench, wait_for
from case_load import sanitized
from cases import case, equal, true
from load import cpu_ms


@case("table: Authorization and other headers pass to both engines (X12)")
def headers() -> None:
    sent = {"Authorization": "Bearer me", "traceparent": "00-1-2-01", "X-data-parallel-rank": "1", "X-Request-Id": "mine",
            "Connection": "x-hop", "X-Hop": "1", "TE": "trailers", "X-Empty": ""}
    with Bench(env={"OPENAI_API_KEY": "other"}) as b:
        a = b.complete(headers=sent)
        equal((a.status, a.headers["x-request-id"]), (200, "mine"))
        for seen in (b.d[0].seen[0], b.p[0].seen[0]):
            h = seen.headers
            equal((h["authorization"], h["traceparent"], h["x-data-parallel-rank"], h.get("x-empty")), ("Bearer me", "00-1-2-01", "1", ""))
            true(not {"x-hop", "te", "expect"} & set(h), f"headers of the connection passed: {h}")
            true(h["x-request-id"] != "mine", "the client's id was sent to an engine")
        b.complete()
        true("authorization" not in b.d[0].seen[1].headers, "an Authorization was made up")
        equal([(x["client_id"], x["id"]) for x in b.access_lines(1)], [("mine", b.d[0].seen[0].headers["x-request-id"])])


@case("framing of answers (X10)")
def framing() -> None:
    with Bench() as b:
        a = b.complete()
        equal((a.headers["content-type"], int(a.headers["content-length"])), ("application/json", len(a.body)))
        a = b.complete(stream=True)
        equal((a.headers["content-type"], a.headers["transfer-encoding"]), ("text/event-stream; charset=utf-8", "chunked"))
        body = json.dumps({"model": "", "prompt": "x", "stream": True}).encode()
        for version, lines in (("1.0", ""), ("1.0", "Connection: keep-alive\r\n")):
            c = b.connect()
            c.send(f"POST /v1/completions HTTP/{version}\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            a = c.answer()
            equal((a.status, "transfer-encoding" in a.headers, a.text), (200, False, "t0 t1 t2 "))
            c.close()
        c = b.connect().send(b.request("POST", "/v1/completions", body) * 3 + b.request("GET", "/health"))
        equal([c.answer().status for _ in range(4)], [200] * 4, "pipelined")
        c.send(b.request("GET", "/health", headers={"Connection": "close"}))
        equal((c.answer().headers["connection"], c.f.read()), ("close", b""))
        c.close()


@case("events: split anywhere, joined, each passed on at once")
def events() -> None:
    with Bench() as b:
        a = b.complete("bytes,events=4", True)
        equal(a.text, "t0 é€t1 é€t2 é€t3 é€")
        c = b.connect().send(b.request("POST", "/v1/completions", {"model": "gap=0.4,events=3", "prompt": "x", "stream": True}))
        c.head()
        begin = time.monotonic()
        c.f.readline(), c.f.readline()
        true(time.monotonic() - begin < 0.3, "the first event waited for the second")
        c.close()


@case("X10 events are passed on within a millisecond")
def at_once() -> None:
    with Bench() as b:
        c = b.connect().send(b.request("POST", "/v1/completions", {"model": "gap=0.01,events=60,clock", "prompt": "x", "stream": True}))
        c.head()
        late = []
        for line in iter(c.f.readline, b"data: [DONE]\n"):
            if line.startswith(b"data: "):
                late.append(time.monotonic() - json.loads(line[6:])["sent"])
        c.close()
        late.sort()
        # A busy machine delays some; a proxy that waits for more, or for its timer, delays them all.
        true(len(late) == 60 and late[len(late) // 4] < 0.001, f"a quarter of the events took up to {1000 * late[len(late) // 4]:.2f} ms")


def hang_up(c, how: str) -> None:
    if how == "rst":
        c.s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half":
        c.s.shutdown(socket.SHUT_WR)
    else:
        c.close()


@case("hanging up cancels both engines' work within a second (X04)")
def hanging_up() -> None:
    where = {"in Prefill": ("pslow=30", False), "before the first token": ("gap=30", False), "in mid-stream": ("gap=0.05,events=900", True),
             "before the rendezvous": ("dhang", False), "not a stream": ("pslow=30", False), "at a child": ("miss=0", True)}
    with Bench() as b:
        for name, (model, stream) in where.items():
            for how in ("fin", "rst", "half"):
                b.d[0].clear(), b.p[0].clear(), b.d[0].posts.clear()
                body = {"model": model, "prompt": "x", "stream": stream or "gap" in model}
                c = b.connect().send(b.request("POST", "/v1/completions", body))
                wait_for(lambda: b.d[0].seen and (b.p[0].seen or "pslow" not in model), what="Decode's request")
                if stream and "gap" in model:
                    c.head()
                time.sleep(0.05)
                begin = time.monotonic()
                hang_up(c, how)
                wait_for(lambda: not b.d[0].open and not b.p[0].open, 1.0, f"the end of the engines' work ({name}, {how})")
                b.settled(1.0 - (time.monotonic() - begin))
                told = b.d[0].seen[0].cancelled or [s for _, s in b.d[0].posts] == [404]  # either may come first
                true(told, f"Decode was not cancelled: {name}, {how}")
        c = b.connect().send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b"{" * 1000)
        time.sleep(0.05)
        hang_up(c, "fin")
        b.settled()
        equal([x["status"] for x in b.access_lines(18)], [499] * 18, "lines of the access log")


@case("large bodies: 16 MiB, a million token ids, chunked, dribbled (X06)")
def large() -> None:
    with Bench() as b:
        ids = json.dumps({"model": "silent", "prompt": list(range(1_000_000))}).encode()
        equal(b.send("POST", "/v1/completions", ids, timeout=90).status, 200)
        equal(len(b.d[0].seen[-1].body["prompt"]), 1_000_000)
        big = json.dumps({"model": "silent", "prompt": "x" * (16 << 20)}).encode()
        equal(b.send("POST", "/v1/completions", big, timeout=90).status, 200)
        chunked = b"".join(b"%x\r\n%s\r\n" % (len(big[i:i + 70001]), big[i:i + 70001]) for i in range(0, len(big), 70001)) + b"0\r\n\r\n"
        c = b.connect(90).send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked)
        equal(c.answer().status, 200)
        c.close()
        equal(len(b.d[0].seen[-1].body["prompt"]), 16 << 20)
        slow = json.dumps({"model": "silent", "prompt": "y" * 200_000}).encode()
        c = b.connect(90).send(b.request("POST", "/v1/completions", slow)[:-len(slow)])
        for i in range(0, len(slow), 2048):
            c.send(slow[i:i + 2048])
            time.sleep(0.005)
        equal(c.answer().status, 200)
        c.close()


@case("X06 what is large is looked at once, as it comes in: little of the loop's time")
def large_is_cheap() -> None:
    factor = 8 if sanitized() else 1
    with Bench() as b:
        for most, options in ((300, {"model": "big=24000000,cached=7,details"}), (300, {"model": "big=24000000"}),
                              (300, {"prompt": "x" * 24000000})):
            before = cpu_ms(b.process.pid)
            a = b.complete(timeout=60, **options)
            equal((a.status, a.whole), (200, True))
            true(cpu_ms(b.process.pid) - before < factor * most, f"{cpu_ms(b.process.pid) - before} ms for {list(options)}")
        usage = json.loads(b.complete("big=2000000,cached=7,details").body)["usage"]
        equal(usage["prompt_tokens_details"], {"audio_tokens": 1, "cached_tokens": 7})
    with Bench() as b:
        a = b.complete("ours,pslow=0.2", prompt="x" * 2000000, n=24, timeout=60)
        equal((a.status, len(b.p[0].seen), {s.body["n"] for s in b.p[0].seen}), (200, 24, {1}))
        peak = int(Path(f"/proc/{b.process.pid}/status").read_text().split("VmHWM:")[1].split()[0])
        true(sanitized() or peak < 30000, f"{peak} KiB for 24 requests of one body of 2 MB")


@case("a client that does not read: the engine is held back, memory stays bounded")
def slow_reader() -> None:
    with Bench(max_answer="1G", idle_timeout=0.4) as b: # that is not the engine's idling
        c = b.connect()
        c.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.send(b.request("POST", "/v1/completions", {"model": "silent,events=200000", "prompt": "x", "stream": True}))
        time.sleep(1.5)
        held = b.gauges()["rd2h_proxy_buffered_bytes"]
        true(held < 4 << 20, f"{held:.0f} bytes are buffered")
        wait_for(lambda: b.gauges()["rd2h_proxy_buffered_bytes"] > 200000, 10, "bytes that wait")
        time.sleep(0.8)
        true(b.d[0].open == 1, "Decode is not held back")
        c.head()
        for _ in range(4000):
            c.f.readline()
        c.close()


@case("a slow client's answer is not cut off by the limit of idle connections")
def slow_answer() -> None:
    with Bench(keepalive_timeout=0.3, max_answer="1G") as b:
        c = b.connect()
        c.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        c.send(b.request("POST", "/v1/completions", {"model": "big=12000000", "prompt": "x"}))
        wait_for(lambda: b.gauges()["rd2h_proxy_buffered_bytes"] > 1 << 20, 10, "an answer that goes out")
        time.sleep(1)
        true(len(c.answer().text) >= 12000000, "the answer is cut off")
        c.close()


@case("connections are probed by the system: a machine that is gone without a word is noticed within a minute")
def keepalive() -> None:
    with Bench() as b:
        got = []
        t = threading.Thread(target=lambda: got.append(b.complete("pslow=0.5", True)))
        t.start()
        wait_for(lambda: b.p[0].seen, what="a request to Prefill")
        due = {}
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, state, _, timer, *_ = line.split()
            if state == "01":
                due[int(local[9:], 16), int(remote[9:], 16)] = (timer[:2], int(timer[3:], 16) / os.sysconf("SC_CLK_TCK"))
        of_proxy = [v for (local, remote), v in due.items() if local == b.port or remote in (b.d[0].port, b.p[0].port)]
        true(len(of_proxy) >= 3 and all(kind == "02" and seconds <= 30 for kind, seconds in of_proxy), str(of_proxy))
        t.join()


@case("500 streams at once, each whole (X24)")
def many_at_once() -> None:
    with Bench(p=2, d=2) as b:
        bad = []

        def one(k: int) -> None:
            try:
                a = b.complete("events=20,gap=0.02", True, timeout=60)
                if (a.status, a.text) != (200, "".join(f"t{i} " for i in range(20))):
                    bad.append((k, a))
            except OSError as e:
                bad.append((k, e))

        threads = [threading.Thread(target=one, args=(k,)) for k in range(500)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        equal(bad[:3], [])
        b.settled(5)
