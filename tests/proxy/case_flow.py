# SPDX-License-Identifier: Apache-2.0
"""Rendezvous, Prefill, prompt lists, continuations."""
from __future__ import annotations

import json
import threading
import time

from bench import Bench, wait_for
from cases import case, equal, true
from engines import ODD, post


def metaserver(b: Bench, message, query: str = ""):
    return b.loop.run(post(f"http://127.0.0.1:{b.port}/v1/metaserver{query}", message, 10))


def in_background(run) -> threading.Thread:
    t = threading.Thread(target=run, daemon=True)
    t.start()
    return t


@case("table: Decode answers 400 or 500 (X02, L05)")
def engine_errors() -> None:
    with Bench() as b:
        for status in (400, 404, 413, 422, 429, 500):
            for stream in (False, True):
                a = b.complete(f"d={status}", stream)
                equal((a.status, a.json, a.headers["content-type"], a.headers["retry-after"]),
                      (status, {"error": {"message": "context too long"}}, "application/json", "9"))
        equal(len(b.d[0].seen), 12, "requests to Decode: none is repeated")
        equal(len(b.p[0].seen), 0, "requests to Prefill: it never hears of them")


@case("table: Decode dies in mid-stream (X03)")
def drop() -> None:
    with Bench() as b:
        a = b.complete("drop=3,events=9", True)
        equal((a.status, a.text, len(a.events)), (200, "t0 t1 t2 ", 4))
        true('"error"' in a.events[-1] and "[DONE]" not in a.body.decode(), f"no error event at the end: {a.events[-1]}")
        equal(len(b.d[0].seen), 1, "requests to Decode")


@case("an answer that ends in the middle of an event: the whole events, then an error")
def cut_event() -> None:
    with Bench() as b:
        a = b.complete("cut", True)
        equal((a.status, a.text, '"code":502' in a.events[-1], len(a.events)), (200, "t0 t1 t2 ", True, 4))
        equal(b.access_lines(1)[0]["status"], 502)


@case("table: 33 prompts in one list, Decode with 32 threads (X07)")
def many_prompts() -> None:
    with Bench() as b:
        for n in (33, 64, 256):
            equal(b.complete(f"{n}", prompt=[f"p{i}" for i in range(n)]).status, 200)
            equal(len(b.p[0].seen), 1, "requests to Prefill")
            batch = b.p[0].seen[0].body["kv_transfer_params"]["batch_kv_transfer_params"]
            equal(sorted(batch), sorted(b.d[0].children(b.d[0].seen[-1])))
            b.p[0].clear()
        one = in_background(lambda: b.complete("threads=32,ours", prompt=["x"] * 64))
        equal(b.complete().status, 200)
        one.join(20)


@case("deadlock: 40 prompts on an engine with room for 11 (ours), beside a second list")
def few_blocks() -> None:
    with Bench() as b:
        answers = []
        lists = [in_background(lambda: answers.append(b.complete("ours,blocks=11", prompt=[f"p{i}" for i in range(40)]).status))
                 for _ in range(2)]
        for t in lists:
            t.join(20)
        equal(answers, [200, 200])
        equal(len(b.p[0].seen), 80, "requests to Prefill, one a child")
        equal({s.body["prompt"] for s in b.p[0].seen}, {f"p{i}" for i in range(40)})
        ids = {s.body["kv_transfer_params"]["request_id"].rsplit("-", 1)[1]: s.body["prompt"] for s in b.p[0].seen}
        equal(ids, {str(i): f"p{i}" for i in range(40)}, "parameters go with their prompt")


@case("deadlock: the same with engines of the reference ends after a bound (X08)")
def few_blocks_reference() -> None:
    with Bench(rendezvous_timeout=0.7) as b:
        begin = time.monotonic()
        a = b.complete("blocks=11", prompt=["x"] * 40)
        equal(a.status, 504)
        true(time.monotonic() - begin < 3, "it took too long")
        equal(len(b.p[0].seen), 0, "requests to Prefill")
        equal(b.complete().status, 200)


@case("rendezvous: a child that never posts (X08)")
def missing_child() -> None:
    with Bench(rendezvous_timeout=0.5) as b:
        for model in ("miss=1", "miss=1,ours"):
            a = b.complete(model, prompt=["a", "b", "c"])
            equal((a.status, "rendezvous" in a.json["error"]["message"]), (504, True))
        wait_for(lambda: b.d[0].open == 0, what="the end of Decode's requests")


@case("table: rendezvous with a JSON array, and other bad ones (X16, Z05)")
def bad_rendezvous() -> None:
    with Bench() as b:
        t = in_background(lambda: b.complete("pslow=1"))
        wait_for(lambda: b.p[0].seen, what="a request to Prefill")
        child = b.p[0].seen[0].body["kv_transfer_params"]["request_id"]
        good = b.d[0].message(child, {})
        bad = [[], [good], 1, None, b"", b"{", b"\xff", {**good, "remote_host": "no host"}, {**good, "remote_port": 0},
               {**good, "remote_port": 70000}, {**good, "remote_port": "1"}, {**good, "remote_host": "192.0.0.3192.0.0.3"},
               {**good, "remote_host": "fe80::1%\n"}, {**good, "do_remote_decode": False},
               {k: v for k, v in good.items() if k != "remote_host"}]
        for message in bad:
            equal(metaserver(b, message)[0], 400, f"{message!r}")
        for other in ("", "cmpl-x-0", child[:-1], child[:-1] + "1", child + "0", "0_" + child, "chat" + child, child.replace("-", "_"), 7):
            equal(metaserver(b, {**good, "request_id": other})[0], 404, f"id {other!r}")
        t.join(10)
        equal(metaserver(b, good)[0], 404, "after the end")
        equal(len(b.p[0].seen), 1, "requests to Prefill")


@case("rendezvous: twice at once, again after success, again after failure (X18)")
def repeated() -> None:
    with Bench() as b:
        equal(b.complete("twice,pslow=0.2").status, 200)
        equal([s for _, s in b.d[0].posts], [200, 200])
        equal(len(b.p[0].seen), 1, "requests to Prefill")
        equal(b.complete("twice", prompt=["a", "b"]).status, 200)
        equal(len(b.p[0].seen), 2, "requests to Prefill")
    with Bench(max_retries=1) as b:
        equal(b.complete("pfail=1,retry").status, 200)
        equal([s for _, s in b.d[0].posts], [502, 200])
        equal(len(b.p[0].seen), 2, "requests to Prefill")


@case("rendezvous: only from Decode engines or with the request's token (Z05)")
def senders() -> None:
    with Bench() as b:
        t = in_background(lambda: b.complete("pslow=1", prompt=["a", "b"]))
        wait_for(lambda: b.p[0].seen, what="a request to Prefill")
        url = b.d[0].seen[0].body["kv_transfer_params"]["metaserver"]
        message = b.d[0].message(b.d[0].children(b.d[0].seen[0])[0], {})
        bare, token = url.split("?")
        for query in ("", "?token=", "?" + token[:-1], "?" + token + "0", "?token=" + "0" * 32):
            equal(b.loop.run(post(bare + query, message, 5, "127.0.0.2"))[0], 403, query)
        equal(b.loop.run(post(url, message, 5, "127.0.0.2"))[0], 200)
        equal(b.loop.run(post(bare, message, 5))[0] in (200, 404), True)
        t.join(10)
    with Bench() as b: # an address counts as long as the engine is there, and no name stands for it
        engine = {"type": "decode", "instances": f"localhost:{b.d[0].port}"}
        equal(b.send("POST", "/instances/add", engine).status, 200)
        equal(b.send("POST", "/instances/remove", {**engine, "instances": f"127.0.0.1:{b.d[0].port}"}).status, 200)
        t = in_background(lambda: b.complete("pslow=1"))
        wait_for(lambda: b.p[0].seen, what="a request to Prefill")
        message = b.d[0].message(b.d[0].children(b.d[0].seen[0])[0], {})
        equal(b.loop.run(post(f"http://127.0.0.1:{b.port}/v1/metaserver", message, 5))[0], 403, "from a removed engine's address")
        t.join(10)
    with Bench(rendezvous_token="false") as b:
        equal(b.complete().status, 200)
        true("token" not in b.d[0].seen[0].body["kv_transfer_params"]["metaserver"], "a token is in the address")


@case("Prefill fails: 500, 503, refused, cut (X02, X17)")
def prefill_fails() -> None:
    with Bench(p=2) as b:
        for model in ("p=500", "pdie"):
            begin = time.monotonic()
            for stream in (False, True):
                a = b.complete(model, stream)
                equal((a.status, "Prefill" in a.json["error"]["message"]), (502, True), model)
            true(time.monotonic() - begin < 4, "it took too long")
            equal(len(b.p[0].seen + b.p[1].seen), 6, "attempts")
            for e in b.p:
                e.clear()
            wait_for(lambda: {x["state"] for x in b.get("/instances").json["prefill"]} == {"up"}, 10, "the return of Prefill")
        for status in (400, 404, 413, 422, 429):
            a = b.complete(f"p={status}")
            equal((a.status, a.json["error"]["message"], a.headers["retry-after"]), (status, f"P says {status}", "7"))
        equal(len(b.p[0].seen + b.p[1].seen), 5, "4xx is not repeated")
        a = b.complete("p=503")
        equal((a.status, a.json["error"]["message"], a.headers["retry-after"]), (503, "P says 503", "7"))
        equal(len(b.p[0].seen + b.p[1].seen), 8, "503 is tried elsewhere")
        equal(b.complete("pfail=1").status, 200)
        for e in b.p:
            e.stop()
        equal(b.complete().status, 502, "no Prefill engine listens")
        for e in b.p:
            e.start()
        wait_for(lambda: b.complete().status == 200, what="the return of Prefill")


@case("Prefill's body (X19); parameters of a client are replaced (Z06)")
def prefill_body() -> None:
    more = {"max_completion_tokens": 9, "max_tokens": None, "min_tokens": 50, "stream_options": {"include_usage": True}, "stop": ["x"],
            "response_format": {"type": "text"}, "tools": [{"type": "function"}],
            "logit_bias": {"5": 1}, "ignore_eos": True, "kv_transfer_params": {"evil": 1}, "seed": 12345678901234567890}
    with Bench() as b:
        a = b.complete("one", True, **more)
        equal(a.status, 200)
        d, p = b.d[0].seen[0].body, b.p[0].seen[0].body
        equal({**d, "kv_transfer_params": 0}, {"model": "one", "prompt": "hello", "stream": True, **more, "kv_transfer_params": 0})
        rest = {k: v for k, v in d["kv_transfer_params"].items() if k != "metaserver"}
        equal(rest, {"do_remote_decode": False, "do_remote_prefill": True})
        want = {"model": "one", "prompt": "hello", **more, "stream": False, "max_tokens": 1, "min_tokens": 1, "max_completion_tokens": 1}
        del want["stream_options"]
        equal({**p, "kv_transfer_params": 0}, {**want, "kv_transfer_params": 0})
        equal(p["kv_transfer_params"]["request_id"], b.d[0].children(b.d[0].seen[0])[0])
        equal(b.complete("two", max_tokens=0).status, 200)
        true("max_completion_tokens" not in b.p[0].seen[1].body, "max_completion_tokens was added")


@case("bodies pass byte for byte")
def bytes_pass() -> None:
    raw = (b' {"prompt" : "a\\u00e9\\ud83d\\ude00" , "model":"x", "seed":12345678901234567890,"temperature":0.10, "top_p":-0, '
           b'"kv\\u005ftransfer_params":{"a":[1,2]}, "x":1e-7,"kv_transfer_params":null, "x":2} ')
    with Bench() as b:
        equal(b.send("POST", "/v1/completions", raw).status, 200)
        got = b.d[0].seen[0].raw
        url = got[got.index(b'"http'):].split(b'"')[1]
        params = b'{"do_remote_decode":false,"do_remote_prefill":true,"metaserver":"' + url + b'"}'
        equal(got, raw.replace(b'{"a":[1,2]}', params).replace(b"null", params))


@case("n > 1, and a Decode that answers without a rendezvous")
def answers_n() -> None:
    with Bench() as b:
        equal(b.complete("a", n=3).status, 200)
        equal(sorted(b.p[0].seen[0].body["kv_transfer_params"]["batch_kv_transfer_params"]), sorted(b.d[0].children(b.d[0].seen[0])))
        equal(b.complete("b,ours", n=2, prompt=["x", "y"]).status, 200)
        equal(sorted((s.body["prompt"], s.body["n"]) for s in b.p[0].seen[1:]), [("x", 1), ("x", 1), ("y", 1), ("y", 1)])
        equal(b.chat("c", n=2).status, 200)
        for stream in (False, True):
            equal(b.complete("silent", stream, use_beam_search=True).text, "t0 t1 t2 ")
        equal(len(b.p[0].seen), 6, "requests to Prefill")


@case("continuation after a recomputed stop")
def recomputed() -> None:
    want = "".join(f"t{i} " for i in range(10))
    with Bench() as b:
        for stream in (False, True):
            for ask in (b.complete, b.chat):
                for limit in ({"max_tokens": 10}, {"max_completion_tokens": 10}):
                    b.d[0].clear()
                    a = ask("recomputed=4", stream, **limit)
                    equal((a.status, a.text), (200, want))
                    second = b.d[0].seen[1].body
                    equal(second[list(limit)[0]], 6, "tokens left")
                    true(b.d[0].seen[0].headers["x-request-id"] != b.d[0].seen[1].headers["x-request-id"], "the id is used twice")
        equal(b.complete("recomputed=4", max_tokens=10).json["usage"], {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15})
        a = b.complete("recomputed=4", True)
        equal(a.text, "".join(f"t{i} " for i in range(16)), "vLLM's default of 16 tokens")
        ids = {e.split('"id"')[1][:50] for e in a.events if '"id"' in e}
        equal(len(ids), 1, "ids that the client sees")


@case("continuation that would be wrong: a clean error")
def not_continued() -> None:
    with Bench() as b:
        for more in ({"prompt": [1, 2, 3]}, {"echo": True}, {"response_format": {"type": "json_object"}}, {"prompt": ["a", "b"]}):
            a = b.complete("recomputed=2", True, **more)
            equal((a.status, "[DONE]" in a.body.decode(), "cannot be continued" in a.events[-1]), (200, False, True), str(more))
            equal(b.complete("recomputed=2", False, **more).status, 502)


@case("X21 usage: cached tokens are those that Prefill found, streamed or not")
def cached_tokens() -> None:
    with Bench() as b:
        for p, d, prompt, want in (("cached=0", "details", "x", {"audio_tokens": 1, "cached_tokens": 0}),
                                   ("cached=128", "details", "x", {"audio_tokens": 1, "cached_tokens": 128}),
                                   ("cached=128", "details=null", "x", {"cached_tokens": 128}),
                                   ("cached=64", "ours,details", ["a", "b", "c"], {"audio_tokens": 1, "cached_tokens": 192}),
                                   ("cached=64", "details", ["a", "b"], {"audio_tokens": 1, "cached_tokens": 64}),
                                   ("p", "details", "x", {"audio_tokens": 1, "cached_tokens": 4})):
            model = f"{p},{d}" if p != "p" else d
            equal(b.complete(model, prompt=prompt).json["usage"]["prompt_tokens_details"], want, model)
            a = b.complete(model, True, prompt=prompt)
            usage = [json.loads(e)["usage"] for e in a.events if '"usage"' in e]
            equal((usage[0]["prompt_tokens_details"], a.events[-1]), (want, "[DONE]"), model)
        equal("prompt_tokens_details" in b.complete("cached=9").json["usage"], False, "it was added")
        a = b.complete("recomputed=4,cached=3,details", max_tokens=10)
        equal(a.json["usage"]["prompt_tokens_details"]["cached_tokens"], 3)


@case("X22 unusual answers of Decode pass as they are")
def odd_answers() -> None:
    with Bench() as b:
        for i, value in enumerate(ODD):
            equal(b.complete(f"odd={i}").json, value)
        for ask in (b.complete, b.chat):
            equal([json.loads(e) for e in ask("odd", True).events[3:-1]], ODD)


@case("answers of every form: until the end, after 1xx, with trailers; connections are used again where they can be")
def answer_forms() -> None:
    with Bench() as b:
        for model in ("close", "early", "early,close"):
            equal(b.complete(model).text, "t0 t1 t2 ", model)
        equal(b.complete("trailer", True).text, "t0 t1 t2 ")
        before = len(b.d[0].connections)
        equal({b.complete().status for _ in range(10)} | {b.complete("trailer", True).status for _ in range(5)}, {200})
        true(len(b.d[0].connections) - before <= 2, "connections to Decode are not used again")  # a probe may need one


@case("an engine that is no HTTP server: an error, at once")
def no_http() -> None:
    broken = [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", b"HTTP/2 200\r\n\r\n",
              b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx",
              b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
              b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", b"HTTP/1.1 999 x\r\n\r\n",
              b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70000, b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n",
              b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{"]
    with Bench(eject_after=1000, health_interval=0, max_retries=1) as b:
        for raw in broken:
            b.d[0].raw = raw
            begin = time.monotonic()
            a = b.complete("silent")
            equal((a.status, "error" in a.json), (502, True), f"{raw[:60]!r}")
            true(time.monotonic() - begin < 5, f"{raw[:60]!r}: too late")
        b.d[0].raw = None
        equal(b.complete().status, 200)


@case("odd values pass: echo, logprobs, unusual messages (X20, X22)")
def odd_bodies() -> None:
    with Bench() as b:
        for more in ({"echo": True}, {"logprobs": 5}, {"prompt_logprobs": 1}, {"prompt": []}, {"prompt": None}, {"prompt": {"a": 1}},
                     {"prompt": [[1, 2], [3]]}, {"n": None}, {"n": 0}, {"n": -1}, {"n": "2"}, {"stream": "yes"}):
            equal(b.complete("silent", **more).status, 200, str(more))
        for messages in ([], None, 7, [{}], [{"role": "user", "content": None}], [{"role": "system", "content": "x"}],
                         [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:" + "A" * 5_000_000}}]}]):
            equal(b.chat("silent", messages=messages).status, 200)
        for raw in (b"", b"{", b"[]", b"null", b'"x"', b'{"a":1}x', b'{"a":NaN}', b"\xef\xbb\xbf{}", b'{"a":"\xff"}', b"[" * 100000):
            for path in ("/v1/completions", "/v1/chat/completions"):
                a = b.send("POST", path, raw)
                equal((a.status, a.headers["content-type"], list(a.json)), (400, "application/json", ["error"]), f"{raw[:20]!r}")
