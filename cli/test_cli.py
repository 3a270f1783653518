#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the program `rd2h` prints and returns, as TAP: test_cli.py PROGRAM."""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = sys.argv[1]
SHADOWED = b"__tsan_init" in Path(PROGRAM).read_bytes()  # each byte has several more of ThreadSanitizer's
INSTRUMENTED = SHADOWED or b"__asan_init" in Path(PROGRAM).read_bytes()
HEADER = Path(__file__).resolve().parent.parent / "include/rd2h/version.h"


def run(*args):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=50)


def refuses(word, *args):
    """Status 2, nothing on standard output, one line that names the culprit."""
    done = run(*args)
    assert done.returncode == 2, done
    assert done.stdout == "", done.stdout
    assert len(done.stderr.splitlines()) == 1 and word in done.stderr, done.stderr


def help_teaches():
    for args, word in (((), "bench"), (("bench",), "plan"), (("bench", "plan"), "--pattern"), (("bench", "decode"), "stat"),
                       (("bench", "pair"), "ROUTER"), (("bench", "read"), "--engine"), (("bench", "e2e"), "--compute"),
                       (("bench", "peers"), "--requests"), (("demo",), "SIGUSR1")):
        done = run(*args, "--help")
        assert done.returncode == 0 and word in done.stdout and "usage:" in done.stdout, done
        assert done.stderr == "", done.stderr
    assert run().returncode == 2 and "usage:" in run().stdout


def version_is_that_of_the_header():
    version = re.search(r'VERSION_STRING "(.*)"', HEADER.read_text())[1]
    assert run("--version").stdout == f"rd2h {version} (headers {version})\n"


def unknown_words_are_refused():
    refuses("bnech", "bnech")
    refuses("paln", "bench", "paln")
    refuses("nonsense", "bench", "plan", "nonsense")
    refuses("--nonsense", "bench", "plan", "--nonsense")
    refuses("wants a value", "bench", "plan", "--runs")
    refuses("zigzag", "bench", "plan", "--pattern", "zigzag")


def bad_numbers_are_refused():
    for bad in ("0", "-1", "x", "1x", "", " 1", "99999999999999999999"):
        refuses(f'--requests "{bad}"', "bench", "plan", "--requests", bad)
    refuses("65536", "bench", "plan", "--requests", "65536", "--blocks", "65536")
    refuses('--runs "0"', "bench", "plan", "--runs", "0")


def bench_plan_as_json():
    done = run("bench", "plan", "--json", "--requests", "3", "--blocks", "20", "--pattern", "runs8", "--runs", "2")
    assert done.returncode == 0 and done.stderr == "", done
    row, = json.loads(done.stdout)["rows"]
    assert (row["requests"], row["blocks"], row["pattern"]) == (3, 20, "runs8"), row
    assert row["descriptors"] == 3 * 3 * 4, row  # runs of 8, 8 and 4; four parts
    assert 0 < row["ns_per_block"] and 0 < row["times_bare"], row


def bench_plan_as_table():
    done = run("bench", "plan", "--requests", "2", "--runs", "1")
    assert done.returncode == 0 and "\033" not in done.stdout, done
    table = [line for line in done.stdout.splitlines() if re.match(r" +(requests|2) ", line)]
    assert len(table) == 3, done.stdout  # headers, scattered, contiguous
    assert len({len(line.rstrip()) for line in table}) == 1, table


def planning_is_linear_and_near_the_bare_loop():
    found = json.loads(run("bench", "plan", "--json", "--runs", "5").stdout)
    assert len(found["rows"]) == 10, found
    large = [r for r in found["rows"] if r["requests"] * r["blocks"] >= 4096]
    limit = {"scatter": 8, "contig": 40} if INSTRUMENTED else {"scatter": 4, "contig": 10}  # instrumented ones come to 2 and 14
    assert all(r["times_bare"] < limit[r["pattern"]] for r in large), large
    for pattern in found["linearity"].values():
        assert pattern["planned"] < 3 * pattern["bare"], found["linearity"]


def bench_decode_talks():
    args = [PROGRAM, "bench", "decode", "0", "2", "8", "runs8"]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as rank:
        assert rank.stdout.readline() == "ready\n"
        for _ in range(2):
            print("stat", file=rank.stdin, flush=True)
            calls, descriptors, seconds = json.loads(rank.stdout.readline())
            assert (calls, descriptors) == (0, 0) and seconds > 0, (calls, descriptors, seconds)
        rest, _ = rank.communicate("over\nstat\n", timeout=20)
        assert rest == "" and rank.returncode == 0, (rest, rank.returncode)


def bench_decode_refuses():
    refuses("0 words", "bench", "decode")
    refuses("zigzag", "bench", "decode", "7000", "1", "1", "zigzag")
    refuses("65536", "bench", "decode", "65536", "1", "1", "contig")
    refuses("300000", "bench", "decode", "7000", "65536", "5", "contig")


def demo_as_json_with_a_timeline():
    with tempfile.TemporaryDirectory() as folder:
        done = run("demo", "--json", "--layers", "3", "--requests", "3", "--prompt-tokens", "100", "--chunk", "40", "--block-tokens", "16",
                   "--prefill-tp", "2", "--decode-tp", "1", "--reuse-buffers", "2", "--trace", f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["ok"] and found["moved_bytes"] == found["oracle_bytes"] > 0, done
    begun = {kind: [e for e in events if e.get("cat") == kind and e["ph"] in "bX"] for kind in ("compute", "gate", "dispatch", "read")}
    assert all(len(begun[kind]) == found["gates"] for kind in ("compute", "gate", "dispatch")), (found, begun)
    assert sum(e["args"]["bytes"] for e in begun["read"]) == found["moved_bytes"] and len(begun["read"]) == found["reads"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["Decode 0 rank 0", "Prefill 0 stage 0 rank 0", "Prefill 0 stage 0 rank 1"], names


RANKS = ("Decode 0 rank 0", "Decode 0 rank 1", "Prefill 0 stage 0 rank 0")


@contextlib.contextmanager
def long_demo(*more):
    """A demonstration that would take minutes, once its ranks are being started; nothing of it is left."""
    args = ("--layers", "4", "--prompt-tokens", "4000", "--chunk", "32", "--block-tokens", "16", "--compute-us", "200000",
            "--decode-tp", "2")
    with subprocess.Popen([PROGRAM, "demo", *args, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as demo:
        try:
            assert "engines" in [demo.stdout.readline(), demo.stdout.readline()][1]
            yield demo
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(demo.pid, signal.SIGKILL)


def demo_says_where_it_stands():
    with long_demo() as demo:
        demo.send_signal(signal.SIGUSR1)
        heads, said = set(), ""
        while len(heads) < len(RANKS):
            line = demo.stderr.readline()
            assert line, said
            said += line
            heads |= {rank for rank in RANKS if line.startswith(f"---- {rank}, process ")}
        assert demo.poll() is None  # and goes on


def demo_ends_in_order():
    with tempfile.TemporaryDirectory() as folder, long_demo("--trace", f"{folder}/trace.json") as demo:
        demo.send_signal(signal.SIGUSR1)
        while not demo.stderr.readline().startswith("---- Prefill"):  # it is there, and publishes layers
            pass
        demo.send_signal(signal.SIGTERM)
        out, err = demo.communicate(timeout=20)
        assert demo.returncode == 128 + signal.SIGTERM and out == "", (demo.returncode, out, err)
        assert err.splitlines()[-1] == "rd2h demo: stopped by SIGTERM: every rank has ended in order", err
        assert json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
        try:  # memory is without a name: with the last process it is gone
            os.killpg(demo.pid, 0)
        except ProcessLookupError:
            return
        raise AssertionError("processes of the demonstration are left")


def demo_refuses():
    refuses("--decode-tp \"0\"", "demo", "--decode-tp", "0")
    refuses("gpt", "demo", "--model", "gpt")
    refuses("--prefill-pp 3", "demo", "--layers", "2", "--prefill-pp", "3")
    refuses("multiple of 4", "demo", "--block-tokens", "6")
    refuses("at most 128", "demo", "--prefills", "8", "--prefill-tp", "16")
    refuses("--nonsense", "demo", "--nonsense")
    lost = run("demo", "--layers", "1", "--prompt-tokens", "100", "--trace", "/nowhere/trace.json")
    assert lost.returncode == 1 and "/nowhere/trace.json" in lost.stderr, lost


def bench_pair_beside_bare_sockets():
    found = json.loads(run("bench", "pair", "--json", "--steps", "1", "--runs", "1", "--blocks", "4").stdout)
    assert found["trips"] == 61 and found["message_bytes"] > 100 and found["pair_us"] > 0 and found["times_bare"] > 0, found
    refuses("300000", "bench", "pair", "--blocks", "4096", "--steps", "1000")


def bench_read_by_every_way():
    args = ("bench", "read", "--block", "16384", "--pattern", "scatter", "--runs", "1")
    rows = json.loads(run(*args, "--json").stdout)["rows"]
    ways = [r["way"] for r in rows]
    assert "memcpy in one process" in ways and "rd2h local, shared mapping" in ways, ways
    assert all(0 < r["gb_s"] <= r["best_gb_s"] for r in rows), rows
    refuses("carrier pigeon", "bench", "read", "--engine", "carrier pigeon")
    refuses("255", "bench", "read", "--block", "255")


def bench_e2e_hides_the_transfer():
    args = ("bench", "e2e", "--layers", "24", "--blocks", "32", "--runs", "3")
    found = json.loads(run(*args, "--json").stdout)
    assert found["layer_us"] > 0 and found["layers"] == 24, found
    assert 0 < found["visible_layers"] < 8, found  # near 1 on a quiet machine; 24 were nothing hidden
    assert "Decode done" in run(*args[:-1], "1").stdout
    refuses("carrier pigeon", "bench", "e2e", "--engine", "carrier pigeon")
    refuses("4 GiB", "bench", "e2e", "--blocks", "65536")


def bench_peers_grows_with_bounds():
    args = ("bench", "peers", "--blocks", "1", "--runs", "1")
    few = json.loads(run(*args, "--peers", "10", "--requests", "500", "--json").stdout)
    many = json.loads(run(*args, "--peers", "60", "--requests", "600", "--json").stdout)
    assert few["one"]["us"] > 0 and few["many"]["thread_us"] > 0, few
    growth = (many["many"]["mib"] - few["many"]["mib"]) / 50
    assert SHADOWED or growth < 0.5, (few, many)  # a thousand ranks stay below half of what is allowed
    assert many["many"]["thread_times_one"] < 5, many  # near 1 on a quiet machine
    refuses("--requests 5", "bench", "peers", "--peers", "10", "--requests", "5")


CASES = [help_teaches, version_is_that_of_the_header, unknown_words_are_refused, bad_numbers_are_refused, bench_plan_as_json,
         bench_plan_as_table, planning_is_linear_and_near_the_bare_loop, bench_decode_talks, demo_as_json_with_a_timeline, demo_refuses,
         demo_says_where_it_stands, demo_ends_in_order,
         bench_decode_refuses, bench_pair_beside_bare_sockets, bench_read_by_every_way, bench_e2e_hides_the_transfer,
         bench_peers_grows_with_bounds]
print(f"1..{len(CASES)}")
failed = 0
for number, case in enumerate(CASES, 1):
    try:
        case()
        print(f"ok {number} - {case.__name__}")
    except AssertionError as why:
        failed += 1
        print(f"not ok {number} - {case.__name__}\n# {str(why)[:1000]}")
sys.exit(failed > 0)
