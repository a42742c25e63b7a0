"""What tests and writers of gateway logs share: times as they print them, bodies, what a reading says."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from typing import Any, TypeVar

from helpers.logs import accounted
from helpers.traffic import MS, Call

from advisor.logs.trace import Labels, LogInfo, Trace

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
T = TypeVar("T")


def iso(ns: int, *, zone: str = "Z", separator: str = "T", digits: int = 3) -> str:
    """A time in UTC with `digits` of its fraction: `2026-09-14T08:00:00.120Z`."""
    stamp = _EPOCH + datetime.timedelta(microseconds=ns // 1000)
    fraction = f"{ns % 10**9:09d}"[:digits]
    return f"{stamp:%Y-%m-%d}{separator}{stamp:%H:%M:%S}.{fraction}{zone}"


def first_token_ns(call: Call) -> int | None:
    """When the first token came, None where nothing says so; before the end, as in streams."""
    return None if call.ttft_ns is None else min(call.arrival_ns + call.ttft_ns, call.end_ns - MS)


def openai_body(call: Call) -> dict[str, Any]:
    """The request as the client sent it."""
    return {"model": call.model, "messages": list(call.messages), "stream": call.ttft_ns is not None}


def openai_answer(call: Call, *, usage: bool = True) -> dict[str, Any]:
    """The response of OpenAI's chat API; without usage as streams that did not ask for it."""
    answer: dict[str, Any] = {
        "id": call.id,
        "object": "chat.completion",
        "model": call.model,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": call.answer}, "finish_reason": "stop"}
        ],
    }
    if usage:
        answer["usage"] = openai_usage(call)
    return answer


def openai_usage(call: Call) -> dict[str, Any]:
    """Cached tokens are part of the prompt; the details are missing where the engine does not report them."""
    details = None if call.cached_tokens is None else {"cached_tokens": call.cached_tokens}
    return {
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.output_tokens,
        "total_tokens": call.prompt_tokens + call.output_tokens,
        "prompt_tokens_details": details,
    }


def mixed(rows: Sequence[T], others: Sequence[T], seed: int = 2) -> list[T]:
    """Both in one order that is neither's."""
    return random.Random(seed).sample([*rows, *others], len(rows) + len(others))


def said(labels: Labels | None, row: int = 0) -> str | None:
    """The name of a row; None where it has none."""
    return None if labels is None or labels.codes[row] < 0 else labels.names[labels.codes[row]]


def info(trace: Trace) -> LogInfo:
    """How the log was read, checked for rows that were lost."""
    assert trace.info is not None
    assert accounted(trace)
    return trace.info


def unknown(trace: Trace) -> dict[str, str]:
    """JSON path -> how to get it, of what the reader declares unknown."""
    return {entry.path: entry.how_to_get for entry in trace.unknown}


def cached(trace: Trace) -> list[int]:
    """Cached tokens by row, -1 where unknown, also where no row has any."""
    return [-1] * len(trace) if trace.cached_tokens is None else trace.cached_tokens.tolist()
