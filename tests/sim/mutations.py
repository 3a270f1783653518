#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the rules of failure one by one and shows that the simulation notices: mutations.py [--build DIR] [--seeds N] [NAME...].

A mutation of the library is an edit of one source file, compiled into a simulator of its own beside the library's archive; one
of what surrounds the state machines (gate, sockets, blocks) is built into the simulator and chosen with --mutate. Each must be
caught within N seeds (10000). Reports as TAP; the table goes to BUILD/mutations.json.
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 10_000


@dataclass(frozen=True)
class Mutation:
    """what: the rule that is broken. glue: its name in the simulator; else an edit of `file`: (text, what takes its place)."""

    name: str
    what: str
    glue: str = ""
    file: str = ""
    edits: tuple[tuple[str, str], ...] = ()


PM_ENTRY, PM_EP, PM_REQUEST = (f"src/protocol/pm_{n}.c" for n in ("entry", "endpoint", "request"))
DM_BATCH, DM_REQUEST, DM_PEER = (f"src/protocol/dm_{n}.c" for n in ("batch", "request", "peer"))

MUTATIONS = (
    Mutation("done-expirable", "Prefill: done is sent while batches can still be given up", file=PM_REQUEST,
             edits=(("|| k->outstanding || k->done_queued", "|| k->done_queued"),)),
    Mutation("done-after-giving-up", "Prefill: a batch that was given up counts as answered", file=PM_ENTRY,
             edits=(("settle_batch(m, x, RD2H_TIMEOUT, NULL,", "settle_batch(m, x, RD2H_OK, NULL,"),)),
    Mutation("gate-at-send", "Prefill: the gate closes when the message is sent", glue="GATE_AT_SEND"),
    Mutation("gate-boolean", "Prefill: the gate is a boolean", glue="GATE_BOOLEAN"),
    Mutation("pop-any", "Prefill: an answer settles the oldest batch, whatever layer it names", file=PM_EP,
             edits=(("bool numbered = e->ours && (e->caps & RD2H_CAP_SEQ);", "bool numbered = false;"),
                    ("i == RD2H_INDEX_NONE || pm_entry(m, i)->layer != r->layer_idx", "i == RD2H_INDEX_NONE"))),
    Mutation("queue-survives", "Prefill: what was not answered is kept over a reconnection", glue="QUEUE_SURVIVES"),
    Mutation("no-meta-again", "Prefill: no metadata after a reconnection", glue="NO_META_AGAIN"),
    Mutation("one-ratio", "Prefill: one ratio for all endpoints", glue="ONE_RATIO"),
    Mutation("modulo", "Prefill: ranks are matched by modulo instead of floor", glue="MODULO"),
    Mutation("reply-early", "Decode: the answer goes out before the read is over", glue="REPLY_EARLY"),
    Mutation("free-under-read", "Decode: blocks of an ended request are free while its reads run", glue="FREE_EARLY"),
    Mutation("report-twice", "Decode: a request is reported twice", glue="REPORT_TWICE"),
    Mutation("fail-after-done", "Decode: a failure is reported a step after success", glue="FAIL_AFTER_DONE"),
    Mutation("done-clears-failed", "Decode: done makes a failed request good again", glue="DONE_CLEARS_FAILED"),
    Mutation("coverage-dropped", "Decode: success does not ask whether every layer is complete", file=DM_REQUEST,
             edits=(("    if (!covered) return i;\n", ""),)),
    Mutation("counted-twice", "Decode: a contributor that says done twice counts twice", file=DM_REQUEST,
             edits=(("  if (s->done) return;\n  s->done = true;\n  dm_peer(m, peer)->n_bound--;",
                     "  if (!s->done) dm_peer(m, peer)->n_bound--;\n  s->done = true;"),)),
    Mutation("nonce-ignored", "Decode: attempt nonces are not compared", file=DM_REQUEST,
             edits=(("if (r->ended || (w->has_attempt && memcmp(w->attempt, r->attempt, RD2H_ATTEMPT))) return RD2H_SKIPPED;",
                     "if (r->ended) return RD2H_SKIPPED;"),)),
    Mutation("no-tombstone", "Decode: an ended id is forgotten at once", file=DM_REQUEST,
             edits=(("bool dm_tomb_match(const rd2h_dm *m, const struct rd2h_wire_req *w) {\n",
                     "bool dm_tomb_match(const rd2h_dm *m, const struct rd2h_wire_req *w) {\n  if (m) return false;\n"),)),
    Mutation("park-forever", "Decode: a message without destinations has no deadline", file=DM_BATCH,
             edits=(("  if (now < dm_batch(m, i)->wait_until) return;\n", "  if (m) return;\n"),)),
    Mutation("failed-under-read", "Decode: a peer that the engine lost is answered while its reads run", file=DM_PEER,
             edits=(("    const struct dm_batch *x = dm_batch(m, b);\n    bool first",
                     "    struct dm_batch *x = dm_batch(m, b);\n    bool first"),
                    ("    if (x->reading || x->complete || x->plan_queued) continue;\n    dm_batch_fail",
                     "    if (x->complete || x->plan_queued) continue;\n    x->reading = false;\n    dm_batch_fail"))),
    Mutation("suspect-entered", "Decode: threads of a blocking engine enter a suspect session", glue="SUSPECT_ENTERED"),
)  # fmt: skip


class Builder:
    """Compiles one file again and links the simulator with it, by the commands of the build folder."""

    def __init__(self, build: Path) -> None:
        self.build = build
        self._commands = {}
        for c in json.loads((build / "compile_commands.json").read_text()):
            self._commands.setdefault((build / c["file"]).resolve(), c["command"])
        lines = subprocess.run(["ninja", "-C", str(build), "-t", "commands", "tests/sim/sim"], capture_output=True, text=True,
                               check=True).stdout.splitlines()  # fmt: skip
        self._link = next(line for line in reversed(lines) if " -o tests/sim/sim " in line)

    def program(self, mutation: Mutation) -> Path:
        source, folder = ROOT / mutation.file, self.build / "mutations" / mutation.name
        text = source.read_text()
        for old, new in mutation.edits:
            if text.count(old) != 1:
                raise ValueError(f"{mutation.file}: the text to break is there {text.count(old)} times, not once: {old.strip()}")
            text = text.replace(old, new)
        folder.mkdir(parents=True, exist_ok=True)
        copy, made = folder / source.name, folder / "sim"
        copy.write_text(text)
        words = [w for w in shlex.split(self._commands[source]) if not re.match(r"-Werror|-M[DQF]?$|.*\.d$", w)]
        out = words.index("-o")
        words[out + 1] = str(copy.with_suffix(".o"))
        words = [w for i, w in enumerate(words) if not (w.endswith(".o") and i != out + 1)]
        words[-1] = str(copy)
        self._run([*words, "-w", "-iquote", str(source.parent)])
        self._run(shlex.split(self._link.replace(" -o tests/sim/sim ", f" -o {made} {copy.with_suffix('.o')} ")))
        return made

    def _run(self, words: list[str]) -> None:
        done = subprocess.run(words, cwd=self.build, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stderr or done.stdout)


def catch(builder: Builder, mutation: Mutation, seeds: int) -> dict:
    row = {"name": mutation.name, "what": mutation.what, "where": mutation.file or "around the machines", "seed": None, "rule": None}
    try:
        program = builder.build / "tests/sim/sim" if mutation.glue else builder.program(mutation)
    except ValueError as e:
        return {**row, "error": str(e)}
    options = ["--mutate", mutation.glue] if mutation.glue else []
    done = subprocess.run([program, "--seeds", str(seeds), "--jobs", "1", *options], capture_output=True, text=True)
    caught = re.search(r"^# seed (\d+) broke (\S+) at [\d.]+ s: (.*)$", done.stdout, re.M)
    if caught and done.returncode == 1:
        row |= {"seed": int(caught[1]), "rule": caught[2], "how": caught[3]}
    else:
        row |= {"error": f"not caught by {seeds} seeds" if done.returncode == 0 else f"ended with {done.returncode}\n{done.stdout}"}
    return row


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("names", nargs="*", metavar="NAME", help="mutations; none: all")
    ask.add_argument("--build", type=Path, default=ROOT / "build")
    ask.add_argument("--seeds", type=int, default=SEEDS)
    a = ask.parse_args()
    os.environ["PATH"] = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    wanted = [m for m in MUTATIONS if not a.names or m.name in a.names]
    if not wanted:
        ask.error(f"they are: {' '.join(m.name for m in MUTATIONS)}")
    builder = Builder(a.build.resolve())
    print(f"1..{len(wanted)}", flush=True)
    rows = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for n, row in enumerate(pool.map(lambda m: catch(builder, m, a.seeds), wanted), 1):
            rows.append(row)
            print(f"{'ok' if row['rule'] else 'not ok'} {n} - {row['what']}", flush=True)
            print(f"# seed {row['seed']}, {row['rule']}: {row['how']}" if row["rule"] else f"# {row['error']}", flush=True)
    if not a.names:
        (a.build / "mutations.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["rule"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
