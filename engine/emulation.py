"""The emulation file: what an emulated fleet stands for. The advisor writes it, router and instances read it.

It holds the very step times, link and sizes that the simulator uses for the same plan. Its numbers are of the
modelled GPUs; `time_scale` is how many seconds of the wall one of theirs takes. Strict as engine.yaml is.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from engine.config import Config, EngineConfig
from engine.config_file import read_strict
from engine.errors import InputError
from engine.launchable import why_not_launchable
from engine.step_time.model import StepShape, StepTimeModel
from engine.step_time.plain import from_plain, plain
from engine.transfer.link import Link

_STEP = StepShape(((16, 16),), 2, 64)  # any step of both phases


def _step_time(values: object) -> StepTimeModel:
    """A model, or one in its plain form, that has an answer for both phases."""
    model: StepTimeModel = values if hasattr(values, "decode_line") else from_plain(values)  # type: ignore[assignment]
    if not 0 < model.seconds(_STEP) < math.inf:
        raise ValueError("the step times are no times")
    return model


class EmulatedPool(Config):
    """What the instances of one pool stand for."""

    role: Literal["colocated", "prefill", "decode"] = Field(description="as in engine.yaml")
    step_time: Annotated[StepTimeModel, PlainValidator(_step_time), PlainSerializer(plain)] = Field(
        description="seconds of a step, the simulator's own model"
    )
    kv_tokens: int = Field(ge=1, description="KV cache of one instance, where engine.yaml says none; tokens")


class EmulatedLink(Config):
    """How KV moves between instances: see engine.transfer.link."""

    bytes_per_s: float = Field(gt=0, description="of one instance's port, in each direction")
    latency_s: float = Field(0.0, ge=0, description="of each copy, seconds")

    def open(self) -> Link:
        """All ports of a fleet, on the modelled clock: wall seconds over `time_scale`."""
        return Link(bytes_per_s=self.bytes_per_s, latency_s=self.latency_s)


class Emulation(Config):
    """What an emulated fleet stands for; `pools` in the order of engine.yaml."""

    gpu: str = Field(description="the GPU that every instance stands for")
    time_scale: float = Field(1.0, gt=0, le=1000, description="wall seconds that one modelled second takes")
    pools: tuple[EmulatedPool, ...] = Field(min_length=1, description="the pools of engine.yaml")
    link: EmulatedLink | None = Field(None, description="between instances; null: KV moves in no time")
    kv_bytes_per_token: float = Field(gt=0, description="KV of one token of the modelled model, bytes")
    max_len: int = Field(ge=1, description="the model's context, tokens")
    vocab: int = Field(ge=2, le=1 << 32, description="token ids are below this")
    eos_token_ids: tuple[int, ...] = Field((), description="end of sequence, never sampled")

    @model_validator(mode="after")
    def _has_a_token_to_sample(self) -> Emulation:
        if len({token for token in self.eos_token_ids if 0 <= token < self.vocab}) >= self.vocab:
            raise ValueError("every token of the vocabulary is an end of sequence")
        return self

    def check(self, config: EngineConfig) -> None:
        """Raises InputError where `config` cannot be emulated by this, or not at all."""
        why = why_not_launchable(config, emulated=True)
        if why is not None:
            raise InputError(
                "this configuration cannot be emulated",
                why=why,
                hint="advise analyze LOG --stack advise   (plans what the bundled engine can run)",
            )
        ours = [pool.role for pool in self.pools]
        theirs = [pool.role for pool in config.pools]
        if ours != theirs:
            raise InputError(
                "the emulation is of another configuration",
                where="pools",
                why=f"it has {', '.join(ours)}; engine.yaml {', '.join(theirs)}",
                hint="advise launch --emulate writes both",
            )


def read_emulation(path: Path) -> Emulation:
    """Read an emulation file. Raises InputError that names the key."""
    return read_strict(path, Emulation, "emulation file", hint="advise launch --emulate GPU   (writes one)")


def emulation_text(emulation: Emulation) -> str:
    """The YAML of an emulation, every field written out; numbers come back exactly."""
    return yaml.safe_dump(emulation.model_dump(mode="python"), sort_keys=False)
