"""KV of open requests that instances of another fleet keep: where it is, and who of ours speaks to them.

known (the request is adopted) -> pulled -> let go. Decides nothing: `engine.fleet` names such a source FOREIGN,
and says when its KV is wanted no longer. What is said of it may be lost; the source has a lease of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.fleet.actions import Pull
from engine.server import messages
from engine.server.instances import Instances
from engine.server.two_call import Handoff


@dataclass(slots=True)
class _Kept:
    handoff: Handoff
    puller: int | None = None  # who has a line to its source


class ForeignKv:
    """All of one server, by request."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._kept: dict[str, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def know(self, request_id: str, handoff: Handoff) -> None:
        """The KV of this request is there."""
        self._kept[request_id] = _Kept(handoff)

    def token(self, request_id: str) -> int | None:
        """The first output token of a request that is known here."""
        kept = self._kept.get(request_id)
        return None if kept is None else kept.handoff.token

    def pull(self, pull: Pull) -> None:
        """Have it copied."""
        kept = self._kept[pull.request_id]
        kept.puller = pull.target
        source = kept.handoff
        order = messages.Pull(pull.request_id, pull.attempt, pull.start, pull.stop, source.peer, source.kept_as)
        self._instances.send(pull.target, order)

    def renew(self, request_id: str, index: int) -> None:
        """Instance `index` lives and still wants it."""
        source = self._kept[request_id].handoff
        self._instances.send(index, messages.Tell(source.peer, source.kept_as, still=True))

    def let_go(self, request_id: str) -> None:
        """Nobody here wants it any more."""
        kept = self._kept.pop(request_id)
        self._release(kept.handoff, kept.puller)

    def decline(self, handoff: Handoff) -> None:
        """Nobody here wants it at all."""
        self._release(handoff, None)

    def _release(self, source: Handoff, puller: int | None) -> None:
        up = [index for index, member in enumerate(self._instances.members) if member.state == "up"]
        if up:
            index = puller if puller in up else up[0]
            self._instances.send(index, messages.Tell(source.peer, source.kept_as, still=False))
