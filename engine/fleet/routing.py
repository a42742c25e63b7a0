"""How a request finds an instance: round robin, least loaded, prefix affinity. Each only chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from engine.fleet.prefixes import PrefixIndex
from engine.fleet.roster import Instance
from engine.request import Request

AFFINITY_SHARE = 0.3  # SGLang's router: affinity above this share of the prompt ...
IMBALANCE_REQUESTS = 64  # ... unless loads differ by more than this ...
IMBALANCE_RATIO = 1.5  # ... and by more than this factor


class RoutingPolicy(Protocol):
    """Chooses one of `candidates`, never empty and in order of index."""

    def choose(self, candidates: Sequence[Instance], request: Request) -> tuple[Instance, int]:
        """The instance, and how many prompt tokens are thought to be cached there; 0 where nobody looked."""
        ...


class RoundRobin:
    """Each in turn, over those that are there."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, candidates: Sequence[Instance], _request: Request) -> tuple[Instance, int]:
        """The next one by index."""
        chosen = candidates[0]
        for instance in candidates:
            if instance.index > self._last:
                chosen = instance
                break
        self._last = chosen.index
        return chosen, 0


class LeastLoaded:
    """Fewest requests; then fewest uncached prompt tokens to compute; then the first."""

    def choose(self, candidates: Sequence[Instance], _request: Request) -> tuple[Instance, int]:
        """The least loaded one."""
        return least_loaded(candidates), 0


class PrefixAffinity:
    """Where most of the prompt is cached, if that is enough and the load allows; else least loaded.

    SGLang's router rule (reference: LPMX): affinity above 0.3 of the prompt; least loaded when (max - min) > 64
    requests and max > 1.5 x min. Sessions stay where they are because their turns share prefixes.
    """

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index

    def choose(self, candidates: Sequence[Instance], request: Request) -> tuple[Instance, int]:
        """The instance with the longest match, or the least loaded one."""
        among = high = 0
        for instance in candidates:
            among |= instance.bit
            if instance.requests > high:
                high = instance.requests
        mask, cached = self._index.match(request, among)
        least = least_loaded(candidates)
        low = least.requests
        uneven = high - low > IMBALANCE_REQUESTS and high > IMBALANCE_RATIO * low
        if cached > AFFINITY_SHARE * len(request.prompt) and not uneven:
            return least_loaded([one for one in candidates if one.bit & mask]), cached
        if not least.bit & mask:
            _, cached = self._index.match(request, least.bit)
        return least, cached


def least_loaded(candidates: Sequence[Instance]) -> Instance:
    """Fewest requests; then fewest uncached prompt tokens to compute; then the first."""
    best = candidates[0]
    for one in candidates:
        if one.requests < best.requests or (one.requests == best.requests and one.tokens < best.tokens):
            best = one
    return best


def policy_for(
    name: Literal["round_robin", "least_loaded", "prefix_affinity"], index: PrefixIndex
) -> RoutingPolicy:
    """A new policy of the name that `router.policy` gives."""
    if name == "prefix_affinity":
        return PrefixAffinity(index)
    return LeastLoaded() if name == "least_loaded" else RoundRobin()
