# SPDX-License-Identifier: Apache-2.0
"""Many engines: balance, failures, health, changes while running."""
from __future__ import annotations

import json
import threading
import time

from bench import Bench, wait_for
from cases import case, equal, true


@case("table: requests one after another go to idle engines in turn (X13)")
def turns() -> None:
    with Bench(p=2, d=2) as b:
        for _ in range(20):
            equal(b.complete().status, 200)
        equal([len(e.seen) for e in b.p + b.d], [10, 10, 10, 10])


@case("X13 loads are the reference's: bytes for Decode, its cost of a prompt for Prefill, with 0.3 of what waits to be read")
def loads() -> None:
    with Bench() as b:
        t = threading.Thread(target=b.complete, kwargs={"model": "pslow=0.8,gap=0.8,events=2", "prompt": "x" * 4000, "stream": True})
        t.start()
        wait_for(lambda: b.p[0].seen, what="a request to Prefill")
        cost = 120.0745 + 0.0345 * len(b.p[0].seen[0].raw) / 4
        g = b.gauges()
        load = {role: [v for k, v in g.items() if f'engine_load{{role="{role}"' in k][0] for role in ("prefill", "decode")}
        sent = len(json.dumps({"model": "pslow=0.8,gap=0.8,events=2", "prompt": "x" * 4000, "stream": True}))
        equal((round(load["prefill"], 3), load["decode"]), (round(1.3 * cost, 3), sent))
        t.join()


@case("balance by load (X13)")
def balance() -> None:
    with Bench(p=2, d=2) as b:
        t = threading.Thread(target=b.complete, kwargs={"model": "pslow=1.5", "prompt": "x" * 50000})
        t.start()
        wait_for(lambda: b.p[0].seen or b.p[1].seen, what="the long one at Prefill")
        busy_p, busy_d = (0 if b.p[0].seen else 1), (0 if b.d[0].seen else 1)
        for _ in range(6):
            b.complete()
        equal((len(b.p[busy_p].seen), len(b.d[busy_d].seen)), (1, 1), "requests at the busy engines")
        lines = [k for k, v in b.gauges().items() if "engine_load" in k and v > 0]
        equal(len(lines), 2, "engines with load")
        t.join()


@case("Decode fails before the first byte: another is asked, as often as allowed (X01, X03)")
def decode_fails() -> None:
    with Bench(d=2, eject_after=100) as b:
        equal(b.complete("dfail=1").status, 200)
        equal(sorted(len(e.seen) for e in b.d), [1, 2], "each refuses its first")
        for e in b.d:
            e.clear()
        a = b.complete("ddie")
        equal((a.status, a.json["error"]["type"]), (502, "server_error"))
        equal(sum(len(e.seen) for e in b.d), 3, "attempts")
        ids = {s.headers["x-request-id"] for e in b.d for s in e.seen}
        equal(len(ids), 3, "each attempt has its own id")
        for e in b.d:
            e.clear()
        a = b.complete("d=503")
        equal((a.status, a.headers["retry-after"], sum(len(e.seen) for e in b.d)), (503, "9", 3))
    with Bench(max_retries=0) as b:
        equal((b.complete("ddie").status, len(b.d[0].seen)), (502, 1), "max-retries 0: one attempt")


@case("Decode hangs, before and after its beginning: 504 (X01)")
def hangs() -> None:
    with Bench(rendezvous_timeout=0.5, first_byte_timeout=0.5, idle_timeout=0.5, prefill_timeout=0.8, eject_after=100) as b:
        equal(b.complete("dhang").status, 504)
        equal(b.complete("pslow=20").status in (502, 504), True)
        a = b.complete("events=3,gap=2", True)
        equal((a.status, "[DONE]" in a.body.decode(), '"code":504' in a.events[-1]), (200, False, True))
        wait_for(lambda: not b.d[0].open, what="the end of Decode's work")


@case("health: a dead engine is left out and comes back; none left: 503 (X01)")
def health() -> None:
    with Bench(d=2, health_interval=0.2, health_interval_down=0.2, eject_after=2) as b:
        b.d[0].stop()
        equal([b.complete().status for _ in range(6)], [200] * 6)
        wait_for(lambda: b.get("/instances").json["decode"][0]["state"] == "down", what="the ejection")
        n = len(b.d[1].seen)
        equal([b.complete().status for _ in range(4)], [200] * 4)
        equal(len(b.d[1].seen) - n, 4)
        b.d[1].healthy = False
        wait_for(lambda: b.get("/health").status == 503, what="the second ejection")
        a = b.complete()
        equal((a.status, a.headers["retry-after"]), (503, "1"))
        b.d[0].start()
        wait_for(lambda: b.get("/health").status == 200, what="the return")
        equal(b.complete().status, 200)


@case("engines dying in each phase: an error, nothing sent twice after the first byte")
def deaths() -> None:
    with Bench(d=1, p=1, eject_after=1000, health_interval=0) as b:
        for model, stream, who, when in (("pslow=9", False, "p", "p"), ("pslow=9", False, "d", "p"), ("gap=9,events=3", True, "d", "d")):
            b.d[0].clear(), b.p[0].clear()
            got = []
            t = threading.Thread(target=lambda m=model, s=stream: got.append(b.complete(m, s)))
            t.start()
            wait_for(lambda w=when: getattr(b, w)[0].seen, what="the phase")
            time.sleep(0.2)
            getattr(b, who)[0].stop()
            t.join(10)
            equal(got[0].status, 200 if "events" in model else 502, f"{model} {who}")
            equal((len(b.d[0].seen), len(b.p[0].seen)), (1, 1), "requests seen")
            getattr(b, who)[0].start()
            b.settled(4)


@case("instances: add, remove a busy one, add again, remove the last (X25)")
def instances() -> None:
    with Bench(p=1, d=2) as b:
        d0, d1 = (f"127.0.0.1:{e.port}" for e in b.d)
        change = lambda what, **body: b.send("POST", f"/instances/{what}", body)  # noqa: E731
        got = []
        t = threading.Thread(target=lambda: got.append(b.complete("pslow=0.7")))
        t.start()
        wait_for(lambda: b.p[0].seen, what="a request to Prefill")
        busy = d0 if b.d[0].seen else d1
        a = change("remove", type="decode", instances=[busy])
        equal([(x["instance"] == busy, x["state"]) for x in a.json["decode"] if x["state"] != "up"], [(True, "draining")])
        before = [len(e.seen) for e in b.d]
        equal([b.complete().status for _ in range(4)], [200] * 4)
        equal(sorted(len(e.seen) - n for e, n in zip(b.d, before)), [0, 4], "requests since")
        t.join()
        equal(got[0].status, 200, "the request under way")
        equal([x["instance"] for x in b.get("/instances").json["decode"]], [d1 if busy == d0 else d0])
        equal(change("add", type="decode", instances=busy).status, 200)
        equal(change("add", type="decode", instances=busy).status, 400, "twice")
        equal(b.get("/healthcheck").json, {"status": "ok", "prefill_instances": 1, "decode_instances": 2})
        b.d[0].stop()  # as one that has not been started yet
        equal([b.complete().status for _ in range(6)], [200] * 6, "with an engine that does not listen")
        b.d[0].start()
        for bad in ({}, {"type": "x", "instances": d0}, {"type": "decode"}, {"type": "decode", "instances": "x"},
                    {"type": "decode", "instances": ["1.2.3.4.5:1"]}, {"type": "decode", "instances": [3]},
                    *({"type": "decode", "instances": f"[fe80::1%{zone}]:80"} for zone in ("", "a b", 'x"', "x\r\nX-Y: z", "e" * 16))):
            equal(b.send("POST", "/instances/add", bad).status, 400, str(bad))
        equal(b.send("POST", "/instances/add", b"{").status, 400)
        equal(change("remove", type="decode", instances=[d0, d1]).status, 200)
        equal((b.complete().status, b.get("/health").status), (503, 503))


@case("X25 a busy Prefill engine is removed: what it has ends, the next goes elsewhere")
def busy_prefill() -> None:
    with Bench(p=2) as b:
        got = []
        t = threading.Thread(target=lambda: got.append(b.complete("pslow=0.6", True)))
        t.start()
        wait_for(lambda: b.p[0].seen or b.p[1].seen, what="a request to Prefill")
        busy = 0 if b.p[0].seen else 1
        equal(b.send("POST", "/instances/remove", {"type": "prefill", "instances": f"127.0.0.1:{b.p[busy].port}"}).status, 200)
        equal([b.complete().status for _ in range(3)], [200] * 3)
        t.join()
        equal((got[0].status, got[0].text, len(b.p[busy].seen)), (200, "t0 t1 t2 ", 1))
        wait_for(lambda: len(b.get("/instances").json["prefill"]) == 1, what="the end of the removed engine")


@case("table: /v1/models, /metrics; models with engines down; caches reset (X26)")
def models() -> None:
    with Bench(p=2, d=1) as b:
        equal(b.get("/v1/models").json["data"], [{"id": "tiny"}])
        equal(b.get("/metrics").headers["content-type"].split(";")[0], "text/plain")
        a = b.send("POST", "/reset_prefix_cache?device=1", b"")
        equal((a.status, a.body), (200, b""))
        equal([e.seen[0].path for e in b.p + b.d], ["/reset_prefix_cache?device=1"] * 3)
        b.d[0].stop()
        equal(b.get("/v1/models").json["data"], [{"id": "tiny"}])
        a = b.send("POST", "/reset_prefix_cache", b"")
        equal((a.status, a.json), (500, {"failed": [f"http://127.0.0.1:{b.d[0].port}"]}))
        for e in b.p:
            e.stop()
        equal(b.get("/v1/models").status, 503)


@case("metrics add up")
def metrics() -> None:
    with Bench() as b:
        for model in ("", "", "d=400", "p=500", "drop=1"):
            b.complete(model, stream=True)
        g = b.gauges()
        total = {o: sum(v for k, v in g.items() if "requests_total" in k and f'outcome="{o}"' in k and "engine" not in k)
                 for o in ("ok", "client_error", "upstream_error", "client_gone")}
        equal(total, {"ok": 2, "client_error": 1, "upstream_error": 2, "client_gone": 0})
        for name, n in (("time_to_first_token", 3), ("rendezvous_wait", 4), ("prefill", 3), ("request", 5)):
            equal(g[f"rd2h_proxy_{name}_seconds_count"], n, name)
        true(g["rd2h_proxy_request_seconds_sum"] > 0, "no time has passed")
        equal(g['rd2h_proxy_rendezvous_total{status="200"}'], 3)
        equal([x["status"] for x in b.access_lines(5)], [200, 200, 400, 502, 502])
