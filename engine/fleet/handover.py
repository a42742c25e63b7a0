"""From a finished prefill to the first decode step: the decode side reserves, pulls, and only then decodes.

Owns the leases and the queues in front of decode instances. A decode instance reserves all blocks of a request
before anything is copied (vllm#44560: copies that each hold a part block each other), one request at a time and
in order. What was copied is believed only if the lease holds after the copy (vllm#52232, aws-do-eks#84).
A copy in progress cannot be called back, so its target's blocks stay reserved until it ends, good or not.
Chooses no instance and gives up no request: that is the Fleet's.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.fleet.actions import Abort, Action, Pull, Release, Reserve, StartDecode
from engine.fleet.journey import LEASED, Journey, Phase
from engine.fleet.lease import Leases
from engine.fleet.roster import Instance


class Handover:
    """All requests between a prefill and a decode instance. `attempts` numbers what asks for an answer."""

    def __init__(self, lease_s: float, attempts: Iterator[int]) -> None:
        self.leases = Leases(lease_s)
        self._attempts = attempts

    def hold(self, journey: Journey, token: int, now: float) -> None:
        """Its prefill is done and `token` is out; the source keeps its KV from `now` on."""
        source = journey.source
        assert source is not None  # noqa: S101 - for the type checker
        source.requests -= 1
        source.tokens -= journey.uncached
        journey.uncached = 0
        journey.token = token
        journey.phase = Phase.QUEUED
        self.leases.grant(journey.request.id, source.epoch, now)

    def adopt(self, journey: Journey, source: Instance, token: int, now: float) -> None:
        """Another fleet has done its prefill: `source` keeps its KV as of `now`."""
        journey.source, journey.token = source, token
        journey.phase = Phase.QUEUED
        self.leases.grant(journey.request.id, source.epoch, now)

    def queue(self, journey: Journey, target: Instance, out: list[Action]) -> None:
        """Line up for room on `target`."""
        journey.phase, journey.target = Phase.QUEUED, target
        target.requests += 1
        if not target.queue:
            target.full = False
        target.queue.append(journey)
        self._ask(target, out)

    def room(self, target: Instance, out: list[Action]) -> None:
        """Blocks may have come free on `target`: ask again."""
        target.full = False
        self._ask(target, out)

    def reserved(self, journey: Journey, cached_tokens: int | None, out: list[Action]) -> None:
        """The answer to a Reserve: pull what is not cached there, or stay first in the queue."""
        source, target = journey.source, journey.target
        assert source is not None  # noqa: S101
        assert target is not None  # noqa: S101
        target.asking = None
        if cached_tokens is None:
            journey.phase = Phase.QUEUED
            target.queue.appendleft(journey)
            target.full = True
            return
        journey.phase = Phase.PULLING
        one = journey.request
        out.append(
            Pull(
                source.index,
                target.index,
                one.id,
                journey.attempt,
                source.epoch,
                cached_tokens,
                len(one.prompt),
            )
        )
        self._ask(target, out)

    def land(self, journey: Journey, now: float, out: list[Action]) -> bool:
        """The copy is complete. Start decoding if the lease still holds; else change nothing, False."""
        source, target, name = journey.source, journey.target, journey.request.id
        if source is None or target is None or not self.leases.holds(name, source.epoch, now):
            return False
        out.append(StartDecode(target.index, name, journey.attempt, journey.token))
        out.append(Release(source.index, name))
        self.leases.drop(name)
        journey.phase, journey.source = Phase.DECODING, None
        return True

    def leave_source(self, journey: Journey, out: list[Action], dead: Instance | None = None) -> None:
        """Give up what the source computes or keeps; the token it produced stays."""
        source, name = journey.source, journey.request.id
        if source is None:
            return
        prefilling = journey.phase is Phase.PREFILLING
        if prefilling:
            source.requests -= 1
            source.tokens -= journey.uncached
            journey.uncached = 0
        if journey.phase in LEASED:
            journey.continue_from((*journey.produced, journey.token))
        if source is not dead:
            # An abort may come after the end of the prefill: both, so that nothing stays kept.
            out += [Abort(source.index, name)] if prefilling else []
            out.append(Release(source.index, name))
        self.leases.drop(name)
        journey.source = None

    def leave_target(
        self, journey: Journey, out: list[Action], dead: Instance | None = None, *, copied: bool = False
    ) -> None:
        """Give up what the target runs, reserved or queued; a copy that is not `copied` has to end first."""
        target, phase = journey.target, journey.phase
        if target is None:
            return
        if phase in (Phase.PULLING, Phase.VOID) and not copied and target is not dead:
            journey.phase = Phase.VOID
            return
        if target.asking is journey:
            target.asking = None
        elif phase is Phase.QUEUED:
            target.queue.remove(journey)
        target.requests -= 1
        target.tokens -= journey.uncached
        journey.uncached = 0
        journey.target = None
        if target is not dead:
            out += [Abort(target.index, journey.request.id)] if phase is not Phase.QUEUED else []
            out += [Release(target.index, journey.request.id)] if journey.request.keep_kv else []
            self.room(target, out)

    def _ask(self, target: Instance, out: list[Action]) -> None:
        if target.asking or target.full or not target.queue:
            return
        journey = target.asking = target.queue.popleft()
        journey.phase, journey.attempt = Phase.RESERVING, next(self._attempts)
        out.append(Reserve(target.index, journey.request, journey.attempt))
