"""One instance of a random fleet: the real driver, engine core and lease table, with a puller and a KV server.

A process lives, pauses (SIGSTOP) and dies at any moment; its memory outlives it until the next start at its
place writes there. What it says, computes and answers are events of the clock. Nothing here decides what the
driver should do; `check` says whether it may be so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import NamedTuple

from helpers.core_soak import EOS
from helpers.echo import EchoExecutor
from helpers.fleet_puller import GARBAGE, Found, Intact, Reply, Values, VirtualPuller, checksum
from helpers.fleet_shape import MAX_LEN, PlaceShape, Shape
from helpers.fleet_wire import A_WHILE_S, Clock, KvPlane, Then

from engine.core import EngineCore
from engine.server.driver import Driver
from engine.server.messages import Abort, Add, Order, Report, Reserve, StartDecode
from engine.step import Step, StepResult
from engine.transfer.held import Held
from engine.transfer.layout import KvLayout, Peer


class Memory:
    """The KV of one place in the fleet, readable by all. `nonce`: whose it is now."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.blocks: list[Values] = [[None] * block_size for _ in range(num_blocks)]
        self.nonce = ""
        self._size = block_size

    def read(self, blocks: Sequence[int], start: int, stop: int) -> Values:
        size = self._size
        return [self.blocks[blocks[position // size]][position % size] for position in range(start, stop)]

    def write(self, blocks: Sequence[int], start: int, values: Values) -> None:
        for position, value in enumerate(values, start):
            self.blocks[blocks[position // self._size]][position % self._size] = value

    def fill(self, value: int | None) -> None:
        for block in self.blocks:
            block[:] = [value] * self._size


@dataclass
class Place:
    """Where one process follows another. `now` is the last that was started."""

    index: int
    shape: PlaceShape
    memory: Memory
    process: Process | None = None

    @property
    def now(self) -> Process:
        assert self.process is not None
        return self.process


class Setting(NamedTuple):
    """What all of a world share."""

    shape: Shape
    clock: Clock
    random: Random
    plane: KvPlane
    counts: Counter[str]
    places: list[Place]


class _Handle:
    """A step whose rows read and write now, or when somebody asks for the result."""

    def __init__(self, echo: EchoExecutor, step: Step, *, early: bool) -> None:
        self._echo, self._step = echo, step
        self._early = echo.submit(step).result() if early else None

    def result(self) -> StepResult:
        result = self._early or self._echo.submit(self._step).result()
        self._echo.steps.clear()
        return result


class Process:
    """The `epoch`th start at a place. `say` sends a report to the router."""

    def __init__(self, place: Place, epoch: int, setting: Setting, say: Callable[[Report], None]) -> None:
        self.place, self.setting = place, setting
        self.nonce = f"{place.index}.{epoch}"
        self.alive, self.paused_until = True, 0.0
        shape = place.shape
        self.core = EngineCore(
            shape.pool,
            num_blocks=shape.num_blocks,
            max_len=MAX_LEN,
            eos_token_ids=EOS,
            max_preemptions=shape.max_preemptions,
            shuffle=Random(setting.random.random()),
            overlap=shape.overlap,
        )
        self.echo = EchoExecutor(0, shape.pool.block_size, EOS)
        self.echo._kv = place.memory.blocks
        self.held = Held(setting.shape.lease_s)
        self.puller = VirtualPuller(self)
        self.driver = Driver(
            self.core,
            self,
            say,
            held=self.held,
            pulls=self.puller,
            failed=lambda _: None,
            clock=lambda: setting.clock.now,
        )
        self.reclaimed: set[str] = set()
        self._most_flights = 2 if shape.overlap else shape.pool.pp
        self._awake = False
        self._changed = True
        self._overwrite()

    @property
    def peer(self) -> Peer:
        size, by_bytes = self.place.shape.pool.block_size, self.place.shape.by_bytes
        return Peer(
            transport="tcp" if by_bytes else "shared_memory",
            nonce=self.nonce,
            address=str(self.place.index),
            layout=KvLayout(model="echo", dtype="float64", block_size=size, layers=1, kv_heads=1, head_dim=1),
        )

    def submit(self, step: Step) -> _Handle:
        """As an executor."""
        return _Handle(self.echo, step, early=self.place.shape.early)

    def later(self, delay: float, what: str, then: Then) -> None:
        """Something that this process does, in a while."""
        what = f"{self.nonce} {what}"
        self.setting.clock.after(delay, what, partial(self.run, what, then))

    def run(self, what: str, then: Then) -> None:
        """Now; once it goes on where it is paused, and never where it is dead."""
        clock = self.setting.clock
        if self.alive and self.paused_until <= clock.now:
            self._changed = True
            return then()
        clock.void()
        if self.alive:
            clock.at(min(self.paused_until, clock.now + A_WHILE_S), what, partial(self.run, what, then))
        return None

    def obey(self, order: Order) -> None:
        """Read one order of the router."""
        if not self.alive:
            return self.setting.clock.void()
        self._changed = True
        if isinstance(order, Add | Reserve):
            name = order.request.id
            assert name not in self.holding(), f"two attempts of {name} on {self.nonce}"
            self.echo.expect(order.request.request())
        elif isinstance(order, StartDecode):
            self.echo._tokens[order.request_id].append(order.token)
        elif isinstance(order, Abort):
            assert order.request_id not in self.puller.copies, "blocks are freed under a copy"
        self.driver.put(order)
        self.driver._take_orders(wait_s=0)
        return self._wake()

    def answer(self, question: str, nonce: str, name: str, start: int, stop: int) -> Reply:
        """As the KV server: None where it does not hold what is asked for."""
        kept = self.held.look(name, self.setting.clock.now)
        if nonce != self.nonce or kept is None or stop > kept.tokens:
            return None
        if question == "look":
            return Found(kept.serial, kept.blocks)
        values = self.place.memory.read(kept.blocks, start, stop)
        return values if question == "bytes" else Intact(kept.serial, checksum(values))

    def reclaim(self) -> None:
        """As before a step, and when the driver wakes up for it."""
        over = self.held.expired(self.setting.clock.now)
        if over:
            self.reclaimed.update(over)
            self.driver._reclaim()
            assert not self.held.expired(self.setting.clock.now), "kept beyond its lease"
            self.setting.counts["lease ran out"] += len(over)
            self._wake()

    def holding(self) -> set[str]:
        """The requests that this core knows."""
        scheduler = self.core._scheduler
        return {*scheduler.waiting, *scheduler.running, *scheduler.pulling, *self.core._kept}

    def check(self) -> None:
        """If anything was done here: core and lease table agree, and copies write to blocks that are theirs."""
        if not self._changed:
            return
        self._changed = False
        core, now = self.core, self.setting.clock.now
        core.check_invariants()
        over = self.held.expired(now)
        assert len(self.held) == len(core._kept), "kept KV without a lease, or the reverse"
        for name, seq in core._kept.items():
            kept = self.held.look(name, now)
            assert kept is not None or name in over, f"{name} is kept without a lease"
            if kept is not None:
                assert list(kept.blocks) == core.kept_blocks(name), "the lease is on other blocks"
                assert kept.tokens == seq.prompt_length, "the lease is on more or fewer tokens"
        for name, copy in self.puller.copies.items():
            assert core.reserved_blocks(name) == list(copy.job.blocks), "a copy writes to blocks of others"

    def _overwrite(self) -> None:
        """This process takes its place's memory; what stood there may still stand there."""
        self.place.process, self.place.memory.nonce = self, self.nonce
        fill = self.setting.random.choice([None, GARBAGE, "nothing"])
        if not isinstance(fill, str):
            self.place.memory.fill(fill)

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            self.later(self.setting.random.random() * 0.002, "turn", self._turn)

    def _turn(self) -> None:
        """A round of the driver's loop, which waits for the oldest step in flight elsewhere: in `_complete`."""
        self._awake = False
        self.reclaim()
        driver, setting = self.driver, self.setting
        step = self.core.next_step(setting.clock.now)
        if step is None:
            setting.clock.void()
            idle = driver._flights or not self.core.has_work or self.core.holds_for_others
            assert idle, "requests are open, but no step can be made for them"
            return
        driver._submit(step)
        setting.counts["preempted"] += len(self.core.preempted)
        self.later(setting.random.expovariate(1 / self.place.shape.step_s), "step", self._complete)
        if len(driver._flights) < self._most_flights:
            self._wake()

    def _complete(self) -> None:
        self.driver._complete(self.driver._flights[0])
        self._wake()
