"""Which KV this instance keeps for others and until when: its own lease, whatever a router believes.

kept -> renewed -> dropped, or expired; a renewal after expiry is refused. Times: the driver's clock, seconds.
Several threads may call. Frees nothing: its owner drops an entry first and frees the blocks then, so that
whoever finds one here *after* reading the blocks has read what was kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple


class Kept(NamedTuple):
    """The KV of a finished prefill: position p is in block `blocks[p // block_size]`, for p < `tokens`.

    `serial` tells one keeping from a later one under the same request id.
    """

    serial: int
    blocks: tuple[int, ...]
    tokens: int
    expires_s: float


class Held:
    """All KV that is kept, by request id, next to expire first. `duration_s` may be infinite."""

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._serials = count(1)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def next_expiry_s(self) -> float | None:
        """When the next entry expires, on the driver's clock; None where nothing is kept."""
        with self._lock:
            return next(iter(self._kept.values())).expires_s if self._kept else None

    def keep(self, request_id: str, blocks: Sequence[int], tokens: int, now: float) -> None:
        """Keep the KV of `tokens` positions from `now` on, in place of what was kept under this id."""
        with self._lock:
            self._kept.pop(request_id, None)
            self._kept[request_id] = Kept(next(self._serials), tuple(blocks), tokens, now + self._duration_s)

    def renew(self, request_id: str, now: float) -> bool:
        """Keep it for another `duration_s` from `now`; False if it is not kept or has expired."""
        with self._lock:
            kept = self._kept.get(request_id)
            if kept is None or now >= kept.expires_s:
                return False
            self._kept[request_id] = kept._replace(expires_s=now + self._duration_s)
            self._kept.move_to_end(request_id)
            return True

    def drop(self, request_id: str) -> None:
        """It is kept no more; only now may its blocks be freed. Idempotent."""
        with self._lock:
            self._kept.pop(request_id, None)

    def look(self, request_id: str, now: float) -> Kept | None:
        """What is kept under this id at `now`; None where nothing is, or its time is over."""
        with self._lock:
            kept = self._kept.get(request_id)
        return kept if kept is not None and now < kept.expires_s else None

    def expired(self, now: float) -> list[str]:
        """The ids whose time is over, longest ago first. Does not drop them."""
        with self._lock:
            over = []
            for request_id, kept in self._kept.items():
                if now < kept.expires_s:
                    break
                over.append(request_id)
            return over
