"""LiteLLM's StandardLoggingPayload, as its callbacks and bucket loggers write it: times are epoch seconds.

Source: BerriAI/litellm, `litellm/types/utils.py` and the proxy's spend tracking. Also owns what the spend logs
table shares with it. LiteLLM's prompt count holds the cached tokens, for Anthropic too.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from advisor.logs.formats.base import as_count, as_label, mostly
from advisor.logs.formats.calls import (
    GATEWAY_CACHE,
    CacheRule,
    Calls,
    as_object,
    first_label,
    first_token,
    given,
    keep_tools,
    seconds_since,
    settle,
)  # fmt: skip
from advisor.logs.formats.generic import read_status
from advisor.logs.operations import OTHER
from advisor.logs.options import ReadOptions
from advisor.logs.prompts import as_prompt, find_output, parsed
from advisor.logs.record import Prompt, Record, Row, UnusableError
from advisor.logs.trace import Unknown

_TEXT_CALLS = frozenset((
    "completion", "acompletion", "batch_completion", "abatch_completion", "text_completion", "atext_completion",
    "anthropic_messages", "responses", "aresponses", "_aresponses_websocket", "_arealtime", "generate_content",
    "agenerate_content", "generate_content_stream", "agenerate_content_stream", "pass_through_endpoint",
    "llm_passthrough_route", "allm_passthrough_route",
))  # fmt: skip
_REDACTED = "redacted-by-litellm"
_MARKS = (
    "... (litellm_truncated",
    "...truncated by litellm",
)  # what follows one was not next to what is before
_HEALTH_CHECK = "litellm-internal-health-check"  # the proxy's own key, user and team
_HEADER_GAP_S = 0.02  # no engine answers sooner through a proxy; ours
_DEPTH = 6

CACHED_HOW = (
    "let the engine report them (vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report); LiteLLM "
    "then logs them in metadata.usage_object"
)
SHARED_GAPS = {
    "cached_tokens": Unknown("sharing.cached_share", "no call has cached tokens in its usage", CACHED_HOW),
    "ttft_s": Unknown(
        "latency.ttft_s",
        "completionStartTime is missing or that of the end: the calls were not streamed",
        'clients stream: {"stream": true}',
    ),
    "client": Unknown("clients", "no call has an end user, a user or a key", "clients send `user` in the body"),
    "session": Unknown(
        "sessions", "no call has a session or trace id", "clients send metadata.session_id or litellm_trace_id"
    ),
}


class LiteLLM(Calls):
    """What both logs of LiteLLM have, under the same names."""

    arrival: ClassVar[str] = "startTime"

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        super().__init__(sample, options)
        self._rule = CacheRule((_counts(row) for row in sample), apart=False)

    @abstractmethod
    def _prompt(self, row: Row) -> Prompt | None:
        """The prompt as logged, redacted or shortened or not."""

    @abstractmethod
    def _names(self, row: Row) -> tuple[str | None, str | None]:
        """Client and session."""

    def _record(self, row: Row) -> Record:
        metadata = as_object(row.get("metadata"))
        call_type = as_label(row.get("call_type"))
        check_call(row, call_type)
        start = self._start(row)
        e2e = seconds_since(self._clock, start, row.get("endTime"))
        ttft = first_token(seconds_since(self._clock, start, row.get("completionStartTime")), e2e)
        if call_type == "anthropic_messages" and ttft < _HEADER_GAP_S:
            self.counts["start at headers"] += 1
            ttft = e2e = math.nan
        prompt_tokens = as_count(given(row.get("prompt_tokens")), "prompt length")
        output_tokens = as_count(given(row.get("completion_tokens")), "output length")
        read, written = read_cache(row, metadata)
        client, session = self._names(row)
        return settle(
            Record(
                arrival_ns=start,
                prompt_tokens=self._rule.whole_prompt(prompt_tokens, read, written, self.counts),
                output_tokens=output_tokens,
                cached_tokens=read,
                ttft_s=ttft,
                e2e_s=e2e,
                prompt=self._readable(row, counted=prompt_tokens > 0),
                output_text=_output(row) if output_tokens <= 0 else None,
                model=served_model(row),
                route=call_type,
                client=client,
                session=session,
                status=_status(row, metadata),
            )
        )

    def _notes(self) -> Iterable[str]:
        if cut := self.counts["cut"]:
            yield (
                f"prompts that LiteLLM shortened, of which only the start is compared: {cut}; "
                "MAX_STRING_LENGTH_PROMPT_IN_DB=1000000 keeps them whole"
            )
        if redacted := self.counts["redacted"]:
            yield f"prompts that LiteLLM redacted (turn_off_message_logging): {redacted}"
        if late := self.counts["start at headers"]:
            yield (
                "/v1/messages calls whose logged start is that of the response's headers, so that they arrived "
                f"earlier than shown, and whose latency is unknown: {late} (LiteLLM issue 17335)"
            )

    def _readable(self, row: Row, *, counted: bool) -> Prompt | None:
        """The prompt; of a shortened one, whose length must have been `counted`, what is before the cut."""
        prompt = self._prompt(row)
        if prompt is None:
            self.counts["redacted"] += _is_redacted(row.get("messages")) or _is_redacted(
                as_object(row.get("proxy_server_request")).get("messages")
            )
            return None
        whole = before_cut(prompt)
        if whole is prompt:
            return prompt
        self.counts["cut"] += 1
        return whole if counted else None  # what is left does not tell the length


class LiteLLMPayload(LiteLLM):
    """`startTime`, `endTime`, `completionStartTime`, `messages`, `response`, `metadata`."""

    name: ClassVar[str] = "litellm-payload"
    fields: ClassVar[tuple[str, ...]] = (
        "trace_id",
        "call_type",
        "startTime",
        "completionStartTime",
        "response_time",
    )
    gaps: ClassVar[Mapping[str, Unknown]] = SHARED_GAPS | {
        "prompt": Unknown(
            "sharing",
            "the payload has no messages, or redacted ones",
            "litellm_settings: turn_off_message_logging: false: docs/collecting-logs.md",
        )
    }

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        keys = {"id", "call_type", "startTime", "endTime"}
        return mostly(sample, lambda row: keys <= row.keys() and "request_id" not in row)

    def _prompt(self, row: Row) -> Prompt | None:
        messages = parsed(row.get("messages"))
        if isinstance(messages, str) and messages.endswith("does not support large content"):
            self.counts["cut"] += 1  # the text of a list, not of a prompt
            return None
        return keep_tools(as_prompt(messages), as_object(row.get("model_parameters")).get("tools"))

    def _names(self, row: Row) -> tuple[str | None, str | None]:
        metadata = as_object(row.get("metadata"))
        keys = ("user_api_key_end_user_id", "user_api_key_user_id", "user_api_key_hash")
        client = first_label(row.get("end_user"), *(metadata.get(key) for key in keys))
        return client, first_label(row.get("trace_id"))


def check_call(row: Row, call_type: str | None) -> None:
    """Raise UnusableError for a row that is no call of an engine that generates text."""
    if call_type is not None and call_type not in _TEXT_CALLS:
        raise UnusableError(OTHER)
    if row.get("cache_hit") in (True, "True", "true"):
        raise UnusableError(GATEWAY_CACHE)
    if _HEALTH_CHECK in (row.get("api_key"), row.get("user"), row.get("team_id"), row.get("end_user")):
        raise UnusableError("health check")


def read_cache(row: Row, metadata: Mapping[str, Any]) -> tuple[int, int]:
    """Cached tokens read and written of a call; -1 where its usage does not say.

    The totals, never the split by cache life, which covers only the first part of a streamed call.
    """
    usage = as_object(metadata.get("usage_object")) or as_object(as_object(row.get("response")).get("usage"))
    extra = as_object(metadata.get("additional_usage_values"))
    read = written = -1
    for holder in (usage, extra):
        details = as_object(holder.get("prompt_tokens_details") or holder.get("input_tokens_details"))
        for value in (details.get("cached_tokens"), holder.get("cache_read_input_tokens")):
            read = max(read, as_count(value, "cached tokens"))
        for value in (details.get("cache_creation_tokens"), holder.get("cache_creation_input_tokens")):
            written = max(written, as_count(value, "cached tokens"))
    return read, written


def served_model(row: Row) -> str | None:
    """The model without the provider in front of it, which LiteLLM adds."""
    model, group = as_label(given(row.get("model"))), as_label(given(row.get("model_group")))
    provider = as_label(given(row.get("custom_llm_provider")))
    if model is None or (group is not None and model.endswith(f"/{group}")):
        return group
    return model.removeprefix(f"{provider}/")


def before_cut(prompt: Prompt) -> Prompt | None:
    """A prompt up to where LiteLLM shortened it; the same one where it did not, None where nothing is left."""
    if prompt.tools and _is_cut(prompt.tools):
        return None  # tools come first
    if prompt.text is not None:
        head = _head(prompt.text)
        return prompt if head is None else Prompt(text=head, cut=True) if head else None
    messages = prompt.messages or ()
    for index, message in enumerate(messages):
        head = _head(message["content"])
        if head is None and not _is_cut(message.get("tool_calls")):
            continue
        last = {"role": message["role"], "content": message["content"] if head is None else head}
        left = last["content"] or index
        return (
            Prompt(messages=[*messages[:index], last], tools=prompt.tools, media=prompt.media, cut=True)
            if left
            else None
        )
    return prompt


def _head(text: str) -> str | None:
    """What is before a mark; None where the text has none."""
    return next((text.partition(mark)[0] for mark in _MARKS if mark in text), None)


def _is_cut(value: object, depth: int = _DEPTH) -> bool:
    if isinstance(value, str):
        return any(mark in value for mark in _MARKS)
    if depth and isinstance(value, dict | list):
        return any(_is_cut(item, depth - 1) for item in (value.values() if isinstance(value, dict) else value))
    return False


def _is_redacted(messages: object) -> bool:
    messages = parsed(messages)
    first = messages[0] if isinstance(messages, list) and messages else messages
    return (first.get("content") if isinstance(first, dict) else first) == _REDACTED


def _counts(row: Row) -> tuple[int, int]:
    try:
        prompt = as_count(given(row.get("prompt_tokens")), "prompt length")
        return prompt, read_cache(row, as_object(row.get("metadata")))[0]
    except UnusableError:
        return -1, -1


def _output(row: Row) -> str | None:
    text = find_output({"response": row.get("response")})
    return None if text in (_REDACTED, "{}", "") else text


def _status(row: Row, metadata: Mapping[str, Any]) -> str | None:
    status = read_status(given(row.get("status")) or metadata.get("status"), None)
    if status in (None, "ok"):
        return status
    error = as_object(metadata.get("error_information")) or as_object(row.get("error_information"))
    return read_status(status, as_label(error.get("error_code")))
