"""Claude Code session files: a line a content block, each with the usage of the whole message.

Sources: sessions and the reports anthropics/claude-code#87303, #25941 and ccusage/ccusage#985. Lines of one
message (its id, with the request id where there is one) are one call, whose last line has the final counts. The
call started when the line before it (`parentUuid`: the user's words or a tool's result) was written. The system
prompt and the tools are not in the file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from advisor.logs.formats.anthropic import cache_notes, count_lives, read_usage
from advisor.logs.formats.base import Basis, Format, Parsed, as_label, as_row, mostly
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, find_zone
from advisor.logs.trace import Unknown

_RECENT = 100_000  # lines back that a parent is looked for
_SYNTHETIC = "<synthetic>"  # the model of messages that no model wrote
_PLACES = ("sessionId", "leafUuid", "messageId")
_Start = tuple[int, bool]  # nanoseconds, and whether the line before told it


class ClaudeCode(Format):
    """`type`, `uuid`, `parentUuid`, `sessionId`, `timestamp`, `message`."""

    name: ClassVar[str] = "claude-code"
    fields: ClassVar[tuple[str, ...]] = ("type", "uuid", "parentUuid", "sessionId", "requestId", "message")
    ordered: ClassVar[bool] = True  # a call starts with the line before
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown(
            "sharing",
            "session files hold no system prompt, no tools and no compacted context, so no full prompts",
            "log requests at a gateway (ANTHROPIC_BASE_URL): docs/collecting-logs.md",
        ),
        Unknown("latency.ttft_s", "lines are written when a block is complete", "log requests at a gateway"),
        Unknown("clients", "session files name no user", "log requests at a gateway"),
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = Clock.of_sample([row.get("timestamp") for row in sample], None, find_zone(options.tz))
        self._times: dict[str, int] = {}  # uuid -> nanoseconds, of recent lines
        self._keys: dict[str, str] = {}  # message id -> key of the call, of recent calls
        self._starts: dict[str, _Start] = {}  # key of a call -> its start, of recent calls

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, _is_line) and any(
            isinstance(row.get("message"), dict) and "uuid" in row for row in sample if _is_line(row)
        )

    def parse(self, row: Row) -> Iterable[Parsed]:
        stamp = self._clock.ns(row["timestamp"]) if row.get("timestamp") is not None else None
        if stamp is not None and isinstance(uuid := row.get("uuid"), str):
            _keep(self._times, uuid, stamp)
        message = as_row(row.get("message"))
        usage = as_row(message.get("usage"))
        if row.get("isApiErrorMessage") is True:
            raise UnusableError("failed request")
        if row.get("type") != "assistant" or message.get("model") == _SYNTHETIC:
            raise UnusableError("not a request")
        if stamp is None:
            raise UnusableError("no arrival time")
        counts = read_usage(usage)
        if counts.prompt < 0:
            raise UnusableError("no token counts")
        key = self._key(row, message)
        arrival, told = self._start(row, key, stamp, usage)
        return (
            Record(
                arrival_ns=arrival,
                prompt_tokens=counts.prompt,
                output_tokens=counts.output,
                cached_tokens=counts.cached,
                e2e_s=(stamp - arrival) / 1e9 if told else math.nan,
                model=as_label(message.get("model")),
                session=as_label(row.get("sessionId")),
                status="ok",
                key=key,
            ),
        )

    def basis(self) -> Basis:
        return Basis(
            clock=self._clock,
            arrival="timestamp of the line before the answer, wall-clock time",
            tokens="input_tokens and what was read from and written to the cache, of a message's last line",
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterable[str]:
        if own := self.counts["by own time"]:
            yield f"calls whose line before is not in the log, so placed at their first block: {own}"
        if side := self.counts["side chains"]:
            yield f"calls of sub-agents, counted in the session that started them: {side}"
        yield from cache_notes(self.counts)

    def _key(self, row: Row, message: Row) -> str | None:
        """The identity of a call: message id and request id, which some builds leave out of some lines."""
        name, request = as_label(message.get("id")), as_label(row.get("requestId"))
        if name is None:
            return request
        known = self._keys.get(name)
        if known is None or (request is not None and known not in (name, f"{name} {request}")):
            known = name if request is None else f"{name} {request}"
            _keep(self._keys, name, known)
        return known

    def _start(self, row: Row, key: str | None, stamp: int, usage: Row) -> _Start:
        """When the call of a line started; what is counted by call is counted with its first line."""
        if key is not None and key in self._starts:
            return self._starts[key]
        before = self._times.get(parent) if isinstance(parent := row.get("parentUuid"), str) else None
        told = before is not None and before <= stamp
        start = (before, True) if before is not None and told else (stamp, False)
        self.counts["by own time"] += not told
        self.counts["side chains"] += row.get("isSidechain") is True
        count_lives(usage, self.counts)
        if key is not None:
            _keep(self._starts, key, start)
        return start


def _is_line(row: Row) -> bool:
    return "type" in row and "traceId" not in row and any(name in row for name in _PLACES)


def _keep(recent: dict[str, Any], name: str, value: object) -> None:
    """Remember the latest, of the last `_RECENT` names."""
    recent[name] = value
    if len(recent) > _RECENT:
        del recent[next(iter(recent))]
