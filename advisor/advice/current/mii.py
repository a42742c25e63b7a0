"""DeepSpeed-MII: calls of `mii.serve` in Python text, parsed and never run, and its server's launch line.

Defaults are those of 0.3.3, the last release. It always splits prompts (SplitFuse) and has no prefix cache.
"""

from __future__ import annotations

import ast
from typing import Any

from advisor.advice.current.flags import Parsed, parse_mapping, table
from advisor.advice.current.model import Current
from advisor.advice.current.settings import Around, Settings
from advisor.advice.current.values import Knob
from engine.config import PoolConfig, RouterConfig
from engine.errors import InputError

SEEN = ("0.3", "0.3.3")
_SOURCE = "DeepSpeed-MII 0.3.3 and DeepSpeed's state manager"
_SEEN = "0.3.3"
_CALLS = ("serve", "pipeline")

KNOBS = (
    Knob("model", "text", ("model", "model-name-or-path", "model-or-path")),
    Knob("tp", "count", ("tensor-parallel",)),
    Knob("replicas", "count", ("replica-num",)),
    Knob("max_length", "count", ("max-length",)),
    Knob("token_budget", "count", ("max-ragged-batch-size",)),
    Knob("max_seqs", "count", ("max-ragged-sequence-count",)),
    Knob("max_len", "count", ("max-context",)),
    Knob("quantization", "text", ("quantization-mode",)),
)
TABLE = table("mii", KNOBS, ("mii",))
_PASSED = ("inference_engine_config", "state_manager", "manager", "model_config", "server_config")


def parse_python(text: str) -> Parsed | None:
    """The first `mii.serve(...)` in Python text; None where there is none or the text is not Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_launch(node.func):
            values: dict[str, Any] = {}
            if node.args and (model := _literal(node.args[0])) is not None:
                values["model"] = model
            for keyword in node.keywords:
                _collect(keyword.arg, keyword.value, values)
            return parse_mapping(TABLE, values, "mii.serve")
    return None


def _is_launch(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr in _CALLS
        and isinstance(function.value, ast.Name)
        and function.value.id == "mii"
    )


def _collect(name: str | None, value: ast.expr, into: dict[str, Any], depth: int = 0) -> None:
    """Arguments by name, of nested dicts and constructor calls too; what is no literal is left out."""
    if name is None or depth > 4:
        return
    if name in _PASSED and isinstance(value, ast.Dict):
        for key, inner in zip(value.keys, value.values, strict=True):
            if key is not None:
                _collect(str(_literal(key)), inner, into, depth + 1)
    elif name in _PASSED and isinstance(value, ast.Call):
        for keyword in value.keywords:
            _collect(keyword.arg, keyword.value, into, depth + 1)
    elif (literal := _literal(value)) is not None:
        into[name] = literal
    elif name.replace("_", "-") in TABLE.knobs:
        raise InputError(f"mii.serve: {name} is not a plain value", hint="write the number or text itself")


def _literal(value: ast.expr) -> Any:
    return value.value if isinstance(value, ast.Constant) else None


def build(parsed: Parsed, around: Around) -> Current:
    """The configuration of one launch. Raises InputError."""
    s = Settings("mii", parsed, around, SEEN)
    tp = s.take("tp", s.count("tp"), 1, _SEEN, _SOURCE)
    replicas = s.take("replicas", s.count("replicas"), 1, _SEEN, _SOURCE)
    pool = PoolConfig(
        count=around.count * replicas,
        tp=tp,
        devices_per_instance=tp,
        batching="chunked",
        token_budget=s.take("token_budget", s.count("token_budget"), 768, _SEEN, _SOURCE),
        max_seqs=s.take("max_seqs", s.count("max_seqs"), 512, _SEEN, _SOURCE),
        block_size=s.take("block_size", None, 128, _SEEN, _SOURCE),
        prefix_cache=False,
    )
    s.assume("prefix_cache", False, _SEEN, "DeepSpeed-MII has none")
    if pool.max_seqs > pool.token_budget:
        s.notes.append("max_ragged_sequence_count is above max_ragged_batch_size: DeepSpeed refuses it")
    context = s.take("max_len", s.count("max_len"), 8192, _SEEN, _SOURCE)
    s.keep_other("quantization")
    s.notes.append("DeepSpeed-MII had its last release in 2025-03")
    return s.current(
        (pool,),
        router=RouterConfig(policy="round_robin"),
        max_len=min(context, s.count("max_length") or context),
    )
