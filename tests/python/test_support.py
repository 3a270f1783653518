# SPDX-License-Identifier: Apache-2.0
"""What operators ask for: keys on the control channel, the state of a worker on a signal, gauges on the metrics page."""

from __future__ import annotations

import logging
import os
import signal
import stat
import tempfile
import threading
import time
import unittest
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import engine
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from rd2h import _vllm_options, _vllm_stats, _vllm_support, _vllm_worker, core
from rd2h._log import logger
from test_laws import Law, prompt


def keys_new() -> tuple[str, str]:
    public, secret = core.ffi.new("char[41]"), core.ffi.new("char[41]")
    assert core.lib.rd2h_keys_new(public, secret, core.ffi.NULL) == 0
    return core.ffi.string(public).decode(), core.ffi.string(secret).decode()


class Steps(unittest.TestCase):
    """A step that meets no memory is repeated, later too, and before every other one."""

    def rank(self, kind: type, answers: list[int]) -> tuple[_vllm_worker._Steps, list[bytes]]:
        taken: list[bytes] = []

        def step(blob: bytes) -> None:
            status = answers.pop(0) if answers else 0
            if status:
                raise core.Rd2hError(status, "")
            taken.append(blob)

        rank = object.__new__(kind)
        rank._owed, rank._granted, rank._c = deque(), {}, SimpleNamespace(step=step)
        return rank, taken

    def step(self, rank, blob: bytes) -> int:
        try:
            rank.step(SimpleNamespace(blob=blob, granted={}))
        except core.Rd2hError as e:
            return e.status
        return 0

    def test_no_memory_for_a_step(self):
        nomem, bad = core.lib.RD2H_NOMEM, core.lib.RD2H_MALFORMED
        for kind in (_vllm_worker.PrefillRank, _vllm_worker.DecodeRank):
            with self.subTest(kind), mock.patch.object(_vllm_worker.time, "sleep"):
                rank, taken = self.rank(kind, [nomem, nomem])
                self.assertEqual((self.step(rank, b"1"), taken), (0, [b"1"]))
                rank, taken = self.rank(kind, [nomem] * len(_vllm_worker.STEP_PAUSES))
                self.assertEqual((self.step(rank, b"1"), taken), (nomem, []))
                self.assertEqual((self.step(rank, b"2"), taken), (0, [b"1", b"2"]))
                rank, taken = self.rank(kind, [bad])
                self.assertEqual((self.step(rank, b"1"), taken), (bad, []))
                self.assertEqual((self.step(rank, b"2"), taken), (0, [b"2"]))


class Keys(Law):
    def setUp(self) -> None:
        super().setUp()
        self.folder = Path(tempfile.mkdtemp(prefix="rd2h-keys-"))

    def file(self, name: str, text: str, mode: int = 0o600) -> str:
        path = self.folder / name
        path.write_text(text + "\n")
        path.chmod(mode)
        return str(path)

    def test_Z_keys_of_both_sides(self):
        (p_public, p_secret), (d_public, d_secret) = keys_new(), keys_new()
        p = {"curve_secret_file": self.file("p", p_secret), "curve_peers_file": self.file("d.pub", d_public)}
        d = {"curve_secret_file": self.file("d", d_secret), "curve_peers_file": self.file("p.pub", p_public)}
        pair, tokens = self.pair({"extra": p}, {"extra": d}), prompt(71, 50)
        self.served(pair, pair.send("cmpl-keys-0", tokens), tokens)
        self.assertEqual(pair.d.workers[0]._rank.stats()["refused_keys"], 0)

    def test_bad_files(self):
        secret = keys_new()[1]
        for extra, word in (
            ({"curve_secret_file": "/nowhere/key"}, "belong together"),
            ({"curve_secret_file": self.file("s", secret), "curve_peers_file": "/nowhere/keys"}, "curve_peers_file: .* cannot be read"),
            ({"curve_secret_file": "/nowhere/key", "curve_peers_file": self.file("p", "*")}, "curve_secret_file: .* cannot be read"),
        ):
            options = _vllm_options.read({"transfer_backend": "local"} | extra)
            with self.assertRaisesRegex(ValueError, word):
                _vllm_support.keys(options, "curve_allow")
        files = {"curve_secret_file": self.file("open", secret, 0o644), "curve_peers_file": self.file("k", "*")}
        options = _vllm_options.read({"transfer_backend": "local"} | files)
        with self.assertLogs(logger, logging.WARNING) as caught:
            self.assertEqual(_vllm_support.keys(options, "curve_allow"), {"curve_secret": secret, "curve_allow": "*"})
        self.assertIn("chmod 600", caught.output[0])
        self.assertEqual(stat.S_IMODE(os.stat(self.folder / "s").st_mode), 0o600)


class State(Law):
    def test_O_state_on_a_signal(self):
        """Also while the main thread does not come back from a call."""
        pair = self.pair({"extra": {"dump_signal": "SIGUSR2"}}, {"extra": {"dump_signal": "SIGUSR2"}})
        lines: list[str] = []
        wanted, seen = {"prefill rank 0 of 1", "decode rank 0 of 1"}, threading.Event()

        class Catch(logging.Handler):
            def emit(self, record):
                lines.append(record.getMessage())
                if all(any(w in line for line in lines) for w in wanted):
                    seen.set()

        handler, level = Catch(), logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            os.kill(os.getpid(), signal.SIGUSR2)
            self.assertTrue(seen.wait(10), lines)
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
        self.assertIn("0 requests", pair.d.workers[0]._rank._c.dump())

    def test_gauges(self):
        """They come while they are not 0, and once with 0; the highest rank counts; the page shows the last."""
        growth = _vllm_stats.Growth(prefill=False)
        zero = dict.fromkeys(core.counters("rd2h_decode_stats") + core.gauges("rd2h_decode_stats"), 0)
        self.assertIsNone(growth.take(zero))
        one = growth.take(zero | {"quarantined_blocks": 5, "bytes": 9})
        self.assertEqual(one.data, {"decode_quarantined_blocks": 5, "decode_bytes": 9})
        other = _vllm_stats.Rd2hStats(data={"decode_quarantined_blocks": 3, "decode_bytes": 2})
        both = _vllm_stats.Rd2hStats(data=dict(one.data)).aggregate(other)
        self.assertEqual(both.data, {"decode_quarantined_blocks": 5, "decode_bytes": 11})
        still = growth.take(zero | {"quarantined_blocks": 5, "bytes": 9})
        fallen = _vllm_stats.Rd2hStats(data={"decode_quarantined_blocks": 0})
        self.assertEqual(fallen.aggregate(still).data, {"decode_quarantined_blocks": 5})
        back = growth.take(zero | {"bytes": 9})
        self.assertEqual(back.data, {"decode_quarantined_blocks": 0})
        self.assertIsNone(growth.take(zero | {"bytes": 9}))
        registry = CollectorRegistry()

        def bound(kind):
            return lambda **options: kind(registry=registry, **options)

        prom = _vllm_stats.Rd2hPromMetrics(
            engine.config("kv_consumer"),
            {Gauge: bound(Gauge), Counter: bound(Counter), Histogram: bound(Histogram)},
            ["engine"],
            {0: ["0"]},
        )
        for stats, value in ((one, 5), (back, 0)):
            prom.observe(stats.data)
            self.assertEqual(registry.get_sample_value("vllm:rd2h_decode_quarantined_blocks", {"engine": "0"}), value)

    def test_oldest_wait(self):
        pair, tokens = self.pair(), prompt(72, 50)
        pair.hold = True
        pair.send("cmpl-wait-0", tokens)
        pair.turn()
        until = time.monotonic() + 10
        while not (waited := pair.d.workers[0]._rank.stats()["oldest_wait_ms"]) and time.monotonic() < until:
            time.sleep(0.005)
        self.assertGreater(waited, 0)
        self.assertIn("waits for Prefill", pair.d.workers[0]._rank._c.dump())
        pair.hold = False


if __name__ == "__main__":
    unittest.main()
