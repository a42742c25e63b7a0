"""Text Generation Inference: launcher flags, which are environment variables as well; the flags win.

Defaults are those of the launcher's reference for 3.3; what it leaves to the machine is marked unverified.
"""

from __future__ import annotations

from collections.abc import Mapping

from advisor.advice.current.flags import Parsed, parse_mapping, table
from advisor.advice.current.model import Current
from advisor.advice.current.settings import Around, Settings
from advisor.advice.current.values import Knob
from engine.config import PoolConfig

SEEN = ("3.0", "3.3.7")
_SOURCE = "TGI launcher reference"
_SEEN = "3.3"

KNOBS = (
    Knob("model", "text", ("model-id",)),
    Knob("tp", "count", ("num-shard",)),
    Knob("sharded", "truth", ("sharded",)),
    Knob("token_budget", "count", ("max-batch-prefill-tokens",)),
    Knob("kv_tokens", "count", ("max-batch-total-tokens",)),
    Knob("batch_size", "count", ("max-batch-size",)),
    Knob("max_concurrent", "count", ("max-concurrent-requests",)),
    Knob("max_input", "count", ("max-input-tokens", "max-input-length")),
    Knob("max_len", "count", ("max-total-tokens",)),
    Knob("memory_fraction", "number", ("cuda-memory-fraction",), 0.0, 1.0),
    Knob("dtype", "text", ("dtype",)),
    Knob("kv_dtype", "text", ("kv-cache-dtype",)),
    Knob("quantization", "text", ("quantize",)),
    Knob("prefix_cache", "truth", ("prefix-caching",)),
    Knob("chunked", "truth", ("prefill-chunking",)),
    Knob("attention", "text", ("attention",)),
)
_ENVIRONMENT_ONLY = ("prefix-caching", "prefill-chunking", "attention")
_ENVIRONMENT = table("tgi", KNOBS, ())
TABLE = table("tgi", [k for k in KNOBS if k.flags[0] not in _ENVIRONMENT_ONLY], ("tgi",))


def parse_environment(env: Mapping[str, str]) -> Parsed:
    """The variables that stand for flags. Raises InputError."""
    known = {
        name: value
        for name, value in env.items()
        if value and name.isupper() and name.lower().replace("_", "-") in _ENVIRONMENT.knobs
    }
    return parse_mapping(_ENVIRONMENT, {name.lower(): value for name, value in known.items()}, "environment")


def build(parsed: Parsed, around: Around) -> Current:
    """The configuration of one launch. Raises InputError."""
    s = Settings("tgi", parsed, around, SEEN)
    third = around.at_least("3.0.0") is not False
    tp = _shards(s)
    chunked = s.take("chunked", s.flag("chunked"), third, "from 3.0", "TGI: chunking is on since 3.0", third)
    if not chunked:
        s.notes.append("without chunking a prefill pauses the decodes; waiting-served-ratio is not modelled")
    rows = s.take("max_seqs", s.count("max_concurrent"), 128, _SEEN, _SOURCE)
    batch = s.count("batch_size")
    pool = PoolConfig(
        count=around.count,
        tp=tp,
        devices_per_instance=tp,
        batching="chunked" if chunked else "prefill_first",
        token_budget=_budget(s),
        max_seqs=min(rows, batch) if batch else rows,
        block_size=s.take("block_size", None, 16, _SEEN, "set by the attention kernel; ours", verified=False),
        prefix_cache=_prefix_cache(s, third),
        kv_tokens=s.count("kv_tokens"),
    )
    s.keep_other("quantization", "attention")
    s.notes.append("TGI has been in maintenance since 2025-12: its own README points to vLLM and SGLang")
    max_len = s.count("max_len")
    if max_len is None:
        s.assume("max_len", None, _SEEN, "the model's own length, if it fits")
    return s.current(
        (pool,),
        dtype=s.take("dtype", s.text("dtype"), "auto", _SEEN, _SOURCE),
        kv_dtype=s.take("kv_dtype", s.text("kv_dtype"), "auto", _SEEN, _SOURCE),
        max_len=max_len,
        memory_fraction=s.take("memory_fraction", s.number("memory_fraction"), 1.0, _SEEN, _SOURCE),
    )


def _shards(s: Settings) -> int:
    if s.flag("sharded") is False:
        return 1
    seen = s.around.devices
    why = "TGI takes every GPU it sees" + ("" if seen else "; how many is not known")
    return s.take("tp", s.count("tp"), seen or 1, _SEEN, why, verified=seen is not None)


def _budget(s: Settings) -> int:
    longest = s.count("max_input")
    if longest is None:
        why = "TGI takes it from memory and length; ours"
        return s.take("token_budget", s.count("token_budget"), 4096, _SEEN, why, verified=False)
    s.other["max_input"] = longest
    why = f"{_SOURCE}: longest input and 50"
    return s.take("token_budget", s.count("token_budget"), longest + 50, _SEEN, why)


def _prefix_cache(s: Settings, third: bool) -> bool:
    said = s.flag("prefix_cache")
    if s.text("attention") == "paged":
        s.notes.append("paged attention turns TGI's prefix cache off")
        return False
    if said is None and third:
        s.notes.append(
            "prefix caching is off for vision models, adapters and head sizes other than 64, 128 and 256"
        )
    return s.take("prefix_cache", said, third, "from 3.0", "TGI 3.3.7 launcher", verified=third)
