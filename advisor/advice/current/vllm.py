"""vLLM: its knobs, its defaults by version and GPU, its traps.

Defaults were read in the sources of 0.8.5, 0.20.2, 0.27.1, 0.32.0 and 0.33.0; between two of them a change is
only bracketed, and said to be so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from advisor.advice.current.flags import Parsed, canonical, parse_mapping, table
from advisor.advice.current.model import Current
from advisor.advice.current.settings import Around, Settings, number_of
from advisor.advice.current.values import Knob
from engine.config import PoolConfig, RouterConfig

SEEN = ("0.8.0", "0.33.0")
V1 = "0.8.0"  # from here on one budgeted step is the default engine
_ARGS = "vLLM arg_utils, get_batch_defaults"
_SPLIT_CONNECTORS = ("Nixl", "P2pNccl", "PyNccl", "Mooncake", "MoRIIO")

KNOBS = (
    Knob("model", "text", ("model", "model-tag")),
    Knob("config", "text", ("config",)),
    Knob("tp", "count", ("tensor-parallel-size", "-tp")),
    Knob("pp", "count", ("pipeline-parallel-size", "-pp")),
    Knob("dp", "count", ("data-parallel-size", "-dp")),
    Knob("token_budget", "size", ("max-num-batched-tokens",)),
    Knob("scheduled_tokens", "size", ("max-num-scheduled-tokens",)),
    Knob("max_seqs", "size", ("max-num-seqs",)),
    Knob("active_seqs", "count", ("max-num-active-seqs",)),
    Knob("block_size", "count", ("block-size",)),
    Knob("prefix_cache", "switch", ("enable-prefix-caching",)),
    Knob("no_prefix_cache", "switch", ("disable-prefix-caching",)),
    Knob("chunked", "switch", ("enable-chunked-prefill",)),
    Knob("queue_policy", "text", ("scheduling-policy",)),
    Knob("max_len", "length", ("max-model-len",)),
    Knob("memory_fraction", "number", ("gpu-memory-utilization",), 0.0, 1.0),
    Knob("kv_bytes", "size", ("kv-cache-memory-bytes", "kv-cache-memory")),
    Knob("kv_blocks", "count", ("num-gpu-blocks-override",)),
    Knob("dtype", "text", ("dtype",)),
    Knob("kv_dtype", "text", ("kv-cache-dtype",)),
    Knob("quantization", "text", ("quantization", "-q")),
    Knob("kv_transfer", "json", ("kv-transfer-config",)),
    Knob("speculative", "json", ("speculative-config", "-sc")),
    Knob("kv_offload_gib", "number", ("kv-offloading-size",), 0.0),
    Knob("swap_gib", "number", ("swap-space",), 0.0),
    Knob("cpu_offload_gib", "number", ("cpu-offload-gb",), 0.0),
    Knob("performance_mode", "text", ("performance-mode",)),
    Knob("max_queued_requests", "count", ("max-num-queued-reqs",)),
    Knob("max_queued_tokens", "count", ("max-num-queued-tokens",)),
    Knob("long_prefill_threshold", "count", ("long-prefill-token-threshold",), 0),
    Knob("expert_parallel", "switch", ("enable-expert-parallel", "-ep")),
    Knob("eager", "switch", ("enforce-eager",)),
    Knob("decode_context_parallel", "count", ("decode-context-parallel-size", "-dcp")),
)
TABLE = table("vllm", KNOBS, ("vllm", "vllm_old"), positional=True, negated=True)

# Flag: (first, last) release that has it; None: before the ones that were read, or still there.
HISTORY: dict[str, tuple[str | None, str | None]] = {
    "max-num-partial-prefills": (None, "0.26"),
    "max-long-partial-prefills": (None, "0.26"),
    "swap-space": (None, "0.17.1"),
    "scheduler-delay-factor": (None, "0.10.2"),
    "preemption-mode": (None, "0.10.2"),
    "max-seq-len-to-capture": (None, "0.10.2"),
    "num-scheduler-steps": (None, "0.9.2"),
    "num-lookahead-slots": (None, "0.11.2"),
    "calculate-kv-scales": (None, "0.27.1"),
    "performance-mode": ("0.17.1", None),
    "watermark": ("0.24", None),
    "max-num-scheduled-tokens": ("0.26", None),
    "max-num-queued-reqs": ("0.29", None),
    "max-num-queued-tokens": ("0.29", None),
    "max-num-active-seqs": ("0.31", None),
}


def build(parsed: Parsed, around: Around) -> Current:
    """The configuration of one launch. Raises InputError."""
    s = Settings("vllm", parsed, around, SEEN)
    first = around.env.get("VLLM_USE_V1") == "0" or around.at_least(V1) is False
    max_len = _max_len(s)
    chunked = _chunked(s, first)
    budget, seqs = _batch(s, first, chunked, max_len)
    tp = s.take("tp", s.count("tp"), 1, "all", "vLLM arguments")
    pp = s.take("pp", s.count("pp"), 1, "all", "vLLM arguments")
    dp = s.count("dp") or 1
    block = s.take("block_size", s.count("block_size"), 16, "0.8.5 to 0.33", "vLLM CacheConfig")
    blocks = s.count("kv_blocks")
    pool = PoolConfig(
        role=_role(s),
        count=around.count * dp,
        tp=tp,
        pp=pp,
        devices_per_instance=tp * pp,
        batching="prefill_first" if first and not chunked else "chunked",
        token_budget=budget,
        max_seqs=seqs,
        block_size=block,
        prefix_cache=_prefix_cache(s, first),
        queue_policy=_queue(s),
        kv_tokens=blocks * block if blocks else None,
    )
    s.keep_other(
        "quantization", "kv_bytes", "kv_offload_gib", "swap_gib", "cpu_offload_gib", "performance_mode",
        "eager",
        "max_queued_requests", "max_queued_tokens", "long_prefill_threshold", "expert_parallel",
        "decode_context_parallel",
    )  # fmt: skip
    _speculation(s)
    _history(s, parsed)
    if dp > 1:
        s.other["dp"] = dp
        s.notes.append(
            "each data-parallel rank counts as one instance; with experts split over ranks it is not one"
        )
    return s.current(
        (pool,),
        # vLLM's own front sends a request to the rank with the fewest waiting and running.
        router=RouterConfig(policy="least_loaded") if dp > 1 else None,
        dtype=_dtype(s.text("dtype")),
        kv_dtype=s.take("kv_dtype", s.text("kv_dtype"), "auto", "all", "vLLM CacheConfig"),
        max_len=max_len,
        memory_fraction=_memory_fraction(s),
    )


def _dtype(said: str | None) -> str:
    return {"half": "float16", "float": "float32", None: "auto"}.get(said, said or "auto")


def _max_len(s: Settings) -> int | None:
    said = s.count("max_len")
    if said is None:
        s.assume("max_len", None, "all", "the model's own length")
    return said


def _chunked(s: Settings, first: bool) -> bool:
    said = s.flag("chunked")
    if first:
        known = "releases before 0.8 were not read; prefill came first, unless chunking was asked for"
        return s.take("chunked", said, False, "before 0.8", known, verified=False)
    chunked = s.take("chunked", said, True, "0.8.5 to 0.33", "vLLM arg_utils")
    if not chunked:
        s.notes.append(
            "chunking is off: vLLM still mixes whole prompts with decodes; modelled as chunked with its budget"
        )
    return chunked


def _batch(s: Settings, first: bool, chunked: bool, max_len: int | None) -> tuple[int, int]:
    """Token budget and most sequences, by GPU and version."""
    budget, seqs, versions, verified, why = _batch_defaults(s.around, first)
    if first and not chunked:
        budget = max(max_len or 0, 2048)
    elif s.text("performance_mode") == "throughput":
        budget, seqs = 2 * budget, 2 * seqs
    if not chunked and max_len:
        budget = max(budget, max_len)
    elif max_len and not first:
        budget = min(budget, seqs * max_len)
    said_budget = s.count("token_budget")
    total = s.take("token_budget", said_budget, budget, versions, why, verified)
    seqs = min(seqs, total) if s.count("max_seqs") is None else seqs
    rows = s.take("max_seqs", s.count("max_seqs"), seqs, versions, why, verified)
    if total < rows:
        s.notes.append("max_num_batched_tokens is below max_num_seqs: vLLM refuses to start")
    if not chunked and max_len and total < max_len:
        s.notes.append(
            "chunking is off and max_num_batched_tokens is below max_model_len: vLLM refuses to start"
        )
    return min(total, s.count("scheduled_tokens") or total), min(rows, s.count("active_seqs") or rows)


def _batch_defaults(around: Around, first: bool) -> tuple[int, int, str, bool, str]:
    """(budget, sequences, versions, verified, source) of the API server."""
    gib, version = around.memory_gib, number_of(around.version or SEEN[1])
    if first:
        return 512, 256, "before 0.8", False, "releases before 0.8 were not read"
    if gib is None:
        return 2048, 256, "0.8.5 to 0.33", False, f"{_ARGS}; the GPU is not known: the values of small ones"
    # The large class appeared between 0.27.1 and 0.32.0, the exception of A100 between 0.8.5 and 0.20.2.
    if gib >= 160 and version >= (0, 28):
        return 16384, 1024, "0.32 to 0.33", version >= (0, 32), f"{_ARGS}: GPUs from 160 GiB"
    a100 = "a100" in (around.gpu or "").lower()
    if gib >= 70 and (not a100 or version < (0, 9)):
        return 8192, 1024, "0.8.5 to 0.33", True, f"{_ARGS}: GPUs from 70 GiB other than A100"
    bracketed = a100 and gib >= 70 and version < (0, 20)
    return 2048, 256, "0.8.5 to 0.33", not bracketed, f"{_ARGS}: other GPUs, and A100"


def _prefix_cache(s: Settings, first: bool) -> bool:
    off = s.flag("no_prefix_cache")
    said = not off if off is not None else s.flag("prefix_cache")
    if first:
        return s.take(
            "prefix_cache", said, False, "before 0.8", "releases before 0.8 were not read", verified=False
        )
    return s.take("prefix_cache", said, True, "0.8.5 to 0.33", "vLLM arg_utils")


def parse_file(values: Mapping[Any, Any], where: str) -> Parsed:
    """The keys of a `--config` file. A false switch does nothing there (0.32 and 0.33), which is noted."""
    dead = [k for k, v in values.items() if v is False and _is_switch(str(k))]
    parsed = parse_mapping(TABLE, {k: v for k, v in values.items() if k not in dead}, where)
    notes = tuple(
        f"{canonical(str(key))}: false in a YAML file is ignored by `vllm serve`: "
        f"no-{canonical(str(key))}: true turns it off"
        for key in dead
    )
    return Parsed(parsed.given, parsed.ignored, parsed.unknown, notes)


def _is_switch(key: str) -> bool:
    knob = TABLE.knobs.get(canonical(key))
    return knob is not None and knob.kind == "switch"


def _queue(s: Settings) -> Literal["fcfs", "prefix_first"]:
    policy = s.take("queue_policy", s.text("queue_policy"), "fcfs", "all", "vLLM SchedulerConfig")
    if policy != "fcfs":
        s.notes.append("scheduling by priority is modelled as first come, first served")
    return "fcfs"


def _memory_fraction(s: Settings) -> float:
    known = s.around.at_least("0.20.2")
    default, verified = (0.92, True) if known in (True, None) else (0.90, s.around.at_least("0.20.0") is False)
    versions = "0.20.2 to 0.33" if default == 0.92 else "before 0.20"
    return s.take(
        "memory_fraction", s.number("memory_fraction"), default, versions, "vLLM CacheConfig", verified
    )


def _role(s: Settings) -> Literal["colocated", "prefill", "decode"]:
    transfer = s.json("kv_transfer")
    role, connector = str(transfer.get("kv_role", "")), str(transfer.get("kv_connector", ""))
    if not transfer:
        return "colocated"
    by = s.by("kv_transfer")
    if connector.isidentifier():
        s.other["kv_connector"] = connector
        s.note_read("kv_connector", connector, by)
    _removed_keys(s, transfer, connector)
    if role == "kv_both" and connector.startswith(_SPLIT_CONNECTORS):
        s.notes.append(
            "kv_both does not say which side this is; it is read as colocated, and NIXL deprecates it"
        )
    sides: dict[str, Literal["prefill", "decode"]] = {"kv_producer": "prefill", "kv_consumer": "decode"}
    if role in sides:
        s.note_read("role", sides[role], by)
        return sides[role]
    return "colocated"


def _removed_keys(s: Settings, transfer: dict[str, object], connector: str) -> None:
    gone = [key for key in ("kv_rank", "kv_parallel_size", "kv_ip", "kv_buffer_size") if key in transfer]
    if gone and s.around.at_least("0.32") is not False:
        s.notes.append(f"{', '.join(gone)} of kv_transfer_config: removed in vLLM 0.32, an error there")
    if connector.startswith(("P2pNccl", "PyNccl")) and s.around.at_least("0.24") is not False:
        s.notes.append(f"{connector[:24]} is gone from vLLM 0.24 on")


def _speculation(s: Settings) -> None:
    method = s.json("speculative").get("method") or ("draft model" if s.json("speculative") else None)
    if method is not None and str(method).replace("_", "").replace(" ", "").isalnum():
        s.other["speculative"] = str(method)
        s.note_read("speculative", str(method), s.by("speculative"))
        s.notes.append("speculative decoding is not modelled")


def _history(s: Settings, parsed: Parsed) -> None:
    flags = {given.by for given in parsed.given.values()} | set(parsed.ignored)
    for flag in sorted(flags):
        name = canonical(flag.rsplit(": ", 1)[-1])
        since, last = HISTORY.get(name, (None, None))
        version = number_of(s.around.version or SEEN[1])
        if last and version > (*number_of(last), 99):
            s.notes.append(f"--{name} was last in vLLM {last}: later releases refuse it")
        if since and s.around.version and version < number_of(since):
            s.notes.append(f"--{name} came with vLLM {since}: {s.around.version} refuses it")
