"""The router of a random fleet: the real front over instances of the same clock, and what its clients see.

Owns the connections. `check` compares the fleet's books with what the instances hold, and every stream with
what the model answers without any engine.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from helpers.core_soak import answer_alone
from helpers.fleet_process import Process, Setting
from helpers.fleet_wire import Channel, Delays

from engine.fleet.fleet import Fleet
from engine.fleet.journey import LEASED, Phase
from engine.request import Request
from engine.server.front import Front
from engine.server.instances import Instances
from engine.server.links import Links
from engine.server.messages import (
    Abort,
    Beat,
    Order,
    Pulled,
    Refused,
    Release,
    Renew,
    Report,
    Reserved,
    Stepped,
)
from engine.server.observer import Observer
from engine.server.ticket import Ticket
from engine.transfer.layout import Peer

TICK_S = 1.0


@dataclass
class Link:
    """A connection to one process."""

    process: Process
    orders: Channel[Order]
    reports: Channel[Report]
    heard_at: float

    def close(self) -> None:
        self.orders.close()
        self.reports.close()

    @property
    def silent(self) -> bool:
        """Nothing is on its way, either way."""
        return not (self.orders.on_the_way or self.reports.on_the_way)


@dataclass
class Member:
    """An instance as the front knows it. `link` None: it is known to be dead."""

    link: Link | None = None
    peer: Peer | None = None


@dataclass
class Client:
    """A request and what it is to be answered. `left`: its client said that it wants no more.

    `waited_s`: for how long somebody could have served it.
    """

    ticket: Ticket
    answer: list[int]
    seen: int = 0
    left: bool = False
    waited_s: float = 0.0


class _Nobody:
    """Observes nothing."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_: None


@dataclass
class Router:
    """Front, fleet and connections of one start of the router: the front's `Instances`.

    `clients` are those not answered to the end, `starting` the places where a process is being started.
    """

    setting: Setting
    delays: Delays
    clients: dict[str, Client] = field(default_factory=dict)
    starting: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        shape, clock = self.setting.shape, self.setting.clock
        self.members = [Member() for _ in shape.places]
        self.fleet = Fleet(shape.pools, shape.router, max_queued=shape.most_queued, lease_s=shape.lease_s)
        self.front = Front(
            self.fleet,
            cast(Instances, self),
            cast(Observer, _Nobody()),
            links=Links(),
            shared_block=shape.block_size,
            clock=lambda: clock.now,
        )

    @property
    def serves(self) -> bool:
        """Somebody may take new requests."""
        return bool(self.fleet._roster.starts)

    def send(self, index: int, order: Order) -> None:
        """As the front's `Instances`. A renewal of leases may be lost, late or doubled."""
        link = self.members[index].link
        assert link is not None, "an order for an instance that is known to be dead"
        self.setting.counts[type(order).__name__] += 1
        if not isinstance(order, Renew):
            return link.orders.send(order)
        process, orders = link.process, link.orders

        def renew() -> None:
            if orders.open:
                process.obey(order)

        return self.setting.plane.carry("renew", partial(process.run, "renew", renew))

    # What the world does.

    def connect(self, process: Process) -> Link:
        """A connection to a process that serves; the front hears of it with `came_up`."""
        clock, index = self.setting.clock, process.place.index
        orders: Channel[Order] = Channel(
            clock, self.delays, f"order to {process.nonce}", process.obey, lambda: process.paused_until
        )
        reports: Channel[Report] = Channel(
            clock, self.delays, f"report of {process.nonce}", partial(self._heard, index)
        )
        link = Link(process, orders, reports, clock.now)
        self.members[index] = Member(link, process.peer)
        return link

    def beat(self, link: Link) -> None:
        """A beat has arrived."""
        if not link.reports.open:
            return self.setting.clock.void()
        link.heard_at = self.setting.clock.now
        return self.front.heard(link.process.place.index, Beat(0.0, 0.0))

    def submit(self, choices: list[Request]) -> None:
        """A request, or choices of one prompt."""
        answer = answer_alone(choices[0])
        for ticket in self.front.add_choices(choices, asyncio.Event(), stream=False):
            self.clients[ticket.request.id] = Client(ticket, answer)
            self.setting.counts["request"] += 1

    def leave(self, name: str) -> None:
        """A client is gone, or has read what it wanted."""
        client = self.clients[name]
        client.left = True
        gone = self.setting.random.random() < 0.7
        (self.front.abort if gone else self.front.finish)(client.ticket)

    def tick(self) -> None:
        """As the front's task; clients wait meanwhile, where somebody could serve them."""
        now = self.setting.clock.now
        self.front._do(self.fleet.tick(now), now)
        for client in self.clients.values():
            client.waited_s += TICK_S * self.serves

    def went_down(self, index: int) -> None:
        """The process is known to be dead: nothing that it said is heard from now on."""
        link = self.members[index].link
        if link is not None:
            link.close()
            self.members[index].link = None
            self.front.went_down(index)

    def close(self) -> None:
        """The router is gone."""
        for member in self.members:
            if member.link is not None:
                member.link.close()

    def _heard(self, index: int, report: Report) -> None:
        setting = self.setting
        setting.counts[type(report).__name__] += 1
        if setting.random.random() < setting.shape.twice:
            wait = setting.random.choice([0.0, 1.0, 10.0]) + self.delays()
            setting.clock.after(wait, "the same answer", partial(self._again, report))
        self.front.heard(index, report)

    def _again(self, answer: Report) -> None:
        """The fleet is told once more what it was told before."""
        now, fleet, do = self.setting.clock.now, self.fleet, self.front._do
        if isinstance(answer, Pulled):
            tell = fleet.pulled if answer.result == "ok" else fleet.pull_failed
            do(tell(answer.request_id, answer.attempt, now), now)
        elif isinstance(answer, Reserved):
            do(fleet.reserved(answer.request_id, answer.attempt, answer.cached_tokens), now)
        elif isinstance(answer, Refused):
            do(fleet.finished(answer.request_id, answer.attempt), now)
        elif isinstance(answer, Stepped):
            for event in answer.events:
                name, attempt, token = event.request_id, event.attempt, event.token
                if token is not None and (event.reason is None or name in self.clients):
                    do(fleet.prefilled(name, attempt, token, now), now)
                else:
                    do(fleet.finished(name, attempt), now)
        self.setting.counts["answer doubled"] += 1

    # What must hold.

    def check(self) -> None:
        """Everything that must hold after every event."""
        self.front.check_invariants()
        self._check_streams()
        holdings = self.fleet.holdings()
        for index, member in enumerate(self.members):
            link = member.link
            assert link is not None or self.fleet.states()[index] == "down"
            if link is None or not link.process.alive:
                continue
            link.process.check()
            held = link.process.holding()
            if link.orders.on_the_way:
                held -= {one.request_id for one in link.orders.on_the_way if isinstance(one, Abort | Release)}
            for name in held:
                assert holdings[index, name] == 1, f"nobody knows that {index} holds {name}"
            if link.silent:
                self._check_quiet(link.process, holdings, held)

    def _check_quiet(self, process: Process, holdings: Counter[tuple[int, str]], held: set[str]) -> None:
        """Nothing is on its way: what is thought to be here is here, and what is waited for will come."""
        index = process.place.index
        for where, name in holdings:
            if where != index:
                continue
            journey = self.fleet._journeys[name]
            phase, target = journey.phase, journey.target
            if name not in held:
                gone = phase in LEASED and name in process.reclaimed
                assert gone, f"{index} does not hold {name}, which is {phase.value}"
            elif target and target.index == index and phase in (Phase.PULLING, Phase.VOID):
                assert name in process.puller.copies, f"nobody copies for {name}, and nobody will say so"

    def _check_streams(self) -> None:
        over = []
        for name, client in self.clients.items():
            tokens = client.ticket.tokens
            if len(tokens) > client.seen:
                got, expected = tokens[client.seen :], client.answer[client.seen : len(tokens)]
                assert got == expected, f"{name} was told {got} instead of {expected}"
                client.seen = len(tokens)
            if client.ticket.ending is not None:
                over.append(name)
        for name in over:
            self._ended(name, self.clients.pop(name))

    def _ended(self, name: str, client: Client) -> None:
        ending = cast(Any, client.ticket.ending)
        counts = self.setting.counts
        counts[f"ended: {ending.why or ending.reason}"] += 1
        assert name not in self.front._open
        if ending.reason in ("length", "stop") and not client.left:
            assert len(client.ticket.tokens) == len(client.answer), f"{name} was told that this is all"
        counts["slowest s"] = max(counts["slowest s"], round(client.waited_s))
