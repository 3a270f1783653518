# SPDX-License-Identifier: Apache-2.0
"""Law 12: in vLLM's MultiConnector, and what the log and the metrics page make of the counters."""

from __future__ import annotations

import logging
import os
import unittest
from unittest import mock

import engine
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from rd2h import _log, _vllm_stats
from rd2h import vllm as rd2h_vllm
from rd2h._rd2h import lib
from test_laws import Law, prompt
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging, KVConnectorProm
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector as VllmMultiConnector


class Recorder(KVConnectorBase_V1, SupportsHMA):
    """Another child: writes down which layer hooks came."""

    calls: list[tuple[str, str]] = []

    def set_external_slot_release_waiter(self, waiter):
        self.waiter = waiter

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return 0, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        pass

    def build_connector_meta(self, scheduler_output):
        return rd2h_vllm.StepMetadata()

    def request_finished_all_groups(self, request, block_ids):
        return False, None

    def start_load_kv(self, forward_context, **kwargs):
        pass

    def wait_for_save(self):
        pass

    def wait_for_layer_load(self, layer_name):
        self.calls.append(("wait_for_layer_load", layer_name))

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        self.calls.append(("save_kv_layer", layer_name))

    def on_kv_cache_written(self, layer_name):
        self.calls.append(("on_kv_cache_written", layer_name))


def compose(config) -> None:
    """Puts the connector of `config` behind a MultiConnector, as the second of two children."""
    own = config.kv_transfer_config
    child = {
        "kv_connector": own.kv_connector,
        "kv_connector_module_path": "rd2h.vllm",
        "kv_role": own.kv_role,
        "kv_port": own.kv_port,
        "kv_connector_extra_config": own.kv_connector_extra_config,
    }
    other = {"kv_connector": "Recorder", "kv_connector_module_path": "test_multi", "kv_role": own.kv_role}
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="MultiConnector",
        kv_connector_module_path="rd2h.vllm",
        kv_role=own.kv_role,
        kv_connector_extra_config={"connectors": [other, child]},
    )


class Multi(Law):
    def test_12_composed_on_both_sides(self):
        pair, tokens = self.pair(p={"wrap": compose}, d={"wrap": compose}), prompt(60, 50)
        self.assertIs(type(pair.p.connector), rd2h_vllm.MultiConnector)
        self.assertEqual(type(pair.p.connector).__name__, "MultiConnector", "vLLM goes by the name")
        i = pair.send("cmpl-multi-0", tokens)
        pair.until(lambda: i in pair.done)
        self.assertTrue(pair.d.kv_right(pair.loaded[i], tokens))
        self.at_rest(pair)

    def test_12_aborted_while_loading(self):
        """A child that returned True for it would free the blocks twice."""
        pair = self.pair(d={"wrap": compose})
        pair.hold = True
        i = pair.send("cmpl-mabort-0", prompt(61, 50))
        pair.until(lambda: pair.meta.posts)
        pair.d.abort(i)
        self.at_rest(pair)

    def test_12_layer_hooks_come_to_ours_first(self):
        pair = self.pair(p={"wrap": compose})
        multi = pair.p.workers[0]
        ours = next(c for c in multi._connectors if isinstance(c, rd2h_vllm.SfaRemoteD2HConnector))
        for hook, arguments in (
            ("wait_for_layer_load", ("L",)),
            ("save_kv_layer", ("L", None, None)),
            ("on_kv_cache_written", ("L",)),
        ):
            Recorder.calls.clear()
            with mock.patch.object(ours, hook, lambda layer, *a, **k: Recorder.calls.append(("ours", layer))):
                getattr(multi, hook)(*arguments)
            self.assertEqual(Recorder.calls, [("ours", "L"), (hook, "L")])
        with mock.patch.object(ours, "wait_for_layer_send") as waiter:
            multi.wait_for_layer_send("L")  # the other child has no such hook
        waiter.assert_called_once_with("L")
        self.assertTrue(multi.requires_full_blocks_on_update_after_alloc)

    def test_12_who_reuses_storage_waits_for_ours(self):
        """A child that reuses storage layer by layer is given the waiter; it counts the layers of its stage."""
        pair = self.pair(p={"wrap": compose})
        multi = pair.p.workers[0]
        other, ours = multi._connectors
        with mock.patch.object(ours, "wait_for_layer_reuse") as waiter:
            other.waiter(1)
        waiter.assert_called_once_with(1)
        with mock.patch.object(ours._rank._c, "wait_layer") as wait:
            other.waiter(1)
            multi.wait_for_layer_send(1)  # its number in the model
            multi.wait_for_layer_send(engine.NAMES[1])
            with self.assertLogs(rd2h_vllm.logger, logging.ERROR) as caught:
                other.waiter(engine.LAYERS)
        self.assertEqual([call.args[0] for call in wait.call_args_list], [1, 1, 1])
        self.assertIn(f"there is no layer {engine.LAYERS}", caught.output[0])

    def test_12_gate_and_written_hook(self):
        """Engines with the layer hooks in the right order: written closes the gate, the waiter returns once readers have
        answered."""
        pair, tokens = self.pair(), prompt(62, 50)
        worker = pair.p.workers[0]
        with mock.patch.object(worker, "save_kv_layer", lambda name, *a: worker.on_kv_cache_written(name)):
            self.served(pair, pair.send("cmpl-written-0", tokens), tokens)
        for name in engine.NAMES:
            self.assertIsNone(worker.wait_for_layer_send(name))
        self.assertEqual(worker._rank.stats()["outstanding"], 0)


class Statistics(Law):
    def stats(self) -> list[_vllm_stats.Rd2hStats]:
        """Of all steps of a served request, Decode's side."""
        pair, tokens = self.pair(), prompt(63, 50)
        self.served(pair, pair.send("cmpl-stats-0", tokens), tokens)
        return [o.kv_connector_stats for o in pair.d.outputs if o and o.kv_connector_stats]

    def test_12_growth_adds_up(self):
        total = _vllm_stats.Rd2hStats()
        for s in self.stats():
            self.assertFalse(s.is_empty())
            total = total.aggregate(s)
        self.assertEqual(total.data["decode_bytes"], 4 * engine.BLOCK_BYTES * engine.LAYERS)
        self.assertEqual(total.data["decode_completed"], 1)

    def test_12_log_line(self):
        config = engine.config("kv_consumer")
        logging_ = KVConnectorLogging(config.kv_transfer_config)
        for s in self.stats():
            logging_.observe(s.to_dict())
        lines = []
        logging_.log(lambda form, text: lines.append(form % text))
        self.assertIn(f"rd2h_decode_bytes={4 * engine.BLOCK_BYTES * engine.LAYERS}", lines[0])

    def test_12_registered_for_multiconnector(self):
        """vLLM's MultiConnector looks our statistics up by name, though we came by module path."""
        self.assertIs(KVConnectorFactory.get_connector_class_by_name(rd2h_vllm.NAME), rd2h_vllm.SfaRemoteD2HConnector)
        rebuilt = VllmMultiConnector.build_kv_connector_stats({rd2h_vllm.NAME: {"decode_bytes": 5}})
        self.assertEqual(rebuilt.reduce(), {rd2h_vllm.NAME: {"rd2h_decode_bytes": 5}})

    def test_12_prometheus(self):
        registry = CollectorRegistry()

        def bound(kind):
            return staticmethod(lambda **options: kind(registry=registry, **options))

        for compose_, data in ((None, {"decode_bytes": 7}), (compose, {rd2h_vllm.NAME: {"decode_bytes": 7}})):
            registry = CollectorRegistry()
            config = engine.config("kv_consumer")
            if compose_:
                compose_(config)
            with mock.patch.multiple(
                KVConnectorProm, _counter_cls=bound(Counter), _gauge_cls=bound(Gauge), _histogram_cls=bound(Histogram)
            ):
                prom = KVConnectorProm(config, ["engine"], {0: ["0"]})
            prom.observe(data)
            prom.observe(data)
            self.assertEqual(registry.get_sample_value("vllm:rd2h_decode_bytes_total", {"engine": "0"}), 14)


class Logging(unittest.TestCase):
    def test_lines_reach_the_logger_of_vllm(self):
        self.assertTrue(_log.logger.name.startswith("vllm."))
        with self.assertLogs(_log.logger, logging.DEBUG) as caught:
            _log.emit(b"2 peer lost: it is gone")
            _log.emit(b"no level")
        self.assertEqual(
            [(r.levelno, r.getMessage()) for r in caught.records],
            [(logging.WARNING, "rd2h: peer lost: it is gone"), (logging.INFO, "rd2h: level")],
        )

    def test_library_writes_to_the_pipe(self):
        """The C library's own line, through its thread-free way."""
        _log.start()  # once a process: the connector below will not do it again
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        lib.rd2h_log_fd_set(writer, lib.RD2H_LOG_INFO)
        try:
            worker = rd2h_vllm.SfaRemoteD2HConnector(
                engine.config("kv_consumer"), rd2h_vllm.KVConnectorRole.WORKER, engine.cache_config()
            )
            with engine.ranks(0):
                worker.register_kv_caches(engine.caches())
            worker.shutdown()
            self.assertRegex(os.read(reader, 4096).decode(), r"(?m)^[123] .*decode rank 0")
        finally:
            _log._started_in = 0
            _log.start()


if __name__ == "__main__":
    unittest.main()
