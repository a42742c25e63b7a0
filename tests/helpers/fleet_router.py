"""The router of a random fleet: the real front over instances of the same clock, and what its clients see.

Owns the connections. `check` compares the fleet's books with what the instances hold, and every stream with what
the model answers without any engine.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
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
from engine.server.supervisor import Supervisor
from engine.server.ticket import Ticket
from engine.transfer.layout import Peer

BEAT_S = TICK_S = 1.0


@dataclass
class Link:
    """A connection to one process. `peer` None: it has not said yet where its KV is."""

    process: Process
    orders: Channel[Order]
    reports: Channel[Report]
    heard_at: float

    def close(self) -> None:
        self.orders.close()
        self.reports.close()

    @property
    def silent(self) -> bool:
        """Nothing is on its way, and the process would read it."""
        return not (self.orders.on_the_way or self.reports.on_the_way) and self.process.alive


@dataclass
class Member:
    """As the supervisor's: the parts that the front looks at."""

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
    """Front, fleet and connections of one start of the router. It is its front's supervisor."""

    fleet: Fleet
    setting: Setting
    delays: Delays
    shared_block: int
    clients: dict[str, Client] = field(default_factory=dict)  # of this start
    starting: set[int] = field(default_factory=set)
    answers: deque[Report] = field(default_factory=lambda: deque(maxlen=30))

    def __post_init__(self) -> None:
        self.members = [Member() for _ in self.setting.places]
        self.front = Front(
            self.fleet,
            cast(Supervisor, self),
            cast(Observer, _Nobody()),
            links=Links(),
            shared_block=self.shared_block,
            clock=lambda: self.setting.clock.now,
        )

    # What the front calls.

    def send(self, index: int, order: Order) -> None:
        link = self.members[index].link
        assert link is not None, "an order for an instance that is known to be dead"
        self.setting.counts[type(order).__name__] += 1
        if isinstance(order, Renew):
            process = link.process
            self.setting.plane.carry(
                "renew",
                partial(process.run, "renew", lambda: process.obey(order) if link.orders.open else None),
            )
        else:
            link.orders.send(order)

    # What the world does.

    def connect(self, process: Process) -> Link:
        """A connection to a process that serves; the fleet hears of it with `came_up`."""
        clock, index = self.setting.clock, process.place.index
        orders: Channel[Order] = Channel(
            clock, self.delays, f"order to {process.nonce}", process.obey, lambda: process.paused_until
        )
        link = Link(process, orders, Channel(clock, self.delays, "report", self.heard_from(index)), clock.now)
        self.members[index] = Member(link, process.peer)
        return link

    def heard_from(self, index: int) -> Callable[[Report], None]:
        def heard(report: Report) -> None:
            link = self.members[index].link
            assert link is not None
            if not isinstance(report, Stepped):
                self.answers.append(report)
            self.setting.counts[type(report).__name__] += 1
            self.front.heard(index, report)

        return heard

    def beat(self, link: Link) -> None:
        """A beat has arrived."""
        if not link.reports.open:
            return self.setting.clock.void()
        link.heard_at = self.setting.clock.now
        return self.front.heard(link.process.place.index, Beat(0.0, 0.0))

    def repeat(self) -> None:
        """An answer that was heard before comes again."""
        if not self.answers:
            return
        answer = self.setting.random.choice(self.answers)
        now, do = self.setting.clock.now, self.front._do
        if isinstance(answer, Pulled):
            tell = self.fleet.pulled if answer.result == "ok" else self.fleet.pull_failed
            do(tell(answer.request_id, answer.attempt, now), now)
        elif isinstance(answer, Reserved):
            do(self.fleet.reserved(answer.request_id, answer.attempt, answer.cached_tokens), now)
        elif isinstance(answer, Refused):
            do(self.fleet.finished(answer.request_id, answer.attempt), now)
        self.setting.counts["answer doubled"] += 1

    def submit(self, choices: list[Request]) -> None:
        """A request, or choices of one prompt."""
        answer = answer_alone(choices[0])
        for ticket in self.front.add_choices(choices, asyncio.Event(), stream=False):
            self.clients[ticket.request.id] = Client(ticket, answer)
            self.setting.counts["request"] += 1

    def abort(self, name: str) -> None:
        client = self.clients[name]
        client.left = True
        if client.ticket.ending is None and self.setting.random.random() < 0.3:
            return self.front.finish(client.ticket)
        return self.front.abort(client.ticket)

    def tick(self) -> None:
        """As the front's task; clients wait meanwhile, where somebody could serve them."""
        now = self.setting.clock.now
        self.front._do(self.fleet.tick(now), now)
        if self.fleet._roster.starts:
            for client in self.clients.values():
                client.waited_s += TICK_S

    def went_down(self, index: int) -> None:
        """The process is known to be dead: nothing that it said is heard from now on."""
        link = self.members[index].link
        if link is not None:
            link.close()
            self.members[index].link = None
            self.front.went_down(index)

    # What must hold.

    def check(self) -> None:
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
        """Nobody says anything: what is thought to be at an instance is there."""
        index = process.place.index
        for (where, name), _ in holdings.items():
            if where != index:
                continue
            journey = self.fleet._journeys[name]
            if name not in held:
                gone = journey.phase in LEASED and name in process.reclaimed
                assert gone, f"{index} does not hold {name}, which is {journey.phase.value}"
            elif (
                journey.target
                and journey.target.index == index
                and journey.phase in (Phase.PULLING, Phase.VOID)
            ):
                assert name in process.copies, f"nobody copies for {name}, and nobody will say so"

    def _check_streams(self) -> None:
        over = []
        for name, client in self.clients.items():
            ticket = client.ticket
            tokens = ticket.tokens
            if len(tokens) > client.seen:
                got, expected = tokens[client.seen :], client.answer[client.seen : len(tokens)]
                assert got == expected, f"{name} was told {got} instead of {expected}"
                client.seen = len(tokens)
            if ticket.ending is not None:
                over.append(name)
        for name in over:
            self._ended(name, self.clients.pop(name))

    def _ended(self, name: str, client: Client) -> None:
        ending = cast(Any, client.ticket.ending)
        self.setting.counts[f"ended: {ending.why or ending.reason}"] += 1
        assert name not in self.front._open
        if ending.reason in ("length", "stop") and not client.left:
            assert len(client.ticket.tokens) == len(client.answer), f"{name} was told that this is all"
        slowest = self.setting.counts["slowest s"]
        self.setting.counts["slowest s"] = max(slowest, round(client.waited_s))
