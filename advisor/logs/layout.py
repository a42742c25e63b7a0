"""Prompt layout: what prompts share elsewhere than at their start, and what moving it to the front would bring.

Works on a sample of prompts whose text is still at hand. Prompts are cut into chunks where their own content
says so, not at fixed positions: equal content gives equal chunks wherever it stands. Only numbers and places
(file, line, character) leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from advisor.logs.trace import BoolColumn, IntColumn

Units = npt.NDArray[np.uint64]  # of prompts: token ids, or bytes
STABLE_SHARES = (0.05, 0.25, 0.5, 0.9)  # of first requests that have a chunk: tried for what is moved (ours)
LEAST_STABLE = 3  # first requests
MOST_FIRSTS = 200  # whose neighbours are compared: enough for a median
_UNITS_AT_ONCE = 1 << 16
_WINDOW = 8  # units that decide whether a chunk ends
_UNITS_PER_CHUNK = {"tokens": 8, "bytes": 32}  # on average: what is shared is missed by about two of them
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd: 2^64 over the golden ratio
_UNMIX = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))


@dataclass(frozen=True, slots=True, repr=False)
class Sample:
    """One prompt of the log, its content as text and as units, and where it stands."""

    text: str
    units: Sequence[int]  # token ids, or the bytes of the text
    session: str | None
    file: str
    line: int

    def __repr__(self) -> str:
        return f"Sample(line {self.line})"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the prompts of two first requests part: `char` characters into the prompt at that line."""

    file: str
    line: int
    char: int


@dataclass(frozen=True, slots=True)
class Layout:
    """What the sampled prompts share. Lengths are medians over neighbouring first requests of sessions."""

    requests: int
    first_requests: int
    unit: str  # "tokens" or "bytes": of the lengths below
    leading: int  # shared before the first difference
    trailing: int  # shared at the end
    shared_behind: int  # shared anywhere behind the first difference
    hit_rate: float  # of the sample, by chunks: what the next two compare with
    any_position_share: float  # content that an earlier request had at any position
    hit_rate_reordered: float  # with what many first requests share moved to the front
    examples: tuple[Place, ...]  # two neighbouring first requests, at their first difference


def measure_layout(samples: Sequence[Sample], unit: str) -> Layout | None:
    """The layout of prompts in order of arrival; None where fewer than two sessions begin in the sample."""
    samples = [sample for sample in samples if len(sample.units)]
    if len(samples) < 2:
        return None
    chunks = cut([sample.units for sample in samples], _UNITS_PER_CHUNK[unit])
    firsts = first_requests(samples, chunks)
    if len(firsts) < 2:
        return None
    pairs = list(pairwise(firsts[: MOST_FIRSTS + 1]))
    leading = [shared_start(samples[a].units, samples[b].units) for a, b in pairs]
    trailing = [shared_start(samples[a].units[::-1], samples[b].units[::-1]) for a, b in pairs]
    behind = [chunks.shared(b, a) - shared for (a, b), shared in zip(pairs, leading, strict=True)]
    total = int(chunks.length.sum())
    now = chunks.prefix_hits()
    best = max([now, *(order.prefix_hits() for order in chunks.reordered(firsts))])
    typical = pairs[int(np.argsort(trailing, kind="stable")[len(pairs) // 2])]
    char = shared_start(samples[typical[0]].text, samples[typical[1]].text)
    return Layout(
        requests=len(samples),
        first_requests=len(firsts),
        unit=unit,
        leading=int(np.median(leading)),
        trailing=int(np.median(trailing)),
        shared_behind=max(0, int(np.median(behind))),
        hit_rate=_rounded(now / total),
        any_position_share=_rounded(int(chunks.length[chunks.seen_before()].sum()) / total),
        hit_rate_reordered=_rounded(best / total),
        examples=tuple(Place(samples[i].file, samples[i].line, char) for i in typical),
    )


def _rounded(rate: float) -> float:
    """To a thousandth: where chunks end depends on content, and more digits would be a fingerprint of it."""
    return round(rate, 3)


def shared_start(one: Sequence[object], other: Sequence[object]) -> int:
    """How many leading items two sequences share."""
    least = min(len(one), len(other))
    low, high = 0, least
    while low < high:  # slices compare in C
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of all prompts, in order. Columns: [chunks]."""

    row: IntColumn  # the prompt
    content: Units  # hash of what is in it
    length: IntColumn  # units

    def seen_before(self) -> BoolColumn:
        """Chunks whose content an earlier prompt had at any position."""
        return _first_rows(self.content, self.row) < self.row

    def prefix_hits(self) -> int:
        """Units in leading chunks that an earlier prompt had too."""
        chain = self._chain()
        return int(self.length[_first_rows(chain, self.row) < self.row].sum())

    def ends(self) -> tuple[Units, Units]:
        """The chain hash of every prompt without its last chunk, and all chain hashes. [prompts], [chunks]"""
        chain = self._chain()
        last = np.flatnonzero(np.append(self.row[1:] != self.row[:-1], True))
        alone = np.append(True, self.row[1:] != self.row[:-1])[last]
        return np.where(alone, chain[last], chain[last - 1]), chain

    def shared(self, row: int, other: int) -> int:
        """Units of a prompt in chunks that another prompt has too."""
        mine, theirs = (slice(*np.searchsorted(self.row, (one, one + 1))) for one in (row, other))
        return int(self.length[mine][np.isin(self.content[mine], self.content[theirs])].sum())

    def reordered(self, firsts: Sequence[int]) -> Iterator[Chunks]:
        """The same prompts with what many first requests share in front, for each share of them."""
        stays = _repeats(self.row, self.content)
        contents, spread = np.unique(self.content[np.isin(self.row, firsts) & ~stays], return_counts=True)
        stays[np.flatnonzero(np.append(self.row[1:] != self.row[:-1], True))] = (
            True  # ends that a next turn lacks
        )
        number = 0
        for share in STABLE_SHARES:
            enough = spread >= min(len(firsts), max(LEAST_STABLE, share * len(firsts)))
            number, before = int(enough.sum()), number
            if number not in (0, before):  # as many as for the share before: the same ones
                yield self._with_front(contents[enough], spread[enough], stays)

    def _with_front(self, stable: Units, spread: IntColumn, stays: BoolColumn) -> Chunks:
        """Stable chunks in front of each prompt that has them, the most spread first; `stays` do not move."""
        place = np.minimum(np.searchsorted(stable, self.content), len(stable) - 1)
        moved = (stable[place] == self.content) & ~stays
        first_at = np.full(len(stable), len(self.row))
        np.minimum.at(first_at, place[moved], np.flatnonzero(moved))
        rank = np.empty(len(stable), dtype=np.int64)
        rank[np.lexsort((first_at, -spread))] = np.arange(len(stable))
        key = np.where(moved, rank[place], len(stable) + np.arange(len(self.row)))
        order = np.lexsort((key, self.row))
        return Chunks(self.row[order], self.content[order], self.length[order])

    def _chain(self) -> Units:
        """For every chunk a hash of it and all chunks before it in its prompt."""
        starts = np.flatnonzero(np.append(True, self.row[1:] != self.row[:-1]))
        index = np.arange(len(self.row)) - np.repeat(starts, np.diff(np.append(starts, len(self.row))))
        total = np.cumsum(_mixed(self.content + _MIX * (index.astype(np.uint64) + np.uint64(1))))
        before = np.where(starts > 0, total[starts - 1], np.uint64(0))
        chain: Units = total - np.repeat(before, np.diff(np.append(starts, len(self.row))))
        return chain


def cut(prompts: Sequence[Sequence[int]], per_chunk: int) -> Chunks:
    """Prompts, none empty, as chunks of `per_chunk` units on average; the last units' hash ends a chunk.

    `per_chunk` is a power of 2.
    """
    most = min(_UNITS_AT_ONCE, sum(map(len, prompts))) + max(map(len, prompts))
    powers = np.stack([np.cumprod(np.full(most, each), dtype=np.uint64) for each in (_MIX, _UNMIX)])
    parts = []
    first = size = 0
    for last, prompt in enumerate(prompts, 1):  # some at a time, that their units stay in a core's cache
        size += len(prompt)
        if size >= _UNITS_AT_ONCE or last == len(prompts):
            parts.append(_cut_some(prompts[first:last], first, per_chunk, powers))
            first, size = last, 0
    return Chunks(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("row", "content", "length"))
    )


def _cut_some(prompts: Sequence[Sequence[int]], first_row: int, per_chunk: int, powers: Units) -> Chunks:
    """`powers` are of `_MIX` and of its inverse, as many as there are units, from the first. [2, units]"""
    stops = np.cumsum([len(prompt) for prompt in prompts])
    mixed = _mixed_units(prompts)
    window, span, base = mixed, 1, int(_MIX)
    while span < _WINDOW:  # a polynomial over the last `_WINDOW` units, doubled
        further = window.copy()
        further[span:] += window[:-span] * np.uint64(base)
        window, span, base = further, span * 2, base * base % 2**64
    is_end = _mixed(window) & np.uint64(per_chunk - 1) == 0
    for before in range(_WINDOW - 1):  # no chunk ends before a whole window of its prompt
        is_end[np.minimum(np.append(0, stops[:-1]) + before, len(is_end) - 1)] = False
    is_end[stops - 1] = True
    ends = np.flatnonzero(is_end)
    starts = np.append(0, ends[:-1] + 1)
    # A polynomial in _MIX over each chunk: that over all units, less the powers that come before the chunk. It
    # wraps; _MIX is odd, so no unit is lost.
    content = np.add.reduceat(mixed * powers[0, : len(mixed)], starts)
    content[1:] *= powers[1, starts[1:] - 1]
    return Chunks(first_row + np.searchsorted(stops, starts, side="right"), _mixed(content), ends - starts + 1)


def first_requests(samples: Sequence[Sample], chunks: Chunks) -> list[int]:
    """The prompts that begin a session: by its label, else those that continue no earlier prompt."""
    ends, chain = chunks.ends()
    rows = np.unique(chunks.row).tolist()
    starts = np.searchsorted(chunks.row, rows)
    stops = np.append(starts[1:], len(chunks.row))
    known: set[str] = set()
    open_ends: set[int] = set()
    firsts = []
    for row, end, start, stop in zip(rows, ends.tolist(), starts.tolist(), stops.tolist(), strict=True):
        session = samples[row].session
        new = session not in known if session is not None else open_ends.isdisjoint(chain[start:stop].tolist())
        if session is not None:
            known.add(session)
        open_ends.add(end)
        if new:
            firsts.append(row)
    return firsts


def _mixed_units(prompts: Sequence[Sequence[int]]) -> Units:
    """The units of prompts, one after the other, each `_mixed`."""
    texts = [units for units in prompts if isinstance(units, bytes)]
    if len(texts) == len(prompts):
        every = _mixed(np.arange(1, 257, dtype=np.uint64))
        return every[np.frombuffer(b"".join(texts), dtype=np.uint8)]
    return _mixed(np.concatenate([np.asarray(units, dtype=np.uint64) for units in prompts]) + np.uint64(1))


def _first_rows(keys: Units, rows: IntColumn) -> IntColumn:
    """For every entry the first row that has its key. Rows ascend."""
    order = np.argsort(keys)
    ascending = keys[order]
    starts = np.flatnonzero(np.append(True, ascending[1:] != ascending[:-1]))
    first = np.empty(len(keys), dtype=np.int64)
    first[order] = np.repeat(np.minimum.reduceat(rows[order], starts), np.diff(starts, append=len(keys)))
    return first


def _repeats(rows: IntColumn, keys: Units) -> BoolColumn:
    """Entries whose key the same row had before. Rows ascend."""
    order = np.argsort(keys, kind="stable")
    same = (rows[order][1:] == rows[order][:-1]) & (keys[order][1:] == keys[order][:-1])
    repeats = np.zeros(len(keys), dtype=np.bool_)
    repeats[order[1:][same]] = True
    return repeats


def _mixed(values: Units) -> Units:
    """Every bit of the input moves every bit of the output (splitmix64's finalizer, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
