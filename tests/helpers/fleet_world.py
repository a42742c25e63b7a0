"""Random lives of a whole split on a virtual clock: router, fleet, drivers, cores, lease tables and copies.

A World is one fleet of random shape whose instances die, pause and come back between any two events, whose
clients leave in any phase, whose KV plane loses, doubles and overtakes, and whose router restarts. After every
event `Router.check` says whether all is well. A world ends with a calm in which all must be over in bounded
time and every block must be back.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

from helpers.fleet_process import Memory, Place, Process, Setting
from helpers.fleet_router import TICK_S, Link, Router
from helpers.fleet_shape import Shape, choices
from helpers.fleet_wire import FOREVER, Clock, Delays, KvPlane

BEAT_S = 1.0
LONGEST_S = 300.0  # that a request takes while somebody could serve it, whatever else happens


class World:
    """One fleet and its clients. `happened` counts events, `counts` what they were."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.random = random = Random(seed)
        self.shape = shape = Shape(random)
        self.clock = clock = Clock()
        self.counts = counts
        control, plane = (Delays(random, shape.delay_s, tail) for tail in shape.tails)
        self.delays = control
        self.plane = KvPlane(clock, random, plane, counts, loss=shape.loss, twice=shape.doubled)
        self.places = [
            Place(index, one, Memory(one.num_blocks, shape.block_size))
            for index, one in enumerate(shape.places)
        ]
        self.setting = Setting(shape, clock, random, self.plane, counts, self.places)
        self.epochs: Counter[int] = Counter()
        self.happened = self.names = 0
        self.calm = False
        self.router = self._new_router()
        clock.after(TICK_S, "tick", self._tick)
        self._arrive()

    def run(self, events: int) -> None:
        """So many events, then no new ones until all is over."""
        acts = [self.die, self.pause, self.drain, self.replace, self.restart_router]
        while self.happened < events:
            if self.random.random() < self.shape.faults:
                self.random.choices(acts, self.shape.weights)[0]()
                self._event()
            if self.random.random() < self.shape.leaves:
                self.leave()
                self._event()
            self.clock.step()
            self._event()
        self.settle()

    def settle(self) -> None:
        """Nothing else breaks: all ends in time, and then nothing is held anywhere."""
        self.calm = True
        self.plane.quiet()
        self._rejoin()
        by = self.clock.now + LONGEST_S
        while not self._over():
            assert self.clock.now < by, f"not over: {self._rest()}"
            self.clock.step()
            self._event()
        fleet = self.router.fleet
        assert not self.router.clients
        assert fleet.leases == sum(fleet.loads()) == 0
        for process in self._alive():
            stats = process.core.stats()
            assert stats.blocks_free + stats.blocks_cached == stats.blocks_total, "blocks leak"
            assert not process.driver._open, "the driver remembers requests that are over"

    # What may happen between any two events.

    def die(self) -> None:
        """A process is gone at once; its router hears of it a little later, and of what it said before."""
        process = self._some_process()
        if process is not None:
            process.alive = False
            self.counts["death"] += 1
            self._notice(process, self.random.choice([0.0, 0.005, 0.5]))

    def pause(self) -> None:
        """SIGSTOP, for ever or a while. Who is silent for too long is declared dead, and killed later."""
        process = self._some_process()
        if process is not None:
            some = [0.5, 3.0, 3.0, self.shape.lease_s, 2 * self.shape.hung_s, FOREVER]
            process.paused_until = max(process.paused_until, self.clock.now + self.random.choice(some))
            self.counts["pause"] += 1

    def drain(self) -> None:
        """Give an instance nothing new, and end it some time later."""
        process = self._some_process()
        if process is not None:
            self.router.fleet.drain(process.place.index)
            self.counts["drain"] += 1
            wait = self.random.choice([0.1, 5.0])
            self.clock.after(wait, f"end of {process.nonce}", partial(self._end, process))

    def replace(self) -> None:
        """A process dies, and its router hears of that with its replacement."""
        process = self._some_process()
        if process is not None and self.shape.restarts:
            process.alive = False
            self.counts["replaced"] += 1
            self._start_later(process.place, self.router)

    def leave(self) -> None:
        """A client leaves; at times one that has been answered, or never was."""
        names = list(self.router.clients)
        if names and self.random.random() < 0.95:
            self.counts["leave"] += 1
            self.router.leave(self.random.choice(names))
        else:
            assert self.router.fleet.aborted(f"r{self.names + self.random.randrange(9)}") == []

    def restart_router(self) -> None:
        """All instances end with it, and all requests; nothing is left but what is in their memories."""
        for process in self._alive():
            process.alive = False
        self.router.close()
        self.counts["router restarted"] += 1
        self.counts["ended: with the router"] += len(self.router.clients)
        self.router = self._new_router()

    # Processes.

    def _new_router(self) -> Router:
        self.router = Router(self.setting, self.delays)
        for place in self.places:
            self._start(place, self.router)
        return self.router

    def _start(self, place: Place, router: Router) -> None:
        """A process that its router is connected to, and that beats."""
        assert place.process is None or not place.process.alive, "two processes at one place"
        self.epochs[place.index] += 1
        epoch = self.epochs[place.index]
        process = Process(place, epoch, self.setting, lambda report: link.reports.send(report))
        link = router.connect(process)
        router.front.came_up(place.index)
        process.later(self.random.random() * BEAT_S, "beat", partial(self._beat, router, link))

    def _start_later(self, place: Place, router: Router) -> None:
        """The next process at a place serves some time from now."""
        if place.index in router.starting or not (self.shape.restarts or self.calm):
            return
        router.starting.add(place.index)

        def start() -> None:
            if self.router is not router:
                return self.clock.void()
            router.starting.discard(place.index)
            router.went_down(place.index)
            self.counts["restart"] += 1
            return self._start(place, router)

        self.clock.after(self.random.choice([0.0, 0.3, 3.0, 20.0]), f"start of {place.index}", start)

    def _notice(self, process: Process, wait: float) -> None:
        """The end of a process is heard of, and another one is started."""
        router, index = self.router, process.place.index

        def notice() -> None:
            link = router.members[index].link
            if self.router is not router or link is None or link.process is not process:
                return self.clock.void()
            router.went_down(index)
            return self._start_later(process.place, router)

        self.clock.after(wait, f"notice of {process.nonce}", notice)

    def _end(self, process: Process) -> None:
        """A process that was to go does, unless it has."""
        if not process.alive:
            return self.clock.void()
        process.alive = False
        return self._notice(process, 0.0)

    def _hung(self, link: Link) -> None:
        """Nothing was heard for too long: out of the fleet at once, killed a little later, then replaced."""
        process, router = link.process, self.router
        self.counts["declared dead"] += 1
        router.went_down(process.place.index)

        def kill() -> None:
            process.alive = False
            if self.router is router and process.place.process is process:
                self._start_later(process.place, router)

        self.clock.after(self.random.choice([0.0, 1.0, 10.0]), f"SIGKILL for {process.nonce}", kill)

    def _beat(self, router: Router, link: Link) -> None:
        process = link.process
        process.reclaim()
        self.plane.carry(f"beat of {process.nonce}", partial(router.beat, link))
        process.later(BEAT_S, "beat", partial(self._beat, router, link))

    def _alive(self) -> list[Process]:
        return [place.now for place in self.places if place.process is not None and place.now.alive]

    def _some_process(self) -> Process | None:
        """A process that its router takes for alive; without restarts, not the last one."""
        links = [member.link for member in self.router.members if member.link is not None]
        alive = [link.process for link in links if link.process.alive]
        return self.random.choice(alive) if len(alive) > (not self.shape.restarts) else None

    def _rejoin(self) -> None:
        """For the calm: who is stopped goes on, who is missing starts, at least where nobody serves without."""
        for process in self._alive():
            if process.paused_until == FOREVER:
                process.paused_until = self.clock.now + 20 * self.random.random()
        for place in self.places:
            missing = self.router.members[place.index].link is None and not place.now.alive
            if missing and (self.random.random() < 0.5 or not self.router.serves):
                self._start_later(place, self.router)

    # Clients, and time.

    def _arrive(self) -> None:
        """Clients ask, if fewer than so many wait; most know better than to queue in vain."""
        router, shape, random = self.router, self.shape, self.random
        if self.calm:
            return self.clock.void()
        wait = shape.arrival_s if router.serves else 10.0
        self.clock.after(random.expovariate(1 / wait), "arrival", self._arrive)
        in_vain = router.fleet.queued >= shape.most_queued and random.random() < 0.97
        if in_vain or len(router.clients) >= shape.most_open:
            return self.clock.void()
        for _ in range(random.choice([1, 1, 1, 4])):
            requests = choices(random, self.names, shape.longest)
            self.names += len(requests)
            router.submit(requests)
        return None

    def _tick(self) -> None:
        self.clock.after(TICK_S, "tick", self._tick)
        self.router.tick()
        for name, client in self.router.clients.items():
            assert client.waited_s < LONGEST_S, f"{name} waits for ever"
        for member in self.router.members:
            if member.link is not None and self.clock.now - member.link.heard_at > self.shape.hung_s:
                self._hung(member.link)

    def _event(self) -> None:
        self.happened += 1
        self.router.check()

    def _over(self) -> bool:
        if self.router.clients or self.router.fleet.in_flight or not self.router.serves:
            return False
        return not any(one.holding() or one.puller.copies or one.driver._flights for one in self._alive())

    def _rest(self) -> str:
        journeys = {name: one.phase.value for name, one in self.router.fleet._journeys.items()}
        held = {process.nonce: process.holding() for process in self._alive()}
        return f"journeys {journeys}, clients {[*self.router.clients]}, held {held}"


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
    while counts["events"] < events:
        most = min(events_of_a_world, events - counts["events"])
        counts["events"] += life(seed + counts["worlds"], most, counts)
        counts["worlds"] += 1
    return counts


def events_until_noticed(most: int) -> int | None:
    """How many events it takes until something is wrong; None if nothing is in `most`."""
    counts: Counter[str] = Counter()
    while counts["events"] < most:
        one = World(counts["worlds"], counts)
        try:
            one.run(2000)
        except Exception:
            return counts["events"] + one.happened
        counts["events"] += one.happened
        counts["worlds"] += 1
    return None
