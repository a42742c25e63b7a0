"""The shipped profiles by name: GPUs, models, latency presets, step times, rooflines and prices.

Read-only YAML under `profiles/`, each value with its source. Names are ids; GPUs and models also answer to
their aliases, whatever the case and the punctuation. An unknown name is an InputError that lists the nearest
three.
"""

from __future__ import annotations

import difflib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml

from advisor.advice.profile_schemas import (
    GpuProfile,
    GpuRental,
    HostedProfile,
    ModelProfile,
    PublishedProfile,
    RooflineProfile,
    SloPreset,
)
from engine.errors import InputError
from engine.fetch import model_folder
from engine.resources import data_folder
from engine.shape import ModelShape


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


@cache
def rooflines() -> tuple[RooflineProfile, ...]:
    """Constants of every engine family."""
    return tuple(RooflineProfile(**row) for row in _read("roofline")["families"])


@cache
def hosted() -> HostedProfile:
    """Prices of hosted APIs and of rented GPUs."""
    return HostedProfile(**_read("hosted"))


def roofline(stack: str, version: str | None = None) -> RooflineProfile:
    """What an engine gets out of its devices; of its newest versions where `version` is None or unreadable."""
    major = re.match(r"\d+", version or "")
    for profile in rooflines():
        old = profile.before is None or (major is not None and int(major[0]) < profile.before)
        if stack in profile.stacks and old:
            return profile
    raise InputError(
        f"no roofline for the engine {stack!r}",
        why="profiles/roofline.yaml does not name it",
        hint="--stack vllm",
    )


def gpu_rental(name: str) -> GpuRental | None:
    """What a GPU, by its profile's id, rents for; None where no price is known."""
    return next((row for row in hosted().gpu_rental if row.gpu == name), None)


def gpu(name: str) -> GpuProfile:
    """A GPU by id or alias. Raises InputError."""
    return _find(name, gpus(), "GPU", "--gpu")


def model(name: str) -> ModelProfile:
    """A model by id or hub name. Raises InputError."""
    return _find(name, models(), "model", "--model")


def known_model(name: str) -> ModelProfile | None:
    """A model by id or hub name; None where it is not known, which costs no search for the nearest."""
    return _models_by_name().get(_plain(name))


def slo(name: str) -> SloPreset:
    """A latency preset by name. Raises InputError."""
    return _find(name, slos(), "latency preset", "--slo")


def model_shape(name: str, path: str | None = None) -> ModelShape:
    """Sizes of a model: of the folder, GGUF file or config.json at `path`, else of its profile.

    Raises InputError where they cannot be read.
    """
    if path is None:
        return model(name).shape
    file = Path(path)
    if file.suffix != ".json":
        folder = file if file.is_dir() else model_folder(path, fetch=False, weights=False)
        file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            "the model's config.json cannot be read",
            where=str(file),
            why=str(error),
            hint="--model llama-3.1-8b, or a folder that holds config.json",
        ) from None
    return ModelShape.from_config(config)


class _Named(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=_Named)


def _find(name: str, items: tuple[Item, ...], what: str, flag: str) -> Item:
    by_name = _by_name(items)
    found = by_name.get(_plain(name))
    if found is not None:
        return found
    near = dict.fromkeys(
        by_name[n].id for n in difflib.get_close_matches(_plain(name), by_name, n=9, cutoff=0.0)
    )
    nearest = list(near)[:3]
    raise InputError(
        f"unknown {what} {name!r}",
        why=f"the nearest are {', '.join(nearest)}",
        hint=f"advise analyze LOG {flag} {nearest[0]}",
    )


def _by_name(items: tuple[Item, ...]) -> dict[str, Item]:
    return {_plain(n): item for item in items for n in (item.id, *getattr(item, "aliases", ()))}


@cache
def _models_by_name() -> dict[str, ModelProfile]:
    return _by_name(models())


def _plain(name: str) -> str:
    """A name for comparison: lower case, letters, digits and dots only, without organisation or vendor."""
    return re.sub(r"^(nvidia|amd instinct)|[^a-z0-9.]", "", name.lower().rsplit("/", 1)[-1])
