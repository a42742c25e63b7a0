"""Step times fitted to the running engine's own step log: six non-negative numbers and a curve.

    seconds = base + prefill * [any prefill] + per_new * new + per_pair * sum(new * (context + new / 2))
            + per_row * decode rows + per_context * sum(decode contexts) + bumps(query tokens)

Small steps do not lie on a line: kernels change with the number of query tokens, and on a CPU a step of 8 rows
takes as long as one of 16. `bumps` is what steps of `KNOTS` tokens take beyond the line, straight between them
and nothing at the ends. `engine.step_time.fit` finds the numbers; this is only the model that they make.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.step_time.model import StepShape

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Query tokens of a step between which the bumps are straight."""


class Coefficients(NamedTuple):
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
        float(shape.decode_rows),
        float(shape.decode_context),
    )


def bump_at(bumps: tuple[float, ...], tokens: int) -> float:
    """Seconds beyond the line of a step of `tokens` query tokens; `bumps` are those at each of `KNOTS`."""
    if tokens >= KNOTS[-1]:
        return 0.0
    right = bisect_right(KNOTS, tokens)
    low, high = KNOTS[right - 1], KNOTS[right]
    return bumps[right - 1] + (bumps[right] - bumps[right - 1]) * (tokens - low) / (high - low)


@dataclass(frozen=True, slots=True)
class CalibratedStepTime:
    """A fit to measured steps, with its relative error on steps that the fit did not see."""

    coefficients: Coefficients
    error_p50: float | None = None
    error_p90: float | None = None
    steps: int = 0
    bumps: tuple[float, ...] = (0.0,) * len(KNOTS)
    source: Literal["calibrated"] = "calibrated"
    bend: float = math.inf

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step, seconds."""
        rows_prefill, rows, context = shape
        base, prefill, per_new, per_pair, per_row, per_context = self.coefficients
        if not rows_prefill:
            if not rows:
                return 0.0
            return base + per_row * rows + per_context * context + bump_at(self.bumps, rows)
        total, tokens = base + prefill + per_row * rows + per_context * context, rows
        for new, before in rows_prefill:
            tokens += new
            total += new * (per_new + per_pair * (before + new / 2))
        return total + bump_at(self.bumps, tokens)

    def decode_line(self, rows: int, context: int) -> tuple[float, float]:
        """(a, b) of `a + b i` seconds, see StepTimeModel."""
        return self.seconds(StepShape((), rows, context)), self.coefficients.per_context * rows
