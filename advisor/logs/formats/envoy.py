"""Envoy AI Gateway's access log as JSON lines; the operator chooses the keys, the docs' two sets are known.

Source: envoyproxy/ai-gateway, `capabilities/observability/accesslogs`. A retried request is one line. Tokens
are null where `llmRequestCosts` does not ask for them and on streams that the client left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from advisor.logs.formats.base import as_count, as_label, as_seconds, mostly
from advisor.logs.formats.calls import (
    FAILED,
    CacheRule,
    Calls,
    check_route,
    first_label,
    given,
    path_of,
)  # fmt: skip
from advisor.logs.operations import OTHER
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import as_number
from advisor.logs.trace import Unknown

_INPUT = ("gen_ai.usage.input_tokens", "genai_tokens_input", "llm_input_token")
_OUTPUT = ("gen_ai.usage.output_tokens", "genai_tokens_output", "llm_output_token")
_TOTAL = ("gen_ai.usage.total_tokens", "genai_tokens_total", "llm_total_token")
_READ = (
    "gen_ai.usage.cached_input_tokens", "gen_ai.usage.cache_read.input_tokens", "genai_tokens_cached_input",
    "llm_cached_input_token",
)  # fmt: skip
_WRITTEN = (
    "gen_ai.usage.cache_creation_input_tokens", "gen_ai.usage.cache_creation.input_tokens",
    "genai_tokens_cache_creation_input", "llm_cache_creation_input_token",
)  # fmt: skip
_MODELS = (
    "gen_ai.response.model", "gen_ai.request.model_override", "genai_model_name_override",
    "gen_ai.request.model", "genai_model_name",
)  # fmt: skip
_PATHS = ("x-envoy-origin-path", "path", ":path")
_CLIENTS = ("user_id", "x-user-id", "user.id", "tenant_id", "x-tenant-id")
_SESSIONS = ("session.id", "session_id", "x-session-id", "gen_ai.conversation.id")
_COSTS = "list InputToken, OutputToken and CachedInputToken under llmRequestCosts and log their metadata keys"


class EnvoyAIGateway(Calls):
    """`start_time`, `duration`, `response_code`, `response_flags`, `gen_ai.usage.*` or `genai_tokens_*`."""

    name: ClassVar[str] = "envoy-ai-gateway"
    fields: ClassVar[tuple[str, ...]] = (
        "start_time", "duration", "response_code", "response_flags", "gen_ai.usage.input_tokens",
    )  # fmt: skip
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown(
            "sharing",
            "an access log holds no prompts",
            "log prompts at a gateway that can, or record them: docs/collecting-logs.md",
        ),
        Unknown(
            "latency.ttft_s",
            "x-envoy-upstream-service-time ends with the response's headers, not with the first token",
            "use the gateway's spans or the engine's metrics: docs/collecting-logs.md",
        ),
    )
    arrival: ClassVar[str] = "start_time"
    gaps: ClassVar[Mapping[str, Unknown]] = {
        "prompt_tokens": Unknown("lengths.prompt", "no line has input tokens", _COSTS),
        "output_tokens": Unknown("lengths.output", "no line has output tokens", _COSTS),
        "cached_tokens": Unknown("sharing.cached_share", "no line has cached input tokens", _COSTS),
        "client": Unknown("clients", "no line names a user", "log a header that names the tenant as x-user-id"),
        "session": Unknown("sessions", "no line names a session", "log a header that names it as x-session-id"),
    }

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        super().__init__(sample, options)
        self._rule = CacheRule(_pairs(sample), apart=False)

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: {"start_time", "response_code", "response_flags"} <= row.keys())

    def _record(self, row: Row) -> Record:
        if given(row.get("mcp_method")) is not None:
            raise UnusableError(OTHER)
        route = next((path for key in _PATHS if (path := path_of(given(row.get(key)))) is not None), None)
        check_route(route)
        status = _status(row)
        prompt_tokens, output_tokens = _lengths(row)
        if status != "ok" and output_tokens <= 0:
            raise UnusableError(FAILED)
        read, written = _count(row, _READ, "cached tokens"), _count(row, _WRITTEN, "cached tokens")
        return Record(
            arrival_ns=self._start(row),
            prompt_tokens=self._rule.whole_prompt(prompt_tokens, read, written, self.counts),
            output_tokens=output_tokens,
            cached_tokens=read,
            e2e_s=as_seconds(row.get("duration"), 1e-3),
            model=first_label(*(row.get(key) for key in _MODELS)),
            route=route,
            client=first_label(*(row.get(key) for key in _CLIENTS)),
            session=first_label(*(row.get(key) for key in _SESSIONS)),
            status=status,
        )


def _lengths(row: Row) -> tuple[int, int]:
    """Prompt and output tokens. A prompt of 0 was lost, as on streams; a total then tells it."""
    prompt = _count(row, _INPUT, "prompt length")
    output = _count(row, _OUTPUT, "output length")
    if prompt <= 0:
        total = _count(row, _TOTAL, "total length")
        prompt = total - output if total > output >= 0 else -1
        output = output if output > 0 else -1
    return prompt, output


def _count(row: Row, names: Sequence[str], what: str) -> int:
    return next((count for name in names if (count := as_count(given(row.get(name)), what)) >= 0), -1)


def _pairs(sample: Sequence[Row]) -> Iterator[tuple[int, int]]:
    for row in sample:
        with contextlib.suppress(UnusableError):
            yield _count(row, _INPUT, "prompt length"), _count(row, _READ, "cached tokens")


def _status(row: Row) -> str | None:
    """ "ok", the code of a failure, or Envoy's flags where there was no response: `DC`, the client left."""
    code = as_number(given(row.get("response_code")))
    if code:
        return "ok" if 200 <= code < 300 else str(int(code))
    flags = as_label(given(row.get("response_flags")))
    return None if code is None and flags in (None, "-") else flags or "error"
