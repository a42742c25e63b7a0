"""The decodes of an instance, which all step together: what happens at which tick.

A tick is a completed step with all members in it, one token each. Ends by length are entered in a calendar when
a sequence joins, and those that need a block at the same ticks stand together, so that a tick without either
costs nothing however many decode, and many ticks can pass at once.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from heapq import heappop, heappush

from engine.invariants import require
from engine.sequence import Sequence


class DecodeGroup:
    """The members, how far they are together, and their calendars."""

    __slots__ = ("_base", "_block_size", "_ends", "_ends_at", "_grows", "in_flight", "number", "size", "tick")

    def __init__(self, number: int, block_size: int) -> None:
        self.number = number
        self.tick = 0  # steps completed
        self.size = 0  # members
        self.in_flight = 0  # steps with all of them
        self._block_size = block_size
        self._base = 0  # computed tokens of all members, less tick for each
        self._ends: dict[int, list[Sequence]] = {}  # those that left early too
        self._ends_at: list[int] = []  # heap of the ticks in `_ends`
        # By the ticks, modulo the block size, before which they need another block; in order of admission.
        self._grows: list[list[Sequence]] = [[] for _ in range(block_size)]

    @property
    def context(self) -> int:
        """Tokens in KV, summed over the members."""
        return self._base + self.size * self.tick

    @property
    def ticks_to_end(self) -> int:
        """Ticks until the first member may end; there are members."""
        return self._ends_at[0] - self.tick

    def join(self, seq: Sequence) -> None:
        """From the next step on `seq` decodes; its last token is not computed yet.

        It has blocks for what is computed and no further one, or those of its whole life.
        """
        tick, computed = self.tick, seq.computed
        self._base += computed - tick
        self.size += 1
        seq.joined_at, seq.ends_at = tick, tick + seq.request.sampling.max_tokens - seq.output_tokens
        due = self._ends.get(seq.ends_at)
        if due is None:
            due = self._ends[seq.ends_at] = []
            heappush(self._ends_at, seq.ends_at)
        due.append(seq)
        seq.grows_at = tick + len(seq.table.blocks) * self._block_size - computed
        seq.group = self
        if seq.grows_at < seq.ends_at:
            insort(self._grows[seq.grows_at % self._block_size], seq, key=_order)

    def leave(self, seq: Sequence) -> None:
        """`seq` decodes no more."""
        self._base -= seq.computed - self.tick
        self.size -= 1
        if seq.grows_at < seq.ends_at:
            self._grows[seq.grows_at % self._block_size].remove(seq)
        seq.leave()

    def growing(self) -> list[Sequence]:
        """Members that need another block for the next step to be made, in order of admission."""
        return self._grows[(self.tick + self.in_flight) % self._block_size]

    def growing_within(self, ticks: int) -> list[Sequence]:
        """Members that need a block in the next `ticks` steps, once for each, in the order of the steps."""
        grows, size = self._grows, self._block_size
        needy: list[Sequence] = []
        for tick in range(self.tick, self.tick + ticks):
            needy += grows[tick % size]
        return needy

    def advance(self, ticks: int = 1) -> list[Sequence]:
        """Complete `ticks` steps; returns the members that end with the last of them. None may end before."""
        self.tick += ticks
        due = self._ends.pop(self.tick, None)
        if due is None:
            return []
        heappop(self._ends_at)
        if len(due) > 1:  # who left and came back may stand there twice
            due = sorted(set(due), key=_order)
        return [seq for seq in due if seq.group is self and seq.ends_at == self.tick]

    def check_invariants(self, members: Iterator[Sequence]) -> None:
        """The sums are those of the members, and each stands in the calendars."""
        here = list(members)
        require(len(here) == self.size, "the group has lost count")
        require(sum(seq.computed for seq in here) == self.context, "the group's context is wrong")
        growing = 0
        for seq in here:
            require(seq in self._ends.get(seq.ends_at, ()), "a decode has no end")
            if seq.grows_at < seq.ends_at:
                require(seq in self._grows[seq.grows_at % self._block_size], "a decode will lack a block")
                room = len(seq.table.blocks) * self._block_size - seq.computed
                most = self._block_size + self.in_flight  # blocks for steps in flight are there already
                require(0 <= room <= most, "a decode has a block too many, or lacks one")
                growing += 1
        require(growing == sum(map(len, self._grows)), "one that does not decode is to get a block")
        require(sorted(self._ends_at) == sorted(self._ends), "ends and their order disagree")


def _order(seq: Sequence) -> int:
    """Of admission."""
    return seq.order
