"""Step times fitted to the running engine's own step log: six non-negative numbers.

    seconds = base + prefill * [any prefill] + per_new * new + per_pair * sum(new * (context + new / 2))
            + per_row * decode rows + per_context * sum(decode contexts)

`engine.step_time.fit` finds them; this is only the model that they make.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal

import numpy as np

from engine.step_time.model import StepShape


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Seconds per unit of each term, in the order of `features`."""

    base: float
    prefill: float
    per_new: float
    per_pair: float
    per_row: float
    per_context: float


def features(shape: StepShape) -> tuple[float, ...]:
    """The terms of one step: 1, any prefill, new tokens, query-key pairs, decode rows, decode contexts."""
    return (
        1.0,
        float(bool(shape.prefill)),
        float(sum(n for n, _ in shape.prefill)),
        float(sum(n * (context + n / 2) for n, context in shape.prefill)),
        float(len(shape.decode)),
        float(sum(shape.decode)),
    )


@dataclass(frozen=True, slots=True)
class CalibratedStepTime:
    """A fit to measured steps, with its relative error on steps that the fit did not see."""

    coefficients: Coefficients
    error_p50: float | None = None
    error_p90: float | None = None
    steps: int = 0
    source: Literal["calibrated"] = "calibrated"

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step, seconds."""
        if not shape.prefill and not shape.decode:
            return 0.0
        return float(np.dot(features(shape), astuple(self.coefficients)))
