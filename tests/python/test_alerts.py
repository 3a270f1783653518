# SPDX-License-Identifier: Apache-2.0
"""The alerting rules in docs/alerts.yml: their form, and every metric of Prefill and Decode that they name. Those of the proxy, and all
pages as servers have them: tests/e2e/http_proxy.py."""

from __future__ import annotations

import re
import unittest

import alerts
from prometheus_client import generate_latest
from test_peers import Page, rows


def pages() -> dict[str, dict[str, set[str]]]:
    """Both roles' pages, with a row in every gauge of rows."""
    found: dict[str, dict[str, set[str]]] = {}
    for role, key in (("kv_consumer", "decode_ranks"), ("kv_producer", "prefill_ranks")):
        one = Page(role)
        one.observe({key: {"0": rows({"tcp|": 1, "local|shared mapping": 1}, {"none yet": [9.0, 1]}, 1)}})
        found |= alerts.page(generate_latest(one.registry).decode())
    for labels in found.values():
        labels["model_name"] = {"a model"}  # vLLM's own label, which these pages do without
    return found


class Alerts(unittest.TestCase):
    def test_form(self) -> None:
        rules = alerts.load()
        self.assertEqual(len({r.name for r in rules}), len(rules))
        self.assertGreater(len(rules), 15)
        for rule in rules:
            with self.subTest(rule.name):
                self.assertRegex(rule.name, r"^Rd2h([A-Z][a-z]+)+$")
                self.assertIn(rule.severity, ("page", "ticket"))
                self.assertEqual(rule.texts.keys(), {"summary", "action"})
                grouped = alerts.uses(rule.expr)[1]
                for text in rule.texts.values():
                    self.assertRegex(text, r"^[^\n]{40,}[.]$")
                    named = set(re.findall(r"\$labels\.(\w+)", text))
                    self.assertLessEqual(named, (grouped | {"instance"}) if grouped else {"instance", "role", "engine"})

    def test_Z_every_metric_is_on_a_page(self) -> None:
        rules = alerts.load()
        known = pages()
        self.assertEqual(alerts.complaints(rules, known, "vllm:rd2h_"), [])
        prefixes = {u.metric.split("_")[0] + "_" for r in rules for u in alerts.uses(r.expr)[0]}
        self.assertEqual(prefixes, {"vllm:rd2h_", "rd2h_"}, "only metrics that are compared with pages")
        self.assertEqual({m for m in alerts.mentioned(rules) if m.startswith("vllm:rd2h_")} - known.keys(), set())

    def test_what_would_be_found(self) -> None:
        known = pages()
        for expr, complaint in (
            ("rate(vllm:rd2h_decode_byte_total[5m]) > 0", "no page has vllm:rd2h_decode_byte_total"),
            ("max by (pear) (vllm:rd2h_decode_peer_wait_seconds) > 1", "no label pear"),
            ('vllm:rd2h_decode_transport_peers{engine="0",way="x"} > 1', "no label way"),
        ):
            (said,) = alerts.complaints([alerts.Rule("Rd2hX", expr, "page", {})], known, "vllm:rd2h_")
            self.assertIn(complaint, said)
        with self.assertRaises(ValueError):
            alerts.uses("vllm:rd2h_decode_transport_peers{backend=tcp} > 0")

    def test_they_are_explained(self) -> None:
        """docs/operations.md has a row for every rule, and none for others."""
        table = (alerts.ROOT / "docs/operations.md").read_text()
        self.assertEqual(set(re.findall(r"\bRd2h[A-Z]\w+", table)), {r.name for r in alerts.load()})


if __name__ == "__main__":
    unittest.main()
