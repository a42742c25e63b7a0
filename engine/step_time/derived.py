"""Step times made from those of another model: where they come from, and how far off, stays the same."""

from __future__ import annotations

from dataclasses import dataclass

from engine.step_time.model import Source, StepTimeModel


@dataclass(frozen=True, slots=True)
class DerivedStepTime:
    """Base of what changes the seconds of `model` and nothing else that a StepTimeModel tells."""

    model: StepTimeModel

    @property
    def source(self) -> Source:
        """That of the model."""
        return self.model.source

    @property
    def error_p90(self) -> float | None:
        """That of the model."""
        return self.model.error_p90

    @property
    def bend(self) -> float:
        """That of the model."""
        return self.model.bend
