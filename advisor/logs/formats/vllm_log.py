"""vLLM's text log: requests received, answers generated and engine statistics, one message a line.

Two generations: up to 0.11.0 `Received request ID: prompt: '...'` shows the prompt; from 0.11.2 only
`Request ID details: prompt: '...'` at level DEBUG does. Lines of one request have its id. There are no token
counts, latencies or ends of requests. Source: vllm/entrypoints/logger.py.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, Format, as_label, as_token_ids
from advisor.logs.formats.vllm_lines import Message, Server, is_vllm, plain, read_head, read_heads, usual_cut
from advisor.logs.formats.vllm_stats import Statistics
from advisor.logs.options import ReadOptions
from advisor.logs.record import LINE, Prompt, Record, Row, UnusableError
from advisor.logs.reprs import read_repr
from advisor.logs.times import Clock
from advisor.logs.trace import Totals, Unknown

_RECEIVED = re.compile(r"Received request (?P<id>.{1,300}?): (?P<what>prompt|params): ")
_DETAILS = re.compile(r"Request (?P<id>.{1,300}?) details: prompt: ")
_GENERATED = re.compile(
    r"Generated response (?P<id>.{1,300}?)(?P<part> \(streaming (?:delta|complete)\))?: output: "
)
_REJECTED = re.compile(r"Request (?P<id>\S{1,300}) (?:was )?rejected")
_ABORTED = re.compile(r"Aborted request|Request \S{1,300} aborted")
_PROMPT_IDS = ("prompt_token_ids: ", "prompt token ids: ")  # the second up to 0.2
_LORA = re.compile(r"lora_name='([^']{1,200})'")
_FINISHED = re.compile(r"finish_reason: (\w{1,40})")
_FINE = ("stop", "length", "tool_calls", "streaming_complete")
_ACCESS = re.compile(r'.{0,200}?INFO: +\S{1,100} - "POST (?P<path>\S{1,300}) HTTP/[\d.]+" (?P<status>\d{3})')
_GENERATES = re.compile(r"/(?:completions|responses|messages|generate|invocations)(?:\?|$)")

_SPANS = "start vLLM with --otlp-traces-endpoint URL and analyze the spans"
_PROMPTS = (
    "start vLLM with --enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG (up to 0.11.0 --enable-log-requests is "
    "enough), or record with advisor.logs.recorder; docs/collecting-logs.md"
)
_GATEWAY = "analyze the log of the gateway in front of vLLM, or record with advisor.logs.recorder"


class VLLM(Format):
    """Log of a vLLM server of either generation."""

    name: ClassVar[str] = "vllm"
    fields: ClassVar[tuple[str, ...]] = (LINE,)
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown("latency.ttft_s", "vLLM's text log has no latencies", _SPANS),
        Unknown("latency.e2e_s", "vLLM's text log has no latencies", _SPANS),
        Unknown("clients", "vLLM does not log who asked", _GATEWAY),
        Unknown("sessions", "vLLM does not log sessions", _GATEWAY),
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:  # noqa: ARG002
        self.counts: Counter[str] = Counter()
        messages = read_heads(sample)
        self._first = messages[0].second if messages else 0
        self._server = Server.of_sample(messages)
        self._statistics = Statistics(self.counts, messages)
        self._cut_at = self._server.max_log_len or usual_cut(list(_texts(messages)))

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return any(is_vllm(plain(row)) for row in sample)

    def parse(self, row: Row) -> Iterable[Record]:
        line = plain(row)
        message = read_head(line)
        if message is None:
            self._count_access(line)
            raise UnusableError("not a request")
        for pattern, read in (
            (_RECEIVED, self._received), (_DETAILS, self._details), (_GENERATED, self._generated),
            (_REJECTED, self._rejected),
        ):  # fmt: skip
            if match := pattern.match(line, message.start):
                return (read(message, match),)
        if self._statistics.take(message, message.since(self._first)):
            raise UnusableError("statistics of the engine")
        self.counts["aborted"] += _ABORTED.match(line, message.start) is not None
        raise UnusableError("not a request")

    def basis(self) -> Basis:
        counts = self.counts
        totals = self._totals()
        return Basis(
            clock=Clock("s", False, datetime.UTC, words="whole seconds without year or zone"),
            arrival="time of the line `Received request`, whole seconds without year or zone",
            tokens="token ids of the log" if counts["token ids"] else "none logged",
            prefix="prompts of the log" if counts["prompts"] else None,
            notes=tuple(self._notes(totals)),
            unknown=tuple(self._unknown(totals)),
            totals=totals,
        )

    def _received(self, message: Message, match: re.Match[str]) -> Record:
        line, end, prompt = message.line, match.end() - len("params: "), None
        if match["what"] == "prompt":
            prompt, end = self._prompt(line, match.end())
        if "params: PoolingParams(" in line[end : end + 200]:
            raise UnusableError("other operation than generating text")
        self.counts["received"] += 1
        self.counts["with prompt"] += match["what"] == "prompt"
        self.counts["February" if message.month < 3 else "later"] += 1
        self.counts["29 February"] += (message.month, message.day) == (2, 29)
        self.counts["next year"] += message.second < self._first and message.since(self._first) > 0
        adapter = _LORA.search(line, max(end, len(line) - 1000))
        return Record(
            arrival_ns=message.since(self._first) * 10**9,
            prompt_tokens=_length(prompt),
            prompt=prompt,
            model=as_label(adapter[1]) if adapter else self._server.model,
            key=match["id"],
        )

    def _details(self, message: Message, match: re.Match[str]) -> Record:
        prompt, _ = self._prompt(message.line, match.end())
        return Record(prompt_tokens=_length(prompt), prompt=prompt, model=self._server.model, key=match["id"])

    def _prompt(self, line: str, start: int) -> tuple[Prompt | None, int]:
        """The prompt at `start` and where it ends: its token ids where they are logged, else its text."""
        try:
            text, end = read_repr(line, start)
            place = max(line.rfind(name, end) for name in _PROMPT_IDS)
            ids = as_token_ids(read_repr(line, place + len(_PROMPT_IDS[0]))[0] if place >= 0 else text)
        except UnusableError:  # as where a log driver splits lines at 16 KiB; the request stands
            self.counts["broken"] += 1
            return None, len(line)
        prompt: Prompt | None = None
        if ids is not None:
            prompt = Prompt(tokens=ids)
        elif isinstance(text, str) and text:
            prompt = Prompt(text=text)
        if prompt is not None and prompt.size == self._cut_at:
            self.counts["cut"] += 1  # of what is left, the length would be taken for that of the prompt
            return None, end
        self.counts["prompts"] += prompt is not None
        self.counts["token ids"] += prompt is not None and prompt.tokens is not None
        return prompt, end

    def _generated(self, message: Message, match: re.Match[str]) -> Record:
        line = message.line
        if match["part"] == " (streaming delta)":
            raise UnusableError("part of a streamed answer")
        text, end = read_repr(line, match.end())
        place = line.find("output_token_ids: ", end)
        ids = as_token_ids(read_repr(line, place + len("output_token_ids: "))[0]) if place >= 0 else None
        finished = _FINISHED.search(line, max(end, len(line) - 100))
        self.counts["outputs"] += 1
        return Record(
            output_tokens=-1 if ids is None or len(ids) == self._cut_at else len(ids),
            output_text=text if isinstance(text, str) and len(text) != self._cut_at else None,
            status=None if finished is None else "ok" if finished[1] in _FINE else as_label(finished[1]),
            key=match["id"],
        )

    def _rejected(self, message: Message, match: re.Match[str]) -> Record:  # noqa: ARG002
        self.counts["rejected"] += 1
        return Record(status="rejected", key=match["id"])

    def _count_access(self, line: str) -> None:
        """A line of the web server has no time and no id: it only says how many were answered, and how."""
        match = _ACCESS.match(line)
        if match and _GENERATES.search(match["path"]):
            self.counts["answered" if match["status"] < "400" else "refused"] += 1

    def _totals(self) -> Totals | None:
        counts = self.counts
        if not self._statistics.seen and (counts["received"] or not counts["answered"]):
            return None
        requests = counts["received"] or counts["answered"] or None
        counts_cached = True if counts["with prompt"] else self._server.counts_cached
        return self._statistics.totals(requests, self._server.model, counts_cached)

    def _notes(self, totals: Totals | None) -> Iterator[str]:
        counts = self.counts
        if counts["February"] and counts["later"] and not counts["29 February"] and not counts["next year"]:
            yield "times have no year: a leap year is assumed, so 29 February is empty"
        if counts["next year"]:
            yield f"times have no year: taken to run over New Year, requests after it: {counts['next year']}"
        if counts["cut"]:
            yield f"prompts cut short by --max-log-len, which are left out: {counts['cut']}"
        if counts["broken"]:
            yield f"prompts that break off in the middle of the line, which are left out: {counts['broken']}"
        if counts["aborted"]:
            yield f"requests whose client left early, which stay in the log: {counts['aborted']}"
        if counts["rejected"]:
            yield f"requests rejected for a full queue, as far as vLLM logs them: {counts['rejected']}"
        if counts["refused"]:
            yield f"HTTP answers that are errors, to requests that cannot be told: {counts['refused']}"
        if totals is not None:
            yield from self._statistics.notes(totals)

    def _unknown(self, totals: Totals | None) -> Iterator[Unknown]:
        counts = self.counts
        if not counts["received"]:
            why = "the log has no line for a received request"
            yield Unknown("arrivals", why, "start vLLM with --enable-log-requests; docs/collecting-logs.md")
        if not counts["prompts"]:
            why = "vLLM logged no prompts: from 0.11.2 they are at level DEBUG only"
            yield Unknown("lengths.prompt", why, f"{_PROMPTS}. Or {_SPANS}")
            yield Unknown("sharing", why, _PROMPTS)
        if not counts["outputs"]:
            why = "vLLM logged no answers"
            yield Unknown("lengths.output", why, f"start vLLM with --enable-log-outputs. Or {_SPANS}")
        if totals is None or totals.cached_share is None:
            why = "the log has no engine statistics with a prefix cache hit rate"
            yield Unknown("sharing.cached_share", why, "start vLLM without --disable-log-stats")
        if self._server.model is None:
            why = "vLLM names the model only when it starts"
            yield Unknown("log.models", why, "include the start of the log")


def _length(prompt: Prompt | None) -> int:
    """Tokens of a prompt of token ids; -1 where they must be counted, or are unknown."""
    return -1 if prompt is None or prompt.tokens is None else len(prompt.tokens)


def _texts(messages: Iterable[Message]) -> Iterator[str]:
    """The prompts among these messages."""
    for message in messages:
        for pattern in (_RECEIVED, _DETAILS):
            match = pattern.match(message.line, message.start)
            if match and match[0].endswith("prompt: "):
                try:
                    text, _ = read_repr(message.line, match.end())
                except UnusableError:
                    continue
                if isinstance(text, str):
                    yield text
