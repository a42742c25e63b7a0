"""The fleet: takes events, gives actions. Owns every request between its submission and its end.

Each submitted request ends once: finished, aborted or rejected. What an instance computes or holds is known
here by exactly one phase of one request (`engine.fleet.journey`), so that whatever ends, dies or is late,
somebody is told to free it. Single owner: only one thread may call. Reads no clock, does no IO, never waits.

Order: the driver carries actions for one instance out in order, and passes on nothing that an instance sent
before it was declared down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from engine.config import PoolConfig, RouterConfig
from engine.errors import InputError
from engine.fleet.actions import Action, Prefill, Reject, Release, Serve
from engine.fleet.audit import check_loads, check_places, holdings
from engine.fleet.handover import Handover
from engine.fleet.journey import Journey, Phase
from engine.fleet.lease import LEASE_S
from engine.fleet.placement import Placement
from engine.fleet.roster import FOREIGN, Instance, Roster, State
from engine.invariants import require
from engine.request import Request

PULL_TRIES = 3  # ours: after so many failed pulls the decode side computes the prompt itself
MAX_DEATHS = 3  # ours (Dynamo's migration limit): a request whose instance died so often may be why

Produced = Callable[[str], Sequence[int]]


@dataclass(slots=True)
class Counts:
    """What happened so far, in requests. `voided`: pulls whose lease was gone, or that failed."""

    submitted: int = 0
    finished: int = 0
    aborted: int = 0
    rejected: int = 0
    requeued: int = 0
    bypassed: int = 0
    transferred: int = 0
    voided: int = 0


class Fleet:
    """Instances are numbered in the order of `pools`; all start up.

    `max_queued`: requests that wait (`queued`) before new ones are rejected. `lease_s`: how long a prefill
    instance holds KV without a heartbeat of the decode instance that wants it; infinite where no message can be
    lost. Answers name the `attempt` of the action they answer.
    """

    def __init__(
        self,
        pools: Sequence[PoolConfig],
        router: RouterConfig,
        *,
        max_queued: int = 256,
        lease_s: float = LEASE_S,
    ) -> None:
        self.counts = Counts()
        self._roster = Roster(pools, colocate_alone=router.on_partner_loss == "colocate")
        self._placement = Placement(self._roster, router)
        self._max_queued = max_queued
        self._attempts = count(1)
        self._handover = Handover(lease_s, self._attempts)
        self._journeys: dict[str, Journey] = {}
        self._waiting: dict[str, Journey] = {}
        self._queued = 0
        self._downs = 0  # deaths of instances so far: their time, where there is no clock

    @property
    def degraded(self) -> bool:
        """A side of the split is gone; what happens to requests then is `router.on_partner_loss`."""
        return self._roster.degraded

    @property
    def queued(self) -> int:
        """Requests that wait, for their first token or behind it for room on the decode side."""
        behind = (one.queue for one in self._roster.instances)
        return self._queued + sum(journey.started for queue in behind for journey in queue)

    @property
    def in_flight(self) -> int:
        """Requests that have not ended, and ended ones that a copy still writes for."""
        return len(self._journeys)

    @property
    def leases(self) -> int:
        """Requests whose KV a prefill instance keeps."""
        return len(self._handover.leases)

    def states(self) -> list[State]:
        """The state of each instance."""
        return [one.state for one in self._roster.instances]

    def loads(self) -> list[int]:
        """The requests of each instance: waiting, running, or on their way to it."""
        return [one.requests for one in self._roster.instances]

    def submit(self, request: Request) -> list[Action]:
        """A new request. Raises InputError if its id is in flight."""
        out: list[Action] = []
        journey = self._admit(request, out)
        if journey:
            self._place(journey, out)
        return out

    def adopt(self, request: Request, token: int, now: float) -> list[Action]:
        """A new request of several tokens, whose prefill another fleet has done: `token` is its first.

        An instance there keeps the KV as of `now`; FOREIGN stands for it in Pull and Release, and exactly one
        Release follows, whatever happens. Raises InputError if the request's id is in flight.
        """
        require(request.sampling.max_tokens > 1, "an adopted request has no more tokens to come")
        out: list[Action] = []
        journey = self._admit(request, out)
        if journey:
            self._handover.adopt(journey, self._roster.foreign, token, now)
            self._hand_over(journey, out)
        else:
            out.append(Release(FOREIGN, request.id))
        return out

    def aborted(self, request_id: str) -> list[Action]:
        """The client is gone. Unknown and ended ids are no-ops."""
        journey = self._journeys.get(request_id)
        if journey is None or journey.ended:
            return []
        self.counts.aborted += 1
        out: list[Action] = []
        self._end(journey, out)
        return out

    def prefilled(self, request_id: str, attempt: int, token: int, now: float) -> list[Action]:
        """The first token of a Serve or a Prefill is out, and not its last."""
        journey = self._journeys.get(request_id)
        if journey is None or journey.attempt != attempt or journey.ended:
            return []
        if not journey.started:
            journey.started = True
            self._queued -= 1
        self._heard(journey.source or journey.target)
        out: list[Action] = []
        if journey.phase is Phase.PREFILLING:
            self._handover.hold(journey, token, now)
            self._hand_over(journey, out)
        elif journey.phase is Phase.SERVING and journey.target:
            journey.target.tokens -= journey.uncached
            journey.uncached = 0
        return out

    def reserved(self, request_id: str, attempt: int, cached_tokens: int | None) -> list[Action]:
        """Blocks are reserved, `cached_tokens` leading prompt tokens being there already; None: no room now."""
        out: list[Action] = []
        journey = self._journeys.get(request_id)
        if journey and journey.attempt == attempt and journey.phase is Phase.RESERVING:
            self._handover.reserved(journey, cached_tokens, out)
        return out

    def pulled(self, request_id: str, attempt: int, now: float) -> list[Action]:
        """The copy is complete and its checksums are right. It counts if the lease still holds at `now`."""
        return self._copied(request_id, attempt, now, complete=True)

    def pull_failed(self, request_id: str, attempt: int, now: float, *, gone: bool = False) -> list[Action]:
        """The copy failed, and nothing writes for it any more. `gone`: the source holds the KV no longer."""
        return self._copied(request_id, attempt, now, complete=False, gone=gone)

    def finished(self, request_id: str, attempt: int) -> list[Action]:
        """The instance ended the request, well or with an error, and has freed what is not kept."""
        journey = self._journeys.get(request_id)
        if journey is None or journey.attempt != attempt:
            return []
        phase, target = journey.phase, journey.target
        out: list[Action] = []
        if target and phase in (Phase.SERVING, Phase.DECODING):
            del self._journeys[request_id]
            self._queued -= not journey.started
            target.requests -= 1
            target.tokens -= journey.uncached
            if target.queue:
                self._handover.room(target, out)
        elif phase in (Phase.PREFILLING, Phase.RESERVING):
            self._end(journey, out)
        else:
            return out
        self.counts.finished += 1
        return out

    def heartbeat(self, index: int, now: float) -> None:
        """Instance `index` lives and still wants what it is to pull: its leases are renewed."""
        target = self._roster.instances[index]
        self._heard(target)
        for name in [n for n in self._handover.leases if self._journeys[n].target is target]:
            self._handover.leases.renew(name, now)

    def wanted_by(self, index: int) -> dict[int, list[str]]:
        """By source, the kept KV that instance `index` is to pull: whose holders should hear that it lives."""
        target = self._roster.instances[index]
        wanted: dict[int, list[str]] = {}
        for name in self._handover.leases:
            journey = self._journeys[name]
            if journey.target is target and journey.source:
                wanted.setdefault(journey.source.index, []).append(name)
        return wanted

    def tick(self, now: float) -> list[Action]:
        """Time passes: KV whose lease has expired is given up, and whoever waits for room asks again."""
        out: list[Action] = []
        for name in self._handover.leases.expired(now):
            journey = self._journeys[name]
            journey.failed_pulls += 1
            self.counts.voided += 1
            self._restart(journey, out)
        for target in self._roster.instances:
            if target.queue:
                self._handover.room(target, out)
        return out

    def instance_down(self, index: int, produced: Produced) -> list[Action]:
        """Instance `index` died, with all its KV; its requests go on elsewhere.

        `produced(id)` gives the output tokens that the client of a running request has been sent, fewer than it
        asked for: who got the last one has `finished`.
        """
        dead = self._roster.instances[index]
        if dead.state == "down":
            return []
        self._set_state(dead, "down")
        self._placement.forget(dead)
        self._downs += 1
        out: list[Action] = []
        hit = [one for one in self._journeys.values() if dead in (one.source, one.target)]
        for journey in hit:
            self._lose(journey, dead, produced, out)
        dead.full = False
        for journey in hit:
            if journey.deaths >= MAX_DEATHS:
                self._reject(journey, f"its instance died {MAX_DEATHS} times", out)
            else:
                self._go_on(journey, out)
        return out

    def instance_up(self, index: int, produced: Produced) -> list[Action]:
        """Instance `index` (re)started, empty. One that was not known to be down has been replaced."""
        instance = self._roster.instances[index]
        out = self.instance_down(index, produced)
        instance.epoch += 1
        self._heard(instance)
        self._set_state(instance, "up")
        for journey in list(self._waiting.values()):
            del self._waiting[journey.request.id]
            self._place(journey, out)
        return out

    def drain(self, index: int) -> None:
        """Give instance `index` nothing new; what it has goes on."""
        if self._roster.instances[index].state == "up":
            self._set_state(self._roster.instances[index], "draining")

    def _admit(self, request: Request, out: list[Action]) -> Journey | None:
        """Take a request in; None, and a Reject, where the queue is full."""
        name = request.id
        if name in self._journeys:
            raise InputError(
                "a request with this id is already in flight",
                where=f"request {name}",
                hint="give every request an id of its own",
            )
        self.counts.submitted += 1
        if self._is_full():
            self.counts.rejected += 1
            out.append(Reject(name, "the queue is full"))
            return None
        journey = self._journeys[name] = Journey(request)
        self._queued += 1
        return journey

    def _is_full(self) -> bool:
        # Queues may be long where nothing bounds them: they are only gone through where it matters.
        most = self._queued + sum(len(one.queue) for one in self._roster.instances)
        return most >= self._max_queued and self.queued >= self._max_queued

    def _place(self, journey: Journey, out: list[Action]) -> None:
        """Start an attempt: somewhere, or wait, or reject."""
        request = journey.request
        place = self._placement.start(request, recompute=journey.failed_pulls >= PULL_TRIES)
        if place is None:
            if self._roster.stranded:
                return self._reject(journey, "no instance of the other role is up", out)
            journey.phase = Phase.WAITING
            self._waiting[request.id] = journey
            return None
        instance, cached, split, bypass = place
        self.counts.bypassed += bypass
        attempt = journey.attempt = next(self._attempts)
        journey.uncached = len(request.prompt) - cached
        instance.requests += 1
        instance.tokens += journey.uncached
        if split:
            journey.phase, journey.source = Phase.PREFILLING, instance
            out.append(Prefill(instance.index, request, attempt))
        else:
            journey.phase, journey.target = Phase.SERVING, instance
            out.append(Serve(instance.index, request, attempt))
        return None

    def _hand_over(self, journey: Journey, out: list[Action]) -> None:
        """Its KV is kept by the source: line up at a decode instance, or start anew without one."""
        target = self._placement.decode(journey.request)
        if target is None:
            self._restart(journey, out)
        else:
            self._handover.queue(journey, target, out)

    def _copied(
        self, request_id: str, attempt: int, now: float, *, complete: bool, gone: bool = False
    ) -> list[Action]:
        out: list[Action] = []
        journey = self._journeys.get(request_id)
        if journey is None or journey.attempt != attempt or journey.phase not in (Phase.PULLING, Phase.VOID):
            return out
        if journey.phase is Phase.PULLING:
            if complete and self._handover.land(journey, now, out):
                self.counts.transferred += 1
                return out
            journey.failed_pulls += 1
            self.counts.voided += 1
            source = journey.source
            holds = source and self._handover.leases.holds(request_id, source.epoch, now)
            # Of a foreign source nobody says that it died; a failed pull may be all that is heard of it.
            if gone or not holds or journey.failed_pulls >= PULL_TRIES or source is self._roster.foreign:
                self._handover.leave_source(journey, out)
        self._handover.leave_target(journey, out, copied=True)
        self._go_on(journey, out)
        return out

    def _lose(self, journey: Journey, dead: Instance, produced: Produced, out: list[Action]) -> None:
        """Take a request off an instance that died. KV kept on a live prefill instance stays there."""
        running = journey.phase in (Phase.SERVING, Phase.DECODING)
        # Several that die at once hand it on from one to the next: who has said nothing since the last one died
        # may have been dead by then, and not of it.
        if (running or journey.phase is Phase.PREFILLING) and dead.heard >= journey.died_at:
            journey.deaths += 1
            journey.died_at = self._downs
        if journey.source is dead:
            self._handover.leave_source(journey, out, dead)
        self._handover.leave_target(journey, out, dead)
        if running:
            journey.continue_from(produced(journey.request.id))

    def _heard(self, instance: Instance | None) -> None:
        """It lives."""
        if instance is not None:
            instance.heard = self._downs

    def _restart(self, journey: Journey, out: list[Action]) -> None:
        """Start anew from the tokens produced."""
        self._handover.leave_source(journey, out)
        self._handover.leave_target(journey, out)
        self._go_on(journey, out)

    def _go_on(self, journey: Journey, out: list[Action]) -> None:
        """What next, for a request that was taken off an instance."""
        if journey.target:
            return  # a copy has to end first
        if journey.ended:
            del self._journeys[journey.request.id]
        elif journey.source:
            self._hand_over(journey, out)
        else:
            self.counts.requeued += 1
            self._place(journey, out)

    def _reject(self, journey: Journey, reason: str, out: list[Action]) -> None:
        self.counts.rejected += 1
        self._queued -= not journey.started
        del self._journeys[journey.request.id]
        out.append(Reject(journey.request.id, reason))

    def _end(self, journey: Journey, out: list[Action]) -> None:
        """Over for its client: free what it holds anywhere, a copy's target once the copy has ended."""
        journey.ended = True
        self._queued -= not journey.started
        self._waiting.pop(journey.request.id, None)
        self._handover.leave_source(journey, out)
        self._handover.leave_target(journey, out)
        if not journey.target:
            del self._journeys[journey.request.id]

    def _set_state(self, instance: Instance, state: State) -> None:
        instance.state = state
        self._roster.refresh()

    def holdings(self) -> Counter[tuple[int, str]]:
        """Where blocks of requests are, or are being asked for: (instance, request id), each once."""
        return holdings(self._journeys)

    def check_invariants(self) -> None:
        """Every request is somewhere, once; loads, leases and queues are exactly what requests say."""
        counts = self.counts
        alive = [one for one in self._journeys.values() if not one.ended]
        require(
            counts.submitted == counts.finished + counts.aborted + counts.rejected + len(alive),
            "a request ended twice or not at all",
        )
        require(self._queued == sum(not one.started for one in alive), "the queue has lost count")
        check_places(self._journeys, self._waiting, self._handover.leases)
        check_loads(self._journeys, self._roster.instances)
        self._placement.check_invariants()
