"""Records become the columns of a Trace.

Owns the growing columns, the sort by arrival (stable, so equal stamps keep the order of the log) and the final
numbering of blocks and names in order of first appearance, which makes the result independent of the run's key.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import attrgetter

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

    def __len__(self) -> int:
        return len(self._arrival_ns)

    def add(self, record: Record, path: Path | None) -> None:
        """Append a request; `path` is where its text went, if it had any."""
        self._arrival_ns.append(record.arrival_ns or 0)
        for ints, count in zip(self._ints.values(), _get_ints(record), strict=True):
            ints.append(count)
        for floats, seconds in zip(self._floats.values(), _get_floats(record), strict=True):
            floats.append(seconds)
        for labels, name in zip(self._labels.values(), _get_labels(record), strict=True):
            labels.append(name)
        ids: Sequence[int] = record.hash_ids or ()
        if path is not None:
            ids = path.blocks[: record.prompt_tokens // self._text_size]
        self._ids.extend(ids)
        self._counts.append(len(ids))
        self._tails.append(_NO_PATH if path is None else path.tail)

    def finish(self, basis: Basis, index: BlockIndex | None) -> Trace:
        """All rows, sorted by arrival. `index` is set where ids came from text."""
        arrival_ns = np.array(self._arrival_ns, dtype=np.int64)
        order = np.argsort(arrival_ns, kind="stable")
        arrival_ns = arrival_ns[order]
        labels = {name: column.finish(order) for name, column in self._labels.items()}
        ints = {name: np.array(column, dtype=np.int64)[order] for name, column in self._ints.items()}
        floats = {name: np.array(column, dtype=np.float64)[order] for name, column in self._floats.items()}
        blocks = self._blocks(basis, order, index is not None)
        if index is not None and blocks is not None:
            ints["novel_tokens"] = self._novel(index, blocks, order, ints["prompt_tokens"])
        blocks = None if blocks is None else _number(blocks, labels["model"])
        think = _known_float(floats["think_s"])
        clock = basis.clock
        arrival_s = (arrival_ns - arrival_ns[0]) / 1e9
        return Trace(
            arrival_s=np.full(len(order), np.nan) if clock is None else arrival_s,
            prompt_tokens=ints["prompt_tokens"],
            output_tokens=ints["output_tokens"],
            blocks=blocks,
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
            first_epoch_s=float(arrival_ns[0]) / 1e9 if clock is not None and clock.epoch else None,
        )

    def _blocks(self, basis: Basis, order: IntColumn, from_text: bool) -> Blocks | None:
        """Blocks of the sorted rows with the ids that they were added with."""
        counts = np.array(self._counts, dtype=np.int64)
        size = self._text_size if from_text else basis.block_size
        if size is None or (not from_text and not counts.any()):
            return None
        starts = np.concatenate(([0], np.cumsum(counts)))
        rounding = "floor" if from_text else basis.rounding
        return Blocks(size, np.array(self._ids, dtype=np.int64), starts, rounding, basis.scope).take(order)

    def _novel(
        self, index: BlockIndex, blocks: Blocks, order: IntColumn, prompt_tokens: IntColumn
    ) -> IntColumn:
        rows = len(order)
        tails = np.array(self._tails, dtype=np.int64)[order]
        with_tail = np.flatnonzero(tails > NO_TAIL)
        ids = np.concatenate((blocks.ids, tails[with_tail]))
        row_of_id = np.concatenate((np.repeat(np.arange(rows), np.diff(blocks.starts)), with_tail))
        novel = np.minimum(index.novel_tokens(rows, ids, row_of_id), prompt_tokens)
        return np.where(tails == _NO_PATH, -1, novel)


class _LabelColumn:
    """Names as codes while reading."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._rows = array("q")

    def append(self, name: str | None) -> None:
        self._rows.append(-1 if name is None else self._codes.setdefault(name, len(self._codes)))

    def finish(self, order: IntColumn) -> Labels | None:
        """Codes of the sorted rows, in order of first appearance; None if no row has a name."""
        if not self._codes:
            return None
        rows = np.array(self._rows, dtype=np.int64)[order]
        known = rows >= 0
        used, rows[known] = rank_by_first(rows[known])
        names = tuple(self._codes)
        return Labels(tuple(names[code] for code in used), rows)


def _number(blocks: Blocks, model: Labels | None) -> Blocks:
    """Ordinals in order of first appearance; equal ids of different models are different blocks."""
    ids = blocks.ids
    if model is not None and len(model.names) > 1:
        codes = np.repeat(model.codes + 1, np.diff(blocks.starts))
        distinct, inverse = np.unique(ids, return_inverse=True)
        ids = codes * len(distinct) + inverse
    return Blocks(blocks.size, rank_by_first(ids)[1], blocks.starts, blocks.rounding, blocks.scope)


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


def _known_int(column: IntColumn) -> IntColumn | None:
    return column if (column >= 0).any() else None


def _known_float(column: npt.NDArray[np.float64]) -> FloatColumn | None:
    return None if np.isnan(column).all() else column
