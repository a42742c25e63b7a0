"""Numbers for ids: the many 64-bit values of a log become small ordinals, equal for equal values.

Works on whole columns, a stretch at a time: what it holds beside its input and its result stays small. Knows
nothing of what the ids stand for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from advisor.logs.trace import IntColumn

Ids = npt.NDArray[np.integer[Any]]  # 32 bits wide where that is enough
_STRETCH = 1 << 20  # entries worked on at once
_SORTED = 1 << 18  # entries sorted at once
_LOOKED_UP = 1 << 15  # entries looked up at once: what stays in a core's cache


def narrow(most: int) -> npt.DTypeLike:
    """The narrower type that holds 0 to `most`."""
    return np.int32 if most < 2**31 else np.int64


def fit(values: IntColumn) -> Ids:
    """The same values, 32 bits wide where they fit."""
    if len(values) and values.min() >= -(2**31) and values.max() < 2**31:
        return values.astype(np.int32)
    return values


def distinct(values: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], IntColumn, Ids]:
    """The distinct values, ascending, an entry that has each, and every entry's place among them.

    As numpy's `unique`, which takes twice as long because it finds the first entry of each.
    """
    order = _order(values)
    ascending = values[order]
    is_new = np.ones(len(values), dtype=np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=is_new[1:])
    rank = np.cumsum(is_new, dtype=np.int32)
    rank -= 1
    place = np.empty(len(values), dtype=np.int32)
    place[order] = rank
    first = np.flatnonzero(is_new)
    return ascending[first], order[first], place


def _order(values: npt.NDArray[np.uint64]) -> IntColumn:
    """As numpy's `argsort`, in half the time where their upper bits tell values apart, as those of hashes do.

    Sorts the values with their places in the place of their lowest bits.
    """
    places = np.uint64((1 << len(values).bit_length()) - 1)
    packed = (values & ~places) | np.arange(len(values), dtype=np.uint64)
    packed.sort()
    order: IntColumn = (packed & places).view(np.int64)
    ascending = values[order]
    return order if np.all(ascending[1:] >= ascending[:-1]) else np.argsort(values)


def merge_distinct(parts: Sequence[npt.NDArray[np.uint64]]) -> tuple[list[Ids], int]:
    """An ordinal for every value of each part, equal for equal values, and how many differ.

    There is a part at least; each is sorted and without repeats. Goes through them by ranges of values, which
    are about equally full where values are hashes; where they are not, more is held at once.
    """
    total = sum(map(len, parts))
    ranges = total // _SORTED + 1
    edges = [(index * 2**64 // ranges) for index in range(1, ranges)]
    bounds = [np.searchsorted(part, np.array(edges, dtype=np.uint64)).tolist() for part in parts]
    ordinals = [np.empty(len(part), dtype=narrow(total)) for part in parts]
    count = 0
    for index in range(ranges):
        spans = [
            slice(edge[index - 1] if index else 0, edge[index] if index < ranges - 1 else len(part))
            for part, edge in zip(parts, bounds, strict=True)
        ]
        values = [part[span] for part, span in zip(parts, spans, strict=True)]
        found, _, place = distinct(np.concatenate(values))
        done = 0
        for ordinal, span in zip(ordinals, spans, strict=True):
            length = span.stop - span.start
            ordinal[span] = place[done : done + length] + count
            done += length
        count += len(found)
    return ordinals, count


def is_by_first(ids: Ids) -> bool:
    """Whether ids are ordinals in order of first appearance: none is more than one above all before it."""
    most = -1
    for start in range(0, len(ids), _STRETCH):
        stretch = ids[start : start + _STRETCH]
        if stretch.min() < 0:
            return False
        peak = np.maximum.accumulate(stretch)
        np.maximum(peak, most, out=peak)
        if stretch[0] > most + 1 or np.any(stretch[1:] - peak[:-1] > 1):
            return False
        most = int(peak[-1])
    return True


def by_first(ids: Ids) -> IntColumn:
    """Ordinals in order of first appearance for a few ids that are not negative."""
    return number_by_first(ids, int(ids.max(initial=-1)) + 1).astype(np.int64)


def number_by_first(ids: Ids, count: int) -> Ids:
    """Ordinals in order of first appearance for ids that lie in 0 to `count` - 1."""
    if is_by_first(ids):
        return ids
    kind = narrow(max(count, len(ids)))
    first = np.full(count, -1, dtype=kind)  # where each id appears first
    for start in reversed(range(0, len(ids), _STRETCH)):
        stretch = ids[start : start + _STRETCH]
        first[stretch[::-1]] = np.arange(start + len(stretch) - 1, start - 1, -1)  # the last one written stays
    is_first = np.zeros(len(ids), dtype=np.bool_)
    is_first[first[first >= 0]] = True
    rank = np.cumsum(is_first, dtype=kind)
    ordinal = rank[first] - 1
    del rank, is_first, first
    numbered = np.empty(len(ids), dtype=kind)
    for start in range(0, len(ids), _STRETCH):
        numbered[start : start + _STRETCH] = ordinal[ids[start : start + _STRETCH]]
    return numbered


def number(ids: Sequence[Ids]) -> tuple[Ids, int]:
    """Ordinals for ids of any size that come in parts, and a bound that all lie below."""
    total = sum(map(len, ids))
    if total == 0:
        return np.zeros(0, dtype=np.int32), 0
    least, most = (
        min(int(part.min()) for part in ids if len(part)),
        max(int(part.max()) for part in ids if len(part)),
    )
    if least >= 0 and most < 4 * total + _STRETCH:
        return np.concatenate(ids, dtype=narrow(most), casting="unsafe"), most + 1
    values, places = [], []
    for part in ids:
        found, _, place = distinct(part.astype(np.int64).view(np.uint64))
        values.append(found)
        places.append(place)
    ordinals, count = merge_distinct(values)
    return np.concatenate([ordinal[place] for ordinal, place in zip(ordinals, places, strict=True)]), count


def stretches(starts: IntColumn) -> Iterator[tuple[slice, slice]]:
    """A ragged column in stretches of whole rows, each of about as many entries: their rows, their entries."""
    total = int(starts[-1])
    edges = np.append(np.searchsorted(starts, np.arange(0, total, _STRETCH)), len(starts) - 1)
    for low, high in pairwise(np.unique(edges).tolist()):
        yield slice(low, high), slice(int(starts[low]), int(starts[high]))


def run_heads(ids: Ids, starts: IntColumn) -> IntColumn:
    """Where runs begin in rows of chained ids: stretches of ids that only occur together. There are some ids.

    In a tree an id that is used exactly as often as the one before it is always used with it.
    """
    times = np.zeros(int(ids.max()) + 1, dtype=np.int32)
    np.add.at(times, ids, np.int32(1))
    is_head = np.zeros(len(ids), dtype=np.bool_)
    uses = np.empty(_LOOKED_UP + 1, dtype=np.int32)
    for start in range(0, len(ids) - 1, _LOOKED_UP):
        some = ids[start : start + _LOOKED_UP + 1]
        found = times.take(some, out=uses[: len(some)], mode="clip")  # unlike the other modes without a copy
        np.not_equal(found[1:], found[:-1], out=is_head[start + 1 : start + len(some)])
    is_head[starts[:-1][starts[:-1] < starts[1:]]] = True
    return np.flatnonzero(is_head)


def take_ragged(
    ids: Ids, starts: IntColumn, rows: IntColumn, most: IntColumn | None = None
) -> tuple[Ids, IntColumn]:
    """The entries of the chosen rows of a ragged column, and where each row starts.

    Row -1 has none; `most` [rows] cuts rows that are longer.
    """
    lengths = np.where(rows >= 0, np.diff(starts, append=starts[-1])[rows], 0)
    if most is not None:
        lengths = np.minimum(lengths, most)
    taken_starts = np.concatenate(([0], np.cumsum(lengths)))
    if len(rows) == len(starts) - 1 and np.array_equal(taken_starts, starts) and np.all(np.diff(rows) == 1):
        return ids, starts
    shift = starts[rows] - taken_starts[:-1]
    taken = np.empty(int(taken_starts[-1]), dtype=ids.dtype)
    for some, span in stretches(taken_starts):
        place = np.arange(span.start, span.stop) + np.repeat(shift[some], lengths[some])
        taken[span] = ids[place]
    return taken, taken_starts
