# SPDX-License-Identifier: Apache-2.0
"""What is tried on every model. A scenario sends requests through Prefill and Decode and returns a Row: are tokens and KV
right, were exactly the bytes pulled that had to be, how many prompt tokens did Decode compute itself (one a request: the
last)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bench import Bench, Flight, prompt
from models import Model

ABORTS = 200


@dataclass
class Row:
    model: str
    scenario: str
    equal: bool
    kv_equal: bool
    pulled_bytes: int
    oracle_bytes: int
    prefill_tokens_on_decode: int
    expected_prefill: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return (
            self.equal
            and self.kv_equal
            and self.pulled_bytes == self.oracle_bytes
            and self.prefill_tokens_on_decode == self.expected_prefill
        )

    def json(self) -> dict:
        return {
            k: getattr(self, k)
            for k in ("model", "scenario", "equal", "kv_equal", "pulled_bytes", "oracle_bytes", "prefill_tokens_on_decode")
        }


class Check:
    """Measures one scenario: counters before and after, and what every request should have cost."""

    def __init__(self, bench: Bench, scenario: str) -> None:
        self.bench, self.notes = bench, []
        self._scenario = scenario
        self._equal, self._kv_equal = True, True
        self._oracle_bytes, self._expected_prefill = 0, 0
        self._reset()

    def _reset(self) -> None:
        self._before = self.bench.d.call("state")
        for engine in (self.bench.p, self.bench.d):
            engine.call("digests")

    def restart(self) -> None:
        """What happened so far is not measured: only that the engines have come to rest."""
        self.require(self.bench.settled(), "an engine still holds requests")
        self._reset()

    def require(self, condition: bool, note: str) -> None:
        if not condition:
            self._equal = False
            self.notes.append(note)

    def served(self, flights: Iterable[Flight], hits: int = 0) -> None:
        """The requests must give the single engine's tokens and KV. hits: leading blocks that Decode had already."""
        model, flights = self.bench.model, list(flights)
        for f in flights:
            for i, answer in enumerate(self.bench.answers(f)):
                self.require(answer.tokens == self.bench.right(f.prompt), f"{f.children[i]}: {answer.reason}, tokens differ")
                self._oracle_bytes += (-(-len(f.prompt) // model.block) - hits) * model.block_bytes
                self._expected_prefill += 1
        self.require(self.bench.settled(), "an engine still holds requests")
        self._compare_kv(flights, hits)

    def local(self, flight: Flight) -> None:
        """Decode must have computed the whole prompt itself, and rightly."""
        (answer,) = self.bench.answers(flight)
        self.require(answer.tokens == self.bench.right(flight.prompt), f"{flight.id}: {answer.reason}, tokens differ")
        self._expected_prefill += len(flight.prompt)

    def _compare_kv(self, flights: list[Flight], hits: int) -> None:
        p, d = self.bench.digests(self.bench.p), self.bench.digests(self.bench.d)
        for f in flights:
            for child in f.children:
                if child not in p or child not in d:
                    self._kv_wrong(f"{child}: no KV seen on {'Prefill' if child not in p else 'Decode'}")
                    continue
                self._same(child, d[child], p[child], "Prefill's")
                if self.bench.model.batch_invariant:
                    self._same(child, d[child], self.bench.right_kv(f.prompt), "the single engine's")

    def _same(self, child: str, got: dict, want: dict, whose: str) -> None:
        for layer, hashes in want.items():
            wrong = [i for i, h in enumerate(hashes) if got.get(layer, [])[i : i + 1] != [h]]
            if wrong:
                return self._kv_wrong(f"{child}: {layer}, blocks {wrong} are not {whose}")

    def _kv_wrong(self, note: str) -> None:
        self._kv_equal = False
        self.notes.append(note)

    def row(self) -> Row:
        after = self.bench.d.call("state")
        return Row(
            self.bench.model.name,
            self._scenario,
            self._equal,
            self._kv_equal,
            after["stats"]["bytes"] - self._before["stats"]["bytes"],
            self._oracle_bytes,
            after["prompt_tokens"] - self._before["prompt_tokens"],
            self._expected_prefill,
            self.notes,
        )


@dataclass(frozen=True)
class Scenario:
    """suits: which models it makes sense for; composed: also, or only, beside another connector."""

    name: str
    title: str
    run: Callable[[Check], None]
    suits: Callable[[Model], bool] = lambda model: True
    composed: bool = False

    def fits(self, model: Model) -> bool:
        return self.suits(model) and (self.composed or not model.offload)


def _plain(length: Callable[[Model], int], name: str) -> Callable[[Check], None]:
    def run(check: Check) -> None:
        tokens = prompt(name, length(check.bench.model))
        check.bench.oracle([tokens])
        check.served([check.bench.send(tokens)])

    return run


def _length(name: str, title: str, length: Callable[[Model], int]) -> Scenario:
    return Scenario(name, title, _plain(length, name))


def prompt_list(check: Check) -> None:
    prompts = [prompt(f"list-{i}", 150 + 37 * i) for i in range(3)]
    check.bench.oracle(prompts)
    check.served(check.bench.send_list(prompts))


def many(check: Check) -> None:
    prompts = [prompt(f"many-{i}", 40 + 7 * i) for i in range(24)]
    check.bench.oracle(prompts)
    check.served([check.bench.send(p) for p in prompts])


def twice(check: Check) -> None:
    tokens = prompt("twice", 210)
    hits = 0 if check.bench.model.block == 16 else 210 // check.bench.model.block  # prefix caching is off for MLA on CPU
    check.bench.oracle([tokens])
    check.served([check.bench.send(tokens)])
    check.served([check.bench.send(tokens)], hits)


def _primed(check: Check, engine, tokens: list[int]) -> None:
    """The engine computes a prompt of its own, so that its prefix cache has it."""
    engine.call("add", id="prime", prompt=tokens, max_tokens=1)
    engine.finished("prime")


def _prefix(on_decode: int, on_prefill: int) -> Callable[[Check], None]:
    """Leading full blocks that each side has already; the prompt has two full ones and a part."""

    def run(check: Check) -> None:
        bench, block = check.bench, check.bench.model.block
        tokens = prompt(f"prefix-{on_decode}-{on_prefill}", 2 * block + 40)
        bench.oracle([tokens])
        for engine, blocks in ((bench.d, on_decode), (bench.p, on_prefill)):
            if blocks:
                _primed(check, engine, tokens[: blocks * block] + prompt("elsewhere", 9))
        check._reset()
        check.served([bench.send(tokens)], on_decode)

    return run


def _moment(bench: Bench, flights: list[Flight], stage: int, batches: int) -> None:
    """Waits for a stage of four requests: 0 just sent, 1 all have posted, 2 the first layer is there, 3 the second. A stage that
    does not come within a second is none to wait for."""
    deadline = time.monotonic() + 1
    if stage == 1:
        for f in flights:
            bench.meta.plan(f.id).posted.wait(max(0.0, deadline - time.monotonic()))
    while stage > 1 and time.monotonic() < deadline:
        if bench.d.call("state")["stats"]["batches"] >= batches + stage - 1:
            return


def abort(check: Check) -> None:
    """Requests are aborted between allocation and the last read, half of them between two layers of their prefill; afterwards no
    block is missing anywhere."""
    bench, tokens = check.bench, prompt("after-abort", 130)
    bench.oracle([tokens])
    for engine in (bench.p, bench.d):
        engine.call("set", active=4)
    free = [engine.call("state")["free_blocks"] for engine in (bench.p, bench.d)]
    before = bench.d.call("state")["stats"]
    for round_ in range(ABORTS // 4):
        batches = bench.d.call("state")["stats"]["batches"]
        flights = [bench.send(prompt(f"abort-{round_}-{i}", 90 + i)) for i in range(4)]
        _moment(bench, flights, round_ % 4, batches)
        for f in flights:
            bench.d.call("abort", id=f.id)
    bench.restore()
    check.restart()
    stats = bench.d.call("state")["stats"]
    aborted, pulled = (stats[n] - before[n] for n in ("aborted", "bytes"))
    whole = sum(-(-(90 + i) // bench.model.block) for i in range(4)) * bench.model.block_bytes * (ABORTS // 4)
    check.require(aborted >= ABORTS // 20, f"only {aborted} of {ABORTS} aborts came before the KV was complete")
    check.require(0 < pulled < whole, f"{pulled} of {whole} bytes were pulled for aborted requests: none was aborted on the way")
    for engine, blocks in zip((bench.p, bench.d), free):
        now = engine.call("state")["free_blocks"]
        check.require(now == blocks, f"{engine.name}: {blocks - now} blocks are lost after {ABORTS} aborts")
    check.served([bench.send(tokens)])


def failed(check: Check) -> None:
    """Prefill fails: the request ends with an error, the next one is right."""
    bench, tokens = check.bench, prompt("failed", 120)
    bench.oracle([tokens])
    for status in (502, 404):
        (answer,) = bench.answers(bench.send(tokens, status=status))
        check.require(answer.reason == "error", f"after a {status} the request ended with {answer.reason}")
    check.served([bench.send(tokens)])


def recomputed(check: Check) -> None:
    """Prefill fails and Decode computes the prompt itself: nothing is pulled, the tokens are right."""
    bench, tokens = check.bench, prompt("recomputed", 120)
    bench.oracle([tokens])
    bench.d.call("set", recompute=True)
    try:
        check.local(bench.send(tokens, status=502))
    finally:
        bench.d.call("set", recompute=False)
    check.require(bench.settled(), "an engine still holds requests")


def lost_prefill(check: Check) -> None:
    """Prefill's request is aborted between two chunks: Decode learns of it, and computes the prompt itself."""
    bench, tokens = check.bench, prompt("lost", 700)
    bench.oracle([tokens])
    bench.d.call("set", recompute=True)
    try:
        flight = bench.send(tokens, abort_prefill_after=1)
        check.require(bench.answers(flight)[0].tokens == bench.right(tokens), "tokens differ")
    finally:
        bench.d.call("set", recompute=False)
    check.restart()
    after = prompt("after-lost", 200)
    bench.oracle([after])
    check.served([bench.send(after)])


def rejected(check: Check) -> None:
    """Decode refuses a request; vLLM's server then submits its ghost. Neither reaches the metaserver."""
    bench, tokens = check.bench, prompt("after-rejected", 60)
    bench.oracle([tokens])
    posts = len(bench.meta.posts)
    try:
        bench.d.call("add", id="cmpl-too-long-0", prompt=prompt("long", 2000), max_tokens=4, params=bench.params())
    except RuntimeError:
        pass
    else:
        check.require(False, "a prompt above max_model_len was taken")
    bench.d.call("ghost", id="0123456789abcdef", params=bench.params())
    check.restart()
    check.require(len(bench.meta.posts) == posts, "a rejected or ghost request was posted")
    check.served([bench.send(tokens)])


def two_answers(check: Check) -> None:
    tokens = prompt("two", 100)
    check.bench.oracle([tokens])
    check.served([check.bench.send(tokens, n=2)])


def transport(check: Check) -> None:
    """What KV was really read by: the mapping alone where Prefill's cache lies in shared memory, else the system call alone."""
    bench = check.bench
    for i in range(2):  # until Prefill has handed its memory over, it is read by the system call
        tokens = prompt(f"transport-{i}", 130 + i)
        bench.oracle([tokens])
        check.served([bench.send(tokens)])
    want = [["local", "shared mapping" if bench.model.shared else "process_vm_readv", 1]]
    said = [list(row) for row in bench.d.call("transports")]
    check.require(said == want, f"Decode says that it read by {said}, not {want}")


def _cached(model: Model) -> bool:
    """Prefix caching and chunked prefill exist on CPU for plain attention only."""
    return model.folder == "llama"


def _offload(model: Model) -> bool:
    return model.offload


# ---- beside another connector ----
def composed_order(check: Check) -> None:
    """On both sides every layer hook comes to ours first, whatever the order of the configuration."""
    bench, tokens = check.bench, prompt("order", 300)
    bench.oracle([tokens])
    for engine in (bench.p, bench.d):
        engine.call("composition")
    check.served([bench.send(tokens)])
    for engine in (bench.p, bench.d):
        calls = [tuple(c) for c in engine.call("composition")["calls"]]
        pairs = list(zip(calls[::2], calls[1::2]))
        right = [("SfaRemoteD2HConnector", "OffloadingConnector") == (a[2], b[2]) and a[:2] == b[:2] for a, b in pairs]
        hooks = {c[0] for c in calls}
        check.require(bool(pairs) and all(right), f"{engine.name}: hooks came in this order: {calls[:4]}")
        check.require(hooks == {"wait_for_layer_load", "save_kv_layer"}, f"{engine.name}: only {hooks} were called")


def composed_chosen(check: Check) -> None:
    """The other connector loads the prompt on Prefill: ours, which was not chosen, must publish the blocks all the same."""
    bench, block = check.bench, check.bench.model.block
    tokens = prompt("chosen", 3 * block + 40)
    bench.oracle([tokens])
    check.served([bench.send(tokens)])
    for engine in (bench.p, bench.d):
        check.require(engine.call("forget"), f"{engine.name}: the prefix cache could not be emptied")
    before = bench.p.call("state")["prompt_tokens"]
    bench.p.call("composition")
    check.served([bench.send(tokens)])
    computed = bench.p.call("state")["prompt_tokens"] - before
    check.require(computed <= len(tokens) - 3 * block, f"Prefill computed {computed} prompt tokens, so nothing was loaded there")


def composed_metrics(check: Check) -> None:
    """Statistics of both children reach vLLM, and the metrics page of both."""
    bench, tokens = check.bench, prompt("metrics", 300)
    for engine in (bench.p, bench.d):
        engine.call("composition")
    bench.oracle([tokens])
    check.served([bench.send(tokens)])
    for engine, ours in ((bench.p, "vllm:rd2h_prefill_batches_total"), (bench.d, "vllm:rd2h_decode_bytes_total")):
        told = engine.call("composition")
        names = {name for step in told["statistics"] for name in step}
        check.require(names == {"SfaRemoteD2HConnector", "OffloadingConnector"}, f"{engine.name}: statistics of {names or 'nobody'}")
        check.require(told["metrics"].get(ours, 0) > 0, f"{engine.name}: {ours} is not on the page")
        stored = told["metrics"].get("vllm:kv_offload_store_bytes_total", 0)
        check.require(stored > 0, f"{engine.name}: the page says of the other connector only {sorted(told['metrics'])}")


SCENARIOS = (
    Scenario("prompt-200", "one prompt of 200 tokens", _plain(lambda m: 200, "prompt-200"), composed=True),
    _length("length-1", "1 token", lambda m: 1),
    _length("length-B-1", "one token less than a block", lambda m: m.block - 1),
    _length("length-B", "exactly a block", lambda m: m.block),
    _length("length-B+1", "one token more than a block", lambda m: m.block + 1),
    _length("length-2B", "two blocks", lambda m: 2 * m.block),
    _length("length-2B+1", "one token more than two blocks", lambda m: 2 * m.block + 1),
    Scenario("list-3", "a list of three prompts", prompt_list),
    Scenario("many-24", "24 requests at once", many),
    Scenario("chunked-700", "chunked prefill in three chunks", _plain(lambda m: 700, "chunked"), _cached, composed=True),
    Scenario("hit-decode-part", "prefix hit on Decode: one of two blocks", _prefix(1, 0), _cached),
    Scenario("hit-decode-all", "prefix hit on Decode: all full blocks", _prefix(2, 0), _cached),
    Scenario("hit-prefill", "prefix hit on Prefill", _prefix(0, 2), _cached),
    Scenario("hit-both", "prefix hit on both", _prefix(1, 2), _cached),
    Scenario("twice", "the same prompt twice", twice),
    Scenario("abort", f"{ABORTS} aborts while pulling, then a request", abort),
    Scenario("failed-fail", "failed loads, policy fail, then a request", failed),
    Scenario("failed-recompute", "a failed load, policy recompute", recomputed),
    Scenario("prefill-aborted", "Prefill's request aborted between chunks, then a request", lost_prefill, _cached),
    Scenario("rejected-ghost", "a rejected request and its ghost, then a request", rejected),
    Scenario("n-2", "two answers to one prompt", two_answers),
    Scenario("transport", "what it was read by", transport, lambda m: m.shared or m.name == "llama"),
    Scenario("composed-order", "layer hooks come to ours first", composed_order, _offload, composed=True),
    Scenario("composed-chosen", "the other connector loads the prompt on Prefill", composed_chosen, _offload, composed=True),
    Scenario("composed-metrics", "statistics and metrics of both", composed_metrics, _offload, composed=True),
)
