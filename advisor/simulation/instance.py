"""One instance on the virtual clock: an engine core, and when its steps end.

Owns the time of one core: a step ends after what the step-time model says, a pipeline starts the next as soon
as its first stage is free, and a run of pure decodes passes at once, unless a request comes in between. Never
decides what a step holds: the core does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from advisor.simulation.gaps import GapCounts
from advisor.simulation.tokens import DecodeTimes, Stream
from engine.core import EngineCore, Flight, TokenEvent
from engine.request import Request
from engine.step_time.model import StepTimeModel

NEVER = math.inf


class _Run(NamedTuple):
    """Pure decodes that pass at once: step i, from 0, takes `first` + i x `growth` seconds."""

    start: float
    steps: int
    rows: int
    first: float
    growth: float

    def seconds(self, steps: int) -> float:
        """How long the first `steps` take."""
        return steps * self.first + self.growth * (steps * (steps - 1) / 2)

    def steps_by(self, seconds: float) -> int:
        """The fewest steps, at least one, that take this long or longer."""
        half = self.growth / 2
        first = self.first - half
        if half > 0:
            guess = (math.sqrt(first * first + 4 * half * seconds) - first) / (2 * half)
        else:
            guess = seconds / self.first
        steps = max(1, min(self.steps, round(guess)))
        # Rounding may put the guess a step off on either side.
        while steps > 1 and self.seconds(steps - 1) >= seconds:
            steps -= 1
        while steps < self.steps and self.seconds(steps) < seconds:
            steps += 1
        return steps


class Instance:
    """A core with its clock. At `wakes` something of it is over: `end` that, then `begin` what comes next.

    `streams` are the requests of all instances, by id. An instance that is restarted keeps its sums.
    """

    def __init__(
        self,
        core: EngineCore,
        step_time: StepTimeModel,
        stages: int,
        gaps: GapCounts,
        streams: Mapping[str, Stream],
    ) -> None:
        self.busy_s = 0.0  # of the first stage
        self.steps = 0
        self.preemptions = 0
        self._step_time = step_time
        self._stages = stages
        self._gaps = gaps
        self._streams = streams
        self.restart(core)

    def restart(self, core: EngineCore) -> None:
        """Whatever it did is lost, `core` is empty."""
        self.core = core
        self.wakes = NEVER
        self._free_at = [0.0] * self._stages
        self._flights: deque[tuple[float, Flight]] = deque()
        self._run: _Run | None = None
        self._groups = [DecodeTimes(self._gaps) for _ in range(self._stages)]
        self._coming: list[tuple[Request, float]] = []  # came in a run of decodes, when
        self._late: list[tuple[int, Stream]] = []  # join their group once its step in flight is over

    def add(self, request: Request, now: float) -> None:
        """A request comes in. A run of decodes ends with the step in flight if it could begin behind that."""
        run = self._run
        if run is None:
            self.core.add(request, now)
            return
        self.core.check(request)
        self._coming.append((request, now))
        if not self.core.full:
            steps = run.steps_by(now - run.start)
            self._run = _Run(run.start, steps, run.rows, run.first, run.growth)
            self.wakes = run.start + run.seconds(steps)

    def disturb(self, now: float) -> None:
        """Blocks are about to change hands at `now`: of a run of decodes only the step in flight is left."""
        run = self._run
        if run is None:
            return
        self._run = None
        steps = run.steps_by(now - run.start)
        before = run.seconds(steps - 1)
        if steps > 1:
            self._pass(run._replace(steps=steps - 1), run.start + before)
        flight = self.core.next_flight(now)
        if flight is None:
            raise ValueError("a run of decodes has a next step")
        self.steps += 1
        self.busy_s += run.seconds(steps) - before
        self.wakes = run.start + run.seconds(steps)
        self._flights.append((self.wakes, flight))
        self._let_in()

    def start_decode(self, request_id: str, token: int, now: float) -> None:
        """The KV of a reserved request is here."""
        group, stream = self.core.start_decode(request_id, token, now), self._streams[request_id]
        if any(flight.work.group.number == group for _, flight in self._flights):
            self._late.append((group, stream))
        else:
            self._groups[group].join(stream)

    def end(self, now: float) -> list[TokenEvent]:
        """Take in what is over by `now`. Events: first tokens and ends."""
        if self._run is not None:
            run, self._run = self._run, None
            events = self._pass(run, now)
            self._let_in()
            return events
        events = []
        flights = self._flights
        while flights and flights[0][0] <= now:
            flight = flights.popleft()[1]
            group = self._groups[flight.work.group.number]
            if flight.work.decodes:
                group.ticked(now, flight.work.decodes)
            over = self.core.complete(flight.id, None, now)
            if over:
                self._follow(over, group, now)
                events += over
            if self._late:
                self._join_late(flight.work.group.number)
        return events

    def begin(self, now: float) -> None:
        """Start what can start at `now`; sets `wakes`."""
        if self._run is not None:
            return
        if self._stages == 1:
            if not self._flights and not self._begin_run(now):
                self.wakes = self._flights[0][0] if self._begin_step(now) else NEVER
            return
        free_at = self._free_at
        while free_at[0] <= now and self._begin_step(now):
            pass
        self.wakes = self._flights[0][0] if self._flights else NEVER
        if len(self._flights) < self._stages and now < free_at[0] < self.wakes and self.core.has_work:
            self.wakes = free_at[0]

    def _let_in(self) -> None:
        """Those that came in a run of decodes wait from now on."""
        if self._coming:
            for request, came in self._coming:
                self.core.queue(request, came)
            self._coming.clear()

    def _follow(self, events: list[TokenEvent], group: DecodeTimes, now: float) -> None:
        """First tokens and ends of requests, in their streams."""
        for event in events:
            stream = self._streams[event.request_id]
            if stream.group is not None:
                stream.group.leave(stream)
                continue
            stream.token(now, self._gaps)
            if event.finish_reason is None:
                group.join(stream)

    def _join_late(self, number: int) -> None:
        for group, stream in self._late:
            if group == number:
                self._groups[group].join(stream)
        self._late = [one for one in self._late if one[0] != number]

    def _pass(self, run: _Run, now: float) -> list[TokenEvent]:
        """All steps of a run are over at `now`."""
        self.steps += run.steps
        self.busy_s += now - run.start
        group = self._groups[0]
        group.ran(run.start, now, run.first, run.growth, run.steps, run.rows)
        events = self.core.jump(run.steps, now)
        self._follow(events, group, now)
        return events

    def _begin_run(self, now: float) -> bool:
        steps = self.core.decode_run()
        if steps < 2:
            return False
        rows, context = self.core.decoding
        bend = self._step_time.bend
        if context < bend * rows < context + steps * rows:
            steps = int(bend - context / rows) + 1
        first, growth = self._step_time.decode_line(rows, context)
        self._run = run = _Run(now, steps, rows, first, growth)
        self.wakes = now + run.seconds(steps)
        return True

    def _begin_step(self, now: float) -> bool:
        flight = self.core.next_flight(now)
        preempted = self.core.preempted
        if preempted:
            self.preemptions += len(preempted)
            for request_id in preempted:
                self._streams[request_id].stop()
        if flight is None:
            return False
        free_at = self._free_at
        stage_s = self._step_time.seconds(flight.shape) / len(free_at)
        at = now
        for stage, free in enumerate(free_at):
            at = (at if at > free else free) + stage_s
            free_at[stage] = at
        self.steps += 1
        self.busy_s += stage_s
        self._flights.append((at, flight))
        return True
