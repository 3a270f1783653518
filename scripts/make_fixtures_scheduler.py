#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs recordings of a reference scheduler into the fixture of the scheduler tests.

usage: make_fixtures_scheduler.py INPUT [OUTPUT]

INPUT holds scheduler.json. OUTPUT (default: tests/golden) receives scheduler.json, one case a line:
  prefill       steps of allocations, scheduled chunks and ends -> every layer's message, and who is still tracked
  rendezvous    what Decode was asked and configured to -> matched tokens, URL and body, destinations
  external_ids  [internal, external]
"""
import json
import sys
from pathlib import Path


def chunk(req_id, step):
    """[id, tokens computed before, scheduled, speculative, new blocks or null]"""
    cached = {c["id"]: c for c in step.get("cached", [])}
    new = {n["id"]: n for n in step.get("new", [])}
    source = cached.get(req_id) or new[req_id]
    return [req_id, source["computed"], step["scheduled"][req_id], step.get("spec", {}).get(req_id, 0),
            source.get("new_blocks")]


def send(s):
    """[layer, requests, done ids], or [layer, null, error] where the reference could not send."""
    return [s["layer_idx"], None, s["error"]] if "error" in s else [s["layer_idx"], s["reqs"], s["done"]]


def step(s):
    alloc = [[a["id"], a["num_tokens"], a["block_ids"], a["params"]] for a in s.get("alloc", [])]
    return {"alloc": alloc, "add": [chunk(r, s) for r in s["scheduled"]], "sends": [send(x) for x in s["sends"]],
            "finish": s.get("finish", []), "tracked": s["tracked_after"]}


def prefill_case(c):
    return {"tag": c["tag"], "block_sizes": c["block_sizes"], "groups": [c["main_group"], c["indexer_group"]],
            "indexer": c["layer_has_indexer"], "steps": [step(s) for s in c["steps"]]}


def rendezvous_case(c):
    meta = c["consumer_meta"][0]
    return {"host": c["host"], "kv_port": c["kv_port"], "dp_rank": c["dp_rank"], "tp_size": c["tp_size"], "id": c["request_id"],
            "prompt": c["prompt_tokens"], "computed": c["num_computed_tokens"], "extra": c["params_extra"],
            "matched": c["matched_tokens"][0], "url": c["url"], "body": c["http_body"], "main": meta["main"],
            "indexer": meta["indexer"]}


def one_a_line(items):
    return "[\n" + ",\n".join(json.dumps(i, separators=(",", ":")) for i in items) + "\n]"


def main():
    source = json.loads((Path(sys.argv[1]) / "scheduler.json").read_text())
    out = Path(sys.argv[2] if len(sys.argv) > 2 else "tests/golden") / "scheduler.json"
    tables = {"prefill": [prefill_case(c) for c in source["prefill"]],
              "rendezvous": [rendezvous_case(c) for c in source["rendezvous"]], "external_ids": source["external_ids"]}
    out.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {one_a_line(v)}" for k, v in tables.items()) + "\n}\n")


if __name__ == "__main__":
    main()
