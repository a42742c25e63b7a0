"""The open-loop replay: every request is sent at its own time, whatever became of the ones before.

With causal turns a request has one before it that must have ended; what it waits for that is its `held_s`,
never lag. Owns the schedule and the end of a run. States: running -> complete, enough (who listens has seen
enough), aborted (most requests fail: going on would only burden the server) or interrupted (the task was
cancelled, as Ctrl-C does). Each has one record for every scheduled request. Nothing is tokenized or printed
meanwhile, and nothing written but by who listens.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from advisor.validation.client import Client
from advisor.validation.exchange import Exchange
from advisor.validation.record import COMPLETE, Record
from advisor.validation.wire import Clock

End = Literal["complete", "enough", "aborted", "interrupted"]

_LEAD_S = 0.2  # between the call and the first arrival, so that the first request is not late
_TICK_S = 1.0
_TIMER_S = 0.001  # the event loop's timers are late by up to this: epoll counts whole milliseconds
_ABORT_AFTER = 20  # outcomes before the share of errors is judged
ABORT_SHARE = 0.5  # ours: with more than half in error nothing else is worth measuring


@dataclass(frozen=True, slots=True)
class Due:
    """One request of the schedule."""

    row: int
    at_s: float  # seconds after the start
    body: bytes = field(repr=False)
    want_in: int
    want_out: int
    session: int | None = None
    turn: int | None = None
    slo_class: str | None = None
    copy: int = 0
    after: int | None = None  # place in the schedule of the request that must have ended first; an earlier one


@dataclass(frozen=True, slots=True)
class Counts:
    """How far a running replay is."""

    scheduled: int
    sent: int
    finished: int
    errors: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Replay:
    """What came back: one record for each request of the schedule, in its order."""

    records: tuple[Record, ...]
    end: End
    start_unix_s: float  # wall clock at the start, for provenance only
    start_ns: int  # the run's clock at the start


Ended = Callable[[Record], bool]


def unheard(_: Record) -> bool:
    """Nobody listens, and nobody has ever seen enough."""
    return False


async def replay(
    schedule: Sequence[Due],
    client: Client,
    *,
    tick: Callable[[Counts], None],
    ended: Ended = unheard,
    send_delay_s: float = 0.0,
    clock: Clock = time.monotonic_ns,
) -> Replay:
    """Send the schedule, which is in order of `at_s`, and wait for every outcome.

    `tick` is called about once a second. `ended` is given every request's record once: as it ends, where True
    means that this is enough and ends the run; and when the run is over, for those that have no outcome. Both
    are called between sends: they must be quick, and what they raise ends the run and is raised here.
    `send_delay_s` makes every send late, to prove that lateness is seen. `clock` gives nanoseconds.
    """
    with _garbage_frozen():  # before the clock starts: a collection of a large heap takes longer than the lead
        exchanges = [_exchange(due) for due in schedule]
        start_ns, start_unix_s = clock() + int(_LEAD_S * 1e9), time.time() + _LEAD_S
        for exchange in exchanges:
            exchange.due_ns += start_ns
        run = _Run(schedule, exchanges, client, clock, start_ns, int(send_delay_s * 1e9), ended)
        end = await run.to_its_end(tick)
    return Replay(run.close(), end, start_unix_s, start_ns)


def _exchange(due: Due) -> Exchange:
    """With its time after the start."""
    return Exchange(
        due.row,
        due.body,
        round(due.at_s * 1e9),
        due.want_in,
        due.want_out,
        due.session,
        due.turn,
        due.slo_class,
        due.copy,
    )


class _Run:
    def __init__(
        self,
        schedule: Sequence[Due],
        exchanges: list[Exchange],
        client: Client,
        clock: Clock,
        start_ns: int,
        delay_ns: int,
        ended: Ended,
    ) -> None:
        self._after = [due.after for due in schedule]
        self._exchanges = exchanges
        self._client = client
        self._clock = clock
        self._start_ns = start_ns
        self._delay_ns = delay_ns
        self._ended = ended
        self._held: defaultdict[int, list[int]] = defaultdict(list)  # by the place of the one before
        self._records: list[Record | None] = [None] * len(exchanges)
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._sent = 0
        self._finished = 0
        self._errors = 0

    async def to_its_end(self, tick: Callable[[Counts], None]) -> End:
        """Send and wait."""
        self._start(self._dispatch())
        try:
            while not self._over.done():
                await asyncio.wait({self._over}, timeout=_TICK_S)
                gc.freeze()  # what has lived until now lives on: no collection looks at it again
                tick(self._counts())
            return self._over.result()
        except asyncio.CancelledError:
            return "interrupted"
        finally:
            self._end("interrupted")
            await _cancel(self._tasks)

    def close(self) -> tuple[Record, ...]:
        """Every record; those without an outcome are told now."""
        for place, exchange in enumerate(self._exchanges):
            if self._records[place] is None:
                self._records[place] = record = exchange.record(self._start_ns)
                self._ended(record)
        return tuple(record for record in self._records if record is not None)

    async def _dispatch(self) -> None:
        for place, exchange in enumerate(self._exchanges):
            await self._sleep_until(exchange.due_ns + self._delay_ns)
            before = self._after[place]
            if before is not None and self._records[before] is None:
                self._held[before].append(place)
            else:
                self._start(self._perform(place))
        self._end_if_all_ended()

    async def _perform(self, place: int) -> None:
        """Send one that is due, follow it, and let go of those that waited for it."""
        exchange, before = self._exchanges[place], self._after[place]
        if before is not None:
            ended_ns = self._exchanges[before].done_ns or 0
            exchange.held_ns = max(0, ended_ns - exchange.due_ns)
            await self._sleep_until(exchange.due_ns + exchange.held_ns + self._delay_ns)
        self._sent += 1
        await self._client.perform(exchange)
        self._records[place] = record = exchange.record(self._start_ns)
        self._finished += 1
        self._errors += record.status not in COMPLETE
        for waiting in self._held.pop(place, ()):
            self._start(self._perform(waiting))
        enough = self._ended(record)
        self._end_if_all_ended()
        if enough:
            self._end("enough")
        elif self._finished >= _ABORT_AFTER and self._errors > ABORT_SHARE * self._finished:
            self._end("aborted")

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._over.done():
            self._over.set_exception(error)  # of who listens, of this machine, or a bug: no miss of the server

    def _end_if_all_ended(self) -> None:
        if self._finished == len(self._exchanges):
            self._end("complete")

    def _end(self, end: End) -> None:
        if not self._over.done():
            self._over.set_result(end)

    def _counts(self) -> Counts:
        elapsed_s = max(self._clock() - self._start_ns, 0) / 1e9
        return Counts(len(self._exchanges), self._sent, self._finished, self._errors, elapsed_s)

    async def _sleep_until(self, at_ns: int) -> None:
        """Sleep; the last millisecond in turns of the loop, in which streams are served too."""
        while (left_ns := at_ns - self._clock()) > 0:
            await asyncio.sleep(max(left_ns / 1e9 - _TIMER_S, 0))


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _garbage_frozen() -> Iterator[None]:
    """Keep what exists, bodies above all, out of collections: each would stop the clock for milliseconds."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
