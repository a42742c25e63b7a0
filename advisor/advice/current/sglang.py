"""SGLang: its knobs, its defaults by version and GPU memory, its traps.

Defaults were read in 0.4.6, 0.5.5 and 0.5.23. SGLang runs prefill batches before decodes unless
--enable-mixed-chunk is given, so only then is a chunk a stall-free token budget.
"""

from __future__ import annotations

from typing import Literal

from advisor.advice.current.flags import Parsed, table
from advisor.advice.current.model import Current
from advisor.advice.current.settings import Around, Settings, number_of
from advisor.advice.current.values import Knob
from engine.config import PoolConfig, RouterConfig

SEEN = ("0.3.6", "0.5.23")
_MEMORY = "SGLang memory defaults by GPU memory"

KNOBS = (
    Knob("model", "text", ("model-path", "model")),
    Knob("config", "text", ("config",)),
    Knob("tp", "count", ("tp-size", "tensor-parallel-size", "tp")),
    Knob("pp", "count", ("pp-size", "pipeline-parallel-size", "pp")),
    Knob("dp", "count", ("dp-size", "data-parallel-size", "dp")),
    Knob("dp_attention", "switch", ("enable-dp-attention",)),
    Knob("token_budget", "count", ("chunked-prefill-size",)),
    Knob("mixed", "switch", ("enable-mixed-chunk",)),
    Knob("prefill_tokens", "size", ("max-prefill-tokens",)),
    Knob("max_seqs", "count", ("max-running-requests",)),
    Knob("kv_tokens", "size", ("max-total-tokens",)),
    Knob("block_size", "count", ("page-size",)),
    Knob("no_prefix_cache", "switch", ("disable-radix-cache",)),
    Knob("queue_policy", "text", ("schedule-policy",)),
    Knob("max_len", "count", ("context-length",)),
    Knob("memory_fraction", "number", ("mem-fraction-static",), 0.0, 1.0),
    Knob("dtype", "text", ("dtype",)),
    Knob("kv_dtype", "text", ("kv-cache-dtype",)),
    Knob("quantization", "text", ("quantization",)),
    Knob("host_cache", "switch", ("enable-hierarchical-cache", "enable-hicache")),
    Knob("host_cache_ratio", "number", ("hicache-ratio",), 0.0),
    Knob("host_cache_gb", "number", ("hicache-size",), 0.0),
    Knob("max_queued_requests", "count", ("max-queued-requests",)),
    Knob("speculative", "text", ("speculative-algorithm",)),
    Knob("side", "text", ("disaggregation-mode",)),
    Knob("decode_prefix_cache", "switch", ("disaggregation-decode-enable-radix-cache",)),
    Knob("nodes", "count", ("nnodes",)),
)
TABLE = table("sglang", KNOBS, ("sglang", "sglang_old"))
_REMOVED = ("disaggregation-decode-tp", "disaggregation-decode-dp", "disaggregation-prefill-pp")


def build(parsed: Parsed, around: Around) -> Current:
    """The configuration of one launch. Raises InputError."""
    s = Settings("sglang", parsed, around, SEEN)
    tp = s.take("tp", s.count("tp"), 1, "all", "SGLang arguments")
    pp = s.take("pp", s.count("pp"), 1, "all", "SGLang arguments")
    dp = s.count("dp") or 1
    attention = bool(s.flag("dp_attention"))
    role = _role(s)
    prefix = _prefix_cache(s, role)
    max_len, kv_tokens = s.count("max_len"), s.count("kv_tokens")
    if max_len is None:
        s.assume("max_len", None, "all", "the model's own length")
    batching, budget = _budget(s, dp if attention else 1, max_len)
    pool = PoolConfig(
        role=role,
        count=around.count * (1 if attention else dp),
        tp=tp,
        pp=pp,
        devices_per_instance=tp * pp,
        batching=batching,
        token_budget=budget,
        max_seqs=_max_seqs(s, kv_tokens, max_len),
        block_size=s.take(
            "block_size", s.count("block_size"), 1, "0.4.6 to 0.5.23", "SGLang, unless a backend sets it"
        ),
        prefix_cache=prefix,
        queue_policy=_queue(s, prefix),
        kv_tokens=kv_tokens,
    )
    s.keep_other(
        "quantization", "host_cache", "host_cache_ratio", "host_cache_gb", "max_queued_requests", "speculative",
        "dp_attention",
    )  # fmt: skip
    if s.other.get("speculative"):
        s.notes.append("speculative decoding is not modelled")
    _parallel_notes(s, dp, attention)
    fraction = s.number("memory_fraction")
    if fraction is None:
        s.assume(
            "memory_fraction", None, "0.5.23", "derived from the chunk: a larger chunk leaves less KV cache"
        )
    return s.current(
        (pool,),
        router=RouterConfig(policy="least_loaded") if dp > 1 and not attention else None,
        dtype={"half": "float16", "float": "float32"}.get(s.text("dtype") or "auto", s.text("dtype") or "auto"),
        kv_dtype=s.take("kv_dtype", s.text("kv_dtype"), "auto", "all", "SGLang arguments"),
        max_len=max_len,
        memory_fraction=fraction,
    )


def _budget(s: Settings, split: int, max_len: int | None) -> tuple[Literal["chunked", "prefill_first"], int]:
    """Batching and tokens of a prefill batch; `split`: data-parallel attention ranks share the chunk."""
    raw = s.said("token_budget")
    whole = s.take("prefill_tokens", s.count("prefill_tokens"), 16384, "0.5.23", "SGLang schedule fields")
    if raw == -1:
        return "prefill_first", max(whole, max_len or 0)
    default, versions, verified, why = _chunk(s.around)
    chunk = s.take("token_budget", s.count("token_budget"), default, versions, why, verified)
    if split > 1:
        chunk = max(1, chunk // split)
        s.notes.append("data-parallel attention splits the chunk over its ranks")
    if s.flag("mixed"):
        return "chunked", chunk
    s.assume("mixed", False, "all", "SGLang schedule fields")
    s.notes.append(
        "without --enable-mixed-chunk prefill batches run before decodes and stall them: read as prefill_first"
    )
    # SGLang: the bound of a batch is the larger of --max-prefill-tokens and the longest context.
    return "prefill_first", min(chunk, max(whole, max_len or chunk))


def _chunk(around: Around) -> tuple[int, str, bool, str]:
    """(tokens, versions, verified, source) of the default chunk."""
    gib, version = around.memory_gib, number_of(around.version or SEEN[1])
    if gib is None:
        return 4096, "0.5.23", False, f"{_MEMORY}; the GPU is not known: SGLang's value without one"
    if version < (0, 5):
        seen = version >= (0, 4, 4)
        return (2048 if gib * 1024 < 25_000 else 8192), "0.4.6", seen, f"{_MEMORY}: 25,000 MiB"
    small = 4096 if version >= (0, 5, 6) else 2048  # 20 to 35 GiB: 2048 in 0.5.5, 4096 in 0.5.23
    steps = ((20, 2048), (35, small), (60, 4096), (160, 8192))
    tokens = next((tokens for below, tokens in steps if gib < below), 16384)
    exact = version in ((0, 5, 5), (0, 5, 23)) or not 20 <= gib < 35
    return tokens, "0.5.5 to 0.5.23", exact, _MEMORY


def _max_seqs(s: Settings, kv_tokens: int | None, max_len: int | None) -> int:
    default = 2048
    if kv_tokens and max_len:
        default = min(max(2048, min(int(kv_tokens / max_len * 512), 4096)), max(1, kv_tokens // 2))
    why = "SGLang: 512 x KV tokens / length, held between 2048 and 4096"
    return s.take("max_seqs", s.count("max_seqs"), default, "0.5.23", why, verified=bool(kv_tokens and max_len))


def _prefix_cache(s: Settings, role: str) -> bool:
    off = s.flag("no_prefix_cache")
    if role == "decode" and off is None:
        on = bool(s.flag("decode_prefix_cache"))
        if not on:
            s.assume("prefix_cache", False, "0.5.23", "SGLang decode servers turn the radix cache off")
        return on
    return s.take(
        "prefix_cache", None if off is None else not off, True, "all", "SGLang: the radix cache is on"
    )


def _queue(s: Settings, prefix: bool) -> Literal["fcfs", "prefix_first"]:
    newer = s.around.at_least("0.4.4")
    default = "lpm" if newer is False else "fcfs"
    versions = "up to 0.4.3" if newer is False else "from 0.4.4"
    policy = s.take("queue_policy", s.text("queue_policy"), default, versions, "SGLang schedule fields")
    if policy in ("lpm", "dfs-weight"):
        if not prefix:
            s.notes.append(f"{policy} becomes first come, first served while the radix cache is off")
            return "fcfs"
        s.notes.append(
            f"{policy} falls back to first come, first served when more than 128 requests wait, and may starve "
            "cold requests; our prefix_first ages them"
        )
        return "prefix_first"
    if policy != "fcfs":
        s.notes.append("the schedule policy has no word of ours: modelled as first come, first served")
    return "fcfs"


def _role(s: Settings) -> Literal["colocated", "prefill", "decode"]:
    side = s.text("side")
    if side == "prefill":
        return "prefill"
    return "decode" if side == "decode" else "colocated"


def _parallel_notes(s: Settings, dp: int, attention: bool) -> None:
    if dp > 1:
        s.other["dp"] = dp
    if attention:
        s.notes.append("data-parallel attention runs inside one instance; its attention is modelled as TP")
    if dp > 1 and (s.count("nodes") or 1) > 1 and not attention:
        s.notes.append("--nnodes above 1 with --dp-size above 1 is refused by SGLang 0.5.23")
    for flag in s.ignored:
        if flag.lstrip("-").replace("_", "-") in _REMOVED and s.around.at_least("0.5.10") is not False:
            s.notes.append(f"{flag} was last in SGLang 0.5.9: later releases do not know it")
