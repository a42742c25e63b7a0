"""TensorRT-LLM: `trtllm-serve`, its YAML, which beats the command line, and the file of a split.

Defaults were read in serve.py and llm_args.py of 1.2; later release candidates were not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from advisor.advice.current.flags import Parsed, parse_mapping, table
from advisor.advice.current.model import Current
from advisor.advice.current.settings import Around, Settings
from advisor.advice.current.values import Knob
from engine.config import PoolConfig
from engine.errors import InputError

SEEN = ("1.0", "1.2.1")
_SOURCE = "TensorRT-LLM serve.py and llm_args.py"
_SEEN = "1.2"

KNOBS = (
    Knob("model", "text", ("model",)),
    Knob("config", "text", ("config", "extra-llm-api-options")),
    Knob("tp", "count", ("tensor-parallel-size", "tp-size")),
    Knob("pp", "count", ("pipeline-parallel-size", "pp-size")),
    Knob("expert_parallel", "count", ("moe-expert-parallel-size", "ep-size")),
    Knob("max_seqs", "count", ("max-batch-size",)),
    Knob("token_budget", "count", ("max-num-tokens",)),
    Knob("max_len", "count", ("max-seq-len",)),
    Knob(
        "memory_fraction", "number", ("free-gpu-memory-fraction", "kv-cache-free-gpu-memory-fraction"), 0.0, 1.0
    ),
    Knob("chunked", "switch", ("enable-chunked-prefill",)),
    Knob("side", "text", ("server-role",)),
    Knob("dtype", "text", ("dtype",)),
    Knob("speculative", "json", ("speculative-config",)),
    Knob("quantization", "json", ("quant-config",)),
    Knob("kv_cache", "json", ("kv-cache-config",)),
    Knob("scheduler", "json", ("scheduler-config",)),
)
KV_KNOBS = (
    Knob("prefix_cache", "switch", ("enable-block-reuse",)),
    Knob("memory_fraction", "number", ("free-gpu-memory-fraction",), 0.0, 1.0),
    Knob("kv_tokens", "count", ("max-tokens",)),
    Knob("kv_bytes", "count", ("max-gpu-total-bytes",), 0),
    Knob("host_cache_bytes", "count", ("host-cache-size",), 0),
    Knob("kv_dtype", "text", ("dtype",)),
    Knob("block_size", "count", ("tokens-per-block",)),
)
SCHEDULER_KNOBS = (
    Knob("capacity_policy", "text", ("capacity-scheduler-policy",)),
    Knob("chunking_policy", "text", ("context-chunking-policy",)),
    Knob("queue_policy", "text", ("waiting-queue-policy",)),
    Knob("prefix_aware", "switch", ("enable-prefix-aware-scheduling",)),
)
TABLE = table("trtllm", KNOBS, ("trtllm", "trtllm_yaml"), positional=True)
_KV = table("trtllm", KV_KNOBS, ())
_SCHEDULER = table("trtllm", SCHEDULER_KNOBS, ())


def parse_file(values: Mapping[Any, Any], where: str) -> Parsed:
    """The keys of the YAML behind `--config`. Raises InputError."""
    parsed = parse_mapping(TABLE, values, where)
    for key, inner in (("kv_cache", _KV), ("scheduler", _SCHEDULER)):
        if key in parsed.given:
            given = parsed.given[key]
            # Many keys of these objects are about neither memory nor order; only what is said is taken.
            nested = parse_mapping(inner, given.json, given.by)
            parsed = Parsed({**nested.given}, nested.ignored, ()).over(parsed)
    if any(unknown.flag in ("enable_block_reuse", "enable-block-reuse") for unknown in parsed.unknown):
        note = "enable_block_reuse counts only inside kv_cache_config: at the top level it has no effect"
        parsed = Parsed(parsed.given, parsed.ignored, parsed.unknown, (*parsed.notes, note))
    return parsed


def build(parsed: Parsed, around: Around) -> Current:
    """The configuration of one launch. Raises InputError."""
    s = Settings("trtllm", parsed, around, SEEN)
    tp = s.take("tp", s.count("tp"), 1, _SEEN, _SOURCE)
    pp = s.take("pp", s.count("pp"), 1, _SEEN, _SOURCE)
    max_len = s.count("max_len")
    if max_len is None:
        s.assume("max_len", None, _SEEN, "the model's own length")
    chunked = s.take("chunked", s.flag("chunked"), False, _SEEN, _SOURCE)
    budget = s.take("token_budget", s.count("token_budget"), 8192, _SEEN, _SOURCE)
    if not chunked:
        s.notes.append(
            f"chunked prefill is off: whole prompts run beside decodes, one above {budget} tokens is refused; "
            "modelled as chunked with that budget"
        )
    pool = PoolConfig(
        role=_role(s),
        count=around.count,
        tp=tp,
        pp=pp,
        devices_per_instance=tp * pp,
        batching="chunked",
        token_budget=budget,
        max_seqs=s.take("max_seqs", s.count("max_seqs"), 2048, _SEEN, _SOURCE),
        block_size=s.take("block_size", s.count("block_size"), 32, _SEEN, _SOURCE),
        prefix_cache=s.take("prefix_cache", s.flag("prefix_cache"), True, _SEEN, _SOURCE),
        queue_policy=_queue(s),
        kv_tokens=s.count("kv_tokens"),
    )
    s.keep_other("host_cache_bytes", "kv_bytes", "capacity_policy", "expert_parallel")
    for name in ("speculative", "quantization"):
        if s.json(name):
            s.other[name] = True
            s.note_read(name, True, s.by(name))
    if s.json("speculative"):
        s.notes.append("speculative decoding is not modelled")
    return s.current(
        (pool,),
        dtype=s.take("dtype", s.text("dtype"), "auto", _SEEN, _SOURCE),
        kv_dtype=s.take("kv_dtype", s.text("kv_dtype"), "auto", _SEEN, _SOURCE),
        max_len=max_len,
        memory_fraction=s.take("memory_fraction", s.number("memory_fraction"), 0.9, _SEEN, _SOURCE),
    )


def _queue(s: Settings) -> Literal["fcfs", "prefix_first"]:
    if s.flag("prefix_aware"):
        return "prefix_first"
    policy = s.take("queue_policy", s.text("queue_policy"), "fcfs", _SEEN, _SOURCE)
    if policy.lower() != "fcfs":
        s.notes.append("the waiting-queue policy is modelled as first come, first served")
    return "fcfs"


def _role(s: Settings) -> Literal["colocated", "prefill", "decode"]:
    side = (s.text("side") or "").upper()
    if side == "CONTEXT":
        return "prefill"
    return "decode" if side == "GENERATION" else "colocated"


def split_file(values: Mapping[Any, Any], where: str) -> list[tuple[Parsed, int]]:
    """The two pools of `trtllm-serve disaggregated -c FILE` and their counts. Raises InputError."""
    sides = (("context_servers", "CONTEXT"), ("generation_servers", "GENERATION"))
    own = {"hostname", "port", "conditional_disagg_config", "metadata_server", "disagg_cluster"}
    shared = {
        k: v for k, v in values.items() if k not in own and k not in ("context_servers", "generation_servers")
    }
    pools = []
    for key, role in sides:
        server = values.get(key)
        if not isinstance(server, dict):
            raise InputError(
                f"{key} is missing",
                where=where,
                why="a split names both kinds of servers",
                hint=f"add {key} with its num_instances",
            )
        rest = {k: v for k, v in server.items() if k not in ("num_instances", "urls", "router")}
        urls = server.get("urls")
        count = server.get("num_instances", len(urls) if isinstance(urls, list) else 1)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise InputError(f"{key}.num_instances is not a count", where=where, hint="num_instances: 1")
        pools.append((parse_file({**shared, **rest, "server_role": role}, where), count))
    return pools
