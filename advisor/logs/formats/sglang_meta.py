"""What SGLang's own outputs have in common: the `meta_info` of a finished request, and its prompt.

Source: sgl-project/sglang, python/sglang/srt/managers/tokenizer_manager.py and utils/request_logger.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.logs.formats.base import as_count, as_label, as_row, as_seconds, as_token_ids
from advisor.logs.record import Prompt, Record, Row
from advisor.logs.reprs import Cut
from advisor.logs.times import as_number

HEALTH_CHECK = "HEALTH_CHECK"  # is in the ids of the server's own requests
_FINE = ("stop", "length", "tool_calls")
_CUT_MARK = "..."
_CUT_LENGTH = 2048  # --log-requests-level 2 keeps that many characters or ids: a head and a tail of half each


def read_meta(meta: Row) -> Record:
    """Lengths, latencies and status of a finished request. Raises UnusableError."""
    finished = meta.get("finish_reason")
    reason = as_label(as_row(finished).get("type") if isinstance(finished, dict) else finished)
    prompt = as_count(meta.get("prompt_tokens"), "prompt length")
    received, first = as_number(meta.get("request_received_ts")), _first_token(meta)
    return Record(
        prompt_tokens=prompt if prompt > 0 else -1,  # a request that never started has none counted
        output_tokens=as_count(meta.get("completion_tokens"), "output length"),
        cached_tokens=as_count(meta.get("cached_tokens"), "cached tokens"),
        ttft_s=as_seconds(None if received is None or first is None else first - received),
        e2e_s=as_seconds(meta.get("e2e_latency")),
        status="ok" if reason in _FINE else reason,
    )


def read_prompt(request: Mapping[str, Any]) -> Prompt | None:
    """The prompt of a request: its token ids, which are exact, else its text; of a cut one, its head."""
    shown, cut = _head(request.get("input_ids"))
    if (ids := as_token_ids(shown)) is not None:
        return Prompt(tokens=ids, cut=cut)
    text, cut = _head(request.get("text"))
    return Prompt(text=text, cut=cut) if isinstance(text, str) and text else None


def is_batch(request: Mapping[str, Any]) -> bool:
    """Whether one request asks several prompts."""
    return isinstance(request.get("rid"), list)


def split_batch(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The requests of a batch, each with its own id and prompt."""
    rids = request["rid"]
    columns = {
        name: value
        for name in ("text", "input_ids")
        if isinstance(value := request.get(name), list) and len(value) == len(rids)
    }
    return [
        {"rid": rid, **{name: column[index] for name, column in columns.items()}}
        for index, rid in enumerate(rids)
    ]


def is_embedding(request: Mapping[str, Any]) -> bool:
    """Whether nothing is generated: only such requests have this field."""
    return "is_cross_encoder_request" in request


def _head(value: object) -> tuple[Any, bool]:
    """What is left of the start of a value that the logger cut in the middle, and whether it did."""
    half = _CUT_LENGTH // 2
    if isinstance(value, Cut):
        return value.head, True
    if (
        isinstance(value, str)
        and len(value) == _CUT_LENGTH + len(_CUT_MARK)
        and value[half:].startswith(_CUT_MARK)
    ):
        return value[:half], True
    if isinstance(value, list) and len(value) == _CUT_LENGTH + 1 and value[half] == _CUT_MARK:
        return value[:half], True
    return value, False


def _first_token(meta: Row) -> int | float | None:
    names = ("prefill_finished_ts", "prefill_finished_time")
    return next((number for name in names if (number := as_number(meta.get(name)))), None)
