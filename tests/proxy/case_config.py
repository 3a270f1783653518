# SPDX-License-Identifier: Apache-2.0
"""Options, addresses, TLS, keys, the end of the program."""
from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from bench import Bench, Connection, wait_for
from cases import case, equal, true
from certificates import Certificate
from engines import post


def start(*argv: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    p = subprocess.run([Bench.program, "--port", "0", *argv], capture_output=True, text=True, timeout=10, env={**os.environ, **(env or {})})
    return p.returncode, p.stdout + p.stderr


@case("mistakes in options are named (X15)")
def mistakes() -> None:
    h = ("--host", "127.0.0.1")
    wrong = {
        ("--host", "0.0.0.0"): "--host", ("--host", "::"): "--host", ("--host", ""): "--host", ("--host", "203.0.113.7"): "--host",
        (*h, "--prefiller-hosts", "192.0.0.3192.0.0.3"): "--prefiller-hosts[0]",
        (*h, "--decoder-hosts", "127.0.0.1", "", "--decoder-ports", "1", "2"): "--decoder-hosts[1]",
        (*h, "--decoder-hosts", "a", "b", "--decoder-ports", "1"): "--decoder-hosts has 2",
        (*h, "--decoder-ports", "70000"): "--decoder-ports[0]", (*h, "--decoder-ports", "x"): "--decoder-ports[0]",
        (*h, "--decoder-hosts", "127.0.0.1", "127.0.0.1", "--decoder-ports", "9", "9"): "--decoder-hosts[1]",
        (*h, "--nope"): "--nope", ("stray",): "stray", (*h, "--port", "99999"): "--port", (*h, "--max-body", "1X"): "--max-body",
        (*h, "--retry-delay", "-1"): "--retry-delay", (*h, "--dispatch", "some"): "--dispatch", (*h, "--max-retries"): "--max-retries",
        (*h, "--config", "/nonexistent"): "--config", (*h, "--tls-cert", "x"): "--tls-key",
        (*h, "--access-log", "/nonexistent/x"): "--access-log",
        (*h, "--engine-tls", "perhaps"): "--engine-tls", (*h, "--advertise-x=1"): "--advertise-x",
    }
    for argv, word in wrong.items():
        code, text = start(*argv)
        true(code not in (0, -signal.SIGSEGV) and word in text and len(text.splitlines()) <= 2, f"{argv}: {code} {text}")
    code, text = start(*h, env={"RD2H_PROXY_MAX_BODY": "none"})
    true(code and "environment, max-body" in text, text)
    code, text = start("--help")
    true(code == 0 and "--decoder-hosts" in text and "RD2H_PROXY_" in text, text)
    with Bench(decoder_hosts=["192.0.2.1"], decoder_ports=[1], health_interval=0) as b:
        true("--decoder-hosts[0] 192.0.2.1" in b.log.read_text(), "no warning that Decode cannot reach a loopback address")


@case("flag before environment before file")
def sources() -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
        f.write("# limits\n\nmax-body = 1K\nmax-children=1\n  max-retries =  1  \n")
        f.flush()
        with Bench(config=f.name, max_retries=2, env={"RD2H_PROXY_MAX_CHILDREN": "2"}) as b:
            equal(b.complete(prompt="x" * 2000).status, 413, "of the file")
            equal((b.complete(prompt=["a", "b"]).status, b.complete(prompt=["a", "b", "c"]).status), (200, 400), "of the environment")
            b.complete("ddie")
            equal(len(b.d[0].seen), 3, "of the flag")
        f.write("nonsense\n")
        f.flush()
        code, text = start("--host", "127.0.0.1", "--config", f.name)
        true(code and f"{f.name}:6" in text, text)


@case("IPv6 (X14)")
def ipv6() -> None:
    with Bench(host="::1") as b:
        for stream in (False, True):
            equal(b.complete(stream=stream).status, 200)
        true(b.d[0].seen[0].body["kv_transfer_params"]["metaserver"].startswith(f"http://[::1]:{b.port}/"), "the address has no brackets")
        name = f"[::1]:{b.d[0].port}"
        equal(b.get("/instances").json["decode"][0]["instance"], name)
        equal(b.send("POST", "/instances/remove", {"type": "decode", "instances": name}).status, 200)
        equal(b.send("POST", "/instances/add", {"type": "decode", "instances": name}).status, 200)
        equal(b.complete().status, 200)


@case("X14 IPv6: a link-local Decode engine with its zone")
def zones() -> None:
    with Bench(prefiller_hosts=["::1"], decoder_hosts=["fe80::1%lo"], decoder_ports=[9], eject_after=100, health_interval=0) as b:
        equal(b.get("/instances").json["decode"][0]["instance"], "[fe80::1%lo]:9")
        a = b.complete()
        equal((a.status, "[fe80::1%lo]:9" in a.json["error"]["message"]), (502, True), a.body.decode())


@case("only the given address is bound; advertised ones are told")
def addresses() -> None:
    with Bench(advertise="proxy.example:81") as b:
        t = threading.Thread(target=lambda: b.complete("dhang"))
        t.start()
        wait_for(lambda: b.d[0].seen, what="a request to Decode")
        url = b.d[0].seen[0].body["kv_transfer_params"]["metaserver"]
        true(url.startswith("http://proxy.example:81/v1/metaserver?token="), url)
        with socket.socket() as s:
            equal(s.connect_ex(("127.0.0.2", b.port)) != 0, True, "another address is open")
        b.d[0].stop()
        t.join(10)
        b.settled()


@case("API key")
def api_key() -> None:
    with Bench(env={"RD2H_PROXY_API_KEY": "open sesame"}) as b:
        for value in (None, "Bearer x", "Bearer open sesam", "open sesame", "Basic open sesame"):
            a = b.complete(headers={"Authorization": value} if value else None)
            equal((a.status, list(a.json)), (401, ["error"]), str(value))
        equal(b.complete(headers={"Authorization": "Bearer open sesame"}).status, 200)
        equal([b.get(p).status for p in ("/health", "/healthcheck", "/metrics", "/v1/models", "/instances")], [200, 200, 200, 401, 401])


def own_address() -> str | None:
    """One of this machine's that is not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return s.getsockname()[0]


@case("who may change the engines: the proxy's own machine, or who has the admin key")
def operators() -> None:
    change = {"type": "decode", "instances": "127.0.0.1:9"}
    with Bench() as b:
        equal([b.send("POST", f"/instances/{what}", change).status for what in ("add", "remove")], [200, 200])
        for header in ("X-Forwarded-For", "Forwarded", "Via"):
            equal(b.send("POST", "/instances/add", change, {header: "10.0.0.9"}).status, 403, "handed on by a proxy of this machine")
        if far := own_address():
            url = f"http://127.0.0.1:{b.port}/instances/"
            equal([b.loop.run(post(url + what, change, 5, far))[0] for what in ("add", "remove")], [403, 403])
            equal(b.gauges()['rd2h_proxy_refused_total{status="other"}'], 5)
    with Bench(env={"RD2H_PROXY_ADMIN_KEY": "mine", "RD2H_PROXY_API_KEY": "theirs"}) as b:
        send = lambda what, key: b.send("POST", f"/instances/{what}", change, {"Authorization": f"Bearer {key}"}).status  # noqa: E731
        equal([send("add", "theirs"), send("add", "mine"), send("remove", ""), send("remove", "mine")], [401, 200, 401, 200])
        equal(b.complete(headers={"Authorization": "Bearer mine"}).status, 401, "the admin key is no client's")
        equal(b.gauges()['rd2h_proxy_refused_total{status="401"}'], 3)
        equal([x["status"] for x in b.access_lines(3)], [401] * 3)


@case("TLS to clients, and https rendezvous")
def tls() -> None:
    with Certificate() as cert, Bench(cert=cert) as b:
        equal((b.complete().status, b.complete("events=50", True).text.split()[-1]), (200, "t49"))
        true(b.d[0].seen[0].body["kv_transfer_params"]["metaserver"].startswith("https://"), "Decode is told http")
        equal(b.complete("big=3000000").text[-9:], "xxxxxxxxx")
        equal(b.send("POST", "/v1/completions", {"model": "silent", "prompt": "x" * (4 << 20)}).status, 200)
        c = b.connect().send(b.request("GET", "/health") * 5)
        equal([c.answer().status for _ in range(5)], [200] * 5, "pipelined")
        c.close()
        c = Connection(b.host, b.port, 5).send(b"GET / HTTP/1.1\r\n\r\n")
        try:
            got = c.f.read()
        except ConnectionResetError:
            got = b""
        true(not got.startswith(b"HTTP"), "plain HTTP was answered")
        c.close()
        c = b.connect().send(b.request("POST", "/v1/completions", {"model": "gap=0.05,events=900", "prompt": "x", "stream": True}))
        c.head()
        c.close()
        wait_for(lambda: not b.d[0].open, 1.0, "the end of Decode's work")


@case("TLS to engines: by their authority only, unless told otherwise")
def engine_tls() -> None:
    with Certificate() as cert, Certificate() as other, Certificate("DNS:elsewhere.example") as elsewhere:
        with Bench(engine_cert=cert, d=2) as b:
            equal((b.complete().status, b.complete("events=50", True).text.split()[-1]), (200, "t49"))
            equal(b.complete("big=3000000").text[-9:], "xxxxxxxxx")
            equal(b.send("POST", "/v1/completions", {"model": "silent", "prompt": "x" * (4 << 20)}).status, 200)
            equal({b.complete().status for _ in range(20)}, {200})
            true(max(len(e.connections) for e in b.d) < 12, "connections are not used again")
        for wrong, word in ((Bench(engine_cert=cert, engine_ca=other.cert), "self-signed"), (Bench(engine_cert=elsewhere), "mismatch")):
            with wrong as b:
                a = b.complete()
                true(a.status in (502, 503) and not b.d[0].seen, f"{a.status} {a.body!r}")
                wait_for(lambda: word in b.log.read_text(), what=f"the reason, {word}")  # noqa: B023
        with Bench(engine_cert=cert, engine_ca=other.cert, engine_insecure="true") as b:
            equal(b.complete().status, 200)
        with Bench(engine_tls="true", eject_after=100, connect_timeout=0.3, max_retries=1) as b:  # they speak http
            equal(b.complete().status, 502)
    code, text = start("--host", "127.0.0.1", "--engine-ca", "/nonexistent")
    true(code and "--engine-ca" in text, text)


@case("engines by name: looked up, all addresses tried; unknown names fail at once")
def names() -> None:
    with Bench() as b:
        port = b.d[0].port
        equal(b.send("POST", "/instances/add", {"type": "decode", "instances": f"localhost:{port}"}).status, 200)
        equal(b.send("POST", "/instances/remove", {"type": "decode", "instances": f"127.0.0.1:{port}"}).status, 200)
        equal([b.complete().status for _ in range(3)], [200] * 3)
        equal(b.send("POST", "/instances/add", {"type": "decode", "instances": "no-such-host.invalid:1"}).status, 200)
        equal([b.complete().status for _ in range(4)], [200] * 4, "the other one is asked")


@case("SIGTERM: requests under way end, new ones get 503, then the program ends")
def termination() -> None:
    with Bench() as b:
        got = []
        t = threading.Thread(target=lambda: got.append(b.complete("pslow=0.6", True)))
        t.start()
        wait_for(lambda: b.p[0].seen, what="a request to Prefill")
        b.process.terminate()
        time.sleep(0.1)
        a = b.complete()
        equal((a.status, a.headers["connection"], b.get("/health").status), (503, "close", 503))
        t.join(10)
        equal((got[0].status, got[0].text), (200, "t0 t1 t2 "))
        equal(b.process.wait(5), 0)
        b.settled = lambda: None
    with Bench(drain_timeout=0.3) as b:
        t = threading.Thread(target=lambda: got.append(b.complete("dhang")))
        t.start()
        wait_for(lambda: b.d[0].seen, what="a request to Decode")
        b.process.terminate()
        t.join(10)
        equal((got[1].status, b.process.wait(5)), (503, 0))
        b.settled = lambda: None


@case("SIGHUP opens the access log anew")
def rotation() -> None:
    with Bench() as b:
        b.complete()
        b.access.rename(b.access.with_suffix(".1"))
        b.process.send_signal(signal.SIGHUP)
        wait_for(b.access.exists, what="the new log")
        b.complete("d=400", headers={"X-Request-Id": "a\\u0022b"})
        line = b.access_lines(1)[0]
        equal((line["status"], line["peer"], line["path"], line["client_id"]), (400, "127.0.0.1", "/v1/completions", "a\\u0022b"))
