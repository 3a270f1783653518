#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`rd2h pd-read` and `rd2h doctor` from outside, as TAP: test_diagnose.py PROGRAM [without-ucx]."""
import hashlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as xml
from contextlib import closing, contextmanager, suppress
from pathlib import Path

PROGRAM = sys.argv[1]
ROOT = Path(__file__).resolve().parent.parent
UCX = ROOT / "build-ucx/libucx/lib/libucp.so.0" if sys.argv[2:] != ["without-ucx"] else Path("/without-ucx")
LIMIT = 60
ENV = {**os.environ, **({"RD2H_UCX_LIBRARY": str(UCX)} if UCX.exists() else {})}


def start(*args, prefix=(), **env):
    return subprocess.Popen([*prefix, PROGRAM, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**ENV, **env})


class Done:
    def __init__(self, process):
        self.out, self.err = process.communicate(timeout=LIMIT)
        self.status = process.returncode

    def __repr__(self):
        return f"status {self.status}\n{self.out}\n{self.err}"


def run(*args, **more):
    return Done(start(*args, **more))


@contextmanager
def prefill(*args, timeout=10):
    """A Prefill that waits for Decode, and its port."""
    process = start("pd-read", "--role", "prefill", "--control-port", 0, "--timeout", timeout, *args)
    port, line = 0, " "
    while not port and line:
        line = process.stdout.readline()
        port = int((re.search(r"waiting .* port (\d+)", line) or [0, 0])[1])
    try:
        yield process, port
    finally:
        process.kill()
        process.communicate()


def decode(port, *args, timeout=10, **more):
    return run("pd-read", "--role", "decode", "--prefill-ip", "127.0.0.1", "--control-port", port, "--timeout", timeout, *args, **more)


def fails(done, *words):
    assert done.status == 1 and done.out.endswith("FAIL\n"), done
    said = done.err.splitlines()[-1] if done.err else ""
    assert said.startswith("rd2h pd-read: ") and all(word in said for word in words), done


def refuses(word, *args):
    """Status 2, nothing on standard output, one line that names the culprit."""
    done = run(*args)
    assert done.status == 2 and done.out == "" and len(done.err.splitlines()) == 1 and word in done.err, done


def message(body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"RDPD" + struct.pack("<I", len(data)) + data


def receive(sock):
    def exactly(n):
        data = b""
        while len(data) < n:
            more = sock.recv(n - len(data))
            assert more, "closed"
            data += more
        return data
    return json.loads(exactly(struct.unpack("<4xI", exactly(8))[0]))


@contextmanager
def server(talk):
    """A stranger at the control port: talk(connection) in a thread."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        def serve():
            connection, _ = listener.accept()
            with closing(connection):
                talk(connection)
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


@contextmanager
def between(port, change):
    """Somebody in the middle who changes what Prefill offers."""
    def talk(connection):
        with closing(socket.create_connection(("127.0.0.1", port))) as there:
            there.sendall(message(receive(connection)))
            connection.sendall(message(change(receive(there))))
            there.sendall(message(receive(connection)))
            connection.sendall(message(receive(there)))
    with server(talk) as middle:
        yield middle


def version():
    return run("--version").out.split()[1]


# ---- pd-read: the command line ----
def pd_read_help_teaches():
    done = run("pd-read", "--help")
    options = ("--role", "--local-ip", "--prefill-ip", "--device-id", "--control-port", "--num-bytes", "--dst-memory", "--dram-pool-gb",
               "--timeout", "--engine", "--sweep", "--plot", "--json")
    assert done.status == 0 and all(o in done.out for o in (*options, "Exit status", "127.0.0.1")) and not done.err, done
    assert max(map(len, done.out.splitlines())) <= 120, done


def pd_read_refuses_bad_words():
    decoder = ("pd-read", "--role", "decode", "--prefill-ip", "127.0.0.1")
    for word, *args in (("--role", "pd-read"), ("both", "pd-read", "--role", "both"), ("--prefill-ip", "pd-read", "--role", "decode"),
                        ("localhost", "pd-read", "--role", "prefill", "--local-ip", "localhost"),
                        ("1.2.3", "pd-read", "--role", "decode", "--prefill-ip", "1.2.3.4.5"),
                        ("65536", *decoder, "--control-port", "65536"), ("--control-port 0", *decoder, "--control-port", "0"),
                        ("carrier", *decoder, "--engine", "carrier pigeon"), ("NAME=VALUE", *decoder, "--engine-option", "x"),
                        ("tape", *decoder, "--dst-memory", "tape"), ("--sweep", *decoder, "--plot", "x.svg"),
                        ("Decode", "pd-read", "--role", "prefill", "--sweep"), ("--timeout", *decoder, "--timeout", "0"),
                        ("wants a value", *decoder, "--timeout"), ("--nonsense", *decoder, "--nonsense"), ("word", *decoder, "word")):
        refuses(word, *args)
    for bad in ("0", "-1", "", "x", "1x", "1KK", "5T", "99999999999999999999"):
        refuses("--num-bytes", "pd-read", "--role", "prefill", "--num-bytes", bad)


# ---- pd-read: what works ----
def both_sides_agree(engine, size="3M"):
    with prefill("--engine", engine, "--num-bytes", size) as (process, port):
        done = decode(port, "--engine", engine, "--json")
        other = Done(process)
    found = json.loads(done.out)
    assert done.status == 0 and found["ok"] and found["error"] == "" and found["bytes"] > 0 and len(found["sha256"]) == 64, done
    assert other.status == 0 and other.out.endswith("PASS\n") and found["sha256"][:16] in other.out, other
    return found


def pd_read_by_local():
    assert both_sides_agree("local")["engine"] == "local"


def pd_read_by_tcp_of_an_odd_size():
    assert both_sides_agree("tcp", "1234567")["engine"] == "tcp"


def pd_read_by_auto():
    assert both_sides_agree("auto")["engine"] == "local"


def pd_read_by_ucx():
    if not UCX.exists():
        return "no UCX that can be used is here (scripts/setup_ucx.sh)"
    assert both_sides_agree("ucx")["engine"] == "ucx"
    with prefill("--engine", "ucx", "--engine-option", "tls=tcp", "--num-bytes", "1K") as (_, port):
        done = decode(port, "--engine", "ucx", "--engine-option", "tls=tcp")
    assert done.status == 0 and re.search(r"^  way +connected to 127.0.0.1:\d+ by tcp over ", done.out, re.M), done


def the_whole_path_by_ucx():
    """Two ranks a side, every byte compared, over both of UCX's ways."""
    if not UCX.exists():
        return "no UCX that can be used is here (scripts/setup_ucx.sh)"
    for engine in ("ucx", "ucx,tls=tcp"):
        done = run("demo", "--engine", engine, "--layers", 2, "--requests", 2, "--prompt-tokens", 200, "--block-tokens", 16,
                   "--prefill-tp", 2, "--decode-tp", 2, "--json")
        found = json.loads(done.out)
        assert done.status == 0 and found["ok"] and found["moved_bytes"] == found["oracle_bytes"] > 0, done


def pd_read_sweeps_and_draws():
    with tempfile.TemporaryDirectory() as folder, prefill("--engine", "local", "--num-bytes", "4M") as (_, port):
        done = decode(port, "--engine", "local", "--sweep", "--plot", f"{folder}/sweep.svg", "--dram-pool-gb", 1)
        picture = xml.parse(f"{folder}/sweep.svg").getroot()
    rows = re.findall(r"^ +(\d+ (?:B|KiB|MiB)) +(\d+) +([\d.]+) ", done.out, re.M)
    assert done.status == 0 and done.out.endswith("PASS\n") and [r[0] for r in rows] == [
        "256 B", "1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB"], done
    assert len({len(line.rstrip()) for line in done.out.splitlines() if re.match(r" +(block|\d+ [BKM])", line)}) == 1, done.out
    assert len([e for e in picture.iter() if e.tag.endswith("circle")]) == 2 * len(rows), picture


# ---- pd-read: what does not ----
def nothing_listens():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    fails(decode(port, timeout=1), f"nothing listens at 127.0.0.1:{port}", "--role prefill")


def nobody_comes():
    fails(run("pd-read", "--role", "prefill", "--control-port", 0, "--timeout", 1, "--num-bytes", "1K"), "no Decode came within 1 s")


def port_taken():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        fails(run("pd-read", "--role", "prefill", "--control-port", port), f"port {port} of", "is taken", "--control-port")


def address_of_another_host():
    fails(run("pd-read", "--role", "prefill", "--local-ip", "203.0.113.9"), "203.0.113.9", "no address of this host")


def engines_differ():
    with prefill("--engine", "tcp", "--num-bytes", "1K") as (process, port):
        fails(decode(port, "--engine", "local"), "--engine tcp", "--engine local")
        fails(Done(process), "--engine tcp", "--engine local")


def versions_differ():
    with prefill("--num-bytes", "1K") as (process, port):
        with closing(socket.create_connection(("127.0.0.1", port))) as sock:
            sock.sendall(message({"rd2h": "9.8.7", "engine": "auto"}))
            assert "9.8.7" in receive(sock)["refused"]
        fails(Done(process), "9.8.7", version())

    def newer(connection):
        receive(connection)
        connection.sendall(message({"rd2h": "9.8.7", "offers": []}))
    with server(newer) as port:
        fails(decode(port), "9.8.7", version())


def strangers_at_the_control_port():
    """They are sent away, and the real Decode is served."""
    with prefill("--engine", "tcp", "--num-bytes", "1M") as (process, port):
        for rubbish in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(64), b"RDPD\xff\xff\xff\xff", message(b"no json"), message([1]), b"RD"):
            with closing(socket.create_connection(("127.0.0.1", port))) as sock:
                sock.sendall(rubbish)
                with suppress(OSError):  # it may have been sent away already
                    sock.shutdown(socket.SHUT_WR)
        slow = socket.create_connection(("127.0.0.1", port))
        slow.sendall(b"RDPD\xff\xff\0\0")

        def dribble():
            with closing(slow), suppress(OSError):  # sent away three seconds after it came
                for _ in range(500):
                    slow.sendall(b" ")
                    time.sleep(0.02)
        threading.Thread(target=dribble, daemon=True).start()
        assert decode(port, "--engine", "tcp", "--timeout", "8").status == 0
        done = Done(process)
    assert done.status == 0 and done.out.count("ignored") == 7, done


def a_stranger_instead_of_prefill():
    for rubbish in (b"HTTP/1.1 400 Bad Request\r\n\r\n", message(b"no json")):
        with server(lambda c, r=rubbish: (receive(c), c.sendall(r))) as port:
            fails(decode(port), "no rd2h pd-read")
    for offers in ([{"engine": "tcp", "conn": "zz"}], [{"engine": "tcp", "conn": "00"}], [{"engine": "tcp", "conn": ""}] * 9, []):
        offer = {"rd2h": version(), "engine": "tcp", "session": "x", "base": 4096, "bytes": 4096, "seed": 1, "sha256": "0",
                 "offers": offers}

        def talk(connection, offer=offer):
            receive(connection)
            connection.sendall(message(offer))
            connection.recv(1 << 16)
        with server(talk) as port:
            fails(decode(port, "--engine", "tcp"))


def prefill_dies_in_mid_read():
    with prefill("--engine", "tcp", "--num-bytes", "128M") as (process, port):
        reader = start("pd-read", "--role", "decode", "--prefill-ip", "127.0.0.1", "--control-port", port, "--engine", "tcp")
        while "engine" not in reader.stdout.readline():
            pass
        process.kill()
        done = Done(reader)
    assert done.status == 1 and re.search("ended|lost|closed|broke", done.err), done


def decode_dies_in_mid_read():
    with prefill("--engine", "tcp", "--num-bytes", "128M") as (process, port):
        reader = start("pd-read", "--role", "decode", "--prefill-ip", "127.0.0.1", "--control-port", port, "--engine", "tcp")
        while "engine" not in reader.stdout.readline():
            pass
        reader.kill()
        reader.communicate()
        fails(Done(process), "Decode at 127.0.0.1", "closed the connection while it was reading")


def prefill_stands_still():
    with prefill("--num-bytes", "1K") as (process, port):
        process.send_signal(signal.SIGSTOP)
        fails(decode(port, timeout=1), "said nothing for 1 s")


def hashes_differ():
    """Shifted by a page: the offset and both bytes are named. Only the hash changed: that is said."""
    for change, words in ((lambda o: {**o, "base": o["base"] + 4096, "bytes": o["bytes"] - 4096}, ("first wrong byte is at offset 0",)),
                          (lambda o: {**o, "sha256": hashlib.sha256(b"").hexdigest()}, ("has changed since it was hashed",))):
        with prefill("--engine", "local", "--num-bytes", "1M") as (process, port), between(port, change) as middle:
            fails(decode(middle, "--engine", "local"), "SHA-256 differs", *words)
            fails(Done(process), "SHA-256 differs")


def reading_is_refused():
    """Another user may not read this one's processes: engine local says so, and what to do."""
    if os.geteuid():
        return "only root can start a process of another user"
    prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    if subprocess.run([*prefix, PROGRAM, "--version"], capture_output=True, check=False).returncode:
        return "another user cannot start this program here"
    with prefill("--engine", "local", "--num-bytes", "1M") as (_, port):
        fails(decode(port, "--engine", "local", prefix=prefix), "may not be read", "65534", "CAP_SYS_PTRACE")


def device_memory_is_not_served():
    with prefill("--num-bytes", "1K") as (_, port):
        fails(decode(port, "--dst-memory", "device"), "--dst-memory device", "offload")


def pool_too_small():
    with prefill("--num-bytes", "1K") as (_, port), between(port, lambda o: {**o, "bytes": 1 << 31}) as middle:
        fails(decode(middle, "--dram-pool-gb", 1), "--dram-pool-gb 1")


# ---- doctor ----
def doctor_help_teaches():
    done = run("doctor", "--help")
    assert done.status == 0 and all(w in done.out for w in ("ok ", "warn", "missing", "Exit status", "--json", "pd-read")), done
    refuses("--nonsense", "doctor", "--nonsense")
    refuses("telepathy", "doctor", "--engine", "telepathy")
    refuses("word", "doctor", "word")


def doctor_as_table():
    done = run("doctor")
    assert done.status == 0 and done.err == "" and "\033" not in done.out, done
    for word in ("local", "ucx", "tcp", "ptrace", "locked memory", "open files", "huge pages", "NUMA", "/dev/shm", "addresses", "kv_port",
                 "Ascend NPU", "NVIDIA GPU", "RDMA", "libzmq"):
        assert re.search(rf"^  (ok|warn|missing) +{re.escape(word)}", done.out, re.M), word
    assert max(map(len, done.out.splitlines())) <= 118, done.out


def doctor_as_json():
    found = json.loads(run("doctor", "--json").out)
    assert found["ok"] and {"local", "tcp"} <= set(found["engines"]) and found["rd2h"] == version(), found
    assert all(set(c) == {"group", "name", "state", "text", "advice"} and c["text"] for c in found["checks"]), found
    assert {c["state"] for c in found["checks"]} <= {"ok", "warn", "missing"}
    if UCX.exists():
        assert "ucx" in found["engines"] and "1.22" in next(c["text"] for c in found["checks"] if c["name"] == "ucx"), found


def doctor_of_one_engine():
    assert run("doctor", "--engine", "tcp").status == 0
    done = run("doctor", "--engine", "ucx", RD2H_UCX_LIBRARY="/nowhere/libucp.so.0")
    assert done.status == 1 and "/nowhere/libucp.so.0" in done.out and "libucx-cu12" in done.out and "does not work" in done.out, done


def doctor_of_bad_libraries():
    """An old one, one that is no UCX, one that lacks functions, one that crashes when it is loaded."""
    version_of = "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) {{ *a = 1; *b = {}; *c = 1; }}"
    for code, words in ((version_of.format(13), ("1.13.1", "1.22")), ("int x;", ("no UCX",)), (version_of.format(22), ("lacks",)),
                        ("__attribute__((constructor)) static void crash(void) { *(volatile int *)8 = 1; }", ("signal",))):
        with tempfile.TemporaryDirectory() as folder:
            library = f"{folder}/libucp.so.0"
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-x", "c", "-"], input=code, text=True, check=True)
            checks = json.loads(run("doctor", "--json", RD2H_UCX_LIBRARY=library, ASAN_OPTIONS="handle_segv=0",
                                    TSAN_OPTIONS="handle_segv=0").out)["checks"]
        ucx = next(c for c in checks if c["name"] == "ucx")
        assert ucx["state"] == "missing" and all(w in ucx["text"] for w in words), ucx


CASES = [pd_read_help_teaches, pd_read_refuses_bad_words, pd_read_by_local, pd_read_by_tcp_of_an_odd_size, pd_read_by_auto,
         pd_read_by_ucx, the_whole_path_by_ucx, pd_read_sweeps_and_draws, nothing_listens, nobody_comes, port_taken,
         address_of_another_host, engines_differ, versions_differ, strangers_at_the_control_port, a_stranger_instead_of_prefill,
         prefill_dies_in_mid_read, decode_dies_in_mid_read, prefill_stands_still, hashes_differ, reading_is_refused,
         device_memory_is_not_served, pool_too_small, doctor_help_teaches, doctor_as_table, doctor_as_json, doctor_of_one_engine,
         doctor_of_bad_libraries]
print(f"1..{len(CASES)}")
failed = 0
for number, case in enumerate(CASES, 1):
    try:
        skip = case()
        print(f"ok {number} - {case.__name__}" + (f" # skip {skip}" if skip else ""), flush=True)
    except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as why:
        failed += 1
        text = f"{type(why).__name__}: {why}"[:1500].replace("\n", "\n# ")
        print(f"not ok {number} - {case.__name__}\n# {text}", flush=True)
sys.exit(failed > 0)
