"""The driver: one thread of an instance that drives the engine core and its executor by the wall clock.

Owns the core: no other thread touches it. Orders come in by `put`, reports go out by `report`, a frame a step.
States: running -> stopped (asked to) or failed (executor or core raised: the process has to go). What it keeps
for a pull it keeps under a lease, `Held`, so that KV nobody comes for is reclaimed here whatever happens to the
messages about it. Orders are carried out while a step runs too, so that a handover waits for no step of others.
It holds no text, decides nothing about other instances, and never waits for one.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.core import EngineCore, TokenEvent
from engine.errors import InputError
from engine.executors.emulated import EmulatedHandle
from engine.invariants import InvariantError
from engine.server.messages import (
    Abort,
    Add,
    Event,
    Order,
    Pull,
    Pulled,
    Refused,
    Release,
    Renew,
    Report,
    Reserve,
    Reserved,
    Rested,
    StartDecode,
    Stepped,
    Stop,
    Tell,
)
from engine.server.step_log import StepLog
from engine.step import Executor, Handle, Step
from engine.transfer.held import Held
from engine.transfer.layout import Peer
from engine.transfer.puller import PullJob, PullResult

_log = logging.getLogger(__name__)
_SELF_CHECK_AFTER_S = 1.0  # idle this long: a check takes milliseconds that an arriving request would wait


class Pulls(Protocol):
    """Who copies KV from other instances."""

    def pull(self, job: PullJob) -> None:
        """Start a copy; its end is reported once."""
        ...

    def tell(self, peer: Peer, kept_as: str, *, still: bool) -> None:
        """Tell an instance of another fleet whether what it keeps is still wanted."""
        ...


class _Flight(NamedTuple):
    """A step that the executor carries out since `submitted`, seconds."""

    step: Step
    handle: Handle
    submitted: float


@dataclass(slots=True)
class _Open:
    """A request of this instance and the attempt that answers go under."""

    attempt: int
    keeps: bool
    prompt_tokens: int


class Driver:
    """Drives one core with one executor. `clock` is in seconds, `time_scale` of them are one of the core's.

    `held` and `pulls` where KV moves. `report` is called from this thread; `failed` once, with what was raised.
    """

    def __init__(
        self,
        core: EngineCore,
        executor: Executor,
        report: Callable[[Report], None],
        *,
        held: Held | None = None,
        pulls: Pulls | None = None,
        step_log: StepLog | None = None,
        failed: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
        time_scale: float = 1.0,
    ) -> None:
        self._core = core
        self._executor = executor
        self._report = report
        self._held = held
        self._pulls = pulls
        self._step_log = step_log
        self._failed = failed
        self._clock = clock
        self._scale = time_scale
        # With when they came; None: a step is over.
        self._inbox: queue.SimpleQueue[tuple[Order | None, float]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine-driver")
        self._stopping = False
        self._flights: deque[_Flight] = deque()
        self._completed = 0.0  # when the last step was
        self._open: dict[str, _Open] = {}

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, order: Order) -> None:
        """Hand an order to the thread; orders are carried out as they come."""
        self._inbox.put((order, self._clock()))

    def join(self) -> None:
        """Wait for the thread's end, after a Stop or a failure."""
        self._thread.join()

    @property
    def busy_s(self) -> float:
        """How long the oldest step in flight has run; 0 without one. From any thread."""
        try:
            return self._clock() - self._flights[0].submitted
        except IndexError:
            return 0.0

    def _run(self) -> None:
        try:
            self._drive()
        except BaseException as error:
            # Whatever it was, the KV cache can no longer be trusted; the process ends, visibly.
            _log.exception("the engine failed")
            self._failed(error)
        finally:
            if self._step_log is not None:
                self._step_log.close()

    def _drive(self) -> None:
        while True:
            self._take_orders(wait_s=0)
            if self._stopping:
                for flight in self._flights:
                    flight.handle.result()
                return
            self._reclaim()
            step = self._core.next_step(self._core_now())
            if step is not None:
                self._submit(step)
            elif self._flights:
                if self._is_over(self._flights[0].handle):
                    self._complete(self._flights[0])
            elif self._core.has_work and not self._core.holds_for_others:
                raise RuntimeError("requests are open, but no step can be made for them")
            else:
                self._rest()

    def _submit(self, step: Step) -> None:
        handle = self._executor.submit(step)
        self._flights.append(_Flight(step, handle, self._clock()))
        if isinstance(handle, Future):
            handle.add_done_callback(lambda _: self._inbox.put((None, 0.0)))

    def _is_over(self, handle: Handle) -> bool:
        """Whether a step is over, after a wait for its end that orders interrupt: what they change may let
        another step begin. Of a handle that does not tell its end, the result is waited for.
        """
        if isinstance(handle, Future):
            return handle.done() or not self._take_orders(wait_s=None)
        if isinstance(handle, EmulatedHandle):
            left = handle.ends_s - self._clock()
            return left <= 0 or not self._take_orders(wait_s=left)
        return True

    def _rest(self) -> None:
        """Nothing to do: wait for an order, and check the books once if none comes soon."""
        self._report(Rested(self._core.stats()))
        if self._step_log is not None:
            self._step_log.flush()
        if self._take_orders(wait_s=self._patience(_SELF_CHECK_AFTER_S)):
            return
        try:
            self._core.check_invariants()
        except InvariantError as error:
            # Reported, not fatal: what was answered so far came from blocks that were in order.
            _log.error("idle self-check: %s", error)
            self._report(Rested(self._core.stats(), books_wrong=True))
        self._take_orders(wait_s=self._patience(None))

    def _patience(self, most: float | None) -> float | None:
        """How long to wait for an order, a lease may run out meanwhile."""
        expiry = None if self._held is None else self._held.next_expiry_s
        if expiry is None:
            return most
        left = max(0.0, expiry - self._clock())
        return left if most is None else min(most, left)

    def _reclaim(self) -> None:
        """Free what was kept for a pull that nobody came for."""
        if self._held is None or self._held.next_expiry_s is None:
            return
        for request_id in self._held.expired(self._clock()):
            _log.warning("the lease on the KV of %s ran out", request_id)
            self._release(request_id)

    def _take_orders(self, *, wait_s: float | None) -> bool:
        """Carry out what is in the inbox, waiting up to `wait_s` for the first; False if nothing came."""
        try:
            self._obey(*self._inbox.get(timeout=wait_s))
        except queue.Empty:
            return False
        while not self._inbox.empty():
            self._obey(*self._inbox.get())
        return True

    def _obey(self, order: Order | None, came: float) -> None:
        now = self._core_now()
        match order:
            case Add():
                self._add(order, came)
            case Abort(request_id):
                self._open.pop(request_id, None)
                self._core.abort(request_id, now)
            case Reserve():
                self._reserve(order, now)
            case Pull():
                self._pull(order)
            case StartDecode(request_id, attempt, token):
                self._open[request_id].attempt = attempt
                self._core.start_decode(request_id, token, now)
            case Release(request_id):
                self._release(request_id)
            case Renew(request_ids):
                self._renew(request_ids)
            case Tell(peer, kept_as, still):
                if self._pulls is not None:
                    self._pulls.tell(peer, kept_as, still=still)
            case Stop():
                self._stopping = True

    def _add(self, order: Add, came: float) -> None:
        request = order.request.request()
        try:
            self._core.add(request, (came - order.waited_s) / self._scale)
        except InputError as error:
            self._report(Refused(request.id, order.attempt, error.message))
        else:
            self._open[request.id] = _Open(order.attempt, request.keep_kv, len(request.prompt))

    def _reserve(self, order: Reserve, now: float) -> None:
        request = order.request.request()
        try:
            cached = self._core.reserve(request, now)
        except InputError as error:
            self._report(Refused(request.id, order.attempt, error.message))
            return
        if cached is not None:
            self._open[request.id] = _Open(order.attempt, False, len(request.prompt))
        self._report(Reserved(request.id, order.attempt, cached))

    def _pull(self, order: Pull) -> None:
        if self._pulls is None:
            self._report(Pulled(order.request_id, order.attempt, "unavailable", 0, 0.0, "none"))
            return
        blocks = self._core.reserved_blocks(order.request_id)
        name, attempt, start, stop, peer = order.request_id, order.attempt, order.start, order.stop, order.peer
        self._pulls.pull(PullJob(name, attempt, peer, start, stop, blocks, order.kept_as))

    def pulled(self, result: PullResult) -> None:
        """A copy is over; called from the puller's thread."""
        word = "ok" if result.ok else result.reason
        self._report(
            Pulled(result.request_id, result.attempt, word, result.bytes, result.seconds, result.transport)
        )

    def _release(self, request_id: str) -> None:
        """Let kept KV go: first nobody may be told of it any more, then the blocks are free."""
        if self._held is not None:
            self._held.drop(request_id)
        self._core.release_kv(request_id, self._core_now())

    def _renew(self, request_ids: Sequence[str]) -> None:
        if self._held is not None:
            for request_id in request_ids:
                self._held.renew(request_id, self._clock())

    def _core_now(self) -> float:
        return self._clock() / self._scale

    def _complete(self, flight: _Flight) -> None:
        result = flight.handle.result()
        self._flights.popleft()
        now = self._clock()
        events = [
            self._event(event, now) for event in self._core.complete(flight.step.id, result, now / self._scale)
        ]
        # A step that was made ahead runs from the end of the one before.
        seconds = now - max(flight.submitted, self._completed)
        self._completed = now
        step = flight.step
        prefill = sum(len(row.tokens) for row in step.rows if row.prefill)
        handle = flight.handle
        emulated = (handle.seconds, handle.lag_s) if isinstance(handle, EmulatedHandle) else None
        self._report(
            Stepped(events, prefill, step.query_tokens - prefill, seconds, self._core.stats(), emulated)
        )
        if self._step_log is not None:
            self._step_log.write(step, seconds, now)

    def _event(self, event: TokenEvent, now: float) -> Event:
        name = event.request_id
        one = self._open[name]
        if event.finish_reason is not None:
            del self._open[name]
            if one.keeps and self._held is not None:
                self._held.keep(name, self._core.kept_blocks(name), one.prompt_tokens, now)
        return Event(
            name,
            one.attempt,
            event.token,
            event.finish_reason,
            event.cached_tokens,
            event.queued_s * self._scale,
            event.logprobs,
        )
