"""When each request got its tokens, as far as its targets ask: how many, the last one, and the largest gap.

Follows the ticks of the decodes instead of every token. The first gap of a request that has just begun to
decode is its own, later ones are those of all that decode with it.
"""

from __future__ import annotations

from advisor.simulation.gaps import GapCounts, TickGaps


class Stream:
    """The output of one request, over all instances that it was on.

    The last of its first `count` tokens came at `at`, `worst_s` is their largest gap. While it decodes it has
    one more for each tick of its group behind `tick`.
    """

    __slots__ = ("at", "count", "group", "tick", "worst_s")

    def __init__(self) -> None:
        self.count = 0
        self.at = 0.0
        self.worst_s = 0.0
        self.group: DecodeTimes | None = None
        self.tick = 0

    def token(self, now: float, gaps: GapCounts) -> None:
        """A token outside of decoding: the first, or the first after a preemption or a failure."""
        if self.count:
            self.gap(now - self.at, gaps)
        self.count += 1
        self.at = now

    def gap(self, gap_s: float, gaps: GapCounts) -> None:
        """A gap that is its own."""
        gaps.add(gap_s, 1)
        if gap_s > self.worst_s:
            self.worst_s = gap_s

    def stop(self) -> None:
        """It decodes no more, or did not."""
        if self.group is not None:
            self.group.leave(self)


class DecodeTimes:
    """The ticks of one group of decodes. `gaps` counts those of all instances."""

    __slots__ = ("_fresh", "_gaps", "_members", "_ticks")

    def __init__(self, gaps: GapCounts) -> None:
        self._gaps = gaps
        self._ticks = TickGaps()
        self._members = 0
        self._fresh: list[Stream] = []  # members that joined since the last tick

    def join(self, stream: Stream) -> None:
        """Its next tokens come with the ticks."""
        stream.group, stream.tick = self, self._ticks.tick
        self._members += 1
        self._fresh.append(stream)

    def leave(self, stream: Stream) -> None:
        """It has ended, was preempted or lost, behind the last tick."""
        ticks = self._ticks
        passed = ticks.tick - stream.tick
        if passed:
            stream.count += passed
            stream.at = ticks.ended_s
            stream.worst_s = max(stream.worst_s, ticks.largest_since(stream.tick + 1))
        else:
            self._fresh.remove(stream)
        stream.group = None
        self._members -= 1
        if not self._members:
            ticks.forget()

    def ticked(self, now: float, rows: int) -> None:
        """A step with all `rows` members ended."""
        ticks, gaps, fresh = self._ticks, self._gaps, self._fresh
        gap_s = now - ticks.ended_s
        if fresh:
            for stream in fresh:
                stream.gap(now - stream.at, gaps)
            rows -= len(fresh)
            fresh.clear()
            if not rows:
                gap_s = 0.0
        gaps.add(gap_s, rows)
        ticks.add(1, now, gap_s)

    def ran(self, begun: float, now: float, first_s: float, growth_s: float, steps: int, rows: int) -> None:
        """`steps` passed from `begun` to `now`, of `first_s` and each `growth_s` longer than the one before."""
        if self._fresh or begun != self._ticks.ended_s:
            self.ticked(begun + first_s, rows)
            first_s, steps = first_s + growth_s, steps - 1
            if not steps:
                return
        self._gaps.add_line(first_s, growth_s, steps, rows)
        self._ticks.add(steps, now, first_s + growth_s * (steps - 1))
