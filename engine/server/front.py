"""The front: every open request of this server, between HTTP and the fleet's instances.

Owns the tickets. `engine.fleet` decides; the front carries its actions to the instances and their reports back,
pushes tokens to tickets, and keeps the time of leases. It runs in the event loop alone, holds no text, and
decides nothing twice: which attempt of a request may speak is the one that the fleet started last.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from engine.errors import AdviseError
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
)
from engine.fleet.fleet import Fleet
from engine.fleet.roster import FOREIGN
from engine.invariants import require
from engine.request import Request
from engine.server import messages
from engine.server.foreign import ForeignKv
from engine.server.instances import Instances, Member
from engine.server.links import Links
from engine.server.messages import Beat, Event, Pulled, Refused, Report, Reserved, Rested, Stepped
from engine.server.observer import Observer
from engine.server.ticket import Ending, Origin, Ticket
from engine.server.two_call import Handoff

TICK_S = 0.25


class Front:
    """Drives `fleet` over `instances`; hears of them as their Listener. `clock` is in seconds.

    `shared_block`: with a prefix cache, the tokens of one of its blocks. Choices of one prompt longer than that
    wait for the first one's first token, so that the prompt is computed once. 0: without a prefix cache.
    """

    def __init__(
        self,
        fleet: Fleet,
        instances: Instances,
        observer: Observer,
        *,
        links: Links,
        shared_block: int = 0,
        clock: Callable[[], float],
    ) -> None:
        self.failure: AdviseError | None = None
        self._fleet = fleet
        self._instances = instances
        self._observer = observer
        self._links = links
        self._foreign = ForeignKv(instances)
        self._shared_block = shared_block
        self._clock = clock
        self._on_failure: Callable[[], None] = lambda: None
        self._open: dict[str, Ticket] = {}
        self._behind: dict[str, list[Ticket]] = {}  # choices that wait for the first one, by its id
        self._actions: deque[Action] = deque()  # still to be carried out
        self._acting = False
        self._known_up: set[int] = set()  # instances that were up before: the fleet starts with all of them
        self._ticking: asyncio.Task[None] | None = None

    async def start(self, on_failure: Callable[[], None]) -> None:
        """Start the instances; returns when all are up. `on_failure` is called once none will ever serve."""
        self._on_failure = on_failure
        await self._instances.start(self)
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """End what is open, and the instances."""
        if self._ticking is not None:
            self._ticking.cancel()
        self._end_all("abort")
        await self._instances.stop()

    @property
    def waiting(self) -> int:
        """Requests accepted that wait: what the bound of the queue counts."""
        return self._fleet.queued + sum(map(len, self._behind.values()))

    @property
    def open(self) -> int:
        """Requests accepted and not ended."""
        return len(self._open)

    @property
    def degraded(self) -> bool:
        """A side of the split is gone."""
        return self._fleet.degraded

    @property
    def members(self) -> Sequence[Member]:
        """The instances, in the order of the pools."""
        return self._instances.members

    def observe(self) -> None:
        """Bring those metrics up to date that say how things are now."""
        self._observer.fleet(self._fleet, self._instances.members, self.waiting)

    def add(self, request: Request, *, stream: bool) -> Ticket:
        """Hand a request to the fleet."""
        return self.add_choices([request], asyncio.Event(), stream=stream)[0]

    def add_choices(
        self,
        requests: Sequence[Request],
        wake: asyncio.Event,
        *,
        stream: bool,
        origin: Origin = Origin(),  # noqa: B008 - immutable
    ) -> list[Ticket]:
        """Hand requests of one prompt to the fleet; their tickets share `wake`."""
        now = self._clock()
        tickets = [Ticket(request, now, stream=stream, wake=wake, origin=origin) for request in requests]
        first, *others = tickets
        if others and 0 < self._shared_block < len(first.request.prompt):
            self._behind[first.request.id] = others
        self._open |= {ticket.request.id: ticket for ticket in tickets}
        for ticket in tickets if first.request.id not in self._behind else (first,):
            self._submit(ticket)
        return tickets

    def adopt(
        self,
        request: Request,
        handoff: Handoff,
        wake: asyncio.Event,
        *,
        stream: bool,
        origin: Origin = Origin(),  # noqa: B008 - immutable
    ) -> Ticket:
        """Hand a request whose prefill another server has done to the fleet; it has its first token."""
        now = self._clock()
        ticket = Ticket(request, now, stream=stream, wake=wake, origin=origin)
        if handoff.logprobs is not None:
            ticket.logprobs.append(handoff.logprobs)
        ticket.cached_tokens = handoff.cached_tokens
        ticket.push(handoff.token)
        self._open[request.id] = ticket
        self._foreign.know(request.id, handoff)
        self._do(self._fleet.adopt(request, handoff.token, now), now)
        return ticket

    def refused(self, requests: Sequence[Request], origin: Origin) -> None:
        """These were turned away before they got here."""
        now = self._clock()
        for request in requests:
            self._observer.refused(request, origin, now)

    def decline(self, handoff: Handoff) -> None:
        """Another server's prefill is of no use here: it need not keep it."""
        self._foreign.decline(handoff)

    def abort(self, ticket: Ticket) -> None:
        """End a request; nothing happens if it has ended."""
        self._finish_early(ticket, "abort")

    def finish(self, ticket: Ticket) -> None:
        """End a request whose text has reached a stop string: an end with `stop`, not an abort."""
        self._finish_early(ticket, "stop")

    def heard(self, index: int, report: Report) -> None:
        """A report of instance `index`, which is up."""
        now = self._clock()
        match report:
            case Stepped():
                self._observer.stepped(index, report)
                for event in report.events:
                    self._event(index, event, now)
            case Rested():
                self._observer.rested(index, report)
            case Reserved(name, attempt, cached):
                self._do(self._fleet.reserved(name, attempt, cached), now)
            case Refused(name, attempt, _):
                # The routes check lengths first, so this is a bug; the client gets a 500, not silence.
                ticket = self._open.get(name)
                self._do(self._fleet.finished(name, attempt), now)
                if ticket is not None and ticket.attempt == attempt:
                    self._end(ticket, Ending("error"))
            case Pulled():
                self._observer.pulled(report)
                self._links.copied(report, now)
                self._landed(now)
            case Beat():
                self._fleet.heartbeat(index, now)
                for source, names in self._fleet.wanted_by(index).items():
                    if source == FOREIGN:
                        for name in names:
                            self._foreign.renew(name, index)
                    else:
                        self._instances.send(source, messages.Renew(tuple(names)))

    def came_up(self, index: int) -> None:
        """Instance `index` serves, empty. At their first start the fleet has them up already."""
        if index in self._known_up:
            self._do(self._fleet.instance_up(index, self._produced), self._clock())
        self._known_up.add(index)

    def went_down(self, index: int) -> None:
        """Instance `index` is dead: its requests go on elsewhere."""
        now = self._clock()
        self._links.down(index, now)
        self._observer.down(index)
        self._do(self._fleet.instance_down(index, self._produced), now)
        self._landed(now)

    def all_lost(self, error: AdviseError) -> None:
        """No instance serves, and none will."""
        self.failure = error
        self._end_all("error")
        self._on_failure()

    def check_invariants(self) -> None:
        """Open tickets have no ending, and the fleet's books agree."""
        require(all(ticket.ending is None for ticket in self._open.values()), "an open ticket has ended")
        self._fleet.check_invariants()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = self._clock()
            self._do(self._fleet.tick(now), now)

    def _submit(self, ticket: Ticket) -> None:
        self._do(self._fleet.submit(ticket.request), self._clock())

    def _do(self, actions: Sequence[Action], now: float) -> None:
        """Carry the fleet's actions out, in order also where one of them causes more."""
        self._actions.extend(actions)
        if self._acting:
            return
        self._acting = True
        try:
            while self._actions:
                self._carry_out(self._actions.popleft(), now)
        finally:
            self._acting = False

    def _carry_out(self, action: Action, now: float) -> None:
        send = self._instances.send
        match action:
            case Serve(index, request, attempt):
                self._add(index, request, attempt, now)
            case Prefill(index, request, attempt):
                self._add(index, prefill_half(request), attempt, now, half=True)
            case Reserve(index, request, attempt):
                self._open[request.id].begin(attempt)
                send(index, messages.Reserve(messages.Wire.of(request), attempt))
            case Pull():
                self._pull(action, now)
            case StartDecode(index, name, attempt, token):
                send(index, messages.StartDecode(name, attempt, token))
            case Release(index, name):
                if index == FOREIGN:
                    self._foreign.let_go(name)
                else:
                    send(index, messages.Release(name))
            case Abort(index, name):
                send(index, messages.Abort(name))
            case Reject(name, reason):
                self._end(self._open[name], Ending("unavailable", why=reason))

    def _add(self, index: int, request: Request, attempt: int, now: float, *, half: bool = False) -> None:
        ticket = self._open[request.id]
        ticket.begin(attempt, half=half)
        waited = 0.0 if ticket.tokens else now - ticket.arrived
        self._instances.send(index, messages.Add(messages.Wire.of(request), attempt, waited))

    def _pull(self, pull: Pull, now: float) -> None:
        self._links.start(pull, now)
        if pull.source == FOREIGN:
            self._foreign.pull(pull)
            return
        peer = self._instances.members[pull.source].peer
        if peer is None:
            raise RuntimeError("an instance without movable KV was asked for it")
        order = messages.Pull(pull.request_id, pull.attempt, pull.start, pull.stop, peer)
        self._instances.send(pull.target, order)

    def _landed(self, now: float) -> None:
        """Copies that are complete, for the bytes and for the link."""
        for report in self._links.landed(now):
            name, attempt, result = report.request_id, report.attempt, report.result
            if result == "ok":
                self._do(self._fleet.pulled(name, attempt, now), now)
            else:
                self._do(self._fleet.pull_failed(name, attempt, now, gone=result == "expired"), now)
        self._links.wake_at(now, lambda: self._landed(self._clock()))

    def _event(self, index: int, event: Event, now: float) -> None:
        """A token of the attempt that may speak."""
        ticket = self._open.get(event.request_id)
        if ticket is None or ticket.attempt != event.attempt:
            return
        first = not ticket.tokens
        if event.token is not None:
            if first:
                ticket.cached_tokens = event.cached_tokens
            if event.logprobs is not None:
                ticket.logprobs.append(event.logprobs)
            self._observer.token(ticket, event, now)
            ticket.push(event.token)
        name, attempt = event.request_id, event.attempt
        handed_over = ticket.half and event.reason == "length"
        if event.reason is not None and not handed_over:
            if ticket.request.keep_kv:
                self._keep(index, ticket, event.reason)
            self._do(self._fleet.finished(name, attempt), now)
            self._end(ticket, Ending(event.reason, ticket.cached_tokens))
        elif event.token is not None and (handed_over or not ticket.spoke):
            self._do(self._fleet.prefilled(name, attempt, event.token, now), now)
        ticket.spoke = True
        if first:
            self._release(name)

    def _keep(self, index: int, ticket: Ticket, reason: str) -> None:
        """A prefill for another fleet is done: its KV stays, unless nothing comes after it."""
        ticket.kept_at = self._instances.members[index].peer if reason == "length" else None
        if ticket.kept_at is None:
            self._instances.send(index, messages.Release(ticket.request.id))

    def _produced(self, request_id: str) -> Sequence[int]:
        """The output tokens that the client of a running request has been sent."""
        return self._open[request_id].tokens

    def _finish_early(self, ticket: Ticket, reason: str) -> None:
        if ticket.ending is not None:
            return
        name = ticket.request.id
        for others in self._behind.values():
            if ticket in others:
                others.remove(ticket)
        self._end(ticket, Ending(reason, ticket.cached_tokens))
        self._do(self._fleet.aborted(name), self._clock())

    def _release(self, request_id: str) -> None:
        """The first choice has its first token, or has ended: the others may come."""
        for ticket in self._behind.pop(request_id, ()):
            self._submit(ticket)

    def _end(self, ticket: Ticket, ending: Ending) -> None:
        del self._open[ticket.request.id]
        ticket.end(ending)
        self._observer.ended(ticket, ending, self._clock())
        self._release(ticket.request.id)

    def _end_all(self, reason: str) -> None:
        self._behind.clear()
        for ticket in list(self._open.values()):
            self._end(ticket, Ending(reason))
