"""The open-loop replay: every request is sent at its own time, whatever became of the ones before.

Owns the schedule and the end of a run. States: running -> complete, aborted (most requests fail: going on
would only burden the server) or interrupted (the task was cancelled, as Ctrl-C does). Each state has one
record for every scheduled request. Nothing is tokenized, written or printed meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from advisor.validation.client import Client, Exchange
from advisor.validation.record import Record

End = Literal["complete", "aborted", "interrupted"]

_LEAD_S = 0.2  # between the call and the first arrival, so that the first request is not late
_TICK_S = 1.0
_TIMER_S = 0.001  # the event loop's timers are late by up to this: epoll counts whole milliseconds
_ABORT_AFTER = 20  # outcomes before the share of errors is judged
ABORT_SHARE = 0.5  # ours: with more than half in error nothing else is worth measuring
_FINE = ("ok", "wrong_length")
_OPEN = ("unsent", "interrupted")


@dataclass(frozen=True, slots=True)
class Due:
    """One request of the schedule."""

    row: int
    at_s: float  # seconds after the start
    body: bytes
    want_in: int
    want_out: int


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
    """What came back."""

    records: tuple[Record, ...]
    end: End
    start_unix_s: float  # wall clock at the start, for provenance only


async def replay(
    schedule: Sequence[Due],
    client: Client,
    *,
    tick: Callable[[Counts], None],
    send_delay_s: float = 0.0,
) -> Replay:
    """Send the schedule and wait for every outcome.

    `tick` is called about once a second. `send_delay_s` makes every send late, to prove that lateness is seen.
    """
    with _garbage_frozen():  # before the clock starts: a collection of a large heap takes longer than the lead
        start_ns = time.monotonic_ns() + int(_LEAD_S * 1e9)
        start_unix_s = time.time() + _LEAD_S
        exchanges = [
            Exchange(due.row, due.body, start_ns + int(due.at_s * 1e9), due.want_in, due.want_out)
            for due in schedule
        ]
        end = await _Run(exchanges, client, start_ns, int(send_delay_s * 1e9)).to_its_end(tick)
    return Replay(tuple(exchange.record(start_ns) for exchange in exchanges), end, start_unix_s)


class _Run:
    def __init__(self, exchanges: list[Exchange], client: Client, start_ns: int, delay_ns: int) -> None:
        self._exchanges = exchanges
        self._client = client
        self._start_ns = start_ns
        self._delay_ns = delay_ns
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent = 0
        self._finished = 0
        self._errors = 0

    async def to_its_end(self, tick: Callable[[Counts], None]) -> End:
        dispatch = asyncio.create_task(self._dispatch())
        try:
            while not dispatch.done() or self._tasks:
                done, _ = await asyncio.wait({dispatch, *self._tasks}, timeout=_TICK_S)
                for task in done:
                    task.result()  # an exception here is a bug of ours, not a miss
                self._tasks -= done
                tick(self._counts())
                if self._hopeless():
                    return "aborted"
        except asyncio.CancelledError:
            return "interrupted"
        finally:
            await _cancel({dispatch, *self._tasks})
        return "complete"

    async def _dispatch(self) -> None:
        for exchange in self._exchanges:
            await _sleep_until(exchange.due_ns + self._delay_ns)
            task = asyncio.create_task(self._client.perform(exchange))
            self._tasks.add(task)
            self._sent += 1
            task.add_done_callback(partial(self._count, exchange))

    def _count(self, exchange: Exchange, _: asyncio.Task[None]) -> None:
        if exchange.status not in _OPEN:
            self._finished += 1
            self._errors += exchange.status not in _FINE

    def _hopeless(self) -> bool:
        return self._finished >= _ABORT_AFTER and self._errors > ABORT_SHARE * self._finished

    def _counts(self) -> Counts:
        elapsed_s = max(time.monotonic_ns() - self._start_ns, 0) / 1e9
        return Counts(len(self._exchanges), self._sent, self._finished, self._errors, elapsed_s)


async def _sleep_until(at_ns: int) -> None:
    """Sleep until `at_ns`; the last millisecond in turns of the loop, in which streams are served too."""
    while (left_ns := at_ns - time.monotonic_ns()) > 0:
        await asyncio.sleep(max(left_ns / 1e9 - _TIMER_S, 0))


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
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
