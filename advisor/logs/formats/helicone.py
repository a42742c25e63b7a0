"""Helicone requests, as its export tool and its query API give them.

Source: Helicone/helicone, `HeliconeRequest` and `stores/request`. Times are UTC, `delay_ms` and
`time_to_first_token` milliseconds. Bodies are there only if asked for; else a note stands in their place. How
Anthropic's prompts were counted changed over time, so each provider's rows tell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from advisor.logs.formats.base import as_count, as_label, as_seconds, mostly
from advisor.logs.formats.calls import (
    GATEWAY_CACHE,
    CacheRule,
    Calls,
    as_object,
    check_route,
    first_label,
    first_token,
    given,
    path_of,
    settle,
)  # fmt: skip
from advisor.logs.formats.generic import read_status
from advisor.logs.options import ReadOptions
from advisor.logs.prompts import as_prompt, find_output
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.trace import Unknown

_NO_REFERENCE = "00000000-0000-0000-0000-000000000000"  # of a request that Helicone's cache did not answer
_SESSION = "helicone-session-id"
_HINTS = ("request_path", "request_body", "response_status", "delay_ms", "request_model")


class Helicone(Calls):
    """`request_created_at`, `delay_ms`, `request_body`, `response_body`, `request_properties`."""

    name: ClassVar[str] = "helicone"
    fields: ClassVar[tuple[str, ...]] = (
        "request_created_at", "request_path", "request_body", "response_body", "response_status", "delay_ms",
    )  # fmt: skip
    arrival: ClassVar[str] = "request_created_at"
    gaps: ClassVar[Mapping[str, Unknown]] = {
        "prompt": Unknown(
            "sharing",
            "the export has no request bodies",
            "export with --include-body, of requests that were not sent with Helicone-Omit-Request: "
            "docs/collecting-logs.md",
        ),
        "cached_tokens": Unknown(
            "sharing.cached_share",
            "no request has prompt_cache_read_tokens",
            "let the engine report them (vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report)",
        ),
        "ttft_s": Unknown(
            "latency.ttft_s", "no request has time_to_first_token", 'clients stream: {"stream": true}'
        ),
        "client": Unknown("clients", "no request has a user", "send the header Helicone-User-Id"),
        "session": Unknown("sessions", "no request has a session", "send the header Helicone-Session-Id"),
    }

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        super().__init__(sample, options)
        pairs: dict[str | None, list[tuple[int, int]]] = {}
        for row in sample:
            with contextlib.suppress(UnusableError):
                pairs.setdefault(first_label(row.get("provider")), []).append(_counts(row)[:2])
        self._rules = {provider: CacheRule(counts, apart=False) for provider, counts in pairs.items()}
        self._rule = CacheRule((), apart=False)  # of other providers

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: "request_created_at" in row and any(hint in row for hint in _HINTS))

    def _record(self, row: Row) -> Record:
        route = path_of(given(row.get("request_path")) or given(row.get("target_url")))
        check_route(route)
        if as_label(given(row.get("cache_reference_id"))) not in (None, _NO_REFERENCE):
            raise UnusableError(GATEWAY_CACHE)
        body, answer = as_object(row.get("request_body")), as_object(row.get("response_body"))
        prompt_tokens, read, written = _counts(row)
        output_tokens = as_count(given(row.get("completion_tokens")), "output length")
        rule = self._rules.get(first_label(row.get("provider")), self._rule)
        e2e = as_seconds(row.get("delay_ms"), 1e-3)
        models = (row.get(name) for name in ("model_override", "response_model", "request_model", "model"))
        return settle(
            Record(
                arrival_ns=self._start(row),
                prompt_tokens=rule.whole_prompt(prompt_tokens, read, written, self.counts),
                output_tokens=output_tokens,
                cached_tokens=read,
                ttft_s=first_token(as_seconds(row.get("time_to_first_token"), 1e-3), e2e),
                e2e_s=e2e,
                prompt=as_prompt(body),
                output_text=find_output({"response": answer}) if output_tokens <= 0 else None,
                model=first_label(*models, body.get("model")),
                route=route,
                client=first_label(row.get("request_user_id"), row.get("user_id")),
                session=_session(row),
                status=read_status(given(row.get("response_status")), None),
                key=first_label(row.get("request_id")),  # pages of an export may overlap
            )
        )


def _counts(row: Row) -> tuple[int, int, int]:
    """Prompt tokens, and cached ones read and written; -1 where unknown. Raises UnusableError."""
    return (
        as_count(given(row.get("prompt_tokens")), "prompt length"),
        as_count(given(row.get("prompt_cache_read_tokens")), "cached tokens"),
        as_count(given(row.get("prompt_cache_write_tokens")), "cached tokens"),
    )


def _session(row: Row) -> str | None:
    properties: Mapping[str, Any] = as_object(row.get("request_properties")) or as_object(row.get("properties"))
    return next((as_label(value) for name, value in properties.items() if name.lower() == _SESSION), None)
