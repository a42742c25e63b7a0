"""Parts of a log become the columns of a Trace.

Owns the merging of records with one key, the sort by arrival (stable, so equal stamps keep the order of the
log) and the numbering of names in order of first appearance. What the blocks of prompts are is `log_blocks`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from advisor.logs.formats.base import Basis
from advisor.logs.log_blocks import Chosen, read_logged_blocks, read_text_blocks
from advisor.logs.part import COUNTED, FLOATS, INTS, LABELS, NO_CONTENT, NO_KEY, NO_TIME, Names, Part, column
from advisor.logs.trace import BoolColumn, FloatColumn, IntColumn, Labels, Trace, rank_by_first

_FAR_NS = 3 * 366 * 86_400 * 10**9  # from the median arrival: no log goes on for so long; ours
_MOST_SECONDS = 1e8  # of a duration: three years; more is damage; ours


class Columns:
    """Collects parts in log order; `finish` gives the Trace. `text_size` is tokens per block of text."""

    def __init__(self, text_size: int) -> None:
        self._text_size = text_size
        self._parts: list[Part] = []
        self._names = {name: _AllNames() for name in LABELS}

    def __len__(self) -> int:
        return sum(part.rows for part in self._parts)

    def add(self, part: Part) -> None:
        """Append the rows of a part."""
        labels = {name: self._names[name].add(column) for name, column in part.labels.items()}
        self._parts.append(replace(part, labels=labels))

    def finish(self, basis: Basis) -> tuple[Trace, Mapping[str, int]]:
        """All requests, sorted by arrival, and how many rows were left out, by reason.

        A row that was merged into another is no row of its own. Empties the columns.
        """
        parts, self._parts = self._parts, []
        sizes = [part.rows for part in parts]
        merge = _Merge(column([part.keys for part in parts], sizes, NO_KEY, np.uint64))
        arrival_ns = merge.earliest(column([part.arrival_ns for part in parts], sizes, NO_TIME), NO_TIME)
        known = _with_counts({name: merge.last(rows) for name, rows in _known_columns(parts, sizes).items()})
        kept, left_out = self._choose(merge, arrival_ns, known, timed=basis.clock is not None)
        order = kept[np.argsort(arrival_ns[kept], kind="stable")]
        columns = {name: rows[order] for name, rows in known.items() if name != "scope"}
        trace = self._trace(basis, arrival_ns[order], columns)
        content = merge.last_rows(_has_content(parts, sizes))[order]
        scope = column(
            [part.labels["scope"].codes if "scope" in part.labels else None for part in parts], sizes, -1
        )
        return self._with_blocks(trace, parts, content, scope, basis), left_out

    def _choose(
        self, merge: _Merge, arrival_ns: IntColumn, known: Mapping[str, Any], *, timed: bool
    ) -> tuple[IntColumn, Mapping[str, int]]:
        """The requests that stay, and how many do not, by reason."""
        nothing = np.full(len(arrival_ns), -1)
        status = known.get("status", nothing)
        bad = (status >= 0) & (status != self._names["status"].code("ok"))
        failed = merge.several & (known.get("output_tokens", nothing) <= 0) & bad
        timeless = (arrival_ns == NO_TIME) & timed & ~failed
        far = _far(arrival_ns) & ~failed & ~timeless
        left_out = {
            "failed request": int(failed.sum()),
            "no arrival time": int(timeless.sum()),
            "arrival years from the others": int(far.sum()),
        }
        kept = np.flatnonzero(~failed & ~timeless & ~far)
        return kept, {reason: count for reason, count in left_out.items() if count}

    def _with_blocks(
        self, trace: Trace, parts: list[Part], content: IntColumn, scope: IntColumn, basis: Basis
    ) -> Trace:
        """The Trace with its blocks, as far as the rows in `content` show prompts. Empties `parts`."""
        if not np.any(content >= 0):
            return trace
        chosen = Chosen(content, trace.prompt_tokens, trace.model, np.where(content >= 0, scope[content], -1))
        if any(part.content is not None for part in parts):
            blocks, novel = read_text_blocks(parts, chosen, self._text_size)
            return replace(trace, blocks=blocks, novel_tokens=trace.novel_tokens if novel is None else novel)
        if basis.block_size is None:
            return trace
        return replace(
            trace, blocks=read_logged_blocks(parts, chosen, basis.block_size, basis.rounding, basis.scope)
        )

    @property
    def merged(self) -> int:
        """Rows that tell of a request that another row tells of too."""
        keys = [part.keys[part.keys != NO_KEY] for part in self._parts if part.keys is not None]
        return sum(map(len, keys)) - len(np.unique(np.concatenate(keys))) if keys else 0

    def _trace(self, basis: Basis, arrival_ns: IntColumn, columns: Mapping[str, Any]) -> Trace:
        """The Trace without its blocks, from the columns that the log has."""
        rows = len(arrival_ns)
        labels = {name: self._names[name].finish(columns[name]) for name in LABELS if name in columns}
        think = _some(columns.get("think_s"))
        timed = basis.clock is not None and rows > 0
        first = int(arrival_ns[0]) if timed else 0
        return Trace(
            arrival_s=(arrival_ns - first) / 1e9 if timed else np.full(rows, np.nan),
            prompt_tokens=columns.get("prompt_tokens", np.full(rows, -1)),
            output_tokens=columns.get("output_tokens", np.full(rows, -1)),
            novel_tokens=_some(columns.get("novel_tokens")),
            model=labels.get("model"),
            route=labels.get("route"),
            client=labels.get("client"),
            session=labels.get("session"),
            parent=None if think is None else _turns_before(think, labels.get("session")),
            think_s=think,
            status=labels.get("status"),
            cached_tokens=_some(columns.get("cached_tokens")),
            ttft_s=_some(columns.get("ttft_s")),
            e2e_s=_some(columns.get("e2e_s")),
            first_epoch_s=first / 1e9 if timed and basis.clock is not None and basis.clock.epoch else None,
            totals=basis.totals,
        )


class _AllNames:
    """The names of a label over all parts."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def add(self, column: Names) -> Names:
        """The column with codes that hold over all parts."""
        codes = [self._codes.setdefault(name, len(self._codes)) for name in column.names]
        everywhere = np.array([*codes, -1], dtype=np.int32)  # the last is for -1
        return Names((), everywhere[column.codes])

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

    def __init__(self, keys: npt.NDArray[np.uint64]) -> None:
        self._rows = np.arange(len(keys))
        keyed = np.flatnonzero(keys != NO_KEY)
        self._plain = len(keyed) == 0
        if self._plain:
            self.several = np.zeros(len(keys), dtype=np.bool_)
            return
        head = self._rows.copy()
        _, first, inverse = np.unique(keys[keyed], return_index=True, return_inverse=True)
        head[keyed] = keyed[first][inverse]
        heads, self._request = np.unique(head, return_inverse=True)
        self.several = np.bincount(self._request, minlength=len(heads)) > 1

    def last_rows(self, known: BoolColumn) -> IntColumn:
        """For every request the last of its rows that is known; -1 for none."""
        if self._plain:
            return np.where(known, self._rows, -1)
        rows = np.full(len(self.several), -1)
        np.maximum.at(rows, self._request[known], self._rows[known])
        return rows

    def last(self, values: Any) -> Any:
        """The last known value of every request: not -1, or not NaN, which mark the others."""
        if self._plain:
            return values
        floats = values.dtype.kind == "f"
        rows = self.last_rows(~np.isnan(values) if floats else values != -1)
        return np.where(rows >= 0, values[rows], np.nan if floats else -1)

    def earliest(self, column: IntColumn, unknown: int) -> IntColumn:
        """The least known value of every request, else `unknown`."""
        if self._plain:
            return column
        least = np.full(len(self.several), np.iinfo(np.int64).max)
        known = column != unknown
        np.minimum.at(least, self._request[known], column[known])
        return np.where(least == np.iinfo(np.int64).max, unknown, least)


def _with_counts(columns: dict[str, Any]) -> dict[str, Any]:
    """Lengths counted from text in the place of those that no line of a request logs."""
    for name, counted in COUNTED.items():
        counts = columns.pop(counted, None)
        if counts is not None:
            columns[name] = np.where(columns[name] < 0, counts, columns[name]) if name in columns else counts
    return columns


def _known_columns(parts: Sequence[Part], sizes: Sequence[int]) -> dict[str, Any]:
    """The columns of which some part knows something, over all parts. [rows]"""
    known: dict[str, tuple[list[Any], float, npt.DTypeLike]] = {}
    for name in INTS:
        known[name] = [part.ints.get(name) for part in parts], -1, np.int64
    for name in FLOATS:
        known[name] = [part.floats.get(name) for part in parts], np.nan, np.float64
    for name in LABELS:
        codes = [part.labels[name].codes if name in part.labels else None for part in parts]
        known[name] = codes, -1, np.int64
    columns = {
        name: column(values, sizes, unknown, kind)
        for name, (values, unknown, kind) in known.items()
        if any(some is not None for some in values)
    }
    return columns | {name: _plausible(columns[name]) for name in FLOATS if name in columns}


def _has_content(parts: Sequence[Part], sizes: Sequence[int]) -> BoolColumn:
    """The rows whose prompt content is known: by text, where any part has text, else by logged ids."""
    from_text = any(part.content is not None for part in parts)
    columns = [
        (part.content.counts if part.content else None) if from_text else part.id_counts for part in parts
    ]
    known: BoolColumn = column(columns, sizes, NO_CONTENT) != NO_CONTENT
    return known


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


def _some(values: Any) -> Any:
    """The column; None where none of its values is known."""
    if values is None:
        return None
    known = ~np.isnan(values) if values.dtype.kind == "f" else values >= 0
    return values if known.any() else None


def _far(arrival_ns: IntColumn) -> BoolColumn:
    """Arrivals that one damaged time puts years away from the others."""
    timed = arrival_ns != NO_TIME
    if not timed.any():
        return np.zeros(len(arrival_ns), dtype=np.bool_)
    stamps = arrival_ns[timed]
    middle = np.partition(stamps, (len(stamps) - 1) // 2)[(len(stamps) - 1) // 2]
    far: BoolColumn = timed & (np.abs(arrival_ns - middle) > _FAR_NS)
    return far


def _plausible(seconds: FloatColumn) -> FloatColumn:
    """Durations; NaN where they are negative or absurdly long, which damaged times make them."""
    with np.errstate(invalid="ignore"):
        return np.where((seconds >= 0) & (seconds < _MOST_SECONDS), seconds, np.nan)
