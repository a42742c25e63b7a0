"""The formats that are recognised, the most particular first.

Add one: a class as `base.Format` says in a file of its own, and its place in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from advisor.logs.formats.aibrix import AIBrix
from advisor.logs.formats.aiperf import AIPerf
from advisor.logs.formats.anthropic_batch import AnthropicBatch
from advisor.logs.formats.anthropic_messages import AnthropicMessages
from advisor.logs.formats.azure import Azure
from advisor.logs.formats.base import Format
from advisor.logs.formats.burstgpt import BurstGPT
from advisor.logs.formats.claude_code import ClaudeCode
from advisor.logs.formats.dynamo import Dynamo
from advisor.logs.formats.envoy import EnvoyAIGateway
from advisor.logs.formats.generic import Generic
from advisor.logs.formats.helicone import Helicone
from advisor.logs.formats.langfuse import Langfuse
from advisor.logs.formats.langfuse_blob import LangfuseBlob
from advisor.logs.formats.langsmith import LangSmith
from advisor.logs.formats.litellm_payload import LiteLLMPayload
from advisor.logs.formats.litellm_spend import LiteLLMSpend
from advisor.logs.formats.lmcache import LMCache
from advisor.logs.formats.mooncake import Mooncake
from advisor.logs.formats.openai import OpenAI
from advisor.logs.formats.openai_batch import OpenAIBatch
from advisor.logs.formats.openai_usage import OpenAIUsage
from advisor.logs.formats.openrouter import OpenRouter
from advisor.logs.formats.otlp import OTLP
from advisor.logs.formats.portkey import Portkey
from advisor.logs.formats.qwen_bailian import QwenBailian
from advisor.logs.formats.saved import SavedTrace
from advisor.logs.formats.sglang_log import SGLangLog
from advisor.logs.formats.sglang_metrics import SGLangMetrics
from advisor.logs.formats.sharegpt import ShareGPT
from advisor.logs.formats.tgi import TGI
from advisor.logs.formats.tracelab import TraceLab
from advisor.logs.formats.triton import Triton
from advisor.logs.formats.vllm_bench import VLLMBench
from advisor.logs.formats.vllm_log import VLLM
from advisor.logs.formats.weka import Weka
from advisor.logs.options import ReadOptions
from advisor.logs.record import Row
from engine.errors import InputError

FORMATS: tuple[type[Format], ...] = (
    SavedTrace,
    Dynamo,
    AIPerf,
    Triton,
    VLLMBench,
    VLLM,
    SGLangLog,
    SGLangMetrics,
    TGI,
    Mooncake,
    QwenBailian,
    Weka,
    BurstGPT,
    Azure,
    LMCache,
    ShareGPT,
    AIBrix,
    TraceLab,
    LiteLLMSpend,
    LiteLLMPayload,
    Langfuse,
    LangfuseBlob,
    LangSmith,
    Helicone,
    Portkey,
    OpenRouter,
    EnvoyAIGateway,
    OTLP,
    OpenAIUsage,
    OpenAIBatch,
    AnthropicBatch,
    ClaudeCode,
    AnthropicMessages,
    OpenAI,
    Generic,
)

_ALIKE = 0.7  # two names are about the same
_LONGEST, _MOST_NAMES = 60, 60  # of names that are compared


def nearest_formats(names: Iterable[str], count: int = 3) -> list[str]:
    """The formats whose fields are most like the names that an unknown log has, nearest first."""
    seen = [_plain(name) for name in names if len(name) <= _LONGEST][:_MOST_NAMES]

    def likeness(kind: type[Format]) -> float:
        best = [
            max((SequenceMatcher(None, _plain(field), name).ratio() for name in seen), default=0.0)
            for field in kind.fields
        ]
        return sum(ratio for ratio in best if ratio > _ALIKE) / len(best)

    return [kind.name for kind in sorted(FORMATS, key=likeness, reverse=True)[:count]]


def choose_format(sample: Sequence[Row], options: ReadOptions) -> type[Format] | None:
    """The format of a file's first rows; None where no one knows them. `--format` and `--map` decide first."""
    if options.format is not None:
        for kind in FORMATS:
            if kind.name == options.format:
                return kind
        names = ", ".join(kind.name for kind in FORMATS)
        raise InputError(f"--format {options.format!r} is not known", hint=f"use one of {names}")
    if options.field_map:
        return OpenAI if OpenAI.detect(sample) else Generic
    return next((kind for kind in FORMATS if kind.detect(sample)), None)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
