"""Which spans tell of one call: a proxy's and an SDK's, or a wrapper's and its inner one.

Spans are kin where one call id (`gen_ai.response.id`) is in both within a trace, or where one is above the
other, with nothing but spans of transport between, both at the same time and with the same usage. A call above
several that only repeats their sum is none. Spans come in any order and from several processes, so the latest
`_RECENT` are remembered, and all that turned out to be kin: text never, ids and counts only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

_RECENT = 50_000  # spans
_MOST_BELOW = 1000  # calls that wait for one span
_MOST_HOPS = 16  # of transport between two spans of a call

Usage = tuple[int, int]  # prompt and output tokens, -1 where unknown
UNKNOWN: Usage = (-1, -1)


@dataclass(frozen=True, slots=True)
class Call:
    """A span of a call, the key of the request that it tells of, and the fields of it that it tells."""

    key: str
    usage: Usage
    start_ns: int
    end_ns: int
    told: frozenset[str] = frozenset()

    def same(self, other: Call) -> bool:
        """Whether two spans, one above the other, can be of one call."""
        at_once = self.start_ns < other.end_ns and other.start_ns < self.end_ns
        return at_once and (self.usage == other.usage or UNKNOWN in (self.usage, other.usage))


class Kin:
    """Answers, span by span, which request a span belongs to."""

    def __init__(self) -> None:
        self._parents: dict[str, str | None] = {}  # of spans of transport
        self._calls: dict[str, Call] = {}
        self._below: dict[str, list[Call]] = {}  # span not seen yet -> calls whose ancestor it is
        self._by_id: dict[str, Call] = {}  # call id within a trace -> the last span with it
        self._moved: dict[str, str] = {}  # span -> key of its request, where that is another span's

    def pass_by(self, span: str, parent: str | None) -> None:
        """Note a span of transport, which only links those above to those below."""
        _remember(self._parents, span, parent)
        for call in self._below.pop(span, ()):
            self._wait(parent, call)

    def part(self, span: str) -> None:
        """Note a span that is a step of its own, such as an agent: calls above it are not those below."""
        self._below.pop(span, None)

    def resolve(
        self, span: str, parent: str | None, call_id: str | None, call: Call
    ) -> tuple[str, Call | None] | None:
        """The key of the request that a span of a call tells of, and the span around it that told of it before.

        None for a span that sums up calls below it.
        """
        below = self._below.pop(span, [])
        known = None if call_id is None else self._by_id.get(call_id)
        outer = known if known is not None and known.start_ns <= call.start_ns else self._above(parent, call)
        if known is None and outer is None:
            if len(below) > 1 and _is_sum(call.usage, below):
                return None
            known = next((inner for inner in reversed(below) if inner.same(call)), None)
        key = (outer or known or call).key
        settled = replace(call, key=key, told=call.told | (outer.told if outer is not None else frozenset()))
        _remember(self._calls, span, settled)
        if call_id is not None:
            _remember(self._by_id, call_id, settled)
        if key != span:
            self._moved[span] = key
        self._wait(parent, settled)
        return key, outer

    def tell(self, span: str, call_id: str | None, time_ns: int) -> str:
        """The key of the request that an event of a span, maybe one not seen yet, tells of."""
        known = None if call_id is None else self._by_id.get(call_id)
        key = self._moved.get(span, span) if known is None else known.key
        if call_id is not None and known is None:
            _remember(self._by_id, call_id, Call(key, UNKNOWN, time_ns, time_ns))
        return key

    def _above(self, parent: str | None, call: Call) -> Call | None:
        """A call above that is the same; None where there is none, or none yet."""
        for _ in range(_MOST_HOPS):
            if parent is None:
                return None
            if (outer := self._calls.get(parent)) is not None:
                return outer if outer.same(call) else None
            parent = self._parents.get(parent)
        return None

    def _wait(self, parent: str | None, call: Call) -> None:
        """Leave a call at its nearest ancestor that was not seen yet."""
        for _ in range(_MOST_HOPS):
            if parent is None or parent in self._calls:
                return
            if parent not in self._parents:
                waiting = self._below.get(parent)
                if waiting is None:
                    _remember(self._below, parent, [call])
                elif len(waiting) < _MOST_BELOW:
                    waiting.append(call)
                return
            parent = self._parents[parent]


def _is_sum(usage: Usage, calls: list[Call]) -> bool:
    """Whether a usage is unknown, or the sum of those of several calls."""
    prompt, output = (sum(call.usage[side] for call in calls) for side in (0, 1))
    return usage in (UNKNOWN, (prompt, output))


def _remember(recent: dict[str, Any], name: str, value: object) -> None:
    recent[name] = value
    if len(recent) > _RECENT:
        del recent[next(iter(recent))]
