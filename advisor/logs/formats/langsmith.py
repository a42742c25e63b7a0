"""LangSmith runs: exports of its client and its API as JSON, and bulk exports in Parquet, where JSON is text.

Source: langchain-ai/langsmith-sdk, `schemas.py`. `session_id` is the project; a thread is in the metadata. The
token counts at the top may be 0 while those in the outputs are right, and `first_token_time` null while an
event tells it. Times are UTC, which the Python client does not say.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from advisor.logs.formats.base import as_count, mostly
from advisor.logs.formats.calls import (
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
from advisor.logs.operations import OTHER
from advisor.logs.options import ReadOptions
from advisor.logs.prompts import as_prompt, find_output, parsed
from advisor.logs.record import Prompt, Record, Row, UnusableError
from advisor.logs.trace import Unknown

_ROLES = {
    "human": "user", "ai": "assistant", "HumanMessage": "user", "HumanMessageChunk": "user",
    "AIMessage": "assistant", "AIMessageChunk": "assistant", "SystemMessage": "system", "ToolMessage": "tool",
    "FunctionMessage": "tool",
}  # fmt: skip
_THREADS = ("thread_id", "session_id", "conversation_id")
_USERS = ("user_id", "ls_user_id", "user")
_MODELS = ("ls_model_name", "model", "model_name")
_READ = ("cache_read", "cached_tokens", "cache_read_input_tokens")
_WRITTEN = ("cache_creation", "cache_creation_input_tokens")


class LangSmith(Calls):
    """`run_type`, `start_time`, `end_time`, `inputs`, `outputs`, `extra`, `events`."""

    name: ClassVar[str] = "langsmith"
    fields: ClassVar[tuple[str, ...]] = ("run_type", "dotted_order", "start_time", "inputs", "outputs", "extra")
    arrival: ClassVar[str] = "start_time"
    gaps: ClassVar[Mapping[str, Unknown]] = {
        "prompt": Unknown(
            "sharing",
            "no run has its inputs",
            "export the field `inputs`, and trace without LANGSMITH_HIDE_INPUTS: docs/collecting-logs.md",
        ),
        "cached_tokens": Unknown(
            "sharing.cached_share",
            "no run has cached tokens in its usage",
            "let the engine report them (vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report), "
            "and stream with stream_usage=True",
        ),
        "ttft_s": Unknown(
            "latency.ttft_s",
            "no run has a first token",
            "stream the calls, and export first_token_time and events",
        ),
        "client": Unknown("clients", "no run has a user in its metadata", "set metadata user_id on runs"),
        "session": Unknown("sessions", "no run has a thread in its metadata", "set metadata thread_id on runs"),
    }

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        super().__init__(sample, options)
        self._rule = CacheRule(filter(None, map(_evidence, sample)), apart=False)

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: {"run_type", "start_time"} <= row.keys())

    def _record(self, row: Row) -> Record:
        kind = row.get("run_type", "llm")
        if kind != "llm":
            raise UnusableError(OTHER if kind == "embedding" else "not a request")
        if row.get("status") == "pending":
            raise UnusableError("unfinished request")
        extra, outputs = as_object(row.get("extra")), as_object(row.get("outputs"))
        metadata, settings = as_object(extra.get("metadata")), as_object(extra.get("invocation_params"))
        inputs = as_object(row.get("inputs"))
        start = self._start(row)
        e2e = seconds_since(self._clock, start, row.get("end_time"))
        prompt_tokens, output_tokens, read, written = read_tokens(row, outputs, metadata)
        models = (*(metadata.get(key) for key in _MODELS), settings.get("model"), inputs.get("model"))
        return settle(
            Record(
                arrival_ns=start,
                prompt_tokens=self._rule.whole_prompt(prompt_tokens, read, written, self.counts),
                output_tokens=output_tokens,
                cached_tokens=read,
                ttft_s=first_token(self._ttft(row, start), e2e),
                e2e_s=e2e,
                prompt=keep_tools(find_inputs(inputs), settings.get("tools")),
                output_text=_output(outputs) if output_tokens <= 0 else None,
                model=first_label(*models),
                client=first_label(*(metadata.get(key) for key in _USERS)),
                session=first_label(*(metadata.get(key) for key in _THREADS)),
                status="error" if row.get("status") == "error" or given(row.get("error")) else "ok",
                key=first_label(row.get("id")),  # pages of an export may overlap
            )
        )

    def _ttft(self, row: Row, start: int) -> float:
        """Seconds to `first_token_time`, else to the first event of a token."""
        ttft = seconds_since(self._clock, start, row.get("first_token_time"))
        events = parsed(row.get("events")) if math.isnan(ttft) else None
        for event in events if isinstance(events, list) else ():
            if isinstance(event, dict) and event.get("name") == "new_token":
                return seconds_since(self._clock, start, event.get("time"))
        return ttft


def read_tokens(row: Row, outputs: Mapping[str, Any], metadata: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Prompt and output tokens, and cached ones read and written; -1 where unknown. Raises UnusableError.

    The usage in the outputs is the model's own; what the run has at its top is often 0.
    """
    top: Mapping[str, Any] = {
        "input_tokens": row.get("prompt_tokens"),
        "output_tokens": row.get("completion_tokens"),
        "input_token_details": row.get("prompt_token_details"),
    }
    prompt = output = read = written = -1
    for usage in (*_usages(outputs, metadata), top):
        details = as_object(
            usage.get("input_token_details")
            or usage.get("prompt_tokens_details")
            or usage.get("prompt_token_details")
        )
        if prompt <= 0:
            prompt = max(prompt, _count(usage, "input_tokens", "prompt_tokens"))
            output = max(output, _count(usage, "output_tokens", "completion_tokens"))
        read = max(read, _count(details, *_READ), _count(usage, *_READ))
        written = max(written, _count(details, *_WRITTEN), _count(usage, *_WRITTEN))
    return prompt, output, read, written


def find_inputs(inputs: Mapping[str, Any]) -> Prompt | None:
    """The prompt of a run's inputs: OpenAI's body, LangChain's messages, or a plain prompt."""
    messages = parsed(inputs.get("messages"))
    if isinstance(messages, list) and messages:
        if isinstance(messages[0], list):
            if len(messages) > 1:
                raise UnusableError("several prompts in one request")
            messages = messages[0]
        plain = [_message(message) for message in messages]
        return as_prompt({**inputs, "messages": plain}) if all(plain) else None
    prompts = parsed(inputs.get("prompts"))
    with contextlib.suppress(UnusableError):
        return as_prompt(prompts if isinstance(prompts, list) else inputs)
    return None


def _message(message: object) -> dict[str, Any] | None:
    """A message with `role` and `content`, out of LangChain's serialised ones too; None for anything else."""
    if not isinstance(message, dict):
        return None
    inner = message.get("kwargs") or message.get("data") or message
    if not isinstance(inner, dict):
        return None
    path = message.get("id")
    kind = path[-1] if isinstance(path, list) and path else inner.get("type", message.get("type"))
    role = inner.get("role") or (_ROLES.get(kind, kind) if isinstance(kind, str) else None)
    if not role:
        return None
    said = {"role": role, "content": inner.get("content")}
    said |= {key: inner[key] for key in ("tool_call_id", "name") if inner.get(key)}
    calls = inner.get("tool_calls")
    if isinstance(calls, list) and calls:
        said["tool_calls"] = [
            {**call, "arguments": call["args"]} if isinstance(call, dict) and "args" in call else call
            for call in calls
        ]
    return said


def _usages(outputs: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Where the usage of a call may be, the most trusted first."""
    yield as_object(outputs.get("usage_metadata"))
    yield as_object(_answer(outputs).get("usage_metadata"))
    yield as_object(outputs.get("usage"))
    yield as_object(as_object(outputs.get("llm_output")).get("token_usage"))
    yield as_object(metadata.get("usage_metadata"))


def _generation(outputs: Mapping[str, Any]) -> Mapping[str, Any]:
    value = outputs.get("generations")
    while isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, dict) else {}


def _answer(outputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """LangChain's message of the first generation."""
    message = as_object(_generation(outputs).get("message"))
    return as_object(message.get("kwargs")) or message


def _output(outputs: Mapping[str, Any]) -> str | None:
    text = _generation(outputs).get("text") or _answer(outputs).get("content") or find_output(outputs)
    return text if isinstance(text, str) and text else None


def _count(usage: Mapping[str, Any], *names: str) -> int:
    return next(
        (count for name in names if (count := as_count(given(usage.get(name)), "number of tokens")) >= 0), -1
    )


def _evidence(row: Row) -> tuple[int, int] | None:
    metadata = as_object(as_object(row.get("extra")).get("metadata"))
    try:
        prompt, _, read, _ = read_tokens(row, as_object(row.get("outputs")), metadata)
    except UnusableError:
        return None
    return prompt, read
