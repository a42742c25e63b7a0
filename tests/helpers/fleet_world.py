"""Random lives of a whole split on a virtual clock: router, fleet, drivers, cores, lease tables and copies.

A World is one fleet of random shape and policy whose instances die, pause and come back between any two events,
whose clients leave in any phase, whose KV plane loses, doubles and overtakes, and whose router restarts. What it
holds is checked after every event (`Router.check`). A world ends with a calm in which all must be over in bounded
time and every block must be back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from helpers.core_soak import DOCUMENT
from helpers.echo import VOCAB
from helpers.fleet_process import MAX_LEN, Memory, Place, Process, Setting
from helpers.fleet_router import BEAT_S, TICK_S, Link, Router
from helpers.fleet_wire import FOREVER, Clock, Delays, KvPlane

from engine.config import PoolConfig, RouterConfig
from engine.fleet.fleet import Fleet
from engine.request import Request, SamplingParams

SHAPES = (
    {"prefill": 1, "decode": 1},
    {"prefill": 1, "decode": 1},
    {"prefill": 2, "decode": 1},
    {"prefill": 1, "decode": 2},
    {"prefill": 2, "decode": 2},
    {"prefill": 1, "decode": 3},
    {"colocated": 2},
    {"colocated": 1, "prefill": 1, "decode": 1},
    {"colocated": 2, "prefill": 1, "decode": 2},
)
LONGEST_S = 300.0  # of a request that somebody could serve, whatever happens


class World:
    """One fleet and its clients. `happened` counts events, `counts` what they were."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.random = random = Random(seed)
        self.counts = counts
        self.clock = Clock()
        self.happened = self.names = 0
        self.calm = False
        mean = random.choice([0.001, 0.02, 0.2])
        self.delays = Delays(random, mean, random.choice([5, 30]))
        plane = KvPlane(
            self.clock,
            random,
            Delays(random, mean, random.choice([5, 30])),
            counts,
            loss=random.choice([0.0, 0.02, 0.1]),
            twice=random.choice([0.0, 0.1]),
        )
        self.block_size = random.choice([1, 4, 4, 16])
        self.more_tokens = random.choice([(0, 10), (0, 10), (0, 60), (60, 200)])
        self.step_s = random.choice([0.02, 0.05, 0.2])
        self.lease_s = random.choice([2.0, 6.0, 30.0])
        self.hung_s = random.choice([4.0, 8.0])
        self.pools = self._pools(random.choice(SHAPES))
        self.router_config = RouterConfig(
            policy=random.choice(["round_robin", "least_loaded", "prefix_affinity"]),
            bypass=random.random() < 0.4,
            on_partner_loss=random.choice(["colocate", "colocate", "reject"]),
        )
        members = [pool for pool in self.pools for _ in range(pool.count)]
        places = [self._place(index, pool) for index, pool in enumerate(members)]
        spoiled = random.choice([0.05, 0.05, 0.4])
        self.setting = Setting(self.clock, random, plane, places, counts, self.lease_s, spoiled)
        self.longest = min(MAX_LEN, *((place.num_blocks - 1) * self.block_size + 1 for place in places))
        self.epochs = Counter[int]()
        self.most_open = random.choice([3, 8, 20])
        self.most_queued = random.choice([self.most_open // 2 + 1, 30])
        self.arrival_s = self.step_s * random.choice([0.5, 2, 6])
        self.fault = random.choice([0.002, 0.01, 0.04])  # a chance, between two events
        self.weights = [random.choice([0, 1, 4]), *(random.choice([0, 1, 3]) for _ in range(4)), 0.1]
        self.abort_weight = random.choice([1, 5, 20])
        self.restarts = random.random() < 0.85
        self.begin()
        self._every(TICK_S, "tick", self._tick)
        self._arrive()

    def run(self, events: int) -> None:
        """So many events, then no new ones until all is over."""
        acts = [self.die, self.pause, self.drain, self.replace, self.repeat, self.begin, self.abort]
        weights = [*self.weights, self.abort_weight]
        while self.happened < events:
            if self.random.random() < self.fault:
                self.random.choices(acts, weights)[0]()
                self._event()
            self.clock.step()
            self._event()
        self.settle()

    def settle(self) -> None:
        """Nothing else breaks: all ends in time, and then nothing is held anywhere."""
        self.calm = True
        self.setting.plane.quiet()
        self._rejoin()
        by = self.clock.now + LONGEST_S
        while not self._over():
            assert self.clock.now < by, f"not over: {self._rest()}"
            self.clock.step()
            self._event()
        router = self.router
        assert not router.clients
        assert router.fleet.leases == sum(router.fleet.loads()) == 0
        for place in self.setting.places:
            if place.process is not None and place.process.alive:
                stats = place.process.core.stats()
                assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
                assert not place.process.driver._open, "the driver remembers requests that are over"

    # What may happen between any two events.

    def die(self) -> None:
        """A process is gone at once; its router hears of it later, and of what it said before perhaps not."""
        process = self._some_process()
        if process is None:
            return
        process.alive = False
        self.counts["death"] += 1
        self._after_notice(process, self.random.choice([0.0, 0.005, 0.5]))

    def pause(self) -> None:
        """SIGSTOP; for ever, or until it goes on. Silent for too long, it is declared dead, and killed later."""
        process = self._some_process()
        if process is None:
            return
        seconds = self.random.choice([0.5, 3.0, 3.0, self.lease_s, 2 * self.hung_s, FOREVER])
        process.paused_until = max(process.paused_until, self.clock.now + seconds)
        self.counts["pause"] += 1

    def drain(self) -> None:
        """Give an instance nothing new, and replace it some time later."""
        process = self._some_process()
        if process is None or self.random.random() < 0.5:
            return
        self.router.fleet.drain(process.place.index)
        self.counts["drain"] += 1
        wait = self.random.choice([0.1, 5.0])
        self.clock.after(wait, f"end of {process.nonce}", lambda: self._killed(process))

    def replace(self) -> None:
        """A process dies, and its router hears of that with its replacement, if it restarts them."""
        process = self._some_process()
        if process is None or not self.restarts:
            return
        process.alive = False
        self.counts["replaced"] += 1
        self._start_later(process.place, self.router)

    def repeat(self) -> None:
        """An answer comes twice."""
        self.router.repeat()

    def abort(self) -> None:
        """A client leaves; at times one that has been answered, or never was."""
        names = list(self.router.clients)
        if names and self.random.random() < 0.95:
            self.counts["abort"] += 1
            self.router.abort(self.random.choice(names))
        else:
            assert self.router.fleet.aborted(f"r{self.random.randrange(self.names + 1)}x") == []

    def begin(self) -> None:
        """The router starts, again perhaps: instances of the one before end with it, and so do its requests."""
        for place in self.setting.places:
            if place.process is not None:
                place.process.alive = False
        old = getattr(self, "router", None)
        if old is not None:
            for member in old.members:
                if member.link is not None:
                    member.link.close()
            self.counts["router restarted"] += 1
            self.counts["ended by router restart"] += len(old.clients)
        fleet = Fleet(self.pools, self.router_config, max_queued=self.most_queued, lease_s=self.lease_s)
        self.router = Router(fleet, self.setting, self.delays, self.block_size)
        for place in self.setting.places:
            self._start(place, self.router)
            self.router.front.came_up(place.index)

    # Processes.

    def _start(self, place: Place, router: Router) -> Process:
        """A new process that its router is connected to."""
        self.epochs[place.index] += 1
        process = Process(
            place, self.epochs[place.index], self.setting, lambda report: link.reports.send(report)
        )
        link = router.connect(process)
        process.later(self.random.random() * BEAT_S, "beat", partial(self._beat, link))
        return process

    def _start_later(self, place: Place, router: Router) -> None:
        """The next process takes the place's memory, loads, and serves some time after."""
        wait = self.random.choice([0.0, 0.3, 3.0, 20.0])
        if place.index in router.starting:
            return
        router.starting.add(place.index)

        def serve() -> None:
            if self.router is router:
                router.starting.discard(place.index)
                assert place.process is None or not place.process.alive, "two processes at one place"
                if router.members[place.index].link is not None:
                    router.went_down(place.index)
                self._start(place, router)
                router.front.came_up(place.index)
                self.counts["restart"] += 1

        self.clock.after(wait, f"start of {place.index}", serve)

    def _after_notice(self, process: Process, wait: float) -> None:
        router = self.router

        def notice() -> None:
            link = router.members[process.place.index].link
            if self.router is router and link is not None and link.process is process:
                router.went_down(process.place.index)
                if self.restarts or self.calm:
                    self._start_later(process.place, router)

        self.clock.after(wait, f"notice of {process.nonce}", notice)

    def _killed(self, process: Process) -> None:
        """A process that was to go; declared dead before, it may have gone on alone until now."""
        if process.alive:
            process.alive = False
            self._after_notice(process, 0.0)

    def _hung(self, link: Link) -> None:
        """Nothing was heard for too long: out of the fleet at once, killed a little later, then replaced."""
        process, router = link.process, self.router
        self.counts["declared dead"] += 1
        router.went_down(process.place.index)
        wait = self.random.choice([0.0, 1.0, 10.0])

        def kill() -> None:
            process.alive = False
            if self.router is router and process.place.process is process and (self.restarts or self.calm):
                self._start_later(process.place, router)

        self.clock.after(wait, f"SIGKILL for {process.nonce}", kill)

    def _beat(self, link: Link) -> None:
        process = link.process
        process.reclaim()
        self.setting.plane.carry(f"beat of {process.nonce}", partial(self.router.beat, link))
        process.later(BEAT_S, "beat", partial(self._beat, link))

    def _some_process(self) -> Process | None:
        """A process that the router takes for alive."""
        links = [member.link for member in self.router.members if member.link is not None]
        alive = [link.process for link in links if link.process.alive]
        if not alive or not (self.restarts or len(alive) > 1):
            return None
        return self.random.choice(alive)

    def _rejoin(self) -> None:
        """For the calm: everybody goes on, and who is missing starts, or just those without whom nobody serves."""
        for place in self.setting.places:
            process = place.process
            link = self.router.members[place.index].link
            if process is not None and process.alive and process.paused_until == FOREVER:
                process.paused_until = self.clock.now + 20 * self.random.random()
            zombie = process is not None and process.alive
            if link is None and not zombie and (self.random.random() < 0.5 or not self.router.fleet._roster.starts):
                self._start_later(place, self.router)

    # Clients, and time.

    def _arrive(self) -> None:
        room = self.most_open - len(self.router.clients)
        if self.router.fleet.queued >= self.most_queued and self.random.random() < 0.9:
            room = 0
        if self.calm or room <= 0:
            self.clock.void()
        for _ in range(min(room, self.random.choice([1, 1, 1, 4]))):
            self.router.submit(self._choices())
        wait = self.arrival_s if self.router.fleet._roster.starts else 10.0
        if not self.calm:
            self.clock.after(self.random.expovariate(1 / wait), "arrival", self._arrive)

    def _choices(self) -> list[Request]:
        """A request, or several choices of one prompt."""
        first = self._request()
        more = self.random.choice([0] * 8 + [1, 2])
        names = range(self.names + 1, self.names + 1 + more)
        self.names += more
        return [first, *(replace(first, id=f"r{name}") for name in names)]

    def _request(self) -> Request:
        random = self.random
        document = random.randrange(3) * DOCUMENT
        prefix = random.choice([0, random.randrange(DOCUMENT), 4, 8, 16])
        tail = [random.randrange(VOCAB) for _ in range(random.choice([0, 1, 1, 2, 6, 30]))]
        longest = self.longest if random.random() < 0.99 else MAX_LEN + 5
        prompt = ([*range(document, document + prefix), *tail][: longest - 1]) or [document]
        output = random.randrange(1, max(2, min(random.choice([4, 12, 24]), longest - len(prompt) + 1)))
        if longest > MAX_LEN:
            output += MAX_LEN  # nobody can serve it
        sampling = SamplingParams(max_tokens=output, min_tokens=random.choice([0, 0, 3, 30]))
        self.names += 1
        namespace = random.choice(["", "", "other"])
        return Request(f"r{self.names}", tuple(one % VOCAB for one in prompt), sampling, namespace)

    def _tick(self) -> None:
        self.router.tick()
        for client in self.router.clients.values():
            assert client.waited_s < LONGEST_S, f"{client.ticket.request.id} waits for ever"
        for member in self.router.members:
            if member.link is not None and self.clock.now - member.link.heard_at > self.hung_s:
                self._hung(member.link)

    def _every(self, seconds: float, what: str, do: Callable[[], None]) -> None:
        def again() -> None:
            do()
            self.clock.after(seconds, what, again)

        self.clock.after(seconds, what, again)

    def _event(self) -> None:
        self.happened += 1
        self.router.check()

    def _over(self) -> bool:
        router = self.router
        if router.clients or router.fleet.in_flight or not router.fleet._roster.starts:
            return False
        alive = [place.process for place in self.setting.places if place.process and place.process.alive]
        return not any(one.holding() or one.copies or one.driver._flights for one in alive)

    def _rest(self) -> str:
        journeys = {name: one.phase.value for name, one in self.router.fleet._journeys.items()}
        held = {place.index: place.process.holding() for place in self.setting.places if place.process}
        return f"journeys {journeys}, clients {[*self.router.clients]}, held {held}"

    # What a world is made of.

    def _pools(self, shape: dict[str, int]) -> list[PoolConfig]:
        random = self.random
        return [
            PoolConfig(
                role=role,  # type: ignore[arg-type]
                count=count,
                batching=random.choice(["chunked", "chunked", "prefill_first"]),
                queue_policy=random.choice(["fcfs", "prefix_first"]),
                prefix_cache=random.random() < 0.8,
                token_budget=random.choice([64, 64, 16, 7, 2]),
                max_seqs=random.choice([8, 3]),
                block_size=self.block_size,
                pp=random.choice([1, 1, 2]),
                kv_tokens=random.choice([None, 200]),
            )
            for role, count in shape.items()
        ]

    def _place(self, index: int, pool: PoolConfig) -> Place:
        random = self.random
        tokens = random.choice(
            [random.randrange(28, 60), random.randrange(60, 120), random.randrange(120, 400)]
        )
        blocks = max(tokens // self.block_size, 3) + 1
        return Place(
            index,
            pool,
            blocks,
            Memory([[None] * self.block_size for _ in range(blocks)]),
            step_s=self.step_s * random.choice([1, 1, 3]),
            max_preemptions=random.randrange(4),
            overlap=pool.pp == 1 and random.random() < 0.5,
            early=random.random() < 0.5,
            by_bytes=random.random() < 0.4,
        )


def life(seed: int, events: int, counts: Counter[str]) -> int:
    """One world; returns its events. What fails says which world it was and what happened last."""
    world = World(seed, counts)
    try:
        world.run(events)
    except BaseException as error:
        last = "\n".join(world.clock.recent)
        error.add_note(f"world {seed}, event {world.happened}; the last ones:\n{last}")
        raise
    return world.happened


def soak(events: int, *, seed: int = 0, events_of_a_world: int = 2000) -> Counter[str]:
    """Worlds until so many events have happened; returns what did."""
    counts: Counter[str] = Counter()
    happened = world = 0
    while happened < events:
        happened += life(seed + world, min(events_of_a_world, events - happened), counts)
        world += 1
    counts["events"] = happened
    counts["worlds"] = world
    return counts
