# SPDX-License-Identifier: Apache-2.0
"""The laws of vLLM 0.32 that a connector must keep, each run against vLLM's own scheduler. Breaking one kills the engine, leaks
blocks or corrupts KV. The first number in a test's name is the law's. Laws 14 to 16 concern real engines: tests/e2e."""

from __future__ import annotations

import os
import unittest
from unittest import mock

import engine
from engine import BLOCK, BLOCK_BYTES, LAYERS, Engine, Pair, free_port
from rd2h import Rd2hError, _vllm_model, core
from rd2h import vllm as rd2h_vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.utils.func_utils import supports_kw


def prompt(seed: int, length: int) -> list[int]:
    return [(seed * 37 + i * 11) % 500 + 4 for i in range(length)]


class Law(unittest.TestCase):
    def pair(self, p: dict | None = None, d: dict | None = None) -> Pair:
        pair = Pair(p, d)
        self.addCleanup(pair.close)
        return pair

    def engine(self, role: str, **options) -> Engine:
        e = Engine(role, **options)
        self.addCleanup(e.close)
        return e

    def served(self, pair: Pair, internal: str, tokens: list[int]) -> None:
        """The request ends well, its KV on Decode is right, and both engines come to rest with all blocks free."""
        pair.until(lambda: internal in pair.done, what=f"{internal} ends")
        self.assertEqual(pair.done[internal].reason, "length")
        for rank in range(len(pair.d.kv)):
            self.assertTrue(pair.d.kv_right(pair.loaded[internal], tokens, rank), f"KV of {internal} on rank {rank}")
        self.at_rest(pair)

    def at_rest(self, pair: Pair) -> None:
        pair.rest()
        for e in (pair.p, pair.d):
            self.assertEqual(e.free, e.scheduler.kv_cache_config.num_blocks - 1)  # block 0 is vLLM's null block

    def nobody(self, **more) -> dict:
        """Parameters of a Decode that is not there."""
        return {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": "gone",
            "remote_host": "127.0.0.1",
            "remote_port": free_port(),
            "remote_tp_size": 1,
            "remote_cached_tokens": 0,
            **more,
        }


class PrefixHits(Law):
    def test_01_cached_tokens_are_prompt_minus_external(self):
        """A local hit is not pulled over, although num_computed_tokens says 0."""
        pair, tokens = self.pair(), prompt(1, 3 * BLOCK + 5)
        pair.d.add("local", tokens[: 2 * BLOCK] + prompt(2, 3))
        pair.until(lambda: "local" in pair.done)
        i = pair.send("cmpl-hit-0", tokens)
        pair.until(lambda: pair.meta.posts)
        shared = pair.d.blocks(i)[:2]
        for tensor in pair.d.kv[0].values():
            tensor[shared] = -1.0  # would be written over by a pull
        pair.until(lambda: i in pair.done)
        self.assertEqual(pair.meta._plans["cmpl-hit-0"].body["remote_cached_tokens"], 2 * BLOCK)
        for tensor in pair.d.kv[0].values():
            self.assertTrue((tensor[shared] == -1.0).all())
        self.assertEqual(pair.d.workers[0]._rank.stats()["bytes"], 2 * BLOCK_BYTES * LAYERS)
        self.at_rest(pair)

    def test_07_prefix_hit_on_prefill_is_published_too(self):
        pair, tokens = self.pair(), prompt(3, 3 * BLOCK + 5)
        pair.p.add("local", tokens[: 2 * BLOCK] + prompt(4, 3))
        pair.until(lambda: "local" in pair.done)
        self.served(pair, pair.send("cmpl-phit-0", tokens), tokens)

    def test_07_chunks_append_new_blocks(self):
        pair, tokens = self.pair(p={"tokens": 24}), prompt(5, 6 * BLOCK + 3)
        self.served(pair, pair.send("cmpl-chunk-0", tokens), tokens)

    def test_07_l10_resumed_request_has_a_new_table(self):
        """Two prompts that do not fit together: one is preempted in the middle, and starts over in other blocks."""
        pair = self.pair(p={"num_blocks": 14, "tokens": 32})
        pair.p.scheduler.scheduler_reserve_full_isl = False  # both start
        pair.p.scheduler.scheduler_config.long_prefill_token_threshold = BLOCK  # and go on side by side
        prompts = {f"cmpl-pre{k}-0": prompt(6 + k, 7 * BLOCK + 3) for k in range(2)}
        ids = {pair.send(name, tokens): tokens for name, tokens in prompts.items()}
        preempted = set()
        for _ in range(3000):
            if all(i in pair.done for i in ids):
                break
            pair.turn()
            preempted |= {r.request_id for r in pair.p.scheduler.requests.values() if r.num_preemptions}
        self.assertTrue(preempted, "nothing was preempted: the test tests nothing")
        for i, tokens in ids.items():
            self.served(pair, i, tokens)


class Reports(Law):
    def test_02_every_rank_reports_every_id_once(self):
        pair = self.pair(p={"tp": 2}, d={"tp": 2})
        good, bad = pair.send("cmpl-good-0", prompt(10, 40)), pair.send("cmpl-bad-0", prompt(11, 40), status=502)
        pair.until(lambda: good in pair.done and bad in pair.done)
        pair.hold = True
        gone = pair.send("cmpl-gone-0", prompt(12, 40))
        pair.until(lambda: "cmpl-gone-0" in pair.meta.posts)
        pair.d.abort(gone)
        pair.until(lambda: not pair.d.scheduler.requests)
        for _ in range(20):
            pair.turn()
        for rank in range(2):
            self.assertEqual(pair.d.reports[rank], {good: 1, bad: 1, gone: 1})
            self.assertEqual(pair.p.reports[rank], {"cmpl-good-0-0123abcd": 1})

    def test_03_y11_failed_load_policy_fail(self):
        """Failures are told by request, never by block ids, which mean other blocks in another group."""
        pair = self.pair()
        for status in (404, 502):
            i = pair.send(f"cmpl-{status}-0", prompt(status, 50), status=status)
            pair.until(lambda i=i: i in pair.done)
            self.assertEqual(pair.done[i].reason, "error")
            failing = [o for o in pair.d.outputs if o and o.failed_recving]
            self.assertEqual(
                (failing[-1].failed_recving, failing[-1].finished_recving, failing[-1].invalid_block_ids), ({i}, {i}, set())
            )
        self.at_rest(pair)

    def test_03_failed_load_policy_recompute(self):
        pair, tokens = self.pair(d={"kv_load_failure_policy": "recompute"}), prompt(13, 50)
        i = pair.send("cmpl-again-0", tokens, status=502)
        pair.until(lambda: i in pair.done)
        self.assertEqual(pair.done[i].reason, "length")
        self.assertEqual(pair.meta.posts, ["cmpl-again-0"], "computed locally, not asked for again")
        self.at_rest(pair)

    def test_03_d08_failed_blocks_are_not_used_again(self):
        """Neither by the same prompt, nor by one that begins like it."""
        pair, tokens = self.pair(), prompt(17, 4 * BLOCK + 5)
        i = pair.send("cmpl-bad-0", tokens, status=502)
        pair.until(lambda: i in pair.done)
        self.assertEqual(pair.done[i].reason, "error")
        for k, again in enumerate((tokens, tokens[: 3 * BLOCK] + prompt(18, 20))):
            self.served(pair, pair.send(f"cmpl-good{k}-0", again), again)
        self.at_rest(pair)

    def test_04_l01_abort_while_waiting_for_a_prefill_that_never_comes(self):
        pair = self.pair()
        pair.hold = True
        i = pair.send("cmpl-stop-0", prompt(14, 70))
        pair.until(lambda: pair.meta.posts)
        free = pair.d.free
        with mock.patch.object(
            pair.d.connector, "request_finished_all_groups", wraps=pair.d.connector.request_finished_all_groups
        ) as hook:
            answers = []
            hook.side_effect = lambda *a: (
                answers.append(type(pair.d.connector).request_finished_all_groups(pair.d.connector, *a)) or answers[-1]
            )
            pair.d.abort(i)
        self.assertEqual(answers, [(False, None)])
        self.assertEqual(pair.d.free, free, "blocks are held until every rank has reported the request")
        pair.until(lambda: i not in pair.d.scheduler.requests)
        self.at_rest(pair)


class Sources(Law):
    def test_05_blocks_are_held_until_readers_answered_or_are_given_up(self):
        p = self.engine("kv_producer", extra={"handshake_ms": 300, "hold_ms": 500, "liveness_ms": 300})
        free = p.free
        p.add("cmpl-lost-0-0123abcd", prompt(20, 40), self.nobody())
        self.assertFalse(p.connector.has_pending_block_frees())
        done = p.step()
        self.assertEqual([d.reason for d in done], ["length"])
        self.assertEqual(p.free, free - 3)
        self.assertTrue(p.connector.has_pending_block_frees(), "vLLM waits for these blocks instead of preempting")
        for _ in range(4000):
            if not p.scheduler.requests:
                break
            p.step()
        self.assertEqual((p.free, p.connector.has_pending_block_frees()), (free, False))
        self.assertEqual(p.reports[0], {"cmpl-lost-0-0123abcd": 1})

    def test_05_an_ordinary_request_is_not_held(self):
        p = self.engine("kv_producer")
        p.add("plain-0123abcd", prompt(21, 40))
        p.step()
        self.assertEqual(len(p.scheduler.requests), 0)

    def test_05_abort_in_the_middle_of_a_prefill(self):
        pair, tokens = self.pair(p={"tokens": 16}), prompt(22, 6 * BLOCK)
        i = pair.send("cmpl-mid-0", tokens)
        pair.until(lambda: any(r.num_computed_tokens for r in pair.p.scheduler.requests.values()))
        pair.p.abort("cmpl-mid-0-0123abcd")
        pair.until(lambda: i in pair.done, what="Decode learns of it")
        self.assertEqual(pair.done[i].reason, "error")
        self.at_rest(pair)

    def test_13_a_prefill_that_runs_again_publishes_nothing_new(self):
        """With asynchronous scheduling a request may be preempted and run again after its last chunk went out."""
        pair, tokens = self.pair(), prompt(23, 50)
        i = pair.send("cmpl-rerun-0", tokens)
        pair.until(lambda: not pair._posted.empty())
        name, _, params = pair._posted.get()
        pair.p.add(f"{name}-0123abcd", tokens, params, max_tokens=4)
        first = pair.p.scheduler.schedule()
        run = pair.p.aggregator.aggregate([pair.p._run(0, first)])
        second = pair.p.scheduler.schedule()  # built before the first step's output is known
        self.assertEqual(second.kv_connector_metadata.blob, b"")
        pair.p.update(first, run)
        pair.p.scheduler.reset_prefix_cache(reset_running_requests=True)
        self.served(pair, i, tokens)


class Backends(Law):
    def test_every_transfer_backend(self):
        for k, backend in enumerate(("auto", "local", "tcp")):  # the others need a library that a machine may not have
            with self.subTest(backend):
                options, tokens = {"extra": {"transfer_backend": backend}}, prompt(90 + k, 70)
                pair = self.pair(p=options, d=options)
                self.served(pair, pair.send(f"cmpl-{backend}-0", tokens), tokens)


class UnequalRanks(Law):
    """Two Prefill ranks for one Decode rank, and the other way round."""

    def test_replicated_kv_is_pulled_once(self):
        for p, d in ((2, 1), (1, 2)):
            with self.subTest(p=p, d=d), mock.patch.object(_vllm_model, "heads", lambda e, rank: (0, 0, 0)):  # as MLA has it
                pair, tokens = self.pair(p={"tp": p}, d={"tp": d}), prompt(95 + p, 70)
                i = pair.send(f"cmpl-{p}to{d}-0", tokens)
                self.served(pair, i, tokens)
                for worker in pair.d.workers:
                    self.assertEqual(worker._rank.stats()["bytes"], 5 * BLOCK_BYTES * LAYERS)

    def test_heads_sharded_otherwise_are_refused(self):
        """Equal byte counts prove nothing: rank 0 of Prefill has half of the heads that Decode wants."""
        pair = self.pair(p={"tp": 2})
        i = pair.send("cmpl-heads-0", prompt(98, 40))
        pair.until(lambda: i in pair.done)
        self.assertEqual(pair.done[i].reason, "error")
        self.assertEqual(pair.d.workers[0]._rank.stats()["bytes"], 0)
        self.at_rest(pair)


class Repeats(Law):
    def test_06_one_token_prompt(self):
        """After the load vLLM matches once more: nothing is left to pull, the token is computed, no second rendezvous."""
        pair = self.pair()
        self.served(pair, pair.send("cmpl-one-0", [77]), [77])
        self.assertEqual(pair.meta.posts, ["cmpl-one-0"])

    def test_06_match_has_no_effect(self):
        pair = self.pair()
        pair.hold = True
        i = pair.send("cmpl-ask-0", prompt(30, 40))
        request = pair.d.scheduler.requests[i]
        self.assertEqual([pair.d.connector.get_num_new_matched_tokens(request, 16) for _ in range(3)], [(24, True)] * 3)
        self.assertEqual(pair.meta.posts, [])

    def test_06_no_blocks_at_first(self):
        """Allocation fails while others load; every request posts once, when it has its blocks."""
        pair = self.pair(d={"num_blocks": 10})
        prompts = {f"cmpl-tight{k}-0": prompt(31 + k, 5 * BLOCK) for k in range(4)}
        ids = {pair.send(name, tokens): tokens for name, tokens in prompts.items()}
        for i in ids:
            pair.until(lambda i=i: i in pair.done)
        self.assertEqual(sorted(pair.meta.posts), sorted(prompts))
        self.assertTrue(all(pair.done[i].reason == "length" for i in ids))
        self.at_rest(pair)


    def test_06_l12_both_hold_what_the_other_needs(self):
        """Seven blocks: one prompt takes four, the other three, and both need one more for their first token."""
        pair = self.pair(d={"num_blocks": 8})
        prompts = {f"cmpl-full{k}-0": prompt(41 + k, (4 - k) * BLOCK) for k in range(2)}
        ids = {pair.send(name, tokens, max_tokens=3): tokens for name, tokens in prompts.items()}
        for i in ids:
            pair.until(lambda i=i: i in pair.done)
        self.assertTrue(all(pair.done[i].reason == "length" for i in ids))
        self.at_rest(pair)


class Identity(Law):
    def test_08_external_ids(self):
        for internal, external in (
            ("cmpl-abc-0-0123abcd", "cmpl-abc-0"),
            ("chatcmpl-abc-deadbeef", "chatcmpl-abc"),
            ("1_cmpl-abc-0-0123abcd", "1_cmpl-abc-0"),
            ("plain", "plain"),
            ("x-0123ABCD", "x-0123ABCD"),
            ("x-0123abc", "x-0123abc"),
            ("-0123abcd", "-0123abcd"),
        ):
            self.assertEqual(core.external_id(internal), external)

    def test_08_ids_without_a_random_part_are_refused(self):
        with mock.patch.dict(os.environ, VLLM_DISABLE_REQUEST_ID_RANDOMIZATION="1"), self.assertRaises(ValueError) as caught:
            rd2h_vllm.SfaRemoteD2HConnector(engine.config(), KVConnectorRole.SCHEDULER, engine.cache_config())
        self.assertIn("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", str(caught.exception))

    def test_08_siblings_share_their_parameters(self):
        """n > 1 in one process: the same dict object for all."""
        pair, tokens, params = self.pair(), prompt(40, 40), None
        params = pair.params()
        for k in range(2):
            pair.meta.register(f"{k}_cmpl-n", engine.Plan(tokens))
            pair.d.add(f"{k}_cmpl-n-feedface", tokens, params)
        self.served(pair, "0_cmpl-n-feedface", tokens)
        self.assertEqual(pair.done["1_cmpl-n-feedface"].reason, "length")
        self.assertEqual(sorted(pair.meta.posts), ["0_cmpl-n", "1_cmpl-n"])
        self.assertEqual(params, pair.params(), "the shared dict is as it was")

    def test_08_a_second_live_request_of_one_external_id_fails(self):
        pair, tokens = self.pair(), prompt(41, 40)
        pair.hold = True
        first = pair.send("cmpl-same-0", tokens)
        pair.until(lambda: pair.meta.posts)
        pair.d.add("cmpl-same-0-ffffffff", tokens, pair.params())
        pair.until(lambda: "cmpl-same-0-ffffffff" in pair.done)
        self.assertEqual(pair.done["cmpl-same-0-ffffffff"].reason, "error")
        pair.hold = False
        self.served(pair, first, tokens)

    def test_09_ghosts(self):
        """A rejected request comes once more, aborted before it begins: it must not post, crash or be cut short."""
        pair = self.pair()
        pair.d.add("0123456789abcdef", [0], pair.params(), abort_immediately=True)
        pair.d.abort("0123456789abcdef")
        for _ in range(5):
            pair.turn()
        self.assertEqual((pair.meta.posts, len(pair.d.scheduler.requests)), ([], 0))
        self.assertEqual(core.external_id("0123456789abcdef"), "0123456789abcdef")
        tokens = prompt(42, 40)
        self.served(pair, pair.send("cmpl-next-0", tokens), tokens)


class Form(Law):
    def test_10_constructor_and_metadata(self):
        self.assertTrue(supports_kw(rd2h_vllm.SfaRemoteD2HConnector, "kv_cache_config"))
        worker = rd2h_vllm.SfaRemoteD2HConnector(engine.config(), KVConnectorRole.WORKER, engine.cache_config())
        self.assertFalse(worker.has_connector_metadata())
        worker.bind_connector_metadata(rd2h_vllm.StepMetadata(b""))
        self.assertTrue(worker.has_connector_metadata(), "else vLLM never calls save_kv_layer")
        worker.clear_connector_metadata()
        self.assertFalse(worker.has_connector_metadata())

    def test_11_no_hook_raises(self):
        """An exception in a hook would end the engine: every one answers something harmless."""
        broken = mock.Mock()
        for name in (
            "matched",
            "alloc",
            "step",
            "update",
            "finished",
            "gate",
            "wait_send",
            "layer",
            "preempted",
            "results",
            "stats",
        ):
            getattr(broken, name).side_effect = RuntimeError("broken")
        type(broken).pending_frees = mock.PropertyMock(side_effect=RuntimeError("broken"))
        broken.raises = False
        c = rd2h_vllm.SfaRemoteD2HConnector(engine.config(), KVConnectorRole.SCHEDULER, engine.cache_config())
        c._half, c._rank = broken, broken
        blocks, meta = mock.Mock(), rd2h_vllm.StepMetadata(b"")
        self.assertEqual(c.get_num_new_matched_tokens(mock.Mock(), 0), (0, False))
        self.assertIsNone(c.update_state_after_alloc(mock.Mock(), blocks, 5))
        self.assertEqual(c.build_connector_meta(mock.Mock()), meta)
        self.assertIsNone(c.update_connector_output(mock.Mock()))
        self.assertEqual(c.request_finished(mock.Mock(), [1]), (False, None))
        self.assertFalse(c.has_pending_block_frees())
        for hook in (
            c.bind_connector_metadata,
            c.handle_preemptions,
            c.wait_for_layer_load,
            c.wait_for_layer_send,
            c.on_kv_cache_written,
        ):
            self.assertIsNone(hook(meta))
        self.assertIsNone(c.save_kv_layer("model.layers.0.self_attn.attn", None, None))
        self.assertFalse(c.get_transfer_results(set()).finished_recving)
        self.assertIsNone(c.get_kv_connector_stats())

    def test_11_on_read_failure_raise_ends_the_engine(self):
        p = self.engine(
            "kv_producer", tokens=16, extra={"on_read_failure": "raise", "handshake_ms": 200, "hold_ms": 300, "liveness_ms": 300}
        )
        p.add("cmpl-raise-0-0123abcd", prompt(50, 200), self.nobody())
        with self.assertRaises(Rd2hError) as caught:
            for _ in range(2000):
                p.add(f"more-{_}-0123abcd", prompt(_, 5), self.nobody()) if not p.scheduler.running else None
                p.step()
        self.assertNotIn("\n", str(caught.exception))

    def test_11_isolate_goes_on(self):
        p = self.engine("kv_producer", tokens=16, extra={"handshake_ms": 200, "hold_ms": 300, "liveness_ms": 300})
        p.add("cmpl-iso-0-0123abcd", prompt(51, 200), self.nobody())
        for _ in range(4000):
            if not p.scheduler.requests:
                break
            p.step()
        self.assertEqual(p.reports[0], {"cmpl-iso-0-0123abcd": 1})


if __name__ == "__main__":
    unittest.main()
