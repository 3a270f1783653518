# SPDX-License-Identifier: Apache-2.0
"""Thousands of streams, memory, what is left after many requests."""
from __future__ import annotations

import time
from pathlib import Path

from bench import Bench, wait_for
from cases import case, equal, true
from certificates import Certificate
from load import Load, cpu_ms, rss_kib

STREAMS, TLS_STREAMS = 4000, 150
PLAIN_KIB, TLS_KIB = 40, 100


def load() -> Load:
    return Load(Path(Bench.program).parent / "proxy-load")


def between(engines: Load, **options) -> Bench:
    return Bench(prefiller_ports=[engines.prefill], decoder_ports=[engines.decode], **options)


def sanitized() -> bool:
    return b"__asan_init" in Path(Bench.program).read_bytes()


@case(f"X24 {STREAMS} streams at once: none fails, each holds little memory; beyond the limits 503, no reset")
def streams() -> None:
    with load() as engines, between(engines) as b:
        true(engines.descriptors > 3 * STREAMS + 100, f"{engines.descriptors} descriptors are allowed here; raise the limit (ulimit -n)")
        engines.ask("run", b.port, 8, 200, 4, 0)
        before = rss_kib(b.process.pid)
        equal(engines.ask("hold", b.port, STREAMS), {"open": STREAMS, "held": STREAMS, "failed": 0})
        each = (rss_kib(b.process.pid) - before) / STREAMS
        print(f"# {each:.1f} KiB a stream")
        true(each < PLAIN_KIB or sanitized(), f"{each:.1f} KiB a stream")
        equal(b.gauges()["rd2h_proxy_open_requests"], STREAMS)
        equal(engines.ask("release"), {"done": STREAMS, "failed": 0})
        b.settled(5)
    with load() as engines, between(engines, max_requests=50, max_connections=120) as b:
        equal(engines.ask("hold", b.port, 50)["held"], 50)
        equal((b.complete().status, b.get("/health").status), (503, 200))
        equal(engines.ask("release"), {"done": 50, "failed": 0})


@case("an open stream with TLS holds little memory")
def tls_streams() -> None:
    with Certificate() as cert, Bench(cert=cert) as b:
        ask = b.request("POST", "/v1/completions", {"model": "silent,gap=0.5,events=8", "prompt": "x", "stream": True})
        b.complete("silent", True)
        before = rss_kib(b.process.pid)
        open_ones = [b.connect().send(ask) for _ in range(TLS_STREAMS)]
        for c in open_ones:
            c.head()
        each = (rss_kib(b.process.pid) - before) / TLS_STREAMS
        print(f"# {each:.1f} KiB a stream")
        true(each < TLS_KIB or sanitized(), f"{each:.1f} KiB a stream")
        for c in open_ones:
            c.close()
        b.settled(5)


@case("nothing grows with the number of requests served")
def growth() -> None:
    with load() as engines, between(engines) as b:
        for _ in range(2):
            engines.ask("run", b.port, 32, 1000, 0, 0)
        before, files = rss_kib(b.process.pid), len(list(Path(f"/proc/{b.process.pid}/fd").iterdir()))
        for events in (0, 8):
            equal(engines.ask("run", b.port, 32, 3000, events, 0)["failed"], 0)
        more = rss_kib(b.process.pid) - before
        true(more < 512 or sanitized(), f"{more} KiB after 6 000 requests")
        wait_for(lambda: len(list(Path(f"/proc/{b.process.pid}/fd").iterdir())) <= files + 8, what="the end of descriptors")


@case("too few descriptors: said at the start, 503 or an error for the rest, then on as before")
def descriptors() -> None:
    few = 80
    with Bench(descriptors=few) as b:
        true("ulimit -n" in b.log.read_text(), "no warning")
        held = [b.connect() for _ in range(few + 40)]
        time.sleep(0.3)
        before = cpu_ms(b.process.pid)
        time.sleep(0.5)
        true(cpu_ms(b.process.pid) - before < 100, "it is busy with what it cannot accept")
        for c in held:
            c.close()
        wait_for(lambda: b.complete().status == 200, 5, "an answer when descriptors are free again")
