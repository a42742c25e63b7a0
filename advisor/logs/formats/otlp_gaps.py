"""What spans mostly do not tell, and the setting that makes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from advisor.logs.trace import Unknown

_OFF = (
    "the spans hold no prompts, which are not captured by default",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY with "
    "OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental (=true for older instrumentations, which "
    "write log events: give their file too): docs/collecting-logs.md",
)
_VLLM = (
    "vLLM's spans hold no prompts",
    "trace the clients or the gateway too, with their messages: docs/collecting-logs.md",
)
_CUT = (
    "an attribute limit cut the prompts",
    "unset OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT and OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT: "
    "docs/collecting-logs.md",
)
_HIDDEN = (
    "the spans hold no prompts",
    "unset OPENINFERENCE_HIDE_INPUTS and OPENINFERENCE_HIDE_INPUT_MESSAGES: docs/collecting-logs.md",
)
_USAGE = ("no span has token counts", 'let clients that stream send stream_options {"include_usage": true}')
_GAPS = {
    "cached_tokens": Unknown(
        "sharing.cached_share",
        "no span has gen_ai.usage.cache_read.input_tokens",
        "update the instrumentation, and let the engine report cached tokens "
        "(vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report)",
    ),
    "prompt_tokens": Unknown("lengths.prompt", *_USAGE),
    "output_tokens": Unknown("lengths.output", *_USAGE),
    "ttft_s": Unknown(
        "latency.ttft_s",
        "no span has a time to the first token",
        "record gen_ai.response.time_to_first_chunk: stream, with an instrumentation that has it",
    ),
    "e2e_s": Unknown("latency.e2e_s", "no call has a span with an end", "give the file of the spans too"),
    "model": Unknown("log.models", "no span names a model", "set gen_ai.request.model on the spans"),
    "client": Unknown("clients", "no span names a user", "set user.id on the spans"),
    "session": Unknown("sessions", "no span names a session", "set gen_ai.conversation.id or session.id"),
}


TOLD = ("prompt", *_GAPS)  # fields of a Record


def gaps_of(counts: Counter[str]) -> Mapping[str, Unknown]:
    """What to declare unknown where no span has a field of a Record, given what was counted."""
    if counts["cut"]:
        reason = _CUT
    elif counts["names openinference"]:
        reason = _HIDDEN
    else:
        only_vllm = counts["names vllm"] and not counts["names current"] and not counts["names old"]
        reason = _VLLM if only_vllm else _OFF
    return {"prompt": Unknown("sharing", *reason)} | _GAPS
