"""The Trace: one row a request, sorted by arrival, without text.

Owns the columns and their meaning. What a log does not say is marked per row (-1 in integer columns, NaN in
float columns, code -1 in labels) and, where a whole column is missing, the column is None; `unknown` says why
and how to get it. A Trace never holds prompt text: sharing lives in block ordinals.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

IntColumn = npt.NDArray[np.int64]
FloatColumn = npt.NDArray[np.float64]
BoolColumn = npt.NDArray[np.bool_]


def rank_by_first(values: IntColumn) -> tuple[IntColumn, IntColumn]:
    """The distinct values in order of first appearance, and every entry's place among them."""
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    by_first = np.argsort(first)
    rank = np.empty(len(distinct), dtype=np.int64)
    rank[by_first] = np.arange(len(distinct))
    return distinct[by_first], rank[inverse]


@dataclass(frozen=True, slots=True)
class Labels:
    """A text column as codes: row i is `names[codes[i]]`, or unknown where the code is -1."""

    names: tuple[str, ...]
    codes: IntColumn  # [requests]

    def take(self, rows: IntColumn) -> Labels:
        """The same names for a selection of rows."""
        return Labels(self.names, self.codes[rows])


@dataclass(frozen=True, slots=True)
class Blocks:
    """Leading prompt blocks of every request, ragged: row i is `ids[starts[i]:starts[i + 1]]`.

    Equal ids at any two places mean equal content *and* equal content before it. Ids are ordinals in order of
    first appearance. `size` is tokens per block. The last block of a row may be partial (`ceil`: the producer
    counts it, as Mooncake does) or be left out (`floor`). `scope` says how far ids may be compared. A row whose
    content the log does not show has no ids and is not `known`.
    """

    size: int
    ids: IntColumn  # [blocks]
    starts: IntColumn  # [requests + 1]
    rounding: str = "ceil"
    scope: str = "global"
    known: BoolColumn | None = None  # [requests]; None: the content of every row is known

    def row(self, index: int) -> IntColumn:
        """Block ids of one request, leading first."""
        return self.ids[self.starts[index] : self.starts[index + 1]]

    def take(self, rows: IntColumn) -> Blocks:
        """The blocks of a selection of rows; ids keep their values."""
        lengths = np.diff(self.starts)[rows]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        within = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        ids = self.ids[np.repeat(self.starts[:-1][rows], lengths) + within]
        return replace(self, ids=ids, starts=starts, known=None if self.known is None else self.known[rows])

    def fit(self, prompt_tokens: IntColumn) -> Blocks:
        """The leading blocks for which prompts of these lengths have room; -1: unknown, so any number."""
        room = prompt_tokens // self.size if self.rounding == "floor" else -(-prompt_tokens // self.size)
        have = np.diff(self.starts)
        counts = np.where(prompt_tokens < 0, have, np.minimum(have, room))
        if (counts == have).all():
            return self
        place = np.arange(len(self.ids)) - np.repeat(self.starts[:-1], have)
        starts = np.concatenate(([0], np.cumsum(counts)))
        return replace(self, ids=self.ids[place < np.repeat(counts, have)], starts=starts)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something the log cannot tell: the JSON path that is null, why, and how to get it."""

    path: str
    why: str
    how_to_get: str


@dataclass(frozen=True, slots=True)
class Totals:
    """What a log says of requests in sum, not one by one: usage buckets, an engine's own statistics."""

    source: str  # where it stands in the log
    requests: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cached_share: float | None = None  # of prompt tokens, 0 to 1, as the log puts it
    span_s: float | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class LogInfo:
    """What was read and what was assumed, for the `log` object of the JSON contract.

    `items` is what the lines hold: a line is one, unless several tell of one request or one of several. Nothing
    is lost: items = requests + the sum of `skipped`.
    """

    format: str
    files: int
    lines: int
    items: int
    skipped: dict[str, int]
    arrival_basis: str  # e.g. "timestamp, milliseconds from the start"
    token_basis: str  # e.g. "logged counts" or "tokenized with smollm2-135m-instruct"
    prefix_basis: str | None  # e.g. "hash_ids of 512 tokens"; None where sharing is unknown
    notes: tuple[str, ...] = ()  # further assumptions, one sentence each


@dataclass(frozen=True, slots=True, repr=False)
class Trace:
    """All requests of a log, sorted by arrival. Columns have one entry a request."""

    arrival_s: FloatColumn  # seconds after the first arrival
    prompt_tokens: IntColumn  # tokens, cached ones included; -1 where unknown
    output_tokens: IntColumn  # tokens; -1 where unknown
    blocks: Blocks | None = None
    novel_tokens: IntColumn | None = None  # prompt tokens new to the log at 1-token pages; text logs only
    model: Labels | None = None
    route: Labels | None = None
    client: Labels | None = None
    session: Labels | None = None
    parent: IntColumn | None = None  # row of the turn before, -1 for none
    think_s: FloatColumn | None = None  # seconds between the end of the turn before and this arrival
    status: Labels | None = None
    cached_tokens: IntColumn | None = None  # tokens; -1 where unknown
    ttft_s: FloatColumn | None = None
    e2e_s: FloatColumn | None = None
    first_epoch_s: float | None = None  # wall-clock time of arrival 0, seconds since 1970 UTC, where known
    totals: Totals | None = None
    unknown: tuple[Unknown, ...] = ()
    info: LogInfo | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"Trace({len(self)} requests)"  # names of clients stay out of logs and tracebacks

    def __len__(self) -> int:
        return len(self.arrival_s)

    def take(self, rows: IntColumn) -> Self:
        """A Trace of the given rows, in the given order; arrivals are not shifted, `parent` is dropped."""

        def pick(column: Any) -> Any:
            if column is None:
                return None
            return column.take(rows) if isinstance(column, Labels | Blocks) else column[rows]

        columns = {
            name: pick(getattr(self, name))
            for name in (
                "arrival_s", "prompt_tokens", "output_tokens", "blocks", "novel_tokens", "model", "route",
                "client", "session", "think_s", "status", "cached_tokens", "ttft_s", "e2e_s",
            )
        }  # fmt: skip
        return replace(self, parent=None, **columns)
