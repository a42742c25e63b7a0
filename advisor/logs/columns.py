"""Records become the columns of a Trace.

Owns the growing columns, the merging of records with one key, the sort by arrival (stable, so equal stamps keep
the order of the log) and the final numbering of blocks and names in order of first appearance, which makes the
result independent of the run's key.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from advisor.logs.formats.base import Basis
from advisor.logs.identity import NO_TAIL, BlockIndex, Path
from advisor.logs.record import Record
from advisor.logs.trace import Blocks, FloatColumn, IntColumn, Labels, Trace, rank_by_first

_INTS = ("prompt_tokens", "output_tokens", "cached_tokens", "novel_tokens")
_FLOATS = ("ttft_s", "e2e_s", "think_s")
_LABELS = ("model", "route", "client", "session", "status")
_get_ints, _get_floats, _get_labels = attrgetter(*_INTS), attrgetter(*_FLOATS), attrgetter(*_LABELS)
_NO_PATH = -2  # in the tails: the row has no prompt content
_NO_TIME = -1
_FAR_NS = 3 * 366 * 86_400 * 10**9  # from the median arrival: no log goes on for so long; ours
_MOST_SECONDS = 1e8  # of a duration: three years; more is damage; ours


class Columns:
    """Collects records in log order; `finish` gives the Trace. `text_size` is tokens per block of text."""

    def __init__(self, text_size: int) -> None:
        self._text_size = text_size
        self._arrival_ns = array("q")
        self._ints = {name: array("q") for name in _INTS}
        self._floats = {name: array("d") for name in _FLOATS}
        self._labels = {name: _LabelColumn() for name in _LABELS}
        self._ids = array("q")
        self._counts = array("q")
        self._tails = array("q")
        self._keys = _LabelColumn()
        self._scopes = _LabelColumn()

    def __len__(self) -> int:
        return len(self._arrival_ns)

    def add(self, record: Record, path: Path | None) -> None:
        """Append a request; `path` is where its text went, if it had any."""
        self._arrival_ns.append(_NO_TIME if record.arrival_ns is None else record.arrival_ns)
        self._keys.append(record.key)
        self._scopes.append(record.scope)
        for ints, count in zip(self._ints.values(), _get_ints(record), strict=True):
            ints.append(count)
        for floats, seconds in zip(self._floats.values(), _get_floats(record), strict=True):
            floats.append(seconds)
        for labels, name in zip(self._labels.values(), _get_labels(record), strict=True):
            labels.append(name)
        ids: Sequence[int] = record.hash_ids or ()
        if path is not None:
            whole = len(path.blocks) if record.prompt_tokens < 0 else record.prompt_tokens // self._text_size
            ids = path.blocks[:whole]
        self._ids.extend(ids)
        self._counts.append(len(ids))
        known = path is not None or record.hash_ids is not None
        self._tails.append(_NO_PATH if not known else NO_TAIL if path is None else path.tail)

    def finish(self, basis: Basis, index: BlockIndex | None) -> tuple[Trace, Mapping[str, int]]:
        """All requests, sorted by arrival, and how many rows were left out, by reason.

        `index` is set where ids came from text. A row that was merged into another is no row of its own.
        """
        merge = _Merge(self._keys.codes())
        arrival_ns = merge.earliest(np.array(self._arrival_ns, dtype=np.int64), _NO_TIME)
        ints = {name: merge.last(np.array(column, dtype=np.int64), -1) for name, column in self._ints.items()}
        floats = {name: merge.last(_plausible(column)) for name, column in self._floats.items()}
        codes = {name: merge.last(column.codes(), -1) for name, column in self._labels.items()}
        failed = merge.several & (ints["output_tokens"] <= 0) & ~self._fine(codes["status"])
        timeless = (arrival_ns == _NO_TIME) & (basis.clock is not None) & ~failed
        far = _far(arrival_ns) & ~failed & ~timeless
        left_out = {
            "failed request": int(failed.sum()),
            "no arrival time": int(timeless.sum()),
            "arrival years from the others": int(far.sum()),
        }
        kept = np.flatnonzero(~failed & ~timeless & ~far)
        order = kept[np.argsort(arrival_ns[kept], kind="stable")]
        content = merge.last_rows(np.array(self._tails, dtype=np.int64) != _NO_PATH)[order]
        trace = self._trace(
            basis,
            arrival_ns[order],
            {name: column[order] for name, column in ints.items()},
            {name: column[order] for name, column in floats.items()},
            {name: self._labels[name].finish(column[order]) for name, column in codes.items()},
        )
        blocks = self._blocks(basis, content, index is not None)
        if blocks is not None:
            blocks = blocks.fit(trace.prompt_tokens)  # merged rows may tell of different prompts
            novel = None if index is None else self._novel(index, blocks, content, trace.prompt_tokens)
            blocks = _number(blocks, trace.model, self._scopes.codes()[content])
            trace = replace(trace, blocks=blocks, novel_tokens=trace.novel_tokens if novel is None else novel)
        return trace, {reason: count for reason, count in left_out.items() if count}

    @property
    def merged(self) -> int:
        """Rows that tell of a request that another row tells of too."""
        codes = self._keys.codes()
        known = codes[codes >= 0]
        return len(known) - len(np.unique(known))

    def _fine(self, status: IntColumn) -> npt.NDArray[np.bool_]:
        """Where a status says nothing bad."""
        ok = self._labels["status"].code("ok")
        fine: npt.NDArray[np.bool_] = (status < 0) | (status == ok)
        return fine

    def _trace(
        self,
        basis: Basis,
        arrival_ns: IntColumn,
        ints: Mapping[str, IntColumn],
        floats: Mapping[str, FloatColumn],
        labels: Mapping[str, Labels | None],
    ) -> Trace:
        """The Trace without its blocks."""
        think = _known_float(floats["think_s"])
        timed = basis.clock is not None and len(arrival_ns) > 0
        first = int(arrival_ns[0]) if timed else 0
        return Trace(
            arrival_s=(arrival_ns - first) / 1e9 if timed else np.full(len(arrival_ns), np.nan),
            prompt_tokens=ints["prompt_tokens"],
            output_tokens=ints["output_tokens"],
            novel_tokens=_known_int(ints["novel_tokens"]),
            model=labels["model"],
            route=labels["route"],
            client=labels["client"],
            session=labels["session"],
            parent=None if think is None else _turns_before(think, labels["session"]),
            think_s=think,
            status=labels["status"],
            cached_tokens=_known_int(ints["cached_tokens"]),
            ttft_s=_known_float(floats["ttft_s"]),
            e2e_s=_known_float(floats["e2e_s"]),
            first_epoch_s=first / 1e9 if timed and basis.clock is not None and basis.clock.epoch else None,
            totals=basis.totals,
        )

    def _blocks(self, basis: Basis, rows: IntColumn, from_text: bool) -> Blocks | None:
        """Blocks of the chosen rows (-1: content unknown) with the ids that they were added with."""
        counts = np.array(self._counts, dtype=np.int64)
        size = self._text_size if from_text else basis.block_size
        known = rows >= 0
        if size is None or not known.any():
            return None
        rounding = "floor" if from_text else basis.rounding
        if rounding == "ceil" and not counts.any():  # where partial blocks count, no prompt is without one
            return None
        starts = np.concatenate(([0], np.cumsum(counts)))
        ids = np.array(self._ids, dtype=np.int64)
        everything = Blocks(
            size, ids, np.append(starts, starts[-1]), rounding, basis.scope
        )  # the last has none
        blocks = everything.take(np.where(known, rows, len(counts)))
        return replace(blocks, known=None if known.all() else known)

    def _novel(
        self, index: BlockIndex, blocks: Blocks, content: IntColumn, prompt_tokens: IntColumn
    ) -> IntColumn:
        rows = len(content)
        tails = np.append(np.array(self._tails, dtype=np.int64), _NO_PATH)[content]
        with_tail = np.flatnonzero(tails > NO_TAIL)
        ids = np.concatenate((blocks.ids, tails[with_tail]))
        row_of_id = np.concatenate((np.repeat(np.arange(rows), np.diff(blocks.starts)), with_tail))
        novel = index.novel_tokens(rows, ids, row_of_id)
        novel = np.where(prompt_tokens < 0, novel, np.minimum(novel, prompt_tokens))
        return np.where(tails == _NO_PATH, -1, novel)


class _LabelColumn:
    """Names as codes while reading."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._rows = array("q")

    def append(self, name: str | None) -> None:
        self._rows.append(-1 if name is None else self._codes.setdefault(name, len(self._codes)))

    def codes(self) -> IntColumn:
        """The code of every row, -1 for none."""
        return np.array(self._rows, dtype=np.int64)

    def code(self, name: str) -> int:
        """The code of a name; one that no row has where it was never seen."""
        return self._codes.get(name, len(self._codes))

    def finish(self, codes: IntColumn) -> Labels | None:
        """The given codes in order of first appearance; None if no row has a name."""
        known = codes >= 0
        if not known.any():
            return None
        used, codes[known] = rank_by_first(codes[known])
        names = tuple(self._codes)
        return Labels(tuple(names[code] for code in used), codes)


class _Merge:
    """Rows to requests: rows with the same key are one, rows without a key are requests of their own."""

    def __init__(self, keys: IntColumn) -> None:
        self._rows = np.arange(len(keys))
        head = self._rows.copy()
        keyed = np.flatnonzero(keys >= 0)
        if len(keyed):
            first = np.full(int(keys.max()) + 1, len(keys))
            np.minimum.at(first, keys[keyed], keyed)
            head[keyed] = first[keys[keyed]]
        self._plain = len(keyed) == 0
        heads, self._request = np.unique(head, return_inverse=True)
        self.several = np.bincount(self._request, minlength=len(heads)) > 1

    def last_rows(self, known: npt.NDArray[np.bool_]) -> IntColumn:
        """For every request the last of its rows that is known; -1 for none."""
        if self._plain:
            return np.where(known, self._rows, -1)
        rows = np.full(len(self.several), -1)
        np.maximum.at(rows, self._request[known], self._rows[known])
        return rows

    def last(self, column: Any, unknown: int | None = None) -> Any:
        """The last known value of every request; `unknown` marks the others (None: NaN does)."""
        if self._plain:
            return column
        rows = self.last_rows(~np.isnan(column) if unknown is None else column != unknown)
        return np.where(rows >= 0, column[rows], np.nan if unknown is None else unknown)

    def earliest(self, column: IntColumn, unknown: int) -> IntColumn:
        """The least known value of every request, else `unknown`."""
        if self._plain:
            return column
        least = np.full(len(self.several), np.iinfo(np.int64).max)
        known = column != unknown
        np.minimum.at(least, self._request[known], column[known])
        return np.where(least == np.iinfo(np.int64).max, unknown, least)


def _number(blocks: Blocks, model: Labels | None, scope: IntColumn) -> Blocks:
    """Ordinals in order of first appearance; equal ids of different models or scopes are different blocks."""
    ids, lengths = blocks.ids, np.diff(blocks.starts)
    for codes in (model.codes if model is not None and len(model.names) > 1 else None, scope):
        if codes is not None and (codes != codes[:1]).any():
            distinct, inverse = np.unique(ids, return_inverse=True)
            ids = np.repeat(codes + 1, lengths) * len(distinct) + inverse
    return replace(blocks, ids=rank_by_first(ids)[1])


def _turns_before(think_s: FloatColumn, session: Labels | None) -> IntColumn:
    """For rows with a think time, the last earlier row of the same session; -1 for the others."""
    parents = np.full(len(think_s), -1, dtype=np.int64)
    latest: dict[int, int] = {}
    codes = [] if session is None else session.codes.tolist()
    for row, code in enumerate(codes):
        if code >= 0:
            if not np.isnan(think_s[row]):
                parents[row] = latest.get(code, -1)
            latest[code] = row
    return parents


def _far(arrival_ns: IntColumn) -> npt.NDArray[np.bool_]:
    """Arrivals that one damaged time puts years away from the others."""
    timed = arrival_ns != _NO_TIME
    if not timed.any():
        return np.zeros(len(arrival_ns), dtype=np.bool_)
    stamps = arrival_ns[timed]
    middle = np.partition(stamps, (len(stamps) - 1) // 2)[(len(stamps) - 1) // 2]
    far: npt.NDArray[np.bool_] = timed & (np.abs(arrival_ns - middle) > _FAR_NS)
    return far


def _plausible(column: array[float]) -> FloatColumn:
    """Durations; NaN where they are negative or absurdly long, which damaged times make them."""
    seconds = np.array(column, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.where((seconds >= 0) & (seconds < _MOST_SECONDS), seconds, np.nan)


def _known_int(column: IntColumn) -> IntColumn | None:
    return column if (column >= 0).any() else None


def _known_float(column: npt.NDArray[np.float64]) -> FloatColumn | None:
    return None if np.isnan(column).all() else column
