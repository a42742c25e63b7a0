"""Leases on kept KV: until when the prefill side holds it for a pull, and whether a pull may be believed.

granted -> renewed (heartbeats of the puller) -> dropped, or expired. A renewal after expiry is refused: the
blocks may belong to somebody else by then. Times are the driver's clock, seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

LEASE_S = 30.0
"""How long kept KV is held without a sign of who wants it (vLLM NIXL's)."""


class Lease(NamedTuple):
    """KV held by the holder's `epoch`th start, until `expires_s`."""

    epoch: int
    expires_s: float


class Leases:
    """All leases, by request id, next to expire first. `duration_s` may be infinite."""

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self._leases: OrderedDict[str, Lease] = OrderedDict()

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[str]:
        return iter(self._leases)

    def grant(self, request_id: str, epoch: int, now: float) -> None:
        """A new lease from `now`."""
        self._leases.pop(request_id, None)
        self._leases[request_id] = Lease(epoch, now + self._duration_s)

    def renew(self, request_id: str, now: float) -> bool:
        """Extend a lease that holds; False if there is none or it has expired."""
        lease = self._leases.get(request_id)
        if lease is None or now >= lease.expires_s:
            return False
        self.grant(request_id, lease.epoch, now)
        return True

    def holds(self, request_id: str, epoch: int, now: float) -> bool:
        """The KV is still that of this lease: not expired, and its holder was not restarted since."""
        lease = self._leases.get(request_id)
        return lease is not None and lease.epoch == epoch and now < lease.expires_s

    def drop(self, request_id: str) -> None:
        """The KV is released. Idempotent."""
        self._leases.pop(request_id, None)

    def expired(self, now: float) -> list[str]:
        """The requests whose lease has run out, longest ago first. Does not drop them."""
        over = []
        for request_id, lease in self._leases.items():
            if now < lease.expires_s:
                break
            over.append(request_id)
        return over
