"""The protocol that every source of step times answers to, and the shape of a step that they see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from engine.step import Step

Source = Literal["calibrated", "published", "roofline"]


@dataclass(frozen=True, slots=True)
class StepShape:
    """A step without identities: all that decides its time.

    `prefill` holds one (new tokens, context tokens already in KV) per prefill row; `decode` the context
    tokens of each decode row.
    """

    prefill: tuple[tuple[int, int], ...] = ()
    decode: tuple[int, ...] = ()

    @classmethod
    def of(cls, step: Step) -> StepShape:
        """The shape of a scheduler's Step."""
        return cls(
            tuple((len(row.tokens), row.start) for row in step.rows if row.prefill),
            tuple(row.start for row in step.rows if not row.prefill),
        )


class StepTimeModel(Protocol):
    """Seconds of one step of one instance, and how far that may be off."""

    @property
    def source(self) -> Source:
        """Where the numbers come from."""
        ...

    @property
    def error_p90(self) -> float | None:
        """P90 of the relative error against held-out measurements; None where none are known."""
        ...

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step, seconds; an empty shape takes 0."""
        ...
