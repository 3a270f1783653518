#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Condenses recordings of the reference connector's control traffic into tests/golden/wire.json.

  make_fixtures_wire.py RECORDINGS.json > tests/golden/wire.json

Needs msgspec, which is independent of the codec under test. An item is one distinct payload: where it was recorded, whether a
receiver accepts it ("ok"), what it says ("value"), and whether our encoder must write the same bytes ("exact"). A payload is
accepted where the reference accepted it, but for the reasons in stricter()."""
import json
import sys

import msgspec

MAX_ID = 2**31 - 1


def decode(payload):
    """The payload as Python values (bytes for bin), None when it is no message: an array that starts with a bin tag."""
    try:
        msg = msgspec.msgpack.decode(payload)
        if isinstance(msg, list) and msg and isinstance(msg[0], bytes):
            if msg[0] == b"mf_meta" and len(msg) > 2 and isinstance(msg[2], bytes):
                msg[2] = msgspec.msgpack.decode(msg[2])
            return msg
    except msgspec.DecodeError:
        pass
    return None


def is_int(v):
    return isinstance(v, int) and not isinstance(v, bool)


def stricter(msg):
    """Why we refuse what the reference took (and then failed on, or guessed): None when we do not."""
    if msg[0] == b"mf_meta":
        if not isinstance(msg[2], dict):
            return "layers that are no map"
        if not all(isinstance(layer, dict) for layer in msg[2].values()):
            return "a layer that is no map"
    if msg[0] == b"read_ready_batch":
        if not is_int(msg[1]):
            return "a layer index that is no integer"
        if not isinstance(msg[2], str):
            return "a layer name that is no string"
        for req in msg[3]:
            if not isinstance(req[0], str):
                return "a request id that is no string"
            if not all(is_int(i) for ids in req[1:3] for i in ids):
                return "block ids that are no integers"
            if not all(is_int(start) for start in req[3:5]):
                return "a start that is no integer"
        if len(msg) > 4 and not isinstance(msg[4], list):
            return "done ids that are no list"
        if len(msg) > 5 and msg[5] < 0:
            return "a negative group member"
    return None


def requests(msg):
    """read_reqs in the five-field form, each with why it cannot be used (as rd2h_wire_req.bad)."""
    rows = []
    for req in msg[3]:
        ext_id, main = req[0], req[1]
        indexer = req[2] if len(req) > 2 else main
        starts = (list(req[3:5]) + [0, 0])[:2]
        bad = 1 if any(not 0 <= i <= MAX_ID for i in main + indexer) else 0
        if any(not 0 <= s <= MAX_ID for s in starts):
            bad = 2
        rows.append([ext_id, main, indexer, *starts, bad])
    return rows


def layer_value(layer):
    addrs = layer.get("base_addrs", [])
    main_count = layer.get("main_tensor_count", 2)
    return {"base_addrs": addrs, "block_len": layer.get("block_len", []),
            "block_size_scale": layer.get("block_size_scale", [1] * len(addrs)),
            "tensor_group_idx": layer.get("tensor_group_idx", []), "main_tensor_count": main_count,
            "has_indexer": layer.get("has_indexer", len(addrs) > main_count)}


def describe(msg):
    """(value, the bytes that our encoder is to write for it)"""
    encode = msgspec.msgpack.encode
    if msg[0] == b"mf_meta":
        layers = {name: layer_value(layer) for name, layer in msg[2].items()}
        return {"session": msg[1], "layers": layers, "stage": msg[3:]}, encode([msg[0], msg[1], encode(layers), *msg[3:]])
    if msg[0] == b"read_ready_batch":
        done = msg[4] if len(msg) > 4 else []
        member = msg[5] if len(msg) > 5 else 0
        ratio = max(msg[6] if len(msg) > 6 else 1, 1)
        reqs = requests(msg)
        value = {"layer_idx": msg[1], "layer": msg[2], "done": done, "member": member, "ratio": ratio,
                 "reqs": [[r[0], *([[], [], 0, 0] if r[5] else r[1:5]), r[5]] for r in reqs]}
        return value, encode([msg[0], msg[1], msg[2], [r[:5] for r in reqs], done, member, ratio])
    if msg[0] == b"read_failed":
        text = msg[2] if len(msg) > 2 and isinstance(msg[2], str) else ""
        return {"layer_idx": msg[1], "text": text}, encode([msg[0], msg[1], text])
    if msg[0] == b"read_done":
        return {"layer_idx": msg[1]}, encode([msg[0], msg[1]])
    return {}, encode(msg[:2])


def item(payload, to_decode, accepted):
    if payload == b"ACK":
        return {"kind": "ACK", "ok": True, "exact": True, "value": {}}
    msg = decode(payload)
    reason = stricter(msg) if msg and accepted else None
    out = {"ok": bool(accepted and not reason)}
    if reason:
        out["stricter"] = reason
    if out["ok"]:
        out["kind"] = msg[0].decode()
        out["value"], written = describe(msg)
        out["exact"] = written == payload
    elif to_decode and msg and msg[0] == b"read_ready_batch" and len(msg) > 1 and is_int(msg[1]):
        out["layer_idx"] = msg[1]  # whom the refusal can be told
    return out


def reply_accepted(payload):
    msg = decode(payload)
    known = bool(msg) and msg[0] in (b"read_done", b"read_failed", b"mf_meta_ack")
    return payload == b"ACK" or (known and len(msg) > 1 and is_int(msg[1]))


def payloads(recording):
    """(payload, goes to Decode, accepted) of every message with exactly one frame that is not empty."""
    rows = []
    for wire in recording.get("wire", []):
        rows += [(frames, True, True) for frames in wire["p_to_d"]["messages"]]
        rows += [(frames, False, None) for frames in wire["d_to_p"]["messages"]]
    for step in recording.get("steps", []):
        said = " ".join(e["msg"] for e in step["decode_events"] or [] if e["ev"] == "log")
        rows.append((step["send"], True, "exception" not in said and "unexpected message" not in said))
        rows += [(frames, False, None) for frames in step["replies"]]
    rows += [(frames, True, True) for frames in recording.get("received", [])]
    rows += [(frames, False, None) for replies in recording.get("replies", []) for frames in replies]
    for frames, to_decode, accepted in rows:
        filled = [bytes.fromhex(f) for f in frames if isinstance(f, str) and f]
        if len(filled) == 1:
            yield filled[0], to_decode, reply_accepted(filled[0]) if accepted is None else accepted


def main():
    with open(sys.argv[1]) as f:
        recordings = json.load(f)["vectors"]
    items = {}
    for recording in recordings:
        for payload, to_decode, accepted in payloads(recording):
            key = (payload, to_decode)
            if key not in items:
                items[key] = {"to": "decode" if to_decode else "prefill", "hex": payload.hex(), "in": [],
                              **item(payload, to_decode, accepted)}
            if recording["name"] not in items[key]["in"]:
                items[key]["in"].append(recording["name"])
    rows = ",\n".join(json.dumps(i, separators=(",", ":")) for i in items.values())
    print('{"recordings":%d,"items":[\n%s\n]}' % (len(recordings), rows))


main()
