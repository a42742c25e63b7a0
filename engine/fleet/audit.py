"""What must hold in a fleet after every event. Recomputes from the requests what others keep incrementally."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence

from engine.fleet.journey import LEASED, Journey, Phase
from engine.fleet.roster import Instance
from engine.invariants import require


def holdings(journeys: Mapping[str, Journey]) -> Counter[tuple[int, str]]:
    """Where blocks of requests are, or are being asked for: (instance, request id)."""
    held: Counter[tuple[int, str]] = Counter()
    for name, journey in journeys.items():
        if journey.source:
            held[journey.source.index, name] += 1
        if journey.target and journey.phase is not Phase.QUEUED:
            held[journey.target.index, name] += 1
    return held


def check_places(journeys: Mapping[str, Journey], waiting: Container[str], leases: Iterable[str]) -> None:
    """Every request is where its phase says, once, and leased exactly if its KV is kept for a pull."""
    for name, journey in journeys.items():
        phase, target = journey.phase, journey.target
        require(not journey.ended or phase is Phase.VOID, "an ended request lives on")
        require((phase is Phase.WAITING) == (name in waiting), "waiting, but not in line")
        require(
            (journey.source is not None) == (phase is Phase.PREFILLING or phase in LEASED), "a wrong source"
        )
        require((target is None) == (phase in (Phase.WAITING, Phase.PREFILLING)), "a wrong target")
        require(target is None or target is not journey.source, "one instance on both sides of a pull")
        if target:
            require((journey in target.queue) == (phase is Phase.QUEUED), "queued, but not in line")
            require((target.asking is journey) == (phase is Phase.RESERVING), "asked, but not asking")
    leased = {name for name, journey in journeys.items() if journey.phase in LEASED}
    require(leased == set(leases), "a lease without kept KV, or the reverse")


def check_loads(journeys: Mapping[str, Journey], instances: Sequence[Instance]) -> None:
    """Loads are what the requests add up to; the dead have none."""
    requests: Counter[Instance] = Counter()
    tokens: Counter[Instance] = Counter()
    queued = 0
    for journey in journeys.values():
        queued += journey.phase is Phase.QUEUED
        # What a source keeps weighs on its memory, not on its queue.
        working = journey.target or journey.source
        if working:
            requests[working] += 1
            tokens[working] += journey.uncached
    for one in instances:
        require(requests[one] == one.requests and tokens[one] == one.tokens, "the load of an instance is wrong")
        require(one.state != "down" or not (one.requests or one.asking), "a dead instance has requests")
    require(queued == sum(len(one.queue) for one in instances), "a queue holds a request that is not queued")
