"""Any step times with two factors on them: what a backtest fits, and how a plan moves times by their error."""

from __future__ import annotations

from dataclasses import dataclass

from engine.step_time.derived import DerivedStepTime
from engine.step_time.model import StepShape


@dataclass(frozen=True, slots=True)
class ScaledStepTime(DerivedStepTime):
    """`model` with its decode seconds times `decode`, and what prefills add to a step times `prefill`."""

    prefill: float = 1.0
    decode: float = 1.0

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step, seconds."""
        prefill, rows, context = shape
        if not prefill:
            return self.decode * self.model.seconds(shape)
        whole = self.model.seconds(shape)
        decode = self.model.seconds(StepShape((), rows, context)) if rows else 0.0
        return self.prefill * (whole - decode) + self.decode * decode

    def decode_line(self, rows: int, context: int) -> tuple[float, float]:
        """(a, b) of `a + b i` seconds, see StepTimeModel."""
        start, growth = self.model.decode_line(rows, context)
        return self.decode * start, self.decode * growth
