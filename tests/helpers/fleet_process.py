"""One instance of a random fleet: the real driver, engine core and lease table, a puller and a KV server beside.

A process lives, pauses (SIGSTOP) and dies at any moment; its memory outlives it until the next start at its place
writes there. What it says, copies and answers are events of the clock. Nothing here decides what the driver
should do; `check` says whether it may be so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

from helpers.core_soak import EOS
from helpers.echo import EchoExecutor
from helpers.fleet_wire import A_WHILE_S, Clock, KvPlane, Then

from engine.config import PoolConfig
from engine.core import EngineCore
from engine.server.driver import Driver, _Flight
from engine.server.messages import Abort, Add, Order, Report, Reserve, StartDecode
from engine.step import Step, StepResult
from engine.transfer.held import Held
from engine.transfer.layout import KvLayout, Peer
from engine.transfer.puller import PullJob, PullResult, Reason

MAX_LEN = 60
PULL_TIMEOUT_S = 5.0
GARBAGE = -1
Answer = Callable[[object], None]


@dataclass
class Memory:
    """The KV of one place in the fleet, readable by all. `nonce`: whose it is now."""

    blocks: list[list[int | None]]
    nonce: str = ""


@dataclass
class Place:
    """What every start of one instance has in common. `early`: steps run when they begin, not at their end."""

    index: int
    pool: PoolConfig
    num_blocks: int
    memory: Memory
    step_s: float
    max_preemptions: int
    overlap: bool
    early: bool
    by_bytes: bool
    process: Process | None = None


class Setting(NamedTuple):
    """What all processes of a world share."""

    clock: Clock
    random: Random
    plane: KvPlane
    places: list[Place]
    counts: Counter[str]
    lease_s: float
    spoiled: float  # share of copies that fail or are corrupted


class _Handle:
    """A step whose rows read and write now, or when somebody asks for the result."""

    def __init__(self, echo: EchoExecutor, step: Step, *, early: bool) -> None:
        self._echo, self._step = echo, step
        self._early = echo.submit(step).result() if early else None

    def result(self) -> StepResult:
        result = self._early or self._echo.submit(self._step).result()
        self._echo.steps.clear()
        return result


@dataclass
class Copy:
    """A pull: asks for blocks, copies up to `at`, asks again. `questions` counts what was asked or given up."""

    job: PullJob
    at: int
    fate: str
    questions: int = 0
    moved: list[int | None] = field(default_factory=list)
    over: bool = False


class Process:
    """The `epoch`th start at a place. `say` sends a report to the router."""

    def __init__(self, place: Place, epoch: int, setting: Setting, say: Callable[[Report], None]) -> None:
        self.place, self.setting, self.say = place, setting, say
        self.nonce = f"{place.index}.{epoch}"
        self.alive, self.paused_until = True, 0.0
        self.dirty = True
        self.core = EngineCore(
            place.pool,
            num_blocks=place.num_blocks,
            max_len=MAX_LEN,
            eos_token_ids=EOS,
            max_preemptions=place.max_preemptions,
            shuffle=Random(setting.random.random()),
            overlap=place.overlap,
        )
        self.echo = EchoExecutor(0, place.pool.block_size, EOS)
        self.echo._kv = place.memory.blocks
        self.held = Held(setting.lease_s)
        self.copies: dict[str, Copy] = {}
        self.reclaimed: set[str] = set()
        self.driver = Driver(
            self.core,
            self,
            say,
            held=self.held,
            pulls=self,
            failed=lambda _: None,
            clock=lambda: setting.clock.now,
        )
        self._most_flights = 2 if place.overlap else place.pool.pp
        self._awake = False
        self._overwrite()

    @property
    def peer(self) -> Peer:
        layout = KvLayout(
            model="echo",
            dtype="float64",
            block_size=self.place.pool.block_size,
            layers=1,
            kv_heads=1,
            head_dim=1,
        )
        return Peer(
            transport="tcp" if self.place.by_bytes else "shared_memory",
            nonce=self.nonce,
            address=str(self.place.index),
            layout=layout,
        )

    def submit(self, step: Step) -> _Handle:
        """As an executor."""
        return _Handle(self.echo, step, early=self.place.early)

    def later(self, delay: float, what: str, then: Then) -> None:
        """Something that this process does; once it goes on where it is paused, and never where it is dead."""
        what = f"{self.nonce} {what}"
        self.setting.clock.after(delay, what, partial(self.run, what, then))

    def run(self, what: str, then: Then) -> None:
        clock = self.setting.clock
        if not self.alive or self.paused_until > clock.now:
            clock.void()
            if self.alive:
                clock.at(min(self.paused_until, clock.now + A_WHILE_S), what, partial(self.run, what, then))
            return
        self.dirty = True
        then()

    def obey(self, order: Order) -> None:
        """Read one order of the router."""
        if not self.alive:
            return self.setting.clock.void()
        self.dirty = True
        if isinstance(order, Add | Reserve):
            name = order.request.id
            assert name not in self.holding(), f"two attempts of {name} on {self.nonce}"
            self.echo.expect(order.request.request())
        elif isinstance(order, StartDecode):
            self.echo._tokens[order.request_id].append(order.token)
        elif isinstance(order, Abort):
            assert order.request_id not in self.copies, "blocks are freed under a copy"
        self.driver._obey(order, self.setting.clock.now)
        return self.wake()

    def holding(self) -> set[str]:
        """The requests that this core knows."""
        scheduler = self.core._scheduler
        return {*scheduler.waiting, *scheduler.running, *scheduler.pulling, *self.core._kept}

    def wake(self) -> None:
        if not self._awake:
            self._awake = True
            self.later(self.setting.random.random() * 0.002, "turn", self._turn)

    def reclaim(self) -> None:
        """As before a step, and when the driver wakes up for it."""
        over = self.held.expired(self.setting.clock.now)
        if over:
            self.reclaimed.update(over)
            self.driver._reclaim()
            self.setting.counts["lease ran out"] += len(over)
            self.wake()

    def check(self) -> None:
        """Core and lease table agree, and copies write to blocks that are theirs."""
        if not self.dirty:
            return
        self.dirty = False
        core, now = self.core, self.setting.clock.now
        core.check_invariants()
        over = set(self.held.expired(now))
        assert len(self.held) == len(core._kept), "kept KV without a lease, or the reverse"
        for name, seq in core._kept.items():
            kept = self.held.look(name, now)
            assert kept is not None or name in over, f"{name} is kept without a lease"
            if kept is not None:
                assert list(kept.blocks) == core.kept_blocks(name)
                assert kept.tokens == seq.prompt_length
        for name, copy in self.copies.items():
            assert core.reserved_blocks(name) == list(copy.job.blocks), "a copy writes to blocks of others"

    def answer(self, question: str, nonce: str, name: str, start: int, stop: int) -> object:
        """As the KV server: None where it does not hold what is asked for."""
        kept = self.held.look(name, self.setting.clock.now)
        if nonce != self.nonce or kept is None or stop > kept.tokens:
            return None
        if question == "look":
            return kept.serial, kept.blocks
        values = self._read(kept.blocks, start, stop)
        return values if question == "bytes" else (kept.serial, hash(tuple(values)))

    def pull(self, job: PullJob) -> None:
        """As the puller."""
        random = self.setting.random
        fate = random.choice(["fail", "corrupt"]) if random.random() < self.setting.spoiled else ""
        copy = self.copies[job.request_id] = Copy(job, job.start, fate)
        self._ask(copy, "look", job.start, partial(self._found, copy))

    def _overwrite(self) -> None:
        """This process takes its place's memory; what stood there may still stand there."""
        self.place.process = self
        self.place.memory.nonce = self.nonce
        stale = self.setting.random.choice([None, GARBAGE, "stale"])
        if stale != "stale":
            for block in self.place.memory.blocks:
                block[:] = [stale] * len(block)  # type: ignore[list-item]

    def _turn(self) -> None:
        """As the driver's loop, a round of it."""
        self._awake = False
        self.reclaim()
        driver, now = self.driver, self.setting.clock.now
        step = self.core.next_step(now)
        if step is not None:
            driver._flights.append(_Flight(step, self.submit(step), now))
            self.later(self.setting.random.expovariate(1 / self.place.step_s), "step", self._complete)
            self.setting.counts["preempted"] += len(self.core.preempted)
            if len(driver._flights) < self._most_flights:
                self.wake()
        elif driver._flights:
            self.setting.clock.void()
        else:
            self.setting.clock.void()
            idle = not self.core.has_work or self.core.holds_for_others
            assert idle, "requests are open, but no step can be made for them"

    def _complete(self) -> None:
        self.driver._complete(self.driver._flights.popleft())
        self.wake()

    def _ask(self, copy: Copy, question: str, start: int, then: Answer) -> None:
        """Ask the source; `then` is called with the first answer, unless none comes in time."""
        copy.questions += 1
        number, plane, job = copy.questions, self.setting.plane, copy.job
        source = self.setting.places[int(job.peer.address)]

        def heard(answer: object) -> None:
            if copy.questions != number or copy.over:
                return self.setting.clock.void()
            copy.questions += 1
            return then(answer)

        def asked() -> None:
            there = source.process
            if there is None or not there.alive:
                return plane.carry("nobody answers", partial(self.run, "nobody answers", lambda: heard(None)))
            there.run(
                question, lambda: reply(there.answer(question, job.peer.nonce, job.request_id, start, stop))
            )

        def reply(answer: object) -> None:
            plane.carry(f"answer to {question}", partial(self.run, "answer", lambda: heard(answer)))

        def late() -> None:
            if copy.questions != number or copy.over:
                return self.setting.clock.void()
            return self._end(copy, "timeout")

        stop = min(start + 8, job.stop) if question == "bytes" else job.stop
        plane.carry(f"{question} {job.request_id}", asked)
        self.later(PULL_TIMEOUT_S, "timeout", late)

    def _found(self, copy: Copy, answer: object) -> None:
        memory = self.setting.places[int(copy.job.peer.address)].memory
        if answer is None or memory.nonce != copy.job.peer.nonce:
            return self._end(copy, "expired")
        serial, blocks = answer  # type: ignore[misc]
        return self._go_on(copy, serial, blocks)

    def _go_on(self, copy: Copy, serial: int, blocks: tuple[int, ...]) -> None:
        """Copy some more positions, or all are there: ask again."""
        job, random = copy.job, self.setting.random
        if copy.over:
            return self.setting.clock.void()
        if copy.at == job.stop:
            self._write(copy, copy.at, [], rest=True)
            return self._ask(copy, "confirm", job.start, partial(self._confirmed, copy, serial))
        if self.place.by_bytes:
            return self._ask(copy, "bytes", copy.at, partial(self._received, copy, serial, blocks))
        stop = min(job.stop, copy.at + random.randrange(1, 13))
        source = self.setting.places[int(job.peer.address)].memory.blocks
        self._write(copy, copy.at, self._read(blocks, copy.at, stop, source))
        return self._carried(copy, serial, blocks)

    def _received(self, copy: Copy, serial: int, blocks: tuple[int, ...], answer: object) -> None:
        if answer is None:
            return self._end(copy, "expired")
        self._write(copy, copy.at, answer)  # type: ignore[arg-type]
        return self._carried(copy, serial, blocks)

    def _carried(self, copy: Copy, serial: int, blocks: tuple[int, ...]) -> None:
        self.setting.counts["part of a copy"] += 1
        if copy.fate == "fail" and self.setting.random.random() < 0.5:
            return self._end(copy, "failed")
        delay = self.setting.random.expovariate(1 / self.place.step_s)
        return self.later(delay, "copy", partial(self._go_on, copy, serial, blocks))

    def _confirmed(self, copy: Copy, serial: int, answer: object) -> None:
        if answer is None or answer[0] != serial:  # type: ignore[index]
            return self._end(copy, "expired")
        intact = answer[1] == hash(tuple(copy.moved))  # type: ignore[index]
        return self._end(copy, "ok" if intact and copy.fate != "fail" else "corrupt")

    def _end(self, copy: Copy, reason: Reason) -> None:
        """Nothing writes any more: say so, once."""
        job = copy.job
        copy.over = True
        del self.copies[job.request_id]
        self.setting.counts[f"copy {reason}"] += 1
        good = reason == "ok"
        result = PullResult(
            job.request_id, job.attempt, good, reason, copy.at - job.start, 0.0, job.peer.transport
        )
        self.driver.pulled(result)

    def _read(
        self, blocks: tuple[int, ...], start: int, stop: int, memory: list[list[int | None]] | None = None
    ) -> list[int | None]:
        size, memory = self.place.pool.block_size, memory or self.place.memory.blocks
        return [memory[blocks[position // size]][position % size] for position in range(start, stop)]

    def _write(self, copy: Copy, start: int, values: list[int | None], *, rest: bool = False) -> None:
        """Values of positions from `start` on; of a copy that is to be corrupted one is not what was sent.

        `rest`: blank what is left of the last block.
        """
        size, memory = self.place.pool.block_size, self.place.memory.blocks
        if copy.fate == "corrupt" and values:
            values, copy.fate = [GARBAGE, *values[1:]], ""
        for position, value in enumerate(values or [None] * (-start % size if rest else 0), start):
            memory[copy.job.blocks[position // size]][position % size] = value
        copy.moved += values
        copy.at += len(values)
