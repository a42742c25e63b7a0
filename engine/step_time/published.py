"""Step times as papers and artifacts print them: sums of terms over a step's rows, or a measured table.

Numbers only; the profiles hold them with their sources. A fit that covers one phase answers only for that
phase: `covers` says which, asking for the other raises ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.step_time.model import StepShape

Phase = Literal["prefill", "decode"]


def terms(shape: StepShape) -> dict[str, float]:
    """The sums that published fits multiply, in tokens and rows; `tokens` counts prefill and decode tokens."""
    new = sum(n for n, _ in shape.prefill)
    return {
        "const": 1.0,
        "new": new,
        "new_sq": sum(n * n for n, _ in shape.prefill),
        "context": sum(context for _, context in shape.prefill),
        "seq": sum(n + context for n, context in shape.prefill),
        "new_x_seq": sum(n * (n + context) for n, context in shape.prefill),
        "rows": len(shape.decode),
        "decode_context": sum(shape.decode),
        "tokens": new + len(shape.decode),
    }


@dataclass(frozen=True, slots=True)
class Piece:
    """Milliseconds as a weighted sum of terms, valid below a size of the batch."""

    weights: Mapping[str, float]
    below: float = float("inf")


def _piecewise_ms(pieces: tuple[Piece, ...], values: Mapping[str, float], size: float) -> float:
    piece = next(p for p in pieces if size < p.below)
    return sum(weight * values[name] for name, weight in piece.weights.items())


@dataclass(frozen=True, slots=True)
class PolynomialStepTime:
    """A published fit. `mixed` answers for any step; else a mixed step is the sum of its phases.

    The sum is an upper bound: DistServe fitted the phases apart (DistServe, appendix A) and never mixed them.
    """

    prefill: tuple[Piece, ...] = ()
    decode: tuple[Piece, ...] = ()
    mixed: tuple[Piece, ...] = ()
    source: Literal["published"] = "published"
    error_p90: float | None = None

    @property
    def covers(self) -> frozenset[Phase]:
        """The phases that the fit answers for."""
        both: dict[Phase, tuple[Piece, ...]] = {"prefill": self.prefill, "decode": self.decode}
        return frozenset(phase for phase, pieces in both.items() if pieces or self.mixed)

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step, seconds. Raises ValueError for a phase that was not published."""
        if not shape.prefill and not shape.decode:
            return 0.0
        values = terms(shape)
        if self.mixed:
            return _piecewise_ms(self.mixed, values, values["tokens"]) / 1e3
        total = 0.0
        if shape.prefill:
            _require("prefill", self.prefill)
            total += _piecewise_ms(self.prefill, values, values["new"])
        if shape.decode:
            _require("decode", self.decode)
            total += _piecewise_ms(self.decode, values, values["rows"])
        return total / 1e3


def _require(phase: Phase, pieces: tuple[Piece, ...]) -> None:
    if not pieces:
        raise ValueError(f"the published step times do not cover {phase}")


@dataclass(frozen=True, slots=True)
class TableStepTime:
    """Measured iteration times: prefill by tokens, decode by batch; linear between points and beyond the last.

    A mixed step takes the longer of prefill over all its tokens and of decode alone: decodes ride along with
    a chunk (Sarathi-Serve artifact: 1,021 + 3 tokens take 217.65 ms, 1,024 prefill tokens 217.2 ms). Points
    are made monotone first. Context lengths are not resolved: the source measured none.
    """

    prefill_ms: Mapping[int, float]
    decode_ms: Mapping[int, float]
    source: Literal["published"] = "published"
    error_p90: float | None = None

    @property
    def covers(self) -> frozenset[Phase]:
        """Both phases."""
        return frozenset(("prefill", "decode"))

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step, seconds."""
        new, rows = sum(n for n, _ in shape.prefill), len(shape.decode)
        prefill = _interpolate(self.prefill_ms, new + rows) if new else 0.0
        decode = _interpolate(self.decode_ms, rows) if rows else 0.0
        return max(prefill, decode) / 1e3


def _interpolate(points: Mapping[int, float], x: float) -> float:
    """Value at `x` of the monotone piecewise-linear curve; flat below the first point."""
    xs = np.array(sorted(points), dtype=float)
    ys = np.maximum.accumulate([points[int(k)] for k in xs])
    if x > xs[-1]:
        return float(ys[-1] + (x - xs[-1]) * (ys[-1] - ys[-2]) / (xs[-1] - xs[-2]))
    return float(np.interp(x, xs, ys))
