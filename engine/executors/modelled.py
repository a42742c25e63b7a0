"""An executor without a device: step times from a model, tokens from a hash. It reads no clock, never sleeps.

The simulator drives it on a virtual clock: it submits a Step, moves its clock by `seconds`, and takes the
result.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from engine.step import Step, StepResult
from engine.step_time.model import StepShape, StepTimeModel


@dataclass(frozen=True, slots=True)
class ModelledHandle:
    """A step whose outcome is known at once; `seconds` is how long it takes on the modelled device."""

    step_result: StepResult
    seconds: float

    def result(self) -> StepResult:
        """The tokens; returns immediately."""
        return self.step_result


class ModelledExecutor:
    """Carries steps out on the virtual time of a step-time model.

    A sampled token is a function of (request id, position) alone, below `vocab`: the same whatever the
    schedule.
    """

    def __init__(self, step_time: StepTimeModel, vocab: int = 32_000) -> None:
        self._step_time = step_time
        self._vocab = vocab

    def submit(self, step: Step) -> ModelledHandle:
        """Price the step and make its tokens up."""
        tokens = tuple(
            crc32(f"{row.request_id}/{row.start + len(row.tokens)}".encode()) % self._vocab
            if row.sample
            else None
            for row in step.rows
        )
        return ModelledHandle(StepResult(step.id, tokens), self._step_time.seconds(StepShape.of(step)))
