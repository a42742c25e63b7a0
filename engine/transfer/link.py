"""The modelled KV transport: copies between instances that share the bandwidth of their ports. Sans-IO.

Every instance has a port out and a port in, each of `bytes_per_s`. The copies at a port share it equally, and
a copy runs at the smaller of its two shares (processor sharing). So do the transports that a split runs on:
NVLink, RDMA and TCP interleave concurrent copies. First come, first served would be simpler, but one copy that
waits for a busy target would hold its source's port idle, and by equal sizes its mean is the lower one: sharing
errs against the split, never for it. A share that a copy cannot use, because its other port is busier, is left
unused: a lower bound of max-min fairness.

started -> flowing -> all bytes sent -> `latency_s` later landed. Never decides what is copied.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass

from engine.invariants import require

_NEVER = float("inf")
_MOMENT_S = 1e-9  # what is due within it has come: late on the clock, a shorter time adds nothing to it
_ROUNDING = 1e-9  # of a copy's bytes: what is left of it by rounding when its end has come


@dataclass(slots=True)
class _Copy:
    source: int
    target: int
    bytes: float
    left: float
    rate: float = 0.0


class Link:
    """All ports of a fleet. Times are the virtual clock's, seconds, and never go back.

    The driver starts and cancels copies, looks at `next_s` after every call, when the next one lands if none is
    started before, and takes it with `landed` at that time. Without a copy `next_s` is infinite.
    """

    def __init__(self, *, bytes_per_s: float, latency_s: float = 0.0) -> None:
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self.next_s = _NEVER
        self._now = 0.0
        self._flowing: dict[Hashable, _Copy] = {}
        self._sent: deque[tuple[float, Hashable]] = deque()  # when each lands, in order
        self._out: Counter[int] = Counter()
        self._in: Counter[int] = Counter()

    def start(self, key: Hashable, source: int, target: int, size: float, now: float) -> None:
        """Copy `size` bytes from instance `source` to `target`. `key` names the copy."""
        self._advance(now)
        require(key not in self._flowing, "a copy with this key is on its way")
        self._flowing[key] = _Copy(source, target, size, size)
        self._out[source] += 1
        self._in[target] += 1
        self._share()
        self._look_ahead()

    def cancel(self, key: Hashable, now: float) -> None:
        """An end of the copy died: it never lands. Unknown keys are no-ops."""
        self._advance(now)
        if key in self._flowing:
            self._remove(key)
            self._share()
        self._sent = deque(one for one in self._sent if one[1] != key)
        self._look_ahead()

    def landed(self, now: float) -> list[Hashable]:
        """The copies that have landed by `now`, in order; each is given once."""
        self._advance(now)
        keys = []
        while self._sent and self._sent[0][0] <= now:
            keys.append(self._sent.popleft()[1])
        self._look_ahead()
        return keys

    def check_invariants(self) -> None:
        """No port carries more than its bandwidth, and every copy moves."""
        out: Counter[int] = Counter()
        into: Counter[int] = Counter()
        for copy in self._flowing.values():
            require(copy.rate > 0 and 0 <= copy.left <= copy.bytes, "a copy stands still")
            out[copy.source] += 1
            into[copy.target] += 1
        require(out == self._out and into == self._in, "the ports have lost count")
        for ports, end in ((out, "source"), (into, "target")):
            for port in ports:
                carried = sum(copy.rate for copy in self._flowing.values() if getattr(copy, end) == port)
                require(carried <= self._bytes_per_s * (1 + 1e-12), "a port carries more than it can")

    def _advance(self, now: float) -> None:
        """Let bytes flow until `now`, from one end of a copy to the next."""
        require(now >= self._now, "time goes back")
        while self._flowing:
            first = min(copy.left / copy.rate for copy in self._flowing.values())
            step = min(first, now - self._now)
            self._now += step
            done = []
            for key, copy in self._flowing.items():
                copy.left -= copy.rate * step
                if copy.left <= max(_ROUNDING * copy.bytes, _MOMENT_S * copy.rate):
                    done.append(key)
            for key in done:
                self._remove(key)
                self._sent.append((self._now + self._latency_s, key))
            if not done:
                break
            self._share()
        self._now = now

    def _look_ahead(self) -> None:
        flow = min((copy.left / copy.rate for copy in self._flowing.values()), default=_NEVER)
        landing = self._sent[0][0] if self._sent else _NEVER
        self.next_s = min(self._now + flow + self._latency_s, landing)

    def _remove(self, key: Hashable) -> None:
        copy = self._flowing.pop(key)
        self._out[copy.source] -= 1
        self._in[copy.target] -= 1

    def _share(self) -> None:
        """Give every copy its rate."""
        for copy in self._flowing.values():
            copy.rate = self._bytes_per_s / max(self._out[copy.source], self._in[copy.target])
