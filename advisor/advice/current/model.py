"""What `--current` gives: how the user's stack runs today, in our words, and where each value comes from.

Data only. Every setting is either `read` (the user's text or server said it), or `assumed` (the stack's own
default, with the versions it holds for and its source); never both. Values of secrets are in none of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from engine.config import PoolConfig, RouterConfig

Stack = Literal["advise", "vllm", "sglang", "trtllm", "tgi", "mii"]
Value = bool | int | float | str | None

TITLES: dict[Stack, str] = {
    "advise": "the bundled engine",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
    "tgi": "Text Generation Inference",
    "mii": "DeepSpeed-MII",
}


@dataclass(frozen=True, slots=True)
class Said:
    """A setting that was said. `by`: the flag, key, variable or metric that said it."""

    setting: str
    value: Value
    by: str


@dataclass(frozen=True, slots=True)
class Assumed:
    """A setting that nobody said. `versions`: those it is known for; `verified`: read in its source or docs."""

    setting: str
    value: Value
    versions: str
    source: str
    verified: bool = True


@dataclass(frozen=True, slots=True)
class Unknown:
    """A flag or key that we do not know (never its value), and the nearest known names."""

    flag: str
    nearest: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Current:
    """One running configuration.

    `max_len`: longest prompt plus output, tokens. `memory_fraction`: of the GPU's memory, in the stack's own
    meaning. `other`: further settings that change what a plan is worth (host cache, quantisation, speculation).
    `ignored`: flags that are known and do not matter. `notes`: traps and what our words cannot express.
    """

    stack: Stack
    version: str | None
    model: str | None
    pools: tuple[PoolConfig, ...]
    router: RouterConfig = field(default_factory=RouterConfig)
    dtype: str = "auto"
    kv_dtype: str = "auto"
    max_len: int | None = None
    memory_fraction: float | None = None
    other: dict[str, Value] = field(default_factory=dict)
    read: tuple[Said, ...] = ()
    assumed: tuple[Assumed, ...] = ()
    ignored: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of all pools; of the bundled engine its devices."""
        return sum(pool.count * max(pool.tp * pool.pp, pool.devices_per_instance) for pool in self.pools)
