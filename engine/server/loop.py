"""The engine loop: one thread that drives the engine core and its executor by the wall clock.

Owns the core: no other thread touches it. The event loop's thread puts commands in (`add`, `abort`, `stop`) and
gets what happened in batches, one a step. States: running -> stopped (asked to: what is open ends with `abort`)
or failed (executor or core raised: what is open ends with `error`, and the process has to go). It holds no
text.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from engine.core import EngineCore, TokenEvent
from engine.errors import InputError
from engine.invariants import InvariantError, require
from engine.request import Request
from engine.server.observer import Observer
from engine.server.ticket import Ending, Ticket
from engine.step import Executor, Handle, Step

_log = logging.getLogger(__name__)
_SELF_CHECK_AFTER_S = 1.0  # idle this long: a check takes milliseconds that an arriving request would wait


class _Finish(NamedTuple):
    """End a request that has said all that its client wants."""

    request_id: str


class _Flight(NamedTuple):
    """A step that the executor carries out since `submitted`, seconds."""

    step: Step
    handle: Handle
    submitted: float


_Command = list[Ticket] | _Finish | str | None  # requests to add, one to finish, one to abort, or: stop


class EngineLoop:
    """Drives one core with one executor. `clock` is in seconds.

    `shared_block`: with a prefix cache, the tokens of one of its blocks. Choices of one prompt longer than that
    wait for the first one's first token, so that the prompt is computed once. 0: without a prefix cache.
    """

    def __init__(
        self,
        core: EngineCore,
        executor: Executor,
        observer: Observer,
        *,
        shared_block: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._executor = executor
        self._observer = observer
        self._shared_block = shared_block
        self._clock = clock
        self._inbox: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine-loop")
        self._stopping = False  # the thread's, as the next three
        self._flights: deque[_Flight] = deque()
        self._completed = 0.0  # when the last step was
        self._behind: dict[str, list[Ticket]] = {}  # choices that wait for the first one, by its id
        self._open: dict[str, Ticket] = {}  # the event loop's, as all below
        self._waiting = 0
        self._on_failure: Callable[[], None] = lambda: None
        self.failure: BaseException | None = None

    def start(self, on_failure: Callable[[], None]) -> None:
        """Start the thread; call it inside the event loop, where `on_failure` runs if the engine fails."""
        self._events = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests accepted and in no step yet: what the bound of the queue counts."""
        return self._waiting

    @property
    def open(self) -> int:
        """Requests accepted and not ended."""
        return len(self._open)

    def add(self, request: Request, *, stream: bool) -> Ticket:
        """Hand a request to the engine."""
        return self.add_choices([request], asyncio.Event(), stream=stream)[0]

    def add_choices(self, requests: Sequence[Request], wake: asyncio.Event, *, stream: bool) -> list[Ticket]:
        """Hand requests of one prompt to the engine; their tickets share `wake`."""
        now = self._clock()
        tickets = [Ticket(request, now, stream=stream, wake=wake) for request in requests]
        self._open |= {ticket.request.id: ticket for ticket in tickets}
        self._waiting += len(tickets)
        self._inbox.put(tickets)
        return tickets

    def abort(self, ticket: Ticket) -> None:
        """End a request; nothing happens if it has ended."""
        if ticket.ending is None:
            self._inbox.put(ticket.request.id)

    def finish(self, ticket: Ticket) -> None:
        """End a request whose text has reached a stop string: an end with `stop`, not an abort."""
        if ticket.ending is None:
            self._inbox.put(_Finish(ticket.request.id))

    async def stop(self) -> None:
        """End what is open and the thread. A step in flight is waited for."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)
        self._end_all("abort")

    def check_invariants(self) -> None:
        """Open tickets have no ending, and those not admitted are what waits."""
        tickets = self._open.values()
        require(all(ticket.ending is None for ticket in tickets), "an open ticket has ended")
        require(self._waiting == sum(not ticket.admitted for ticket in tickets), "the queue's count is wrong")

    def _admitted(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            ticket = self._open.get(request_id)
            if ticket is not None and not ticket.admitted:
                ticket.admitted = True
                self._waiting -= 1

    def _deliver(self, events: Iterable[TokenEvent]) -> None:
        for event in events:
            ticket = self._open.get(event.request_id)
            if ticket is None:
                continue
            if event.token is not None:
                if event.index == 0:
                    ticket.cached_tokens = event.cached_tokens
                if event.logprobs is not None:
                    ticket.logprobs.append(event.logprobs)
                ticket.push(event.token)
            if event.finish_reason is not None:
                self._end(ticket, Ending(event.finish_reason, event.cached_tokens))

    def _end(self, ticket: Ticket, ending: Ending) -> None:
        del self._open[ticket.request.id]
        if not ticket.admitted:
            self._waiting -= 1
        ticket.end(ending)

    def _end_all(self, reason: str) -> None:
        for ticket in list(self._open.values()):
            self._end(ticket, Ending(reason))

    def _failed(self, error: BaseException) -> None:
        self.failure = error
        self._end_all("error")
        self._on_failure()

    # From here on: the engine's thread.

    def _run(self) -> None:
        try:
            self._drive()
        except BaseException as error:
            # Whatever it was, the KV cache can no longer be trusted; the process ends, visibly.
            _log.exception("the engine failed")
            self._events.call_soon_threadsafe(self._failed, error)
        finally:
            self._observer.close()

    def _drive(self) -> None:
        while True:
            self._take_commands(wait_s=0)
            if self._stopping:
                for flight in self._flights:
                    flight.handle.result()
                return
            step = self._core.next_step(self._clock())
            if step is not None:
                self._begin(step)
            elif self._flights:
                self._complete(self._flights.popleft())
            elif self._core.has_work:
                raise RuntimeError("requests are open, but no step can be made for them")
            else:
                self._rest()

    def _rest(self) -> None:
        """Nothing to do: wait for a command, and check the books once if none comes soon."""
        self._observer.idle(self._core.stats())
        if not self._take_commands(wait_s=_SELF_CHECK_AFTER_S):
            self._check_books()
            self._take_commands(wait_s=None)

    def _check_books(self) -> None:
        try:
            self._core.check_invariants()
        except InvariantError as error:
            # Reported, not fatal: what was answered so far came from blocks that were in order.
            _log.error("idle self-check: %s", error)
            self._observer.self_check_failed()

    def _take_commands(self, *, wait_s: float | None) -> bool:
        """Carry out what is in the inbox, waiting up to `wait_s` for the first; False if nothing came."""
        try:
            self._obey(self._inbox.get(timeout=wait_s))
        except queue.Empty:
            return False
        while not self._inbox.empty():
            self._obey(self._inbox.get())
        return True

    def _obey(self, command: _Command) -> None:
        if command is None:
            self._stopping = True
        elif isinstance(command, list):
            self._add_choices(command)
        else:
            self._end_early(command)

    def _add_choices(self, tickets: list[Ticket]) -> None:
        first, *others = tickets
        if others and 0 < self._shared_block < len(first.request.prompt):
            self._behind[first.request.id] = others
            others = []
        for ticket in (first, *others):
            self._add(ticket)

    def _end_early(self, command: _Finish | str) -> None:
        request_id = command if isinstance(command, str) else command.request_id
        self._release(request_id)
        events = self._core.abort(request_id, self._clock())
        if isinstance(command, _Finish):
            for event in events:
                event.finish_reason = "stop"
        self._publish(events)

    def _release(self, request_id: str) -> None:
        """Add the choices that wait with or for this one."""
        for first, others in list(self._behind.items()):
            if first == request_id or any(ticket.request.id == request_id for ticket in others):
                del self._behind[first]
                for ticket in others:
                    self._add(ticket)

    def _add(self, ticket: Ticket) -> None:
        try:
            self._core.add(ticket.request, ticket.arrived)
        except InputError as error:
            # The routes check lengths first, so this is a bug; the client gets a 500, not silence.
            _log.error("the core refused %s: %s", ticket.request.id, error.message)
            self._events.call_soon_threadsafe(self._end, ticket, Ending("error"))
        else:
            self._observer.added(ticket)

    def _begin(self, step: Step) -> None:
        now = self._clock()
        admitted = self._observer.step_starts(step, now)
        if admitted:
            self._events.call_soon_threadsafe(self._admitted, admitted)
        self._flights.append(_Flight(step, self._executor.submit(step), now))

    def _complete(self, flight: _Flight) -> None:
        result = flight.handle.result()
        now = self._clock()
        self._publish(self._core.complete(flight.step.id, result, now))
        # A step that was made ahead runs from the end of the one before.
        started = max(flight.submitted, self._completed)
        self._completed = now
        self._observer.step_ended(flight.step, started, now, self._core.stats())

    def _publish(self, events: list[TokenEvent]) -> None:
        if events:
            self._events.call_soon_threadsafe(self._deliver, events)
            self._observer.events(events)
        if self._behind:
            for event in events:
                self._release(event.request_id)
