"""The shipped profiles: GPUs, models, latency presets and published step times, by name.

Read-only YAML under `profiles/`, each value with its source. Names are ids; GPUs and models also answer to
their aliases, whatever the case and the punctuation. An unknown name is an InputError that lists the nearest
three.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import yaml
from pydantic import Field

from engine.config import Config
from engine.errors import InputError
from engine.fetch import model_folder
from engine.resources import data_folder
from engine.shape import ModelShape
from engine.step_time.published import Piece, PolynomialStepTime, TableStepTime


class Link(Config):
    """A GPU's own link to its neighbours."""

    kind: Literal["none", "nvlink", "xgmi"]
    gbs_per_dir: float = Field(description="GB/s per direction per GPU")
    scope: str = Field(description="who is reached")


class GpuProfile(Config):
    """Vendor figures of one GPU; dense peaks."""

    id: str
    name: str
    vendor: Literal["nvidia", "amd"]
    aliases: tuple[str, ...] = ()
    memory_gb: float = Field(description="vendor nominal GB, 1e9 bytes")
    mem_bw_gbs: float = Field(description="peak memory bandwidth, GB/s")
    bf16_tflops: float = Field(description="dense peak, 1e12 FLOP/s")
    fp8_tflops: float | None = None
    link: Link
    unverified: tuple[str, ...] = Field((), description="fields that rest on memory alone")
    sources: dict[str, tuple[str, ...]]


class ModelProfile(Config):
    """Sizes of one dense model."""

    id: str
    aliases: tuple[str, ...] = ()
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_len: int
    tied_embeddings: bool
    gated_mlp: bool
    rope_theta: float | None
    qkv_bias: bool
    qk_norm: bool
    parameters: int = Field(description="weights, elements; tied embeddings once")
    unverified: tuple[str, ...] = ()
    sources: tuple[str, ...]

    @property
    def shape(self) -> ModelShape:
        """The sizes as the engine and the roofline want them; they cannot say that an MLP has no gate."""
        return ModelShape(
            self.layers,
            self.hidden,
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.ffn,
            self.vocab,
            self.max_len,
            rope_theta=self.rope_theta or 10_000.0,
            tied_embeddings=self.tied_embeddings,
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
        )


class SloPreset(Config):
    """A named pair of latency targets."""

    id: str
    ttft_s: float | None
    tpot_s: float | None
    attainment: float
    based_on: tuple[str, ...]
    ours: bool


class PublishedProfile(Config):
    """Published step times of one engine, GPU, model and TP, in milliseconds."""

    id: str
    engine: str
    engine_version: str | None = None
    gpu: str
    model: str
    tp: int
    prefill: tuple[dict[str, float], ...] = ()
    decode: tuple[dict[str, float], ...] = ()
    mixed: tuple[dict[str, float], ...] = ()
    prefill_table: dict[int, float] | None = None
    decode_table: dict[int, float] | None = None
    kv_tokens: int | None = None
    source: str

    def step_time(self) -> PolynomialStepTime | TableStepTime:
        """The step-time model."""
        if self.prefill_table and self.decode_table:
            return TableStepTime(self.prefill_table, self.decode_table)
        return PolynomialStepTime(_pieces(self.prefill), _pieces(self.decode), _pieces(self.mixed))


def _pieces(rows: Iterable[dict[str, float]]) -> tuple[Piece, ...]:
    return tuple(
        Piece({k: v for k, v in row.items() if k != "below"}, row.get("below", float("inf"))) for row in rows
    )


@cache
def _read(kind: str) -> dict[str, Any]:
    text = (data_folder("profiles") / f"{kind}.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


@cache
def gpus() -> tuple[GpuProfile, ...]:
    """Every GPU profile."""
    return tuple(GpuProfile(**row) for row in _read("gpus")["gpus"])


@cache
def models() -> tuple[ModelProfile, ...]:
    """Every model profile."""
    return tuple(ModelProfile(**row) for row in _read("models")["models"])


@cache
def slos() -> tuple[SloPreset, ...]:
    """Every latency preset."""
    return tuple(SloPreset(**row) for row in _read("slos")["slos"])


@cache
def step_times() -> tuple[PublishedProfile, ...]:
    """Every published step-time model."""
    return tuple(PublishedProfile(**row) for row in _read("step_times")["step_times"])


def gpu(name: str) -> GpuProfile:
    """A GPU by id or alias. Raises InputError."""
    return _find(name, gpus(), "GPU", "advise analyze LOG --gpu")


def model(name: str) -> ModelProfile:
    """A model by id or hub name. Raises InputError."""
    return _find(name, models(), "model", "advise analyze LOG --model")


def slo(name: str) -> SloPreset:
    """A latency preset by name. Raises InputError."""
    return _find(name, slos(), "latency preset", "advise analyze LOG --slo")


def model_shape(name: str, path: str | None = None) -> ModelShape:
    """Sizes of a model: of the folder, GGUF file or config.json at `path`, else of its profile.

    Raises InputError where they cannot be read.
    """
    if path is None:
        profile = model(name)
        if not profile.gated_mlp:
            raise InputError(f"{profile.id} cannot be planned for", why="its MLP has no gate, as Llama's has")
        return profile.shape
    file = Path(path)
    if file.suffix != ".json":
        folder = file if file.is_dir() else model_folder(path, fetch=False, weights=False)
        file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError("the model's config.json cannot be read", where=str(file), why=str(error)) from None
    return ModelShape.from_config(config)


class _Named(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=_Named)


def _find(name: str, items: tuple[Item, ...], what: str, hint: str) -> Item:
    by_name = {_plain(n): item for item in items for n in (item.id, *getattr(item, "aliases", ()))}
    found = by_name.get(_plain(name))
    if found is not None:
        return found
    near = dict.fromkeys(
        by_name[n].id for n in difflib.get_close_matches(_plain(name), by_name, n=9, cutoff=0.0)
    )
    nearest = list(near)[:3]
    raise InputError(
        f"unknown {what} {name!r}", why=f"the nearest are {', '.join(nearest)}", hint=f"{hint} {nearest[0]}"
    )


def _plain(name: str) -> str:
    """A name for comparison: lower case, letters, digits and dots only, without organisation or vendor."""
    return re.sub(r"^(nvidia|amd instinct)|[^a-z0-9.]", "", name.lower().rsplit("/", 1)[-1])
