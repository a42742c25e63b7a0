"""Names of span attributes: current GenAI names, old ones (vLLM's among them), OpenInference.

Sources: open-telemetry/semantic-conventions-genai, traceloop/openllmetry, vllm/tracing.py, the OpenInference
specification. Owns which attribute means what and which spans are calls; never reads content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from advisor.logs.formats.base import as_count
from advisor.logs.formats.otlp_spans import Attributes
from advisor.logs.times import as_number

Kind = Literal["call", "other", "step", "transport"]

_CALLS = frozenset((
    "chat", "text_completion", "generate_content", "completion", "completions", "chat.completions",
    "text.completions", "responses", "response",
))  # fmt: skip
_OTHERS = frozenset(("embeddings", "embedding", "rerank", "moderation", "image_generation", "retrieval"))
_STEPS = frozenset((
    "execute_tool", "invoke_agent", "create_agent", "invoke_workflow", "workflow", "task", "agent", "tool",
))  # fmt: skip
_OPENINFERENCE: dict[str, Kind] = {"LLM": "call", "EMBEDDING": "other", "RERANKER": "other"}
_OPERATION = ("gen_ai.operation.name", "llm.request.type", "traceloop.span.kind")
_OURS = ("gen_ai.", "llm.", "openinference.", "traceloop.")

PROMPT = (
    "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
)  # fmt: skip
OUTPUT = (
    "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion",
    "llm.usage.completion_tokens",
)  # fmt: skip
CACHED = (
    "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.cached_input_tokens", "gen_ai.usage.details.cache_read_tokens",
    "llm.token_count.prompt_details.cache_read", "llm.token_count.prompt_details.cache_input",
)  # fmt: skip
WRITTEN = (
    "gen_ai.usage.cache_write.input_tokens", "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_creation_input_tokens", "gen_ai.usage.cache_write_input_tokens",
    "llm.token_count.prompt_details.cache_write",
)  # fmt: skip
TOTAL = ("gen_ai.usage.total_tokens", "llm.token_count.total", "llm.usage.total_tokens")
MODEL = (
    "gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "llm.response.model_name",
    "llm.request.model_name",
)  # fmt: skip
CLIENT = ("user.id", "enduser.id", "enduser.pseudo.id", "traceloop.association.properties.user_id")
SESSION = ("gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id")
TTFT = (
    "gen_ai.response.time_to_first_chunk", "gen_ai.latency.time_to_first_token",
    "gen_ai.server.time_to_first_token",
)  # fmt: skip  # seconds
CALL_ID = ("gen_ai.response.id", "gen_ai.request.id")
FIRST_TOKEN_EVENTS = (
    "First Token Stream Event",
    "llm.content.completion.chunk",
    "gen_ai.content.completion.chunk",
)
FAMILIES = {
    "current": "GenAI current names (gen_ai.usage.input_tokens)",
    "old": "GenAI old names (gen_ai.usage.prompt_tokens)",
    "vllm": "vLLM's spans (gen_ai.usage.prompt_tokens, gen_ai.latency.*)",
    "openinference": "OpenInference (llm.token_count.prompt)",
}


def first(attributes: Attributes, names: Sequence[str]) -> Any:
    """The first of several attributes that is there."""
    return next((value for name in names if (value := attributes.get(name)) is not None), None)


def kind_of(name: str, attributes: Attributes) -> Kind:
    """What a span is: a call that generates text, another operation, a step around calls, or transport."""
    if (kind := attributes.get("openinference.span.kind")) is not None:
        return _OPENINFERENCE.get(str(kind).upper(), "step")
    operation = next((value for key in _OPERATION if isinstance(value := attributes.get(key), str)), None)
    if operation in _CALLS:
        return "call"
    if operation in _OTHERS:
        return "other"
    counted = first(attributes, PROMPT) is not None or first(attributes, OUTPUT) is not None
    if (counted or name == "llm_request") and operation not in _STEPS:
        return "call"
    return "step" if any(key.startswith(_OURS) for key in attributes) else "transport"


def family_of(attributes: Attributes) -> str:
    """Which of the `FAMILIES` the names of a span are of."""
    if "openinference.span.kind" in attributes or "llm.token_count.prompt" in attributes:
        return "openinference"
    if "gen_ai.latency.e2e" in attributes or "gen_ai.latency.time_in_queue" in attributes:
        return "vllm"
    old = "gen_ai.usage.prompt_tokens" in attributes or "gen_ai.prompt.0.role" in attributes
    return "old" if old else "current"


def session_of(attributes: Attributes) -> Any:
    """The session; frameworks put a name of theirs before `session.id`."""
    value = first(attributes, SESSION)
    if value is not None:
        return value
    return next((value for key, value in attributes.items() if key.endswith(".session.id")), None)


def tokens_of(attributes: Attributes) -> tuple[int, int, int, bool]:
    """Prompt tokens with cached ones, output tokens, cached ones, and whether cached ones had to be added.

    -1 where unknown; instrumentations write zero for a prompt that they could not count. Raises UnusableError.
    """
    prompt = as_count(first(attributes, PROMPT), "prompt length")
    output = as_count(first(attributes, OUTPUT), "output length")
    cached = as_count(first(attributes, CACHED), "cached tokens")
    kept = max(0, cached) + max(0, as_count(first(attributes, WRITTEN), "cached tokens"))
    if prompt <= 0 and not kept:
        return -1, output if output > 0 else -1, cached, False
    total = as_number(first(attributes, TOTAL))
    apart = prompt < kept or (output >= 0 and total == prompt + kept + output and kept > 0)
    return (prompt + kept if apart else prompt), output, cached, apart
