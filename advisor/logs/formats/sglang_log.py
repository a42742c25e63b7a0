"""SGLang's `--log-requests`: a line when a request is received and one when it is finished, as JSON or text.

Both have the request's id. Times are the server's local ones, without a zone; text has whole seconds. Lines of
statistics (`Prefill batch`) add up to prompt and cached tokens. Source: sglang/srt/utils/request_logger.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from advisor.logs.formats.base import Basis, Format, Parsed, as_label, as_row, mostly
from advisor.logs.formats.sglang_meta import (
    HEALTH_CHECK,
    is_batch,
    is_embedding,
    read_meta,
    read_prompt,
    split_batch,
)
from advisor.logs.options import ReadOptions
from advisor.logs.prompts import parsed
from advisor.logs.record import LINE, Record, Row, UnusableError
from advisor.logs.reprs import read_repr
from advisor.logs.times import Clock, find_zone
from advisor.logs.trace import Totals, Unknown

_EVENTS = ("request.received", "request.finished")
_LINE = re.compile(
    r".{0,200}?\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]{0,100}\] "
    r"(?:(?P<kind>Receive|Finish): obj=|(?P<prefill>Prefill batch)|Decode batch|server_args=)"
)
_PREFILL = re.compile(r"#new-token: (\d{1,9}), #cached-token: (\d{1,9})")
_TICK_NS = 10**9  # of text lines
_FEW = 0.9  # of the received requests finished: fewer are worth a word

_LEVEL = "start SGLang with --log-requests --log-requests-level 3; docs/collecting-logs.md"
_GATEWAY = "analyze the log of the gateway in front of SGLang, or record with advisor.logs.recorder"


class SGLangLog(Format):
    """Received and finished requests of an SGLang server."""

    name: ClassVar[str] = "sglang-log"
    fields: ClassVar[tuple[str, ...]] = ("timestamp", "event", "rid", "obj", "out")
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown("clients", "SGLang does not log who asked", _GATEWAY),
        Unknown("sessions", "SGLang does not log sessions", _GATEWAY),
        Unknown("log.models", "SGLang serves one model and does not name it in these lines", "give --model"),
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        stamps = [(_json_row(row) or row).get("timestamp") or _stamp(row) for row in sample]
        self._clock = Clock.of_sample(stamps, options.time_unit, find_zone(options.tz))

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        if any(LINE in row for row in sample):
            return any(_stamp(row) or _json_row(row) for row in sample)
        return mostly(sample, lambda row: row.get("event") in _EVENTS and "rid" in row)

    def parse(self, row: Row) -> Iterable[Parsed]:
        text = row.get(LINE)
        if isinstance(text, str):
            return self._text(text)
        return self._json(row)

    def _json(self, row: Row) -> Iterable[Parsed]:
        event, request = row.get("event"), as_row(row.get("obj"))
        if event not in _EVENTS:
            raise UnusableError("not a request")
        request = {**request, "rid": row.get("rid", request.get("rid"))}
        out = as_row(row.get("out")) if event == "request.finished" else None
        return self._event(request, out, self._clock.ns(row.get("timestamp")), 0)

    def _text(self, line: str) -> Iterable[Parsed]:
        if (row := _json_row({LINE: line})) is not None:
            return self._json(row)
        match = _LINE.match(line)
        if match is None or match["kind"] is None:
            self._count_batch(line, match)
            raise UnusableError("not a request")
        if line.startswith("EmbeddingReqInput(", match.end()):
            raise UnusableError("other operation than generating text")
        request, end = read_repr(line, match.end())
        out = None
        if match["kind"] == "Finish":
            out = as_row(read_repr(line, end + len(", out="))[0]) if line.startswith(", out=", end) else {}
        return self._event(as_row(request), out, self._clock.ns(match["stamp"]), _TICK_NS)

    def basis(self) -> Basis:
        counts = self.counts
        return Basis(
            clock=self._clock,
            arrival=f"received request, else finished - e2e_latency, {self._clock.words}",
            prefix="prompts of the log" if counts["prompts"] else None,
            notes=tuple(self._notes()),
            unknown=tuple(self._unknown()),
            totals=self._totals(),
        )

    def _event(self, request: Row, out: Row | None, stamp_ns: int, tick_ns: int) -> Iterable[Parsed]:
        """A received request (`out` None) or a finished one."""
        if is_embedding(request):
            raise UnusableError("other operation than generating text")
        if is_batch(request):
            if out is not None:
                raise UnusableError("duplicate of another row")  # its requests have rows of their own
            return [self._received(part, stamp_ns) for part in split_batch(request)]
        if HEALTH_CHECK in str(request.get("rid")):
            raise UnusableError("health check")
        if out is None:
            return (self._received(request, stamp_ns),)
        return (self._finished(request, out, stamp_ns, tick_ns),)

    def _received(self, request: Mapping[str, Any], stamp_ns: int) -> Record:
        samples = as_row(request.get("sampling_params")).get("n")
        if type(samples) is int and samples > 1:
            raise UnusableError("duplicate of another row")  # each answer has a row, with an id of its own
        self.counts["received"] += 1
        prompt = read_prompt(request)
        if prompt is not None and prompt.cut:
            prompt = None  # its length is known only when it has finished
        self.counts["prompts"] += prompt is not None
        known = -1 if prompt is None or prompt.tokens is None else len(prompt.tokens)
        return Record(arrival_ns=stamp_ns, prompt_tokens=known, prompt=prompt, key=as_label(request.get("rid")))

    def _finished(self, request: Row, out: Row, stamp_ns: int, tick_ns: int) -> Record:
        record = read_meta(as_row(out.get("meta_info")))
        self.counts["finished"] += 1
        prompt = read_prompt(request)
        if prompt is not None and prompt.cut and record.prompt_tokens < 0:
            prompt = None
        self.counts["prompts"] += prompt is not None
        self.counts["cut"] += prompt is not None and prompt.cut
        self.counts["cached"] += record.cached_tokens >= 0
        self.counts["first token"] += record.ttft_s >= 0
        record.prompt, record.key = prompt, as_label(request.get("rid"))
        if record.e2e_s >= 0:
            # The last tick in which it can have arrived: never before the line that says when it was received.
            record.arrival_ns = stamp_ns - round(record.e2e_s * 1e9)
            if tick_ns:
                record.arrival_ns = -(-(record.arrival_ns + tick_ns) // tick_ns) * tick_ns - tick_ns
        return record

    def _count_batch(self, line: str, match: re.Match[str] | None) -> None:
        """Statistics of a prefill batch: what was computed, and what was cached."""
        if match and match["prefill"] and (batch := _PREFILL.search(line, match.end())):
            self.counts["batches"] += 1
            self.counts["new tokens"] += int(batch[1])
            self.counts["cached tokens"] += int(batch[2])

    def _totals(self) -> Totals | None:
        counts = self.counts
        prompt = counts["new tokens"] + counts["cached tokens"]
        if not prompt:
            return None
        return Totals(
            source="prefill batches",
            requests=counts["received"] or None,
            prompt_tokens=prompt,
            cached_tokens=counts["cached tokens"],
            cached_share=counts["cached tokens"] / prompt,
        )

    def _notes(self) -> Iterator[str]:
        counts = self.counts
        if counts["cut"]:
            yield (
                "prompts cut at --log-requests-level 2, so that only their first 1,024 characters or ids are "
                f"known: {counts['cut']}"
            )
        if counts["received"] and counts["finished"] < _FEW * counts["received"]:
            missing = counts["received"] - counts["finished"]
            yield (
                f"received requests without a finished line: {missing} of {counts['received']}; "
                "SGLANG_LOG_REQUEST_EXCEEDED_MS leaves out fast ones: those in the log are slower"
            )

    def _unknown(self) -> Iterator[Unknown]:
        counts = self.counts
        if not counts["received"] and not counts["finished"]:
            why = "the log has no line for a request"
            yield Unknown("arrivals", why, "start SGLang with --log-requests; docs/collecting-logs.md")
        if not counts["prompts"]:
            yield Unknown("sharing", "the log has no prompts: levels 0 and 1 leave them out", _LEVEL)
        if not counts["finished"]:
            why = "the log has no finished requests"
            yield Unknown("lengths", why, _LEVEL)
            yield Unknown("latency.e2e_s", why, _LEVEL)
        if not counts["cached"] and not counts["batches"]:
            why = "neither finished requests nor prefill batches are in the log"
            yield Unknown("sharing.cached_share", why, _LEVEL)
        if not counts["first token"]:
            why = "finished lines have no time of the first token without --enable-metrics"
            yield Unknown("latency.ttft_s", why, "start SGLang with --enable-metrics beside --log-requests")


def _stamp(row: Row) -> str | None:
    """The time of a text line that is SGLang's."""
    text = row.get(LINE)
    match = _LINE.match(text) if isinstance(text, str) else None
    return match["stamp"] if match else None


def _json_row(row: Row) -> Row | None:
    """The JSON event of a line between lines of text."""
    text = row.get(LINE)
    if not isinstance(text, str) or not text.startswith('{"timestamp"'):
        return None
    event = as_row(parsed(text))
    return event if event.get("event") in _EVENTS else None
