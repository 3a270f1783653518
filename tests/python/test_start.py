# SPDX-License-Identifier: Apache-2.0
"""Start-up: what is refused, and that one line says which value, and what to do."""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch

import engine
from engine import BLOCK, DIM, HEADS, NAMES
from rd2h import Rd2hError, _vllm_compat, _vllm_model, _vllm_options, core
from rd2h import vllm as rd2h_vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, MLAAttentionSpec, SlidingWindowSpec, UniformTypeKVCacheSpecs

MLA = [f"model.layers.{i}.self_attn.attn" for i in range(2)]
INDEXER = [f"model.layers.{i}.self_attn.indexer.k_cache" for i in range(2)]


def build(role=KVConnectorRole.SCHEDULER, groups=None, config=None, **transfer):
    connector = rd2h_vllm.SfaRemoteD2HConnector(config or engine.config(**transfer), role, engine.cache_config(groups=groups))
    connector.shutdown()
    return connector


class Refused(unittest.TestCase):
    def refused(self, *words: str, error=(ValueError, Rd2hError, RuntimeError), **options) -> None:
        with self.assertRaises(error) as caught:
            build(**options)
        self.one_line(caught.exception, *words)

    def one_line(self, error: Exception, *words: str) -> None:
        self.assertNotIn("\n", str(error))
        for word in words:
            self.assertIn(word, str(error))

    def test_roles(self):
        self.refused("kv_both", "kv_producer", "kv_consumer", kv_role="kv_both")

    def test_options(self):
        self.refused("transfer_backend", "missing", "auto", extra={})
        self.refused("transfer_backend", "'rdma'", "auto", extra={"transfer_backend": "rdma"})
        self.refused("transfer_backend", "noop", extra={"transfer_backend": "noop"})
        self.refused("holdms", "hold_ms", extra={"transfer_backend": "auto", "holdms": 3})
        for name, value in (
            ("hold_ms", 0),
            ("hold_ms", "9"),
            ("hold_ms", True),
            ("hold_ms", 1.5),
            ("host", " "),
            ("host", 7),
            ("legacy_metaserver", 1),
            ("on_read_failure", "ignore"),
            ("max_inflight", 10**9),
            ("transfer_backend", None),
        ):
            with self.subTest(name=name, value=value):
                self.refused(name, repr(value), extra={"transfer_backend": "auto", name: value})

    def test_every_option_takes_its_bounds_and_nothing_beyond(self):
        for o in _vllm_options.OPTIONS:
            base = {"transfer_backend": "auto"}
            good = o.allowed if o.kind in ("int", "choice") else (True, False) if o.kind == "bool" else ("h.example",)
            for value in good:
                self.assertEqual(_vllm_options.read({**base, o.name: value})[o.name], value)
            bad = (o.allowed[0] - 1, o.allowed[1] + 1) if o.kind == "int" else (object(),)
            for value in bad:
                with self.assertRaises(ValueError):
                    _vllm_options.read({**base, o.name: value})

    def test_authority_of_the_metaserver(self):
        extra = {"transfer_backend": "auto", "rendezvous_ca": "/nowhere/ca.pem"}
        self.refused('rendezvous_ca "/nowhere/ca.pem"', "PEM file", kv_role="kv_consumer", extra=extra)

    def test_targets_reach_the_engine(self):
        options = _vllm_options.read({"transfer_backend": "auto", "tcp_targets": "10.0.0.0/8+fd00::/8"})
        self.assertEqual(_vllm_options.engine_spec(options, None), "auto,targets=10.0.0.0/8+fd00::/8")
        self.assertEqual(_vllm_options.engine_spec({**options, "transfer_backend": "local"}, None), "local")

    def test_ucx_of_the_python_package_is_found(self):
        values = {"transfer_backend": "ucx", "tcp_targets": None}
        with (tempfile.TemporaryDirectory() as folder, mock.patch.object(sys, "path", [folder, *sys.path]),
              mock.patch.dict(os.environ)):
            os.environ.pop("RD2H_UCX_LIBRARY", None)
            library = Path(folder, "libucx/lib/libucp.so.0")
            library.parent.mkdir(parents=True)
            Path(folder, "libucx/__init__.py").touch()
            self.assertEqual(_vllm_options.engine_spec(values, None), "ucx")
            library.touch()
            self.assertEqual(_vllm_options.engine_spec(values, None), f"ucx,lib={library}")
            with mock.patch.dict(os.environ, {"RD2H_UCX_LIBRARY": "/other/libucp.so.0"}):
                self.assertEqual(_vllm_options.engine_spec(values, None), "ucx")

    def test_option_table(self):
        names = [o.name for o in _vllm_options.OPTIONS]
        self.assertEqual(len(names), len(set(names)))
        table = _vllm_options.table()
        for o in _vllm_options.OPTIONS:
            self.assertIn(f"| {o.name} |", table)
            self.assertTrue(o.default is _vllm_options.REQUIRED or o.accepts(o.default) or o.default is None, o.name)
        page = (Path(__file__).resolve().parents[2] / "docs/vllm.md").read_text().splitlines()
        missing = [line for line in table.splitlines() if line not in page]
        self.assertEqual(missing, [], "python -m rd2h._vllm_options prints the table as it is now")

    def test_defaults_are_those_of_the_library(self):
        """The C headers name the same numbers: 0 there means the default here."""
        values = _vllm_options.read({"transfer_backend": "auto"})
        self.assertEqual(
            {
                n: values[n]
                for n in (
                    "handshake_ms",
                    "hold_ms",
                    "liveness_ms",
                    "settle_ms",
                    "park_ms",
                    "queue_ms",
                    "progress_ms",
                    "probe_ms",
                    "read_timeout_ms",
                    "max_peers",
                    "max_requests",
                    "max_message_mb",
                )
            },
            {
                "handshake_ms": 10000,
                "hold_ms": 240000,
                "liveness_ms": 5000,
                "settle_ms": 2000,
                "park_ms": 2000,
                "queue_ms": 600000,
                "progress_ms": 120000,
                "probe_ms": 1000,
                "read_timeout_ms": 31000,
                "max_peers": 4096,
                "max_requests": 65536,
                "max_message_mb": 64,
            },
        )

    def test_ports(self):
        for port in (0, -1, 65536, 10**6):
            with self.subTest(port=port):
                self.refused(str(port), kv_port=port)
        config = engine.config(kv_port=65535)
        config.parallel_config.tensor_parallel_size = 2
        self.refused("65535", "65536", config=config)

    def test_parallelism(self):
        for name, value, role in (
            ("decode_context_parallel_size", 2, "kv_producer"),
            ("pipeline_parallel_size", 2, "kv_consumer"),
        ):
            config = engine.config(role)
            setattr(config.parallel_config, name, value)
            self.refused(name, "2", config=config)

    def test_port_in_use(self):
        config, kv = engine.config("kv_consumer"), engine.cache_config()
        workers = [rd2h_vllm.SfaRemoteD2HConnector(config, KVConnectorRole.WORKER, kv) for _ in range(2)]
        for w in workers:
            self.addCleanup(w.shutdown)
        with engine.ranks(0):
            workers[0].register_kv_caches(engine.caches())
            with self.assertRaises(Rd2hError) as caught:
                workers[1].register_kv_caches(engine.caches())
        self.one_line(caught.exception, str(config.kv_transfer_config.kv_port))

    def test_groups(self):
        def group(name: str, spec=None) -> KVCacheGroupSpec:
            return KVCacheGroupSpec(layer_names=[name], kv_cache_spec=spec or engine.spec())

        three = [group("model.layers.0.self_attn.attn"), group("model.layers.0.indexer.k_cache"), group("model.layers.1.mamba")]
        self.refused("3 KV cache groups", "model.layers.1.mamba", groups=three)
        window = SlidingWindowSpec(block_size=BLOCK, num_kv_heads=HEADS, head_size=DIM, dtype=torch.float32, sliding_window=64)
        self.refused(
            "model.layers.0.self_attn.attn", "SlidingWindowSpec", groups=[group("model.layers.0.self_attn.attn", window)]
        )

    def test_another_vllm(self):
        self.assertEqual(_vllm_compat.differences(), [])

        def save_kv_layer(self, layer_name, kv_layer, stream):
            """What another version might have."""

        with mock.patch.object(KVConnectorBase_V1, "save_kv_layer", save_kv_layer):
            self.refused("0.32", "save_kv_layer", "stream", error=RuntimeError)
        self.assertNotIn("stream", inspect.signature(KVConnectorBase_V1.save_kv_layer).parameters)
        with mock.patch.dict(_vllm_compat.HOOKS, {"save_kv_layer_v3": ("x",)}):
            self.refused("save_kv_layer_v3", "missing", error=RuntimeError)


class Tensors(unittest.TestCase):
    """KV tensors as layouts: what is served, and what is refused with the tensor's name and shape."""

    def model(self, groups=None, num_blocks=8, **options):
        return _vllm_model.engine(engine.config("kv_producer", **options), engine.cache_config(num_blocks, groups))

    def sparse(self, one_group: bool):
        """DeepSeek-V3.2 in one group of two kinds (vLLM on CPU), or in two groups."""
        main = MLAAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=576, dtype=torch.float32)
        index = MLAAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=132, dtype=torch.uint8)
        if not one_group:
            return [
                KVCacheGroupSpec(layer_names=MLA, kv_cache_spec=main),
                KVCacheGroupSpec(layer_names=INDEXER, kv_cache_spec=index),
            ]
        specs = {**dict.fromkeys(MLA, main), **dict.fromkeys(INDEXER, index)}
        return [
            KVCacheGroupSpec(
                layer_names=list(specs), kv_cache_spec=UniformTypeKVCacheSpecs(block_size=BLOCK, kv_cache_specs=specs)
            )
        ]

    def sparse_kv(self, n=8):
        return {
            **{m: torch.zeros(n, 1, BLOCK, 576) for m in MLA},
            **{i: torch.zeros(n, 1, BLOCK, 132, dtype=torch.uint8) for i in INDEXER},
        }

    def layout(self, e, kv):
        return core.Layout(
            _vllm_model.tensors(e, kv),
            e.num_blocks,
            e.main_group,
            e.indexer_group,
            _vllm_model.heads(e, 0),
            _vllm_model.fingerprint(e, kv),
        )

    def refused(self, e, kv, *words):
        with self.assertRaises((ValueError, Rd2hError)) as caught:
            self.layout(e, kv)
        self.assertNotIn("\n", str(caught.exception))
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_plain_attention_in_one_tensor(self):
        e, kv = self.model(), engine.caches(8)
        layout = self.layout(e, kv)
        self.assertEqual((len(layout), layout.shares_storage()), (len(NAMES), False))
        self.assertEqual(_vllm_model.tensors(e, kv)[0].row_bytes, engine.BLOCK_BYTES)

    def test_keys_and_values_one_after_the_other(self):
        e = self.model()
        for kv in (
            {n: torch.zeros(2, 8, BLOCK, HEADS, DIM) for n in NAMES},
            {n: [torch.zeros(8, BLOCK, HEADS, DIM)] * 2 for n in NAMES},
        ):
            found = _vllm_model.tensors(e, kv)
            self.assertEqual((len(found), found[0].row_bytes, found[0].rows), (2 * len(NAMES), engine.BLOCK_BYTES // 2, 8))
        self.assertEqual(len(self.layout(e, {n: torch.zeros(2, 8, BLOCK, HEADS, DIM) for n in NAMES})), len(NAMES))

    def test_sparse_attention(self):
        for one_group in (True, False):
            with self.subTest(one_group=one_group):
                e = self.model(self.sparse(one_group))
                layout = self.layout(e, self.sparse_kv())
                self.assertEqual((len(layout), layout.slots), (2, 4))
                self.assertEqual([layout.find(n) for n in (*MLA, *INDEXER, "other")], [0, 1, 0, 1, None])
                self.assertEqual((e.main_group, e.indexer_group), (0, 0 if one_group else 1))

    def test_several_rows_a_block(self):
        e = self.model()
        kv = {n: torch.zeros(16, HEADS, BLOCK // 2, 2 * DIM) for n in NAMES}
        self.assertEqual(_vllm_model.tensors(e, kv)[0].rows, 16)
        self.assertEqual(len(self.layout(e, kv)), len(NAMES))

    def test_shared_storage(self):
        """A ring: two layers in one tensor, written in turn."""
        kv = engine.caches(8)
        kv[NAMES[2]] = kv[NAMES[0]]
        self.assertTrue(self.layout(self.model(), kv).shares_storage())
        self.assertEqual(len(_vllm_model.memory(kv)), 2)

    def test_refused(self):
        e = self.model()
        cases = {
            "padded": (torch.zeros(8, HEADS, BLOCK, 2 * DIM + 4)[..., : 2 * DIM], "not contiguous"),
            "interleaved": (torch.zeros(8, 3, HEADS, BLOCK, 2 * DIM)[:, 1], "not contiguous"),
            "quantised": (torch.zeros(8, HEADS, BLOCK, 2 * DIM, dtype=torch.uint8), "quantised"),
            "too few blocks": (torch.zeros(7, HEADS, BLOCK, 2 * DIM), "multiple"),
            "empty": (torch.zeros(0, 4), "multiple"),
        }
        for name, (tensor, why) in cases.items():
            with self.subTest(name):
                self.refused(e, {**engine.caches(8), NAMES[1]: tensor}, NAMES[1], str(tuple(tensor.shape)), why)
        self.refused(e, {**engine.caches(8), "model.layers.9.extra": torch.zeros(8, 4)}, "model.layers.9.extra")

    def test_heads_of_a_rank(self):
        e = self.model()
        for tp, rank, want in ((1, 0, (0, 2, 2)), (2, 1, (1, 1, 2)), (4, 3, (1, 1, 2))):
            self.assertEqual(_vllm_model.heads(_replace(e, tp_size=tp), rank), want)
        self.assertEqual(_vllm_model.heads(_replace(e, total_kv_heads=0), 0), (0, 0, 0))

    def test_fingerprint_tells_types_apart(self):
        e, kv = self.model(), engine.caches(8)
        prints = {
            _vllm_model.fingerprint(e, v)
            for v in (
                kv,
                {n: t.to(torch.int32) for n, t in kv.items()},
                {n: t.transpose(1, 2).contiguous() for n, t in kv.items()},
            )
        }
        self.assertEqual(len(prints), 3)
        self.assertEqual(_vllm_model.fingerprint(e, dict(list(kv.items())[:1])), _vllm_model.fingerprint(e, kv), "stages agree")


def _replace(e, **changes):
    import dataclasses

    return dataclasses.replace(e, **changes)


if __name__ == "__main__":
    unittest.main()
