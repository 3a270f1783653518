#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs recordings of a reference peer into the fixtures of the layout and plan tests.

usage: make_fixtures_plan.py INPUT [OUTPUT]

INPUT holds descriptors.json and scheduler.json. OUTPUT (default: tests/golden) receives
  plan_descriptors.json  one case a line: layouts of both sides, requests, descriptors or failure
  plan_ranges.txt        n rank ranks start begin end
  plan_members.txt       p_size d_size p_rank d_rank ratio member, the last three - where the reference refuses
  layout_tables.json     KV groups and storage slots
"""
import json
import sys
from pathlib import Path


def tensors(layer):
    """Decode's tensors as [base, row bytes, rows a block]: K, V, indexer, scale."""
    rows = [[layer["k_base"], layer["k_len"], 1], [layer["v_base"], layer["v_len"], 1]]
    for name in ("indexer", "scale"):
        t = layer[name]
        rows.append(t and [t["base"], t["row_len"], t["scale_factor"]])
    return rows


def peer(meta):
    """Prefill's layer as [addresses, lengths, scales, main count, has indexer], defaults of the protocol filled in."""
    addrs = meta["base_addrs"]
    main = meta.get("main_tensor_count", 2)
    return [addrs, meta["block_len"], meta.get("block_size_scale", [1] * len(addrs)), main,
            meta.get("has_indexer", len(addrs) > main)]


def descriptor_case(c):
    keys = ("main_start", "indexer_start", "p_main", "p_indexer", "d_main", "d_indexer")
    return {"tag": c["tag"], "share": [c["tp_rank"], c["tp_size"], c["member"], c["ratio"]], "blocks": c["num_blocks"],
            "src": peer(c["p_meta"]), "dst": tensors(c["d_layer"]), "reqs": [[r[k] for k in keys] for r in c["reqs"]],
            "fails": c["error"] is not None, "desc": c["desc"]}


def member_row(row):
    served = [row[k] for k in ("d_rank", "ratio", "member")] if "error" not in row else ["-"] * 3
    return [row["p_tp"], row["d_tp"], row["p_rank"], *served]


def slot_case(c):
    layers = [[l["name"], l["base_addrs"], l.get("main_tensor_count", 2),
               l.get("has_indexer", len(l["base_addrs"]) > l.get("main_tensor_count", 2))] for l in c["layers"]]
    return {"tag": c["tag"], "layers": layers, "slots": c["slots"]}


def one_a_line(items):
    return "[\n" + ",\n".join(json.dumps(i, separators=(",", ":")) for i in items) + "\n]"


def table(rows):
    return "".join(" ".join(map(str, row)) + "\n" for row in rows)


def main():
    source = Path(sys.argv[1])
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).resolve().parent.parent / "tests/golden"
    target.mkdir(parents=True, exist_ok=True)
    cases = json.loads((source / "descriptors.json").read_text())["cases"]
    tables = json.loads((source / "scheduler.json").read_text())
    groups = [[c["groups"], c.get("ids")] for c in tables["group_ids"]]
    slots = [slot_case(c) for c in tables["storage_slots"]]
    (target / "plan_descriptors.json").write_text(one_a_line(descriptor_case(c) for c in cases) + "\n")
    (target / "plan_ranges.txt").write_text(table(tables["tp_block_range"]["rows"]))
    (target / "plan_members.txt").write_text(table(member_row(r) for r in tables["rank_port"]))
    (target / "layout_tables.json").write_text(
        '{"groups":' + one_a_line(groups) + ',\n"slots":' + one_a_line(slots) + "}\n")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main()
