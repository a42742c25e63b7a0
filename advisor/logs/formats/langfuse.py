"""Langfuse observations as its UI and its API export them: camelCase, ISO times.

Source: langfuse/langfuse, `observations_converters.ts` and the export docs. Only generations are calls. Buckets
of `usageDetails` exclude each other by the docs, but many writers put the whole prompt into `input`; the total,
where the writer gave one, tells, else the first rows of the log do. `latency` is in seconds or milliseconds, by
version, so times are used and it is not.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from advisor.logs.formats.base import as_count, as_seconds, mostly
from advisor.logs.formats.calls import (
    CacheRule,
    Calls,
    as_object,
    first_label,
    first_token,
    keep_tools,
    seconds_since,
    settle,
)  # fmt: skip
from advisor.logs.operations import OTHER
from advisor.logs.options import ReadOptions
from advisor.logs.prompts import as_prompt, find_output, parsed
from advisor.logs.record import Prompt, Record, Row, UnusableError
from advisor.logs.trace import Unknown

_CALL = "GENERATION"
_NOT_A_CALL = "not a request"
_MILLISECONDS_FROM = 30.0  # a median time to first token above it is in milliseconds; ours


@dataclass(frozen=True, slots=True)
class Names:
    """What the fields are called."""

    end: str = "endTime"
    first: str = "completionStartTime"
    ttft: str = "timeToFirstToken"
    usage: str = "usageDetails"
    model: str = "model"
    client: str = "userId"
    session: str = "sessionId"


class Usage(NamedTuple):
    """The buckets of a usage; -1 where it has none of a kind, `total` too."""

    prompt: int  # with the cached tokens or without
    read: int
    written: int
    other_prompt: int  # sound, pictures
    output: int
    other_output: int  # reasoning
    total: int


class Langfuse(Calls):
    """`traceId`, `type`, `startTime`, `endTime`, `input`, `output`, `usageDetails`."""

    name: ClassVar[str] = "langfuse"
    fields: ClassVar[tuple[str, ...]] = ("traceId", "type", "startTime", "completionStartTime", "usageDetails")
    names: ClassVar[Names] = Names()
    arrival: ClassVar[str] = "startTime"
    gaps: ClassVar[Mapping[str, Unknown]] = {
        "prompt": Unknown(
            "sharing",
            "no generation has its input",
            "export with the fields `input` and `output` (group `io`), and let the SDK capture them: "
            "docs/collecting-logs.md",
        ),
        "cached_tokens": Unknown(
            "sharing.cached_share",
            "no generation has cached tokens among its usage",
            "let the engine report them (vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report)",
        ),
        "ttft_s": Unknown(
            "latency.ttft_s",
            "no generation has a time of its first token",
            "stream the calls; set completion_start_time where the SDK does not",
        ),
        "client": Unknown(
            "clients", "no generation has a user", "set user_id on traces; export observations_v2"
        ),
        "session": Unknown(
            "sessions", "no generation has a session", "set session_id on traces; export observations_v2"
        ),
    }

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        super().__init__(sample, options)
        self._ttft_unit = _unit([row.get(self.names.ttft) for row in sample])
        self._rule = CacheRule((pair for row in sample if (pair := self._evidence(row))), apart=True)

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: {"traceId", "startTime", "type"} <= row.keys())

    def _record(self, row: Row) -> Record:
        names = self.names
        kind = row.get("type", _CALL)
        if kind != _CALL:
            raise UnusableError(OTHER if kind == "EMBEDDING" else _NOT_A_CALL)
        start = self._start(row)
        e2e = seconds_since(self._clock, start, row.get(names.end))
        usage = read_usage(self._usage(row))
        prompt_tokens, output_tokens = self._lengths(usage)
        return settle(
            Record(
                arrival_ns=start,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                cached_tokens=usage.read,
                ttft_s=first_token(self._ttft(row, start), e2e),
                e2e_s=e2e,
                prompt=_prompt(row.get("input")),
                output_text=_output(row.get("output")) if output_tokens <= 0 else None,
                model=first_label(row.get(names.model)),
                client=first_label(row.get(names.client)),
                session=first_label(row.get(names.session)),
                status="error" if row.get("level") == "ERROR" else "ok",
                key=first_label(row.get("id")),  # windows of an export overlap, rows are updated
            )
        )

    def _notes(self) -> Iterable[str]:
        if by_field := self.counts["ttft by its field"]:
            unit = "seconds" if self._ttft_unit == 1.0 else "milliseconds"
            yield f"{self.names.ttft} is read as {unit}: {by_field} requests"

    def _ttft(self, row: Row, start: int) -> float:
        """From the times; from the field for it only in exports that leave them out."""
        if (
            self.names.first in row
            or (seconds := as_seconds(row.get(self.names.ttft), self._ttft_unit)) != seconds
        ):
            return seconds_since(self._clock, start, row.get(self.names.first))
        self.counts["ttft by its field"] += 1
        return seconds

    def _usage(self, row: Row) -> Mapping[str, Any]:
        """Buckets, or the older sums beside them."""
        usage = as_object(row.get(self.names.usage)) or as_object(row.get("usage"))
        if usage:
            return usage if usage.get("unit") in (None, "", "TOKENS") else {}
        older = (("input", "promptTokens", "inputUsage"), ("output", "completionTokens", "outputUsage"))
        return {kind: row[name] for kind, *keys in older for name in keys if row.get(name)}

    def _lengths(self, usage: Usage) -> tuple[int, int]:
        """Prompt and output tokens, all of them."""
        told = by_total(usage)
        if told is not None:
            if usage.read > 0:
                self.counts["cached added" if told[0] > usage.prompt else "cached inside"] += 1
            return told
        prompt = self._rule.whole_prompt(usage.prompt, usage.read, usage.written, self.counts)
        apart = max(usage.read, usage.written) <= 0 or prompt > usage.prompt
        if prompt >= 0 and apart:
            prompt += max(0, usage.other_prompt)
        output = usage.output + (max(0, usage.other_output) if apart and usage.output >= 0 else 0)
        return prompt, output

    def _evidence(self, row: Row) -> tuple[int, int] | None:
        """Prompt and cached tokens of a row whose total does not settle what they mean."""
        try:
            usage = read_usage(self._usage(row))
        except UnusableError:
            return None
        return None if by_total(usage) else (usage.prompt, usage.read)


def _unit(values: Sequence[object]) -> float:
    """Seconds in the unit of a duration: Langfuse gives older integrations milliseconds."""
    seconds = [number for value in values if not math.isnan(number := as_seconds(value))]
    return 1e-3 if seconds and statistics.median(seconds) > _MILLISECONDS_FROM else 1.0


def read_usage(details: Mapping[str, Any]) -> Usage:
    """The buckets by kind, whatever their writer called them. Raises UnusableError."""
    found = dict.fromkeys(Usage._fields, -1)
    for name, value in details.items():
        kind = _kind(name)
        if kind is None or (count := as_count(value, "number of tokens")) < 0:
            continue
        several = kind in ("other_prompt", "other_output")
        found[kind] = max(0, found[kind]) + count if several else max(found[kind], count)
    return Usage(**found)


def by_total(usage: Usage) -> tuple[int, int] | None:
    """Prompt and output tokens that make up a total which its writer gave, where they do.

    A total of all buckets tells nothing: Langfuse adds them up where the writer gave none.
    """
    prompt, read, written, other, output, reasoning, total = usage
    if min(output, total) < 0:
        return None
    if prompt < 0:
        return (total - output, output) if total >= output else None
    more = [max(0, count) for count in (read, written, other, reasoning)]
    if total >= prompt + output + sum(more):
        return None
    read, written, other, reasoning = more
    prompts = (
        prompt,
        prompt + read,
        prompt + read + written,
        prompt + written,
        prompt + read + written + other,
    )
    return next(
        ((whole, out) for out in (output, output + reasoning) for whole in prompts if whole + out == total),
        None,
    )


def _kind(name: str) -> str | None:
    name = name.lower()
    if "cach" in name:
        return "written" if "creat" in name or "writ" in name else "read"
    if name in ("input", "prompt_tokens", "input_tokens", "prompt"):
        return "prompt"
    if name in ("output", "completion_tokens", "output_tokens", "completion"):
        return "output"
    if name in ("total", "total_tokens"):
        return "total"
    if name.startswith("input_"):
        return "other_prompt"
    return "other_output" if name.startswith(("output_", "reasoning", "completion_")) else None


def _prompt(value: object) -> Prompt | None:
    """The prompt of an input, which may be anything. LangChain's callback puts tools behind the messages."""
    value = parsed(value)
    tools: list[Any] = []
    if isinstance(value, list):
        tools = [item["content"] for item in value if _is_tool(item)]
        value = [item for item in value if not _is_tool(item)]
    with contextlib.suppress(UnusableError):
        return keep_tools(as_prompt(value), tools)
    return None


def _is_tool(item: object) -> bool:
    return isinstance(item, dict) and item.get("role") == "tool" and isinstance(item.get("content"), dict)


def _output(value: object) -> str | None:
    text = find_output({"output": value})
    if text is None:
        message = as_object(value).get("content")
        return message if isinstance(message, str) else None
    return text or None
