"""Random lives of an engine core over the echo model in plain Python, which a state machine is too slow for.

A World is one core of random size and policy. Its events are the calls that a driver may make: arrivals with
shared prefixes in two namespaces, both sides of a split (kept KV, reservations, copies that take several
events), aborts of anything at any time, steps that begin, complete or fail, several in flight in a pipeline or
ahead. Steps are carried out late, at their completion, so that whatever wrote to their blocks in between is
noticed. Nothing here decides what the core should do; it checks what came of it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from helpers.echo import VOCAB, EchoExecutor, chain, next_token

from engine.config import PoolConfig
from engine.core import EngineCore, TokenEvent
from engine.errors import InputError
from engine.request import Request, SamplingParams
from engine.step import PREVIOUS, Step, StepResult, StepRow

EOS = frozenset({7, 12, 33, 41})
NO_TOKEN = -1  # also: KV of a failed step
DOCUMENT = 25  # tokens of each of three documents that prompts begin with


def answer_alone(request: Request) -> list[int]:
    """What the echo model answers without any engine; as helpers.echo.expected_output, a link a token."""
    link, output = chain(request.namespace, list(request.prompt))[-1], []
    for index in range(request.sampling.max_tokens):
        output.append(next_token(link, index, request.sampling, EOS))
        if output[-1] in EOS:
            break
        link = hash((link, output[-1]))
    return output


@dataclass
class Pull:
    """A request of the decode side on its way: `at` is the next position to copy from what `source` keeps."""

    request: Request
    source: str
    token: int
    at: int


class World:
    """One core and its clients. `counts` says what happened; `happened` is the number of events."""

    def __init__(self, seed: int, counts: Counter[str], *, large: bool = False) -> None:
        self.random = random = Random(seed)
        self.counts = counts
        self.block_size = random.choice([1, 4, 4, 16])
        self.check_every = 50 if large else 1
        tokens = random.randrange(1200, 4000) if large else random.randrange(28, 90)
        blocks = max(tokens // self.block_size, 3) + 1
        self.pool = PoolConfig(
            batching=random.choice(["chunked", "chunked", "prefill_first"]),
            queue_policy=random.choice(["fcfs", "prefix_first"]),
            prefix_cache=random.random() < 0.8,
            token_budget=random.choice([64, 64, 16, 16, 7, 2, 1]),
            max_seqs=random.choice([8, 3]) * (4 if large else 1),
            block_size=self.block_size,
            pp=random.choice([1, 1, 2, 3]),
        )
        self.most_waiting = random.choice([1, 2, 6, 20])
        self.longest = min(60, (blocks - 1) * self.block_size + 1)
        overlap = self.pool.pp == 1 and random.random() < 0.5
        self.most_flights = 2 if overlap else self.pool.pp
        self.core = EngineCore(
            self.pool,
            num_blocks=blocks,
            max_len=60,
            eos_token_ids=EOS,
            max_preemptions=random.randrange(4),
            shuffle=Random(seed),
            overlap=overlap,
        )
        self.echo = EchoExecutor(blocks, self.block_size, EOS)
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, str] = {}
        self.flights: deque[Step] = deque()
        self.spoiled: set[str] = set()  # requests of failed steps
        self.kept: dict[str, int] = {}  # the first token of each, to decode from
        self.pulls: dict[str, Pull] = {}
        self.now, self.names, self.happened = 0.0, 0, 0

    def run(self, events: int) -> None:
        """So many events, then no new ones until all is over."""
        acts = [
            self.add,
            self.abort,
            self.begin,
            self.complete,
            self.fail,
            self.reserve,
            self.copy,
            self.release,
        ]
        weights = [14, 2, 30, 30, 1, 10, 14, 3]
        while self.happened < events:
            self.random.choices(acts, weights)[0]()
        self.settle()

    def add(self) -> None:
        """A burst of one prompt, sometimes the prefill half of a split, sometimes what must be refused."""
        if len(self.core._scheduler.waiting) >= self.most_waiting:
            return
        prompt, output, namespace = self.ask()
        for _ in range(self.random.choice([1, 1, 2, 4])):
            keep = self.random.random() < 0.2
            one = self.make(
                prompt, min(output, self.random.choice([1, 1, 9])) if keep else output, namespace, keep=keep
            )
            if self.random.random() < 0.02:
                self.refused(one)
                continue
            self.core.add(one, self.now)
            self.taken(one)
            self.event("add")

    def refused(self, one: Request) -> None:
        """An id in use or too many tokens: nothing changes."""
        running = [name for name in self.requests if name not in self.ends]
        if running and self.random.random() < 0.5:
            bad = Request(self.random.choice(running), one.prompt, one.sampling)
        else:
            bad = Request(one.id, (1,) * 61, one.sampling)
        try:
            self.core.add(bad, self.now)
        except InputError:
            return self.event("refused")
        raise AssertionError("an impossible request was accepted")

    def reserve(self) -> None:
        """The decode side of a split asks for room for what this core itself keeps."""
        free = [name for name in self.kept if all(pull.source != name for pull in self.pulls.values())]
        if not free:
            return None
        source = self.random.choice(free)
        half, token = self.requests[source], self.kept[source]
        sampling = replace(half.sampling, max_tokens=self.random.randrange(2, 24))
        one = replace(half, id=self.name(), sampling=sampling, keep_kv=False)
        if token in EOS or len(one.prompt) + one.sampling.max_tokens > self.longest:
            return None
        cached = self.core.reserve(one, self.now)
        if cached is None:
            return self.event("no room")
        assert cached % self.block_size == 0
        assert cached < len(one.prompt)
        self.taken(one)
        self.outputs[one.id].append(token)
        self.pulls[one.id] = Pull(one, source, token, cached)
        return self.event("reserve")

    def copy(self) -> None:
        """Some positions of a copy; behind the last one the request decodes."""
        if not self.pulls:
            return
        name = self.random.choice(list(self.pulls))
        pull = self.pulls[name]
        source = self.core._kept[pull.source].table
        target = self.core._scheduler.pulling[name].table
        links = chain(pull.request.namespace, list(pull.request.prompt))
        stop = min(len(links), pull.at + self.random.randrange(1, 30))
        for position in range(pull.at, stop):
            page, offset = divmod(position, self.block_size)
            value = self.echo._kv[source.blocks[page]][offset]
            assert value == links[position], "kept KV is not what was computed"
            self.echo._kv[target.blocks[page]][offset] = value
        pull.at = stop
        if stop == len(links):
            del self.pulls[name]
            self.echo._tokens[name].append(pull.token)
            self.core.start_decode(name, pull.token, self.now)
            self.counts["late"] += bool(self.core._scheduler.late)
        self.event("copy")

    def release(self) -> None:
        """Kept KV goes back, with a client's copy of it: that request is aborted first."""
        if not self.kept:
            return
        name = self.random.choice([*self.kept, [*self.kept][-1]])
        for one in [n for n, pull in self.pulls.items() if pull.source == name]:
            self.end(one)
        del self.kept[name]
        self.core.release_kv(name, self.now)
        self.event("release")

    def abort(self) -> None:
        """Anybody: mostly one who is there, at times one who has ended or never was."""
        here = [name for name in self.requests if name not in self.ends]
        name = (
            self.random.choice(here)
            if here and self.random.random() < 0.8
            else f"r{self.random.randrange(999)}"
        )
        fenced = len(self.core._cache.fenced)
        self.end(name)
        self.counts["fenced"] += len(self.core._cache.fenced) > fenced
        self.event("abort")

    def end(self, name: str) -> None:
        self.pulls.pop(name, None)
        self.hear(self.core.abort(name, self.now))

    def begin(self) -> None:
        """A step goes to the executor, which carries it out later."""
        step = self.core.next_step(self.now)
        if step is None:
            if not (self.flights or self.pulls or self.kept):
                assert not self.core.has_work, "requests are open but no step is made"
            return
        assert len(self.flights) < self.most_flights
        assert self.pool.batching == "prefill_first" or step.query_tokens <= self.pool.token_budget
        self.flights.append(step)
        self.counts["several in flight"] += len(self.flights) > 1
        self.counts["ahead"] += any(row.tokens == (PREVIOUS,) for row in step.rows)
        self.event("begin")

    def complete(self) -> None:
        """The oldest step is carried out, after all that happened since it began, and completed."""
        if not self.flights:
            return
        step = self.flights.popleft()
        self.now += 1.0
        good = [row for row in step.rows if row.request_id not in self.spoiled]
        tokens = iter(self.echo.submit(replace(step, rows=tuple(good))).result().tokens)
        self.echo.steps.clear()
        self.spoil(row for row in step.rows if row.request_id in self.spoiled)
        result = tuple(NO_TOKEN if row.request_id in self.spoiled else next(tokens) for row in step.rows)
        self.hear(self.core.complete(step.id, StepResult(step.id, result), self.now))
        self.event("complete")
        if self.flights and self.random.random() < 0.2:
            self.release()  # of one that has just ended, perhaps, with a step ahead of its end

    def fail(self) -> None:
        """The oldest step raises, and leaves nothing good where it was to write.

        Outside of a pipeline a driver then fails the step that was made ahead too.
        """
        behind = len(self.flights) if self.pool.pp == 1 else min(1, len(self.flights))
        for _ in range(behind):
            step = self.flights.popleft()
            self.spoil(step.rows)
            self.hear(self.core.fail(step.id, self.now))
            self.event("fail")

    def spoil(self, rows: Iterable[StepRow]) -> None:
        """These rows write garbage; what of their requests is in flight behind them reads it."""
        for row in rows:
            self.spoiled.add(row.request_id)
            for position in range(row.start, row.start + len(row.tokens)):
                self.echo._kv[row.blocks[position // self.block_size]][position % self.block_size] = NO_TOKEN

    def settle(self) -> None:
        """No new requests: all ends, every answer is that of the model alone, every block is free or cached."""
        while self.core.has_work or self.pulls or self.kept:
            self.begin()
            if self.flights:
                self.complete()
            elif self.pulls:
                self.copy()
            else:
                self.release()
        stats = self.core.stats()
        self.core.check_invariants()
        assert (stats.waiting, stats.running, stats.blocks_used) == (0, 0, 0)
        assert not self.core._cache.fenced
        assert self.ends.keys() == self.requests.keys(), "a request never ended"
        assert stats.finished + stats.aborted + stats.failed == len(self.ends)
        for name, one in self.requests.items():
            whole = answer_alone(one)
            output = self.outputs[name]
            assert output == (whole if self.ends[name] in ("stop", "length") else whole[: len(output)])
        self.counts["preempted"] += stats.preemptions
        self.counts["hit tokens"] += stats.prefix_hit_tokens
        self.counts["answers"] += stats.finished

    def ask(self) -> tuple[list[int], int, str]:
        document = self.random.randrange(3) * DOCUMENT
        prefix = self.random.choice([0, self.random.randrange(DOCUMENT), 4, 8, 16])
        tail = [self.random.randrange(VOCAB) for _ in range(self.random.choice([0, 1, 1, 2, 6]))]
        prompt = [*range(document, document + prefix), *tail][: self.longest - 1] or [document]
        prompt = [token % VOCAB for token in prompt]
        output = self.random.randrange(1, min(24, self.longest - len(prompt)) + 1)
        return prompt, output, self.random.choice(["", "", "other"])

    def make(self, prompt: list[int], output: int, namespace: str, *, keep: bool = False) -> Request:
        sampling = SamplingParams(max_tokens=output, min_tokens=self.random.choice([0, 0, 3]))
        return Request(self.name(), tuple(prompt), sampling, namespace, keep_kv=keep)

    def name(self) -> str:
        self.names += 1
        return f"r{self.names}"

    def taken(self, one: Request) -> None:
        self.requests[one.id] = one
        self.outputs[one.id] = []
        self.echo.expect(one)

    def hear(self, events: list[TokenEvent]) -> None:
        for event in events:
            name = event.request_id
            assert name not in self.ends, "an event after the last"
            if event.token is not None:
                assert event.index == len(self.outputs[name])
                self.outputs[name].append(event.token)
            if event.finish_reason is not None:
                self.ends[name] = event.finish_reason
                self.pulls.pop(name, None)
                if self.requests[name].keep_kv and event.finish_reason in ("stop", "length"):
                    self.kept[name] = self.outputs[name][0]

    def event(self, what: str) -> None:
        self.counts[what] += 1
        self.happened += 1
        if self.happened % self.check_every == 0:
            self.core.check_invariants()
            self.check_flights()

    def check_flights(self) -> None:
        """What a step in flight reads or writes is free for nobody, and no two requests write one block."""
        free = set(self.core._cache.pool._free)
        writers: dict[int, str] = {}
        for step in self.flights:
            for row in step.rows:
                assert free.isdisjoint(row.blocks), "a block of a step in flight is free"
                for block in row.blocks[row.start // self.block_size :]:
                    writer = writers.setdefault(block, row.request_id)
                    assert writer == row.request_id, "two requests write one block"


def soak(events: int, *, seed: int = 0, events_of_a_world: int = 1000) -> Counter[str]:
    """Worlds until so many events have happened; returns what did. Every tenth world is large."""
    counts: Counter[str] = Counter()
    happened = world = 0
    while happened < events:
        one = World(seed + world, counts, large=world % 10 == 9)
        try:
            one.run(min(events_of_a_world, events - happened))
        except BaseException as error:
            error.add_note(f"world {seed + world}, {one.pool}, event {one.happened}")
            raise
        happened += one.happened
        world += 1
    counts["events"] = happened
    return counts
