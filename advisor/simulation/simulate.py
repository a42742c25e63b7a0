"""The simulation: a Load through a fleet of engine cores on a virtual clock.

Drives what the engine drives, on a heap of times instead of threads and sockets: `engine.fleet` decides where a
request goes, each core what its steps hold, the step-time model how long they take, the link how long KV is on
its way. Reads no clock and draws no random number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Literal, Protocol

import numpy as np

from advisor.simulation.deployment import Deployment, Fault, Pool
from advisor.simulation.instance import NEVER, Instance
from advisor.simulation.load import Load
from advisor.simulation.outcome import Outcome
from advisor.simulation.record import Record
from advisor.simulation.tokens import Stream
from engine.core import EngineCore, TokenEvent
from engine.errors import InputError
from engine.fleet.actions import (
    Abort,
    Action,
    Prefill,
    Pull,
    Reject,
    Release,
    Reserve,
    Serve,
    StartDecode,
    prefill_half,
)  # fmt: skip
from engine.fleet.fleet import Fleet
from engine.invariants import require
from engine.request import Request, SamplingParams
from engine.transfer.link import Link

Turns = Literal["open", "causal", "held"]
_ARRIVAL, _WAKE, _LANDED, _PULLED, _DOWN, _UP = range(6)  # what happens at a time


class Watch(Protocol):
    """Hears of every request that ended, and may end the simulation."""

    def ended(self, *, ttft_s: float, tpot_s: float, max_gap_s: float) -> bool:
        """A request was served (seconds; NaN where it has no gap). True to stop here."""
        ...

    def dropped(self) -> bool:
        """A request was not served. True to stop here."""
        ...


def simulate(
    load: Load,
    deployment: Deployment,
    *,
    turns: Turns = "open",
    faults: Sequence[Fault] = (),
    watch: Watch | None = None,
) -> Outcome:
    """What becomes of each request of the load.

    `turns`: open sends every request when the log has it; causal sends a turn its logged think time after the
    turn before it ended; held when the log has it, but not before that end, as a causal replay does. A request
    that can never run, or finds the queue full, is not served; one whose instance dies goes on elsewhere, and
    computes all it had again.
    """
    return _Simulation(load, deployment, turns, faults, watch).run()


class _Open(Stream):
    """A request that has not ended: its row, and the attempt that the fleet knows it by."""

    __slots__ = ("attempt", "half", "row")

    def __init__(self, row: int) -> None:
        super().__init__()
        self.row = row
        self.attempt = 0
        self.half = False  # on the prefill side of a split


class _Simulation:
    def __init__(
        self, load: Load, deployment: Deployment, turns: Turns, faults: Sequence[Fault], watch: Watch | None
    ) -> None:
        self._load = load
        self._deployment = deployment
        self._watch = watch
        self._record = Record(len(load))
        self._open: dict[str, _Open] = {}
        self._prompts, self._outputs = load.prompt_tokens.tolist(), load.output_tokens.tolist()
        self._pools = [pool for pool in deployment.pools for _ in range(pool.config.count)]
        self._instances = [
            Instance(self._core(pool), pool.step_time, pool.config.pp, self._record.gaps, self._open)
            for pool in self._pools
        ]
        configs = [pool.config for pool in deployment.pools]
        self._fleet = Fleet(configs, deployment.router, max_queued=deployment.max_queued, lease_s=NEVER)
        self._heap: list[tuple[float, int, int, int]] = []  # time, order, what, which
        self._order = 0
        self._touched: set[int] = set()  # instances that may have something to start
        self._pulls: dict[int, Pull] = {}  # by attempt
        transport = deployment.transport
        self._link = transport and Link(bytes_per_s=transport.bytes_per_s, latency_s=transport.latency_s)
        self._link_wakes = NEVER
        self._faults: Counter[int] = Counter()  # that hold an instance down
        self._stopped = False
        self._sampling: dict[int, SamplingParams] = {}
        self._turns = turns
        self._children = {} if turns == "open" else _children(load, turns)
        for fault in faults:
            self._at(fault.at_s, _DOWN, fault.instance)
            self._at(fault.back_s, _UP, fault.instance)

    def run(self) -> Outcome:
        waits = {row for rows in self._children.values() for row in rows}
        rows = [row for row in range(len(self._load)) if row not in waits]
        times = [*self._load.arrival_s[rows].tolist(), NEVER]
        heap, touched, instances, place = self._heap, self._touched, self._instances, 0
        queued = [NEVER] * len(instances)  # the wake of each that the heap has
        while not self._stopped:
            now = heap[0][0] if heap else NEVER
            if times[place] < now:
                now = times[place]
            if now == NEVER:
                break
            while times[place] <= now:
                self._send(rows[place], now)
                place += 1
            while heap and heap[0][0] <= now:
                _, _, what, which = heappop(heap)
                if what != _WAKE:
                    self._happen(what, which, now)
                elif instances[which].wakes <= now:
                    touched.add(which)
                    for event in instances[which].end(now):
                        self._heard(event, now)
            for index in touched:
                instance = instances[index]
                instance.begin(now)
                if instance.wakes != queued[index]:
                    queued[index] = instance.wakes
                    if instance.wakes < NEVER:
                        self._at(instance.wakes, _WAKE, index)
            touched.clear()
        require(self._stopped or bool(self._faults) or not self._open, "requests were never served")
        return self._record.outcome(
            self._load,
            preemptions=sum(one.preemptions for one in instances),
            rerun=self._fleet.counts.requeued,
            busy_s=sum(one.busy_s for one in instances),
            stopped_early=self._stopped,
        )

    def _core(self, pool: Pool) -> EngineCore:
        config = pool.config
        if config.kv_tokens is None:
            raise ValueError("a simulated pool needs kv_tokens")
        blocks = config.kv_tokens // config.block_size + 1
        return EngineCore(config, num_blocks=blocks, max_len=self._deployment.max_len)

    def _at(self, time: float, what: int, which: int) -> None:
        self._order += 1
        heappush(self._heap, (time, self._order, what, which))

    def _happen(self, what: int, which: int, now: float) -> None:
        """Whatever is rarer than the steps of an instance."""
        if what == _ARRIVAL:
            self._send(which, now)
        elif what == _LANDED:
            self._landed(now)
        elif what == _PULLED:
            self._pulled(which, now)
        elif what == _DOWN:
            self._down(which, now)
        else:
            self._faults[which] -= 1
            if not self._faults[which]:
                self._do(self._fleet.instance_up(which, self._produced), now)

    def _send(self, row: int, now: float) -> None:
        output = self._outputs[row]
        sampling = self._sampling.get(output)
        if sampling is None:
            sampling = self._sampling[output] = SamplingParams(max_tokens=output)
        self._record.sent_s[row] = now
        name = str(row)
        self._open[name] = _Open(row)
        request = Request(name, range(self._prompts[row]), sampling, runs=self._load.runs[row])
        self._do(self._fleet.submit(request), now)

    def _do(self, actions: list[Action], now: float) -> None:
        """Carry actions out, and those that follow from them."""
        for action in actions:  # grows on the way
            match action:
                case Serve(index, request, attempt):
                    actions += self._add(index, request, attempt, now, half=False)
                case Prefill(index, request, attempt):
                    actions += self._add(index, prefill_half(request), attempt, now, half=True)
                case Reserve(index, request, attempt):
                    actions += self._reserve(index, request, attempt, now)
                case Pull():
                    self._pull(action, now)
                case StartDecode(index, name, attempt, token):
                    self._open[name].attempt = attempt
                    self._touch(index, now).start_decode(name, token, now)
                case Release(index, name):
                    self._touch(index, now).core.release_kv(name, now)
                case Abort(index, name):
                    self._touch(index, now).core.abort(name, now)
                case Reject(name):
                    self._dropped(name, now)

    def _touch(self, index: int, now: float) -> Instance:
        """An instance whose state is about to change at `now`."""
        instance = self._instances[index]
        instance.disturb(now)
        self._touched.add(index)
        return instance

    def _add(self, index: int, request: Request, attempt: int, now: float, *, half: bool) -> list[Action]:
        one = self._open[request.id]
        one.attempt, one.half = attempt, half
        self._touched.add(index)
        try:
            self._instances[index].add(request, now)
        except InputError:
            self._dropped(request.id, now)
            return self._fleet.finished(request.id, attempt)
        return []

    def _reserve(self, index: int, request: Request, attempt: int, now: float) -> list[Action]:
        try:
            cached = self._touch(index, now).core.reserve(request, now)
        except InputError:
            self._dropped(request.id, now)
            return self._fleet.finished(request.id, attempt)
        return self._fleet.reserved(request.id, attempt, cached)

    def _pull(self, pull: Pull, now: float) -> None:
        self._pulls[pull.attempt] = pull
        if self._link is None or self._deployment.transport is None:
            self._at(now, _PULLED, pull.attempt)
            return
        size = (pull.stop - pull.start) * self._deployment.transport.kv_bytes_per_token
        self._link.start(pull.attempt, pull.source, pull.target, size, now)
        self._watch_link(self._link)

    def _watch_link(self, link: Link) -> None:
        if link.next_s != self._link_wakes:
            self._link_wakes = link.next_s
            if self._link_wakes < NEVER:
                self._at(self._link_wakes, _LANDED, 0)

    def _landed(self, now: float) -> None:
        if self._link is None or now < self._link_wakes:
            return
        self._link_wakes = NEVER  # this wake is used up, also where the next copy lands at the same time
        for attempt in self._link.landed(now):
            if isinstance(attempt, int):
                self._pulled(attempt, now)
        self._watch_link(self._link)

    def _pulled(self, attempt: int, now: float) -> None:
        pull = self._pulls.pop(attempt, None)
        if pull is not None:
            self._do(self._fleet.pulled(pull.request_id, attempt, now), now)

    def _down(self, index: int, now: float) -> None:
        """All that the instance has is lost, and copies to and from it fail."""
        self._faults[index] += 1
        if self._faults[index] > 1:
            return
        self._instances[index].disturb(now)
        failed = [pull for pull in self._pulls.values() if index in (pull.source, pull.target)]
        for pull in failed:
            del self._pulls[pull.attempt]
            if self._link is not None:
                self._link.cancel(pull.attempt, now)
                self._watch_link(self._link)
        actions = self._fleet.instance_down(index, self._produced)
        self._instances[index].restart(self._core(self._pools[index]))
        self._do(actions, now)
        for pull in failed:
            self._do(self._fleet.pull_failed(pull.request_id, pull.attempt, now), now)

    def _produced(self, name: str) -> Sequence[int]:
        """The output of a request that was running, without content."""
        one = self._open[name]
        one.stop()
        return range(one.count)

    def _heard(self, event: TokenEvent, now: float) -> None:
        """A first token, or the end of a request."""
        name, record = event.request_id, self._record
        one = self._open[name]
        row = one.row
        if event.index == 0 and one.count <= 1:
            record.first_s[row], record.queued_s[row] = now, event.queued_s
            record.cached[row] = event.cached_tokens
        if event.finish_reason is None or one.half:
            one.half = False
            if event.index == 0:
                self._do(self._fleet.prefilled(name, one.attempt, 0, now), now)
            return
        del self._open[name]
        record.end_s[row], record.largest_s[row] = now, one.worst_s
        self._do(self._fleet.finished(name, one.attempt), now)
        if self._children:
            self._over(row, now)
        if self._watch is not None:
            gaps = self._outputs[row] - 1
            first_s = record.first_s[row]
            self._stopped |= self._watch.ended(
                ttft_s=first_s - record.sent_s[row],
                tpot_s=(now - first_s) / gaps if gaps else 0.0,
                max_gap_s=one.worst_s,
            )

    def _dropped(self, name: str, now: float) -> None:
        self._over(self._open.pop(name).row, now)
        if self._watch is not None:
            self._stopped |= self._watch.dropped()

    def _over(self, row: int, now: float) -> None:
        """The turns behind this one come their think time later, or when they are due; late ones at once."""
        load = self._load
        for child in self._children.pop(row, ()):
            due = load.arrival_s[child] if self._turns == "held" else now + load.think_s[child]
            self._at(max(now, float(due)), _ARRIVAL, child)


def _children(load: Load, turns: Turns) -> dict[int, list[int]]:
    """The turns that wait for each turn; where none has to come a think time later, all of them."""
    children: dict[int, list[int]] = {}
    waiting = load.waiting_turns if turns == "causal" else np.flatnonzero(load.parent >= 0)
    for row in waiting.tolist():
        children.setdefault(int(load.parent[row]), []).append(row)
    return children
