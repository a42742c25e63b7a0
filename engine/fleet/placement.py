"""Where a request starts, and who decodes it: routing and bypass over the instances that are up."""

from __future__ import annotations

from typing import NamedTuple

from engine.config import RouterConfig
from engine.fleet.bypass import queue_is_full, stays_on_decode_side
from engine.fleet.prefixes import PrefixIndex
from engine.fleet.roster import Instance, Roster
from engine.fleet.routing import PrefixAffinity, least_loaded, policy_for
from engine.request import Request


class Place(NamedTuple):
    """Run the request, or of a `split` its prefill, where `cached` of its prompt tokens are thought to be."""

    instance: Instance
    cached: int
    split: bool = False
    bypass: bool = False


class Placement:
    """Decides by `router` over the instances of `roster`; keeps the prefix index up to date."""

    def __init__(self, roster: Roster, router: RouterConfig) -> None:
        self._roster = roster
        index = PrefixIndex(roster.instances)
        self._index = index if router.bypass or router.policy == "prefix_affinity" else None
        self._start_policy = policy_for(router.policy, index)
        self._decode_policy = policy_for(router.policy, index)
        self._bypass_policy = PrefixAffinity(index) if router.bypass and roster.split else None

    def start(self, request: Request, *, recompute: bool) -> Place | None:
        """Where the request starts now; None if nobody may take it. `recompute`: its pulls keep failing."""
        place = self._bypass(request, recompute) if self._roster.paired else None
        if place is None and self._roster.starts:
            instance, cached = self._start_policy.choose(self._roster.starts, request)
            split = self._roster.paired and instance.pool.role == "prefill" and request.sampling.max_tokens > 1
            place = Place(instance, cached, split)
        if place and self._index:
            self._index.record(request, place.instance)
        return place

    def decode(self, request: Request) -> Instance | None:
        """Who decodes a request whose prefill is done; None if no decode instance is up."""
        if not self._roster.decode:
            return None
        target, _ = self._decode_policy.choose(self._roster.decode, request)
        if self._index:
            self._index.record(request, target)
        return target

    def forget(self, instance: Instance) -> None:
        """The instance lost its cache."""
        if self._index:
            self._index.forget(instance)

    def check_invariants(self) -> None:
        """Those of the prefix index."""
        if self._index:
            self._index.check_invariants()

    def _bypass(self, request: Request, recompute: bool) -> Place | None:
        """The decode instance that should prefill the request itself."""
        roster = self._roster
        if recompute:
            return Place(least_loaded(roster.decode), 0)
        if self._bypass_policy is None:
            return None
        instance, cached = self._bypass_policy.choose(roster.decode, request)
        if stays_on_decode_side(len(request.prompt), cached) or queue_is_full(roster.prefill):
            return Place(instance, cached, bypass=True)
        return None
