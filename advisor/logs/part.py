"""A part of a log as columns: what a few thousand records become as soon as they are read.

Owns the arrays that travel from a reading process to the one that puts a Trace together. No text is in them:
prompts are numbers by then (`text`), request keys are keyed hashes, and only names (of models, clients ...)
stay. A column of which a part knows nothing is left out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from advisor.logs.identity import Hashes, Pages
from advisor.logs.ordinals import Ids, fit
from advisor.logs.record import Record, UnusableError
from advisor.logs.trace import BoolColumn, FloatColumn, IntColumn

COUNTED = {"prompt_tokens": "counted_prompt", "output_tokens": "counted_output"}  # where no line logs a count
INTS = ("prompt_tokens", "output_tokens", "cached_tokens", "novel_tokens", *COUNTED.values())
FLOATS = ("ttft_s", "e2e_s", "think_s")
LABELS = ("model", "route", "client", "session", "status", "scope")
NO_TIME = -1
NO_CONTENT = -1  # in `counts`: the log does not show what the prompt was
NO_KEY = 0

_fields = attrgetter("arrival_ns", "key", *INTS, *FLOATS, *LABELS)


@dataclass(frozen=True, slots=True, repr=False)
class Names:
    """A text column: the distinct values in order of first appearance, and which each row has (-1: none)."""

    names: tuple[str, ...]
    codes: Ids


@dataclass(frozen=True, slots=True, repr=False)
class Content:
    """The blocks of prompts, by numbers that are equal for equal beginnings.

    Columns are of rows, of uses of blocks (row after row, each row's leading block first), or of the distinct
    blocks in the part.
    """

    unit: str  # "tokens" or "bytes"
    counts: Ids  # [rows] blocks, NO_CONTENT where the prompt is not known; of tokens, with a partial last one
    lengths: IntColumn  # [rows] units of the prompt
    place: Ids  # [uses] into the distinct blocks
    hashes: Hashes  # [distinct] ascending
    whole: BoolColumn  # [rows] nothing of the prompt is missing here: no media, not cut by the log
    fill: Ids | None = None  # [distinct] tokens in the block
    pages: Pages | None = None  # [distinct, tokens of a block]
    guess: npt.NDArray[np.uint16] | None = (
        None  # [distinct] tokens that words suggest, in 1/`GUESS`; 0: not asked
    )


@dataclass(frozen=True, slots=True, repr=False)
class Part:
    """Columns of some records, in their order. [rows]"""

    rows: int
    arrival_ns: IntColumn  # NO_TIME where unknown
    keys: Hashes | None  # NO_KEY: a request of its own
    ints: Mapping[str, Ids]
    floats: Mapping[str, FloatColumn]
    labels: Mapping[str, Names]
    ids: Ids  # logged block ids, row after row
    id_counts: Ids | None  # [rows] NO_CONTENT where unknown; None: in all rows
    content: Content | None


@dataclass(slots=True, repr=False)
class Tally:
    """Lines read, the items they hold, and those left out by reason. `first` is where and why the first was."""

    lines: int = 0
    items: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    first: tuple[int, int, str] | None = None  # line, item of the line, reason

    def skip(self, line: int, item: int, error: UnusableError) -> None:
        """Count something left out."""
        self.items += error.lines
        self.skipped[error.reason] += error.lines
        if self.first is None or (line, item) < self.first[:2]:
            self.first = (line, item, error.reason)


def make_part(records: Sequence[Record], content: Content | None, key: bytes) -> Part:
    """The columns of records. `key` hides request keys."""
    rows = zip(*map(_fields, records), strict=True)
    columns = dict(zip(("arrival_ns", "key", *INTS, *FLOATS, *LABELS), rows, strict=True))
    arrivals = [NO_TIME if arrival is None else arrival for arrival in columns["arrival_ns"]]
    ints, floats = {}, {}
    for name in INTS:
        if max(columns[name]) >= 0:
            ints[name] = fit(np.array(columns[name], dtype=np.int64))
    for name in FLOATS:
        seconds = np.array(columns[name], dtype=np.float64)
        if not np.isnan(seconds).all():
            floats[name] = seconds
    labels = {name: _names(columns[name]) for name in LABELS if any(columns[name])}
    keys = columns["key"]
    ids, id_counts = _logged_ids(records)
    return Part(
        rows=len(records),
        arrival_ns=np.array(arrivals, dtype=np.int64),
        keys=np.array([_hidden(name, key) for name in keys], dtype=np.uint64) if any(keys) else None,
        ints=ints,
        floats=floats,
        labels=labels,
        ids=ids,
        id_counts=id_counts,
        content=content,
    )


def _names(column: Sequence[str | None]) -> Names:
    codes: dict[str | None, int] = {None: -1}
    rows = [codes.setdefault(name, len(codes) - 1) for name in column]
    return Names(tuple(name for name in codes if name is not None), np.array(rows, dtype=np.int32))


def _logged_ids(records: Sequence[Record]) -> tuple[Ids, Ids | None]:
    counts = [NO_CONTENT if record.hash_ids is None else len(record.hash_ids) for record in records]
    if max(counts) == NO_CONTENT:
        return np.zeros(0, dtype=np.int32), None
    flat = [number for record in records if record.hash_ids for number in record.hash_ids]
    return fit(np.array(flat, dtype=np.int64)), np.array(counts, dtype=np.int32)


def _hidden(name: str | None, key: bytes) -> int:
    if name is None:
        return NO_KEY
    digest = hashlib.blake2b(name.encode("utf-8", "replace"), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def column(columns: Sequence[Any], sizes: Sequence[int], unknown: float, kind: npt.DTypeLike = np.int64) -> Any:
    """One column over parts of these sizes; `unknown` where a part has none. [rows]"""
    whole = np.full(sum(sizes), unknown, dtype=kind)
    start = 0
    for some, size in zip(columns, sizes, strict=True):
        if some is not None:
            whole[start : start + size] = some
        start += size
    return whole


def starts_of(counts: IntColumn) -> IntColumn:
    """Where each row of a ragged column starts, and where the last one ends. [rows + 1]"""
    return np.concatenate(([0], np.cumsum(np.maximum(counts, 0))))
