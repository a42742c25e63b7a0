"""What the formats of gateways and observability products share: one call a row, under names that are fixed.

Owns JSON inside texts, the question whether a prompt count holds the cached tokens (answered from the data and
shown), what zero counts mean, and the account of what no row of a log said. Never searches for fields.
"""

from __future__ import annotations

import datetime
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from advisor.logs.formats.base import Basis, Format, Parsed, as_label
from advisor.logs.operations import OTHER, other_route
from advisor.logs.options import ReadOptions
from advisor.logs.prompts import parsed
from advisor.logs.record import Prompt, Record, Row, UnusableError
from advisor.logs.times import Clock
from advisor.logs.trace import Unknown

FAILED = "failed request"
GATEWAY_CACHE = "answered from the gateway's own cache"
NO_COUNTS = "no token counts"

_MISSING = frozenset(("", "null", "NULL", "None", "nan", "NaN", "\\N"))  # as dumps of databases put it
_APART_FROM = 0.05  # of the rows with more cached than prompt tokens: that is how such a log counts; ours
_NEARLY_ALL = 0.8  # of a prompt; ours
_NOTHING: Mapping[str, Any] = {}


def given(value: object) -> Any:
    """The value, or None where a dump writes a null as text."""
    return None if isinstance(value, str) and value in _MISSING else value


def as_object(value: object) -> Mapping[str, Any]:
    """A JSON object, also out of a text; an empty one for anything else."""
    value = parsed(value)
    return value if isinstance(value, dict) else _NOTHING


def first_label(*values: object) -> str | None:
    """The first that is a name."""
    return next((label for value in values if (label := as_label(given(value))) is not None), None)


def seconds_since(clock: Clock, start_ns: int, value: object) -> float:
    """Seconds from a start until a time as logged; NaN where it is missing, damaged or before the start."""
    try:
        later = clock.ns(given(value)) - start_ns
    except UnusableError:
        return math.nan
    return later / 1e9 if later >= 0 else math.nan


def utc_clock(values: Iterable[object], unit: str | None) -> Clock:
    """The clock of a product that logs in UTC; where it names no zone, --tz has no say."""
    return replace(Clock.of_sample(values, unit, datetime.UTC), naive=False)


def first_token(ttft_s: float, e2e_s: float) -> float:
    """A time to first token. One that is the whole latency says only that nothing was streamed."""
    return math.nan if ttft_s >= e2e_s else ttft_s


def path_of(url: object) -> str | None:
    """The path of a URL, without host and query."""
    label = as_label(url)
    if label is None:
        return None
    _, scheme, rest = label.partition("://")
    path = "/" + rest.partition("/")[2] if scheme else label
    return path.partition("?")[0]


def check_route(route: str | None) -> None:
    """Raise UnusableError for a route by which no text is generated."""
    if other_route(route):
        raise UnusableError(OTHER)


def settle(record: Record) -> Record:
    """The record, where zero counts say what they mean. Raises UnusableError where it is no request.

    A call that failed without output is none. One that went well has no empty prompt: its counts are missing,
    as they are where a stream was cut or its usage dropped.
    """
    if record.status not in (None, "ok") and record.output_tokens <= 0 and not record.output_text:
        raise UnusableError(FAILED)
    if record.output_tokens == 0 and (record.prompt_tokens <= 0 or record.output_text):
        record.output_tokens = -1
    if record.prompt_tokens == 0:
        record.prompt_tokens = -1
    if record.prompt_tokens < 0 and record.output_tokens < 0 and record.prompt is None:
        raise UnusableError(NO_COUNTS)
    return record


class CacheRule:
    """Whether prompt counts hold the cached tokens, settled from the first rows of a log.

    `sample` are prompt tokens and the cached ones among them or beside them; `apart` is what holds without
    evidence. A row with more cached than prompt tokens counts them apart whatever the log does; where no row
    does though nearly all is cached in most, the count holds them.
    """

    def __init__(self, sample: Iterable[tuple[int, int]], *, apart: bool) -> None:
        cached = [(prompt, read) for prompt, read in sample if prompt >= 0 and read > 0]
        over = sum(read > prompt for prompt, read in cached)
        nearly = sum(_NEARLY_ALL * prompt < read for prompt, read in cached)
        if over > _APART_FROM * len(cached):
            apart = True
        elif cached and not over and nearly * 2 >= len(cached):
            apart = False
        self._apart = apart

    def is_apart(self, prompt: int, read: int) -> bool:
        """Whether the cached tokens of a row come on top of its prompt count."""
        return self._apart or read > prompt

    def whole_prompt(self, prompt: int, read: int, written: int, counts: Counter[str]) -> int:
        """All prompt tokens of a row; -1 where its count is unknown. Unknown cached ones are -1."""
        read, written = max(0, read), max(0, written)
        if prompt < 0 or read + written == 0:
            return prompt
        if self.is_apart(prompt, read):
            counts["cached added"] += 1
            return prompt + read + written
        counts["cached inside"] += 1
        return prompt if read + written <= prompt else prompt + written


def token_basis(counts: Counter[str]) -> str:
    """Which rule gave the prompt lengths, and in how many rows."""
    ways = [
        f"{words}: {count}"
        for name, words in (
            ("cached inside", "rows that hold the cached tokens"),
            ("cached added", "rows to which cached tokens were added"),
        )
        if (count := counts[name])
    ]
    return f"logged counts ({', '.join(ways)})" if ways else "logged counts"


class Calls(Format):
    """One call a row.

    `arrival` is the field of the start; `gaps` say what to declare unknown where no row of a log has a field of
    a Record.
    """

    arrival: ClassVar[str]
    gaps: ClassVar[Mapping[str, Unknown]]

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        self._open = tuple(self.gaps)  # fields that no row has had yet
        self._clock = utc_clock([given(row.get(self.arrival)) for row in sample], options.time_unit)

    @abstractmethod
    def _record(self, row: Row) -> Record:
        """The call of a row. Raises UnusableError."""

    def parse(self, row: Row) -> Iterable[Parsed]:
        record = self._record(row)
        if self._open:
            self._open = tuple(name for name in self._open if not self._has(record, name))
        return (record,)

    def basis(self) -> Basis:
        return Basis(
            clock=self._clock,
            arrival=f"{self.arrival}, {self._clock.words}",
            tokens=token_basis(self.counts),
            prefix="text of the prompts" if self.counts[_told("prompt")] else None,
            notes=tuple(self._notes()),
            unknown=tuple(gap for name, gap in self.gaps.items() if not self.counts[_told(name)]),
        )

    def _notes(self) -> Iterable[str]:
        """What was assumed, a sentence each."""
        return ()

    def _start(self, row: Row) -> int:
        """Arrival in nanoseconds. Raises UnusableError."""
        return self._clock.ns(given(row.get(self.arrival)))

    def _has(self, record: Record, name: str) -> bool:
        value = getattr(record, name)
        known = value is not None if not isinstance(value, int | float) else value >= 0  # NaN is not
        self.counts[_told(name)] += known
        return known


def _told(name: str) -> str:
    return f"told {name}"


def keep_tools(prompt: Prompt | None, tools: object) -> Prompt | None:
    """The prompt with tools that are logged beside it."""
    tools = parsed(tools)
    if prompt is not None and prompt.messages is not None and not prompt.tools and isinstance(tools, list):
        prompt.tools = [tool for tool in tools if isinstance(tool, dict)] or None
    return prompt
