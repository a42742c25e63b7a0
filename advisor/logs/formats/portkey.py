"""Portkey's log export: a row a request, with the fields that were asked for.

Source: Portkey's docs and its OpenAPI description (`logs-export`); `created_at` is taken as the arrival and
`response_time` is milliseconds. Not the console log of the open-source gateway, which has local times only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from advisor.logs.formats.base import as_count, as_seconds, mostly
from advisor.logs.formats.calls import (
    GATEWAY_CACHE,
    CacheRule,
    Calls,
    as_object,
    check_route,
    first_label,
    given,
    path_of,
    settle,
)  # fmt: skip
from advisor.logs.formats.generic import read_status
from advisor.logs.options import ReadOptions
from advisor.logs.prompts import as_prompt, find_output
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.trace import Unknown

_HITS = ("HIT", "SEMANTIC HIT")
_USERS = ("_user", "user", "user_id")
_SESSIONS = ("_session", "session_id", "session", "conversation_id", "thread_id")


class Portkey(Calls):
    """`created_at`, `request`, `response`, `req_units`, `res_units`, `response_time`, `ai_model`."""

    name: ClassVar[str] = "portkey"
    fields: ClassVar[tuple[str, ...]] = (
        "created_at",
        "ai_org",
        "ai_model",
        "req_units",
        "res_units",
        "response_time",
    )
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown(
            "latency.ttft_s",
            "Portkey's export has no time to first token",
            "log at the engine or with the recorder: docs/collecting-logs.md",
        ),
    )
    arrival: ClassVar[str] = "created_at"
    gaps: ClassVar[Mapping[str, Unknown]] = {
        "prompt": Unknown(
            "sharing",
            "the export has no requests",
            "ask for the field `request` (requested_data), of calls logged with x-portkey-debug on: "
            "docs/collecting-logs.md",
        ),
        "cached_tokens": Unknown(
            "sharing.cached_share",
            "no response has cached tokens in its usage",
            "ask for the field `response`, and let the engine report them (vLLM: "
            "--enable-prompt-tokens-details; SGLang: --enable-cache-report)",
        ),
        "client": Unknown("clients", "no request has a user in its metadata", 'send metadata {"_user": ...}'),
        "session": Unknown(
            "sessions", "no request has a session in its metadata", 'send metadata {"session_id": ...}'
        ),
    }

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        super().__init__(sample, options)
        self._rule = CacheRule(_pairs(sample), apart=False)

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: "created_at" in row and ("req_units" in row or "ai_model" in row))

    def _record(self, row: Row) -> Record:
        request, answer = as_object(row.get("request")), as_object(row.get("response"))
        route = path_of(given(row.get("request_url")) or request.get("url"))
        check_route(route)
        if row.get("cache_status") in _HITS:
            raise UnusableError(GATEWAY_CACHE)
        body = as_object(request.get("body")) or request
        metadata = as_object(row.get("metadata"))
        prompt_tokens = as_count(given(row.get("req_units")), "prompt length")
        output_tokens = as_count(given(row.get("res_units")), "output length")
        read, written = _cache(answer)
        return settle(
            Record(
                arrival_ns=self._start(row),
                prompt_tokens=self._rule.whole_prompt(prompt_tokens, read, written, self.counts),
                output_tokens=output_tokens,
                cached_tokens=read,
                e2e_s=as_seconds(row.get("response_time"), 1e-3),
                prompt=as_prompt(body),
                output_text=find_output({"response": answer}) if output_tokens <= 0 else None,
                model=first_label(row.get("ai_model"), body.get("model")),
                route=route,
                client=first_label(*(metadata.get(key) for key in _USERS)),
                session=first_label(*(metadata.get(key) for key in _SESSIONS)),
                status=_status(row),
                key=first_label(row.get("id")),  # pages of an export may overlap
            )
        )


def _cache(answer: Mapping[str, Any]) -> tuple[int, int]:
    """Cached tokens read and written of a response, OpenAI's or Anthropic's; -1 where unknown."""
    usage = as_object(answer.get("usage")) or as_object(as_object(answer.get("body")).get("usage"))
    details = as_object(usage.get("prompt_tokens_details") or usage.get("input_tokens_details"))
    read = (details.get("cached_tokens"), usage.get("cache_read_input_tokens"))
    return (
        max(as_count(value, "cached tokens") for value in read),
        as_count(usage.get("cache_creation_input_tokens"), "cached tokens"),
    )


def _pairs(sample: Sequence[Row]) -> Iterator[tuple[int, int]]:
    for row in sample:
        with contextlib.suppress(UnusableError):
            prompt = as_count(given(row.get("req_units")), "prompt length")
            yield prompt, _cache(as_object(row.get("response")))[0]


def _status(row: Row) -> str | None:
    status = given(row.get("response_status_code"))
    return read_status(given(row.get("is_success")) if status is None else status, None)
