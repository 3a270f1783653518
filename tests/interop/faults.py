# SPDX-License-Identifier: Apache-2.0
"""What goes wrong between our ranks and the reference's: only what is concerned fails, and nobody is left waiting."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from memory import Model, Oracle, Request, layer_name, make_requests
from raw import RawDecode, RawPrefill, garbage, legacy_meta
from rd2h import core
from served import BF16, LIC8, PLAIN
from sides import PULL, Area, OurDecode, OurPrefill, Reference, TheirDecode, TheirPrefill

QUICK_S = 12  # what an answer may take that no deadline of ours delays, on a busy machine
TWO_CHUNKS = [(64, 0, 32)]


class Stage:
    """One scenario's memory and objects, closed in the reverse order of their making."""

    def __init__(self, reference: Reference, folder: Path, layers=(LIC8,) * 2, p=1, d=1, pp=1) -> None:
        folder.mkdir()
        self.reference, self.folder, self.n, self.keep = reference, folder, 0, ExitStack()
        self.shape = (Model(tuple(layers)), p, pp, d)
        self.area = self.new_area()

    def new_area(self, layers=None, **change) -> Area:
        self.n += 1
        model, p, pp, d = self.shape
        return Area(self.folder / str(self.n), Model(tuple(layers)) if layers else model, change.get("p", p), change.get("pp", pp),
                    change.get("d", d))

    def owned(self, x):
        return self.keep.enter_context(closing(x))

    def our_decode(self, area: Area | None = None, **options) -> OurDecode:
        return self.owned(OurDecode(area or self.area, **options))

    def their_decode(self, area: Area | None = None, **options) -> TheirDecode:
        return self.owned(TheirDecode(area or self.area, self.reference, **options))

    def our_prefill(self, decode, area: Area | None = None, **options) -> OurPrefill:
        return self.owned(OurPrefill(area or self.area, decode, **options))

    def their_prefill(self, decode, area: Area | None = None, **options) -> TheirPrefill:
        return self.owned(TheirPrefill(area or self.area, decode, self.reference, **options))

    def compare(self, requests: list[Request], area: Area | None = None) -> None:
        """All of these requests are there, and nothing else."""
        area = area or self.area
        oracle = Oracle(area.model, area.p, area.d)
        for r in requests:
            for chunk in r.chunks:
                oracle.expect(r, chunk)
        oracle.compare(area.pool, area.own)

    def close(self) -> None:
        self.keep.close()


def whole(p, d, requests: list[Request], step: int = 0) -> None:
    """These requests from their step on, to the end, on both sides."""
    for n in range(step, max(len(r.steps) for r in requests)):
        p.step(requests, n)
    p.settle(requests)
    d.settle(requests)


def all_named(texts: list[str], *words: str) -> None:
    assert texts and all(w in t for t in texts for w in words), f"{texts} do not name {' and '.join(words)}"


def within(seconds: float, start: float, what: str) -> None:
    took = time.monotonic() - start
    assert took < seconds, f"{what} took {took:.1f} s"


def status(outcome: core.Outcome) -> str:
    return core.status_name(outcome.status)


def refuses(p, d, requests: list[Request], *words: str, **change) -> str:
    """Our Decode does not serve what their Prefill's first step asks for: its forward is told, and the requests end."""
    d.install(requests)
    start = time.monotonic()
    p.start(requests, 0, **change)
    errors = p.answers()
    within(QUICK_S, start, "the refusal")
    all_named(errors, *words)
    assert d.ends(requests)[0][0].status, "the request of a refused connection succeeded"
    return errors[0]


def unserved(p, requests: list[Request], step: int = 0) -> str:
    """What requests of our Prefill end with whose last step their Decode cannot serve, soon."""
    start = time.monotonic()
    p.step(requests, step)
    p.finish(requests)
    ended = p.ends()
    within(QUICK_S, start, "the end")
    assert all(o.status for o in ended), f"{ended}"
    return " ".join(sorted({status(o) for o in ended}))


def untouched(area: Area) -> None:
    Oracle(area.model, 1, 1).compare(area.pool, area.own)


# ---- our Decode, the reference's Prefill ----
MISMATCHES = {  # layers of Prefill, layers of Decode, what its forward must be told
    "Y01 a scale on Prefill only": (LIC8, BF16, ("indexer scale is present on Prefill, absent on Decode",)),
    "Y01 a scale on Decode only": (BF16, LIC8, ("indexer scale is absent on Prefill, present on Decode",)),
    "Y01 a scale of twice the length": ((4096, 512, 1024, 32), LIC8, ("indexer scale", "32 x 1 bytes", "16 x 1")),
    "an indexer on one side only": (PLAIN, BF16, ("indexer is absent on Prefill, present on Decode",)),
    "Y02 blocks of half the bytes": ((2048, 512, 1024, 16), LIC8, ("a block of K", "2048 x 1 bytes on Prefill", "4096 x 1 on Decode")),
}


def refused(x: Stage, theirs: tuple, ours: tuple, words: tuple[str, ...]) -> str:
    target, good = x.new_area([ours] * 2), x.new_area([theirs] * 2)
    source = x.new_area([theirs] * 2)
    d = x.our_decode(target, queue_ms=400)
    p = x.their_prefill(d, source)
    bad, fine = make_requests("bad", [(64, 0, 0)], 1), make_requests("fine", [(64, 0, 0)], 2)
    error = refuses(p, d, bad, layer_name(0), *words)
    untouched(target)
    p.decode = x.our_decode(good)  # the Prefill rank is alive and serves one that fits
    p.decode.install(fine)
    p.area = Area(x.folder / "fine", source.model, 1, 1, 1)
    p.area.source, p.area.pool, p.area.own = source.source, good.pool, good.own
    whole(p, p.decode, fine)
    x.compare(fine, p.area)
    return error


def fewer_layers(x: Stage) -> str:
    """Y05: a layer of Decode that Prefill does not have."""
    d = x.our_decode(x.new_area([LIC8] * 3), queue_ms=400)
    return refuses(x.their_prefill(d), d, make_requests("req", [(64, 0, 0)], 1), "all 3 layers of Decode", "names 2")


def more_layers(x: Stage) -> str:
    """Y05: a layer of Prefill that Decode does not have is left out, also when done comes with it."""
    target, source = x.new_area([LIC8] * 2), x.new_area([LIC8] * 3)
    d = x.our_decode(target)
    p = x.their_prefill(d, source)
    requests = make_requests("req", [(150, 0, 64), (40, 0, 0)], 1)
    d.install(requests)
    whole(p, d, requests)
    x.compare(requests, target)
    return f"{d.moved()} bytes"


def another_model(x: Stage) -> str:
    """So many layers more that this is no draft model beside the same one."""
    target, source = x.new_area([PLAIN] * 2), x.new_area([PLAIN] * 20)
    d = x.our_decode(target, queue_ms=400)
    requests = make_requests("req", [(16, 0, 0)], 1)
    return refuses(x.their_prefill(d, source), d, requests, "more than 16 of the layers", "same model")


def two_stages_unknown(x: Stage) -> str:
    """Version 0 cannot say that it is one of two stages: its half of the layers must not pass for all."""
    d = x.our_decode(queue_ms=400)
    return refuses(x.their_prefill(d), d, make_requests("req", [(64, 0, 0)], 1), "must name all 2 layers", "it names 1")


def reads_fail(x: Stage) -> str:
    """The source cannot be read: the request fails here, its Prefill is answered."""
    d = x.our_decode()
    p = x.their_prefill(d, shift=1 << 44)
    requests = make_requests("req", TWO_CHUNKS, 1)
    d.install(requests)
    start = time.monotonic()
    p.start(requests, 0)
    errors = p.answers()
    within(QUICK_S, start, "the answer")
    ended = d.ends(requests)[0][0]
    assert ended.status and errors, f"{ended}, Prefill was told {errors}"
    p.start(requests, 1)  # the rest of a request that has failed is skipped, and written nowhere
    assert not p.answers(), "a request that has ended is no failure of a later layer"
    untouched(x.area)
    return ended.text


def late_reads(x: Stage) -> str:
    """S08: after a failed read the blocks are computed here: whatever Prefill still sends is answered and written nowhere."""
    d = x.our_decode()
    bad = x.their_prefill(d, shift=1 << 44)
    good = x.their_prefill(d, area=x.area)
    requests = make_requests("req", [(64, 0, 32)], 1)
    d.install(requests)
    bad.start(requests, 0)
    bad.answers()
    assert d.ends(requests)[0][0].status
    for memory in (x.area.pool, *x.area.own):
        memory.map[:] = b"\x77" * len(memory.map)  # computed again
    for step in (0, 1):
        good.start(requests, step)
        assert not good.answers(), "what comes late must be answered as done, so that sources are free"
    assert all(set(memory.map[:]) == {0x77} for memory in (x.area.pool, *x.area.own)), "a late read was written"
    assert d.half.matched(requests[0].id, PULL, 64, 0) == 0, "the second lookup asks for a pull again"
    return f"{d.ranks[0].stats['skipped']} skipped"


def not_installed_yet(x: Stage) -> str:
    d = x.our_decode()
    p = x.their_prefill(d)
    requests = make_requests("req", [(80, 0, 0)], 1)
    p.start(requests, 0)
    deadline = time.monotonic() + QUICK_S
    while not d.ranks[0].stats["parked"] and time.monotonic() < deadline:
        time.sleep(0.01)
    d.install(requests)
    assert not p.answers()
    d.settle(requests)
    x.compare(requests)
    return f"{d.ranks[0].stats['parked']} parked"


def never_installed(x: Stage) -> str:
    """An id that nobody knows waits once, for a bounded time; its neighbour of the same message does not fail with it."""
    d = x.our_decode(park_ms=300)
    p = x.their_prefill(d)
    requests = make_requests("req", [(48, 0, 0), (48, 0, 0)], 1)
    d.install(requests[:1])
    start = time.monotonic()
    p.start(requests, 0)
    assert not p.answers()
    within(QUICK_S, start, "the answer")
    d.settle(requests[:1])
    x.compare(requests[:1])
    return f"{d.ranks[0].stats['skipped']} skipped"


def one_of_eight(x: Stage) -> str:
    """S06: the third of eight requests of a message has too few destinations."""
    d = x.our_decode()
    p = x.their_prefill(d)
    requests = make_requests("req", [(48, 0, 0)] * 8, 1)
    bad = requests[2]
    good = [r for r in requests if r is not bad]
    d.install([*good, replace(bad, tokens=32, target=tuple(t[:2] for t in bad.target))])
    p.start(requests, 0)
    assert not p.answers(), "seven of the message were served"
    ended = d.ends(requests)
    assert [bool(e[0].status) for e in ended] == [r is bad for r in requests], f"{ended}"
    x.compare(good)
    return ended[2][0].text


def other_groups_blocks(x: Stage) -> str:
    """Y11: indexer blocks of a request that fails have the numbers of another's main blocks: that one is not concerned."""
    d = x.our_decode()
    p = x.their_prefill(d)
    bad, good = make_requests("req", [(48, 0, 0), (32, 0, 0)], 1)
    bad.target, good.target = ([5, 6, 9], [1, 2, 7]), ([1, 2], [11, 12])
    d.install([replace(bad, tokens=32, target=([5, 6], [1, 2])), good])
    p.start([bad, good], 0)
    assert not p.answers()
    ended = d.ends([bad, good])
    assert ended[0][0].status and not ended[1][0].status, f"{ended}"
    x.compare([good])
    return ended[0][0].text


def aborted_between_chunks(x: Stage) -> str:
    """One request of a message was aborted on Decode: answered as skipped, its blocks stay as they were; the other one completes."""
    d = x.our_decode()
    p = x.their_prefill(d)
    gone, stays = requests = make_requests("req", [(64, 0, 32), (80, 0, 48)], 1)
    d.install(requests)
    p.step(requests, 0)
    d.abort(gone)
    assert status(d.ends([gone])[0][0]) == "ABORTED"
    p.step(requests, 1)
    d.settle([stays])
    gone.chunks.pop()
    x.compare(requests)
    return f"{d.ranks[0].stats['skipped']} skipped"


def decode_restarts(x: Stage) -> str:
    """The reference never sends its metadata again: our new Decode must answer it all the same."""
    d = x.our_decode()
    p = x.their_prefill(d)
    first, second, third = (make_requests(name, [(48, 0, 0)], n) for n, name in enumerate(("first", "second", "third")))
    d.install(first)
    whole(p, d, first)
    d.close()
    other = x.new_area()
    again = x.our_decode(other, base=d.base, queue_ms=2500)
    again.install(second)
    start = time.monotonic()
    p.start(second, 0)
    errors = p.answers()
    within(QUICK_S, start, "the answer of the new Decode")
    all_named(errors, "before this connection's metadata")
    assert again.ends(second)[0][0].status
    new = x.their_prefill(again, other)
    again.install(third)
    whole(new, again, third)
    x.compare(third, other)
    return errors[0]


def prefill_dies(x: Stage) -> str:
    """SIGKILL between two chunks: found out, reported; a second Prefill's request goes on, and a new process is served."""
    other, third = x.new_area(), x.new_area()
    d = x.our_decode(probe_ms=200)
    other.pool, other.own, third.pool, third.own = x.area.pool, x.area.own, x.area.pool, x.area.own
    p, q = x.their_prefill(d), x.their_prefill(d, other)
    dies, stays, later = requests = make_requests("req", [(64, 0, 32), (64, 0, 32), (48, 0, 0)], 1)
    d.install(requests)
    p.step([dies], 0)
    q.step([stays], 0)
    for rank in p.ranks.values():
        rank.kill()
    start = time.monotonic()
    ended = d.ends([dies])[0][0]
    within(QUICK_S, start, "the report")
    assert status(ended) == "PEER_LOST", f"{ended}"
    q.step([stays], 1)
    d.settle([stays])
    whole(x.their_prefill(d, third), d, [later])
    dies.chunks.pop()
    x.compare(requests)
    return ended.text


def ratios_differ(x: Stage) -> str:
    """Two contributors of one id name different ratios: the id fails, both are answered."""
    d = x.our_decode()
    p = x.their_prefill(d)
    requests = make_requests("req", [(64, 0, 32)], 1)
    d.install(requests)
    p.start(requests, 0)
    assert not p.answers()
    p.start(requests, 1, tp_ratio=2)
    p.answers()
    ended = d.ends(requests)[0][0]
    assert ended.status, f"{ended}"
    all_named([ended.text], "1", "2")
    return ended.text


def member_beyond(x: Stage) -> str:
    d = x.our_decode()
    requests = make_requests("req", [(64, 0, 0)], 1)
    error = refuses(x.their_prefill(d), d, requests, "contributor 2 of 2", tp_ratio=2, group_member_idx=2)
    untouched(x.area)
    return error


def stages_disagree(x: Stage) -> str:
    """A stage of two and a stage of three for one id."""
    d = x.our_decode()
    two, three = x.their_prefill(d), x.their_prefill(d, pp_size=3)
    requests = make_requests("req", [(64, 0, 0)], 1)
    d.install(requests)
    two.ranks.pop((1, 0)).close()
    three.ranks.pop((0, 0)).close()
    for p in (two, three):
        p.start(requests, 0)
        p.answers()
    ended = d.ends(requests)[0][0]
    assert ended.status, f"{ended}"
    return ended.text


def garbage_beside(x: Stage) -> str:
    """Somebody sends nonsense while the reference is served."""
    d = x.our_decode()
    p = x.their_prefill(d)
    requests = make_requests("req", [(150, 0, 37), (33, 0, 0)], 1)
    d.install(requests)
    with closing(RawPrefill(d.base)) as raw:
        for step in range(len(requests[0].steps)):
            for message in garbage():
                raw.send(message)
            p.step(requests, step)
        d.settle(requests)
        for _ in requests[0].steps:  # one of the messages tells its layer before it breaks off
            assert raw.reply()[:2] == (b"read_failed", 5)
    x.compare(requests)
    return f"{d.ranks[0].stats['malformed']} malformed"


def legacy_tuples(x: Stage) -> str:
    """Y08: shorter and longer messages, to our Decode and to the reference's: the same answers, the same bytes."""
    theirs = x.new_area()
    areas = {"ours": x.area, "theirs": theirs}
    decodes = {"ours": x.our_decode(), "theirs": x.their_decode(theirs)}
    theirs.source = x.area.source
    requests = make_requests("req", [(48, 0, 0)] * 6, 1)
    for r in requests:
        r.source = (r.source[0], r.source[0])  # where one list serves both parts
        r.target = (r.target[0], r.target[0])
    told = {}
    for name, d in decodes.items():
        d.install(requests)
        for layer in range(2):
            x.area.compute(0, 0, layer, requests, 0)
        with closing(RawPrefill(d.base)) as raw:
            raw.send(legacy_meta(x.area.source[0, 0], (LIC8,) * 2))
            told[name] = [raw.reply()] + [answer for layer in range(2) for answer in tuples_of(raw, layer, requests)]
        d.settle(requests)
        x.compare(requests, areas[name])
    assert told["ours"] == told["theirs"], f"{told}"
    return f"{len(told['ours'])} answers"


def tuples_of(raw: RawPrefill, layer: int, requests: list[Request]) -> Iterator[tuple]:
    """One layer in every form that was ever written; the 4-field form cannot say done, so that comes after it."""
    last, name = layer == 1, layer_name(layer)
    entries = [(r.ext, r.source[0], *((r.source[1], 0, 0, "later")[:n])) for r, n in zip(requests, (0, 1, 2, 3, 4, 4))]
    fields = [((), (0, 1), ("?", {"new": 1})), ((),), ((0, 0),), ((0, 1),), ((0, 1, "?"),), ((0, 1, {"new": 1}, None),)]
    for n, (r, entry) in enumerate(zip(requests, entries)):
        done = [r.ext] if last else []
        if n == 0:
            raw.send_fields(b"read_ready_batch", layer, name, [entry])
            yield raw.reply()
            raw.send_fields(b"read_ready_batch", layer, name, [], done)
        else:
            raw.send_fields(b"read_ready_batch", layer, name, [entry], done, *fields[n][0])
        yield raw.reply()


# ---- our Prefill, the reference's Decode ----
def their_reads_fail(x: Stage) -> str:
    """The second of four reads fails: that request ends on both sides, the next one on the same connection is served."""
    d = x.their_decode(fail_on=[2])
    p = x.our_prefill(d)
    bad, good = make_requests("req", [(48, 0, 0), (48, 0, 0)], 1)
    d.install([bad, good])
    ended = unserved(p, [bad])
    assert d.ends([bad]) == [["failed"]]
    whole(p, d, [good])
    return ended


def their_layout_differs(x: Stage, theirs: tuple, ours: tuple, _words: tuple) -> str:
    """The reference refuses layer by layer: the request ends, the forward goes on, no byte is written."""
    target = x.new_area([theirs] * 2)
    d = x.their_decode(target)
    p = x.our_prefill(d, x.new_area([ours] * 2))
    requests = make_requests("req", [(48, 0, 0)], 1)
    d.install(requests)
    ended = unserved(p, requests)
    assert d.ends(requests) == [["failed"]]
    untouched(target)
    return ended


def poison(x: Stage) -> str:
    """A request that ends on Prefill between two chunks: the reference fails it by a batch that it cannot serve, and only it."""
    d = x.their_decode()
    p = x.our_prefill(d)
    gone, stays = requests = make_requests("req", [(64, 0, 32), (64, 0, 32)], 1)
    d.install(requests)
    p.step(requests, 0)
    p.finish([gone], aborted=True)
    p.ends()
    assert d.ends([gone]) == [["failed"]]
    p.step([stays], 1)
    p.settle([stays])
    d.settle([stays])
    gone.chunks.pop()
    x.compare(requests)
    return "failed there, the other complete"


def their_decode_dies(x: Stage) -> str:
    """SIGKILL between two chunks; a new process at the same port gets the metadata again, without a restart of Prefill."""
    d = x.their_decode()
    p = x.our_prefill(d)
    lost, later = make_requests("req", [(64, 0, 32)], 1) + make_requests("later", [(64, 0, 32)], 2)
    later.number = 9
    d.install([lost])
    p.step([lost], 0)
    d.close()
    other = x.new_area()
    ended = unserved(p, [lost], 1)
    again = x.their_decode(other, base=d.base)
    again.install([later])
    whole(p, again, [later])
    x.compare([later], other)
    return ended


def their_decode_hangs(x: Stage, **options) -> str:
    """SIGSTOP: the gate opens when the time is over; only that engine's request fails, another's is served in the same step."""
    other = x.new_area()
    other.source = x.area.source
    hangs, works = x.their_decode(), x.their_decode(other)
    p = x.our_prefill(hangs, **options)
    lost, good = requests = make_requests("req", [(64, 0, 32), (64, 0, 32)], 1)
    hangs.install([lost])
    works.install([good])
    p.alloc([good], works)
    p.step(requests, 0)
    hangs.ranks[0].stop()
    start = time.monotonic()
    p.step(requests, 1)
    within(QUICK_S, start, "the gate")
    works_in = time.monotonic() - start
    p.finish(requests)
    ended = {o.id: o for o in p.ends()}
    assert ended[lost.id].status and not ended[good.id].status, f"{ended}"
    works.settle([good])
    x.compare([good], other)
    return f"{status(ended[lost.id])} after {works_in:.1f} s"


def unknown_there(x: Stage) -> str:
    """The reference does not know the id (version 1 waits two seconds for it): the request fails, the forward goes on."""
    d = x.their_decode()
    p = x.our_prefill(d)
    bad, good = make_requests("req", [(48, 0, 0), (48, 0, 0)], 1)
    d.install([good])
    ended = unserved(p, [bad])
    whole(p, d, [good])
    x.compare([good])
    return ended


def stages_refused(x: Stage) -> str:
    """Version 0 cannot count stages: it would call a request complete with half of its layers. Ours does not send it any."""
    d = x.their_decode()
    p = x.our_prefill(d)
    requests = make_requests("req", [(48, 0, 0)], 1)
    d.install(requests)
    ended = unserved(p, requests)
    assert ended == "UNSUPPORTED", ended
    assert not d.ranks[0].heard("done", 0.2), "the reference counts it as complete"
    untouched(x.area)
    return ended


def engines_of_different_tp(x: Stage) -> str:
    """One step for an engine with TP 1 and one with TP 2: the ratio belongs to the endpoint."""
    one, two = x.new_area(), x.new_area(d=2)
    one.source = two.source = x.area.source
    d1, d2 = x.their_decode(one), x.their_decode(two)
    p = x.our_prefill(d1)
    first, second = requests = make_requests("req", [(150, 0, 37), (100, 16, 37)], 1)
    d1.install([first])
    d2.install([second])
    p.alloc([second], d2)
    for step in range(len(first.steps)):
        p.step(requests, step)
    p.settle(requests)
    d1.settle([first])
    d2.settle([second])
    x.compare([first], one)
    x.compare([second], two)
    return f"{d1.moved() + d2.moved()} bytes"


def our_prefill_restarts(x: Stage) -> str:
    """Ours goes away between two chunks; its successor's request is served by the same ranks of the reference."""
    d = x.their_decode()
    p = x.our_prefill(d, settle_ms=100)
    left, later = requests = make_requests("req", [(64, 0, 32), (64, 0, 32)], 1)
    d.install(requests)
    p.step([left], 0)
    p.close()
    assert not d.ranks[0].heard("done", 0.1, id=left.ext)
    whole(x.our_prefill(d), d, [later])
    left.chunks.pop()
    x.compare(requests)
    return "the successor's request complete"


def nonsense_beside(x: Stage) -> str:
    """A Decode that answers nonsense beside the reference, in one step: only its own request fails."""
    d = x.their_decode()
    p = x.our_prefill(d)
    bad, good = requests = make_requests("req", [(64, 0, 32), (64, 0, 32)], 1)
    d.install([good])
    with closing(RawDecode()) as raw:
        p.alloc([bad], raw)
        for step in range(2):
            p.step(requests, step)
        p.finish(requests)
        ended = {o.id: o for o in p.ends()}
    assert ended[bad.id].status and not ended[good.id].status, f"{ended}"
    d.settle([good])
    x.compare([good])
    return status(ended[bad.id])


# ---- the table ----
HALVES = {"layers": (LIC8,) * 2, "pp": 2}
OUR_DECODE: list[tuple[str, Callable, dict]] = [  # name, scenario, memory
    ("Y05 Decode has a layer more", fewer_layers, {}),
    ("Y05 Prefill has a layer more", more_layers, {}),
    ("Prefill has 18 layers more", another_model, {"layers": (PLAIN,)}),
    ("reads fail", reads_fail, {}),
    ("S08 reads after the request was given up", late_reads, {}),
    ("ready before its destinations", not_installed_yet, {}),
    ("ready without destinations", never_installed, {}),
    ("S06 one bad request of eight", one_of_eight, {}),
    ("Y11 blocks of another group fail", other_groups_blocks, {}),
    ("aborted between two chunks", aborted_between_chunks, {}),
    ("Decode restarts", decode_restarts, {}),
    ("Prefill dies", prefill_dies, {}),
    ("a contributor changes the ratio", ratios_differ, {}),
    ("a member outside its group", member_beyond, {}),
    ("malformed messages beside", garbage_beside, {}),
    ("Y08 legacy tuples, the same to both", legacy_tuples, {"layers": (LIC8,) * 2}),
]
OUR_PREFILL = [
    ("a read fails", their_reads_fail, {}),
    ("ended between two chunks: poison batch", poison, {}),
    ("Decode dies, its successor is served", their_decode_dies, {}),
    ("Decode hangs: the hold ends", their_decode_hangs, {"options": {"hold_ms": 1500, "liveness_ms": 60000}}),
    ("Decode hangs: found dead", their_decode_hangs, {"options": {"liveness_ms": 1500}}),
    ("ready without destinations", unknown_there, {"layers": (LIC8,)}),
    ("Decode engines of TP 1 and 2 in one step", engines_of_different_tp, {"p": 2}),
    ("Prefill restarts", our_prefill_restarts, {}),
    ("malformed answers beside", nonsense_beside, {}),
]


def play(scenario: Callable, arguments: tuple, memory: dict, reference: Reference, folder: Path) -> str:
    options = memory.get("options", {})
    with closing(Stage(reference, folder, **{k: v for k, v in memory.items() if k != "options"})) as x:
        return scenario(x, *arguments, **options)


def rows(references: list[Reference]) -> Iterator[tuple]:
    for reference in references:
        decode, prefill = list(OUR_DECODE), list(OUR_PREFILL)
        if reference.pipeline:
            decode.append(("stages of two pipelines for one request", stages_disagree, HALVES))
        else:
            decode.append(("PP 2, which version 0 cannot announce", two_stages_unknown, HALVES))
            prefill.append(("PP 2, which version 0 cannot count", stages_refused, HALVES))
        for role, table in (("decode", decode), ("prefill", prefill)):
            for name, scenario, memory in table:
                yield reference.version, role, name, play, (scenario, (), memory, reference)
        for name, (theirs, ours, words) in MISMATCHES.items():
            yield reference.version, "decode", f"refused: {name}", play, (refused, (theirs, ours, words), {}, reference)
            yield (reference.version, "prefill", f"refused there: {name}", play,
                   (their_layout_differs, (theirs, ours, words), {}, reference))
