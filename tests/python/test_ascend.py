# SPDX-License-Identifier: Apache-2.0
"""vLLM-Ascend: KV from regular caches on Prefill into SparseKVOffloadManager's pool on Decode, and every name by which the two touch.
Its objects are stand-ins (ascend.py)."""

from __future__ import annotations

import inspect
import logging
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch

import ascend
from ascend import INDEXER, LAYERS, MAIN, Only
from rd2h import _ascend, _ascend_names, _vllm_compat, _vllm_options, _vllm_worker
from rd2h import vllm as rd2h_vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.outputs import KVConnectorOutput

PAGE = Path(__file__).resolve().parents[2] / "docs/vllm-ascend.md"


def prompt(seed: int, n: int) -> list[int]:
    return [(seed * 1009 + i * 37) % 499 + 3 for i in range(n)]


class Ascend(unittest.TestCase):
    def setUp(self) -> None:
        self.package, self.npu = self.enterContext(ascend.installed())

    def pair(self, **options) -> ascend.Pair:
        pair = ascend.Pair(self.package, self.npu, **options)
        self.addCleanup(pair.close)
        return pair

    def connector(self, kv_role: str, role=KVConnectorRole.WORKER, **extra):
        config = ascend.vllm_config(kv_role, extra)
        return rd2h_vllm.SfaRemoteD2HConnector(config, role, ascend.configs(16, False)[1])

    def served(self, pair: ascend.Pair, request: str, tokens: list[int]) -> None:
        pair.until(lambda: request in pair.done, what=request)
        self.assertEqual(pair.done[request].reason, "length")
        for rank in range(len(pair.d.workers)):
            self.assertTrue(pair.d.kv_right(pair.loaded[request], tokens[:-1], rank), f"KV of {request} on rank {rank}")


class Pull(Ascend):
    """Prefill to Decode, real bytes."""

    def test_ranks_and_scales(self):
        """With LIC8 and without, P and D of several TP sizes: the pool gets every main block once, every rank its whole indexer."""
        for k, (p, d, lic8) in enumerate([(1, 1, False), (1, 1, True), (2, 2, True), (2, 1, False), (2, 1, True), (1, 2, True)]):
            with self.subTest(p=p, d=d, lic8=lic8):
                pair, tokens = self.pair(p={"tp": p, "lic8": lic8}, d={"tp": d, "lic8": lic8}), prompt(k, 70)
                self.served(pair, pair.send(f"cmpl-{k}-0", tokens), tokens)
                main, index = ascend.block_bytes(lic8)
                pulled = [w._rank.stats()["bytes"] for w in pair.d.workers]
                self.assertEqual(sum(pulled), ascend.blocks_of(tokens) * (main + d * index))
                self.assertGreater(min(pulled), ascend.blocks_of(tokens) * index)  # every rank had a share of main KV

    def test_chunks(self):
        tokens = prompt(20, 100)
        pair = self.pair(p={"tokens": 32}, d={"tp": 2})
        self.served(pair, pair.send("cmpl-chunks-0", tokens), tokens)

    def test_storage_that_layers_share(self):
        """Two storage slots for four layers, in chunks: a layer is written once its slot's readers have answered."""
        for named in (True, False):  # also where the hook does not say which layer it is
            with self.subTest(named=named):
                pair = self.pair(p={"tokens": 48, "slots": 2, "lic8": True, "named": named, "tp": 2}, d={"lic8": True, "tp": 2})
                self.assertEqual(pair.p.workers[0]._rank._layout.slots, 4)  # two of main KV, two of indexers
                requests = {pair.send(f"cmpl-ring{i}-0", prompt(30 + i, 90)): prompt(30 + i, 90) for i in range(3)}
                for request, tokens in requests.items():
                    self.served(pair, request, tokens)

    def test_several_rows_a_block(self):
        tokens = prompt(40, 70)
        pair = self.pair(p={"scale": 2}, d={})
        self.served(pair, pair.send("cmpl-rows-0", tokens), tokens)

    def test_local_prefix_and_num_cpu_blocks(self):
        pair, tokens = self.pair(), prompt(50, 70)
        first = pair.send("cmpl-first-0", tokens)
        worker = pair.d.workers[0]
        pair.until(lambda: worker.get_num_cpu_blocks([first]), what="blocks of the first")
        self.assertEqual(worker.get_num_cpu_blocks([first, "unknown"]), {first: ascend.blocks_of(tokens)})
        self.served(pair, first, tokens)
        pair.rest()
        self.assertIsNone(pair.p.workers[0].get_num_cpu_blocks([first]))
        before = worker._rank.stats()["bytes"]
        again = pair.send("cmpl-again-0", tokens)
        self.served(pair, again, tokens)
        self.assertEqual(worker._rank.stats()["bytes"] - before, sum(ascend.block_bytes(False)))  # the last block only
        self.assertEqual(worker.get_num_cpu_blocks([first, again]), {again: ascend.blocks_of(tokens)})  # the first is gone

    def test_npu_that_hangs(self):
        """A layer whose event never comes fails its request within event_ms; the next one is served."""
        pair = self.pair(p={"extra": {"event_ms": 2_000}})
        self.npu.hung = True
        lost = pair.send("cmpl-lost-0", prompt(60, 40))
        pair.until(lambda: lost in pair.done, what="the lost request")
        self.assertEqual(pair.done[lost].reason, "error")
        self.npu.hung = False
        self.npu.run()
        self.served(pair, pair.send("cmpl-next-0", prompt(61, 40)), prompt(61, 40))
        pair.rest()


class Hooks(Ascend):
    """What AscendMultiConnector and AscendStore call."""

    def provider(self, c) -> bool:
        """Whether AscendMultiConnector takes the child for one that says when storage may be used again."""
        return bool(c.is_producer and c.connector_worker is not None and c.supports_layerwise_buffer_reuse)

    def test_who_says_when_storage_is_free(self):
        pair = self.pair()
        self.assertTrue(self.provider(pair.p.workers[0]))
        self.assertFalse(self.provider(pair.d.workers[0]))
        self.assertFalse(self.provider(pair.p.connector))
        self.assertTrue(pair.p.connector.requires_full_blocks_on_update_after_alloc)
        self.assertFalse(pair.d.connector.requires_full_blocks_on_update_after_alloc)

    def test_waits_by_place_and_by_number(self):
        worker = self.pair().p.workers[0]
        with mock.patch.object(worker._rank._c, "wait_layer") as wait:
            worker.wait_for_layer_reuse(3)
            worker.wait_for_layer_send(3)
            worker.wait_for_layer_send(INDEXER[-1])
        self.assertEqual([call.args[0] for call in wait.call_args_list], [3, 3, 3])

    def test_hook_without_a_name_is_the_current_layer(self):
        worker = self.pair().p.workers[0]
        worker.bind_connector_metadata(rd2h_vllm.StepMetadata(ascend_empty_step(self)))
        with mock.patch.object(worker._rank._c, "layer_on") as layer:
            for name in MAIN:
                worker.on_kv_cache_written()
                worker.save_kv_layer(name, None, None)
            worker.on_kv_cache_written()  # past the last one
        self.assertEqual([call.args[0] for call in layer.call_args_list], [i for i in range(LAYERS) for _ in "ab"])

    def test_runs_without_caches_or_step_are_nothing(self):
        worker = self.connector("kv_producer")
        with self.assertNoLogs(rd2h_vllm.logger, logging.ERROR):
            worker.on_kv_cache_written(MAIN[0])
            worker.save_kv_layer(MAIN[0], None, None)
            worker.wait_for_layer_load(MAIN[0])
            worker.wait_for_layer_send(0)
            worker.wait_for_layer_reuse(0)
            self.assertIsNone(worker.get_num_cpu_blocks(["x"]))
            self.assertEqual(worker.get_finished(set()), (None, None))
            worker.close()


def ascend_empty_step(case: Ascend) -> bytes:
    """A step's bytes with nothing in them."""
    case.package.offload = Only("SparseKVOffloadConfig", enabled=False)
    half = case.connector("kv_producer", KVConnectorRole.SCHEDULER)
    case.addCleanup(half.shutdown)
    out = SimpleNamespace(
        num_scheduled_tokens={},
        scheduled_spec_decode_tokens={},
        preempted_req_ids=None,
        scheduled_new_reqs=[],
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], resumed_req_ids=set(), num_computed_tokens=[], new_block_ids=[]),
    )
    return half.build_connector_meta(out).blob


class Start(Ascend):
    def refused(self, *words: str, error=ValueError, kv_role="kv_consumer", role=KVConnectorRole.SCHEDULER, **extra) -> None:
        with self.assertRaises(error) as caught:
            self.connector(kv_role, role, **extra)
        self.says(caught.exception, *words)

    def rank(self, tp_rank: int):
        return mock.patch.object(_vllm_worker, "get_tp_group", lambda: SimpleNamespace(rank_in_group=tp_rank))

    def says(self, error: Exception, *words: str) -> None:
        self.assertNotIn("\n", str(error))
        for word in words:
            self.assertIn(word, str(error))

    def test_roles(self):
        self.refused("sparse_kv_offload_config.enabled is false on Decode")
        self.package.offload = Only("SparseKVOffloadConfig", enabled=True)
        self.refused("sparse_kv_offload_config.enabled is true on Prefill", kv_role="kv_producer")
        self.connector("kv_consumer", KVConnectorRole.SCHEDULER).close()
        self.assertGreater(self.package.calls["init"], 0)

    def test_newer_configurations_are_refused_by_name(self):
        self.package.offload = Only("SparseKVOffloadConfig", enabled=True, fused_op_type="fused_copy_sfa")
        self.refused("fused_op_type is 'fused_copy_sfa'", "fused copy-SFA")
        self.package.offload = Only("SparseKVOffloadConfig", enabled=True, fused_op_type="none")
        self.connector("kv_consumer", KVConnectorRole.SCHEDULER).close()
        config = ascend.vllm_config("kv_consumer")
        config.speculative_config = SimpleNamespace(method="dspark")
        with self.assertRaises(ValueError) as caught:
            rd2h_vllm.SfaRemoteD2HConnector(config, KVConnectorRole.SCHEDULER, ascend.configs(16, False)[1])
        self.says(caught.exception, 'speculative_config.method is "dspark"')

    def test_options_of_a_deployment(self):
        """As they stand in deployments of the reference; the NPU is the worker's."""
        extra = {"transfer_backend": "memfabric", "use_layerwise": True, "memfabric_transfer_protocol": "device_urma"}
        options = _vllm_options.read(extra)
        self.assertEqual(_vllm_options.engine_spec(options, 3), "memfabric,protocol=device_urma,device=3")
        self.assertEqual(_vllm_options.engine_spec(_vllm_options.read({"transfer_backend": "memfabric"}), 0),
                         "memfabric,protocol=sdma,device=0")
        self.assertEqual(_vllm_options.engine_spec(_vllm_options.read({"transfer_backend": "tcp"}), None), "tcp")
        self.refused("use_layerwise is false", kv_role="kv_producer", use_layerwise=False)
        for n in _ascend_names.OPTIONS:
            self.assertIn(n.name, {o.name for o in _vllm_options.OPTIONS})

    def test_host_is_found(self):
        with mock.patch("vllm.utils.network_utils.get_ip", lambda: "10.9.8.7"):
            self.assertEqual(self.connector("kv_producer")._engine.options["host"], "10.9.8.7")
            self.assertEqual(self.connector("kv_producer", host="h.example")._engine.options["host"], "h.example")

    def test_manager_that_does_not_fit(self):
        caches = ascend.Caches(16, False)
        good = ascend.pool_manager(caches, 0)
        cases = [
            ({"gvas_k_bases": good.gvas_k_bases[:-1]}, "gvas_k_bases has 3 entries for 4 layers"),
            ({"cpu_block_lens": [*good.cpu_block_lens, (1, 1)]}, "cpu_block_lens has 5 entries"),
            ({"gvas_v_bases": good.gvas_v_bases[::-1]}, "V of model.layers.0.self_attn.attn is"),
            ({"cpu_block_lens": [(256, 64)] * LAYERS}, "are announced"),
        ]
        for changes, words in cases:
            with self.subTest(words), self.assertRaises(RuntimeError) as caught:
                self.package.managers = [ascend.pool_manager(caches, 0, **changes)]
                with self.rank(0):
                    _ascend.pool_tensors(16, 0, 0)
            self.says(caught.exception, words)

    def test_attributes_that_are_missing_are_named(self):
        caches = ascend.Caches(16, False)
        older = ascend.pool_manager(caches, 0)
        del older.gvas_v_bases, older.cpu_block_lens
        early = Only("SparseKVOffloadManager")
        cases = ((early, "register_kv_caches must come before the connector's"), (older, "has no gvas_v_bases, cpu_block_lens"))
        for manager, words in cases:
            self.package.managers = [manager]
            with self.rank(0), self.assertRaises(RuntimeError) as caught:
                _ascend.pool_tensors(16, 0, 0)
            self.says(caught.exception, words)
        self.package.offload = Only("SparseKVOffloadConfig")
        self.refused("SparseKVOffloadConfig has no enabled: rd2h knows vLLM-Ascend 0.26.0rc1", error=RuntimeError)

    def test_threads_have_the_npu(self):
        pair = self.pair()
        self.assertTrue(self.npu.library.standin_await_threads(0, 6, 10_000))  # this, sender, one for events; control, two that read
        self.assertIn("local", pair.p.config.kv_transfer_config.kv_connector_extra_config["transfer_backend"])

    def test_only_specs_of_vllm_ascend(self):
        self.assertTrue(_ascend.serves_spec(ascend.configs(16, False)[1].kv_cache_groups[0].kv_cache_spec.kv_cache_specs[MAIN[0]]))
        stranger = type("AscendMLAAttentionSpec", (), {"__module__": "elsewhere"})()
        self.assertFalse(_ascend.serves_spec(stranger))


class Names(Ascend):
    """The table of names: what vLLM-Ascend uses of its connector is there, and what the adapter reads is listed."""

    def test_everything_that_is_called_is_there(self):
        connector = self.connector("kv_producer")
        for n in _ascend_names.CONNECTOR:
            with self.subTest(n.name):
                self.assertTrue(hasattr(connector, n.name))
                value = getattr(connector, n.name)
                if n.parameters is None:
                    continue
                have = [p for p in inspect.signature(value).parameters]
                self.assertEqual(have[: len(n.parameters)], list(n.parameters))
                rest = list(inspect.signature(value).parameters.values())[len(n.parameters) :]
                self.assertTrue(all(p.default is not p.empty or p.kind == p.VAR_KEYWORD for p in rest))
        self.assertIsNone(connector.get_handshake_metadata())
        self.assertTrue(connector.use_layerwise)

    def test_versions_are_named(self):
        for n in (*_ascend_names.CONNECTOR, *_ascend_names.OPTIONS, *_ascend_names.OBJECTS):
            self.assertTrue(n.versions and all(v.count(".") == 2 for v in n.versions), n)

    def test_the_page_has_the_tables(self):
        page = PAGE.read_text().splitlines()
        missing = [row for row in _ascend_names.tables().splitlines() if row not in page]
        self.assertEqual(missing, [], "python -m rd2h._ascend_names prints the tables as they are now")

    def test_nothing_else_is_read(self):
        """The stand-ins have what the table lists and refuse the rest, so that a run proves the table; here: that they refuse."""
        with self.assertRaises(AssertionError):
            ascend.pool_manager(ascend.Caches(16, False), 0).topk_buffers_k
        listed = {n.name for n in _ascend_names.OBJECTS if n.of == "SparseKVOffloadManager"}
        have = {k for k in vars(ascend.pool_manager(ascend.Caches(16, False), 0)) if k != "_of"}
        self.assertEqual(have, listed)


class Before032(Ascend):
    """vLLM 0.26 and 0.29, which vLLM-Ascend runs on: completions and failures are asked for in two calls, failures are blocks."""

    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.object(_vllm_compat, "FAILS_BY_REQUEST", False))

    def test_a_failed_load_is_told_by_its_blocks(self):
        pair, tokens = self.pair(), prompt(70, 70)
        worker = pair.d.workers[0]
        asked: list[set[int]] = []
        real, newer = worker.get_block_ids_with_load_errors, "failed_recving" in KVConnectorOutput.__dataclass_fields__

        def ask() -> set[int]:
            asked.append(real())
            return set() if newer else asked[-1]  # the vLLM of this test may know the request already

        with mock.patch.object(worker, "get_block_ids_with_load_errors", ask):
            pair.meta.register("cmpl-known-0", ascend.engine.Plan(tokens))
            request = pair.send("cmpl-gone-0", tokens, status=404)
            pair.until(lambda: any(asked), what="failed blocks")
            self.assertEqual(len(set().union(*asked)), ascend.blocks_of(tokens))
            pair.until(lambda: request in pair.done, what="the request's end")
            self.assertEqual(pair.done[request].reason, "error")
        self.assertEqual(worker.get_block_ids_with_load_errors(), set())

    def test_one_group_only(self):
        with self.assertRaises(ValueError) as caught:
            _vllm_compat.check_groups(False, 2)
        self.assertIn("one group only", str(caught.exception))
        _vllm_compat.check_groups(True, 2)
        _vllm_compat.check_groups(False, 1)

    def test_hooks_that_came_later_are_not_missed(self):
        base = type("Base", (_vllm_compat.KVConnectorBase_V1,), {"get_transfer_results": None})
        self.enterContext(mock.patch.object(_vllm_compat, "KVConnectorBase_V1", base))
        self.assertEqual(_vllm_compat.differences(), [])
        with mock.patch.object(_vllm_compat, "FAILS_BY_REQUEST", True):
            self.assertIn("hook get_transfer_results is missing", _vllm_compat.differences())


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
