"""Step times as papers and artifacts print them: sums of terms over a step's rows, or a measured table.

Numbers only; the profiles hold them with their sources. A fit that covers one phase answers only for that
phase: `covers` says which, asking for the other raises ValueError.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from engine.step_time.model import StepShape

Phase = Literal["prefill", "decode"]


class Piece(NamedTuple):
    """Milliseconds a unit of each term, valid below a size of the batch.

    Terms are sums over the step's rows: `new` tokens of prefills, their squares, the `context` they attend to,
    `seq` = new + context, `new_x_seq`; decode `rows` and their contexts; `tokens` counts new and rows.
    """

    below: float = math.inf
    const: float = 0.0
    new: float = 0.0
    new_sq: float = 0.0
    context: float = 0.0
    seq: float = 0.0
    new_x_seq: float = 0.0
    rows: float = 0.0
    decode_context: float = 0.0
    tokens: float = 0.0

    def milliseconds(self, shape: StepShape) -> float:
        """Value of the fit."""
        prefill, rows, decode_context = shape
        total = self.const + self.decode_context * decode_context + (self.rows + self.tokens) * rows
        for new, context in prefill:
            seq = new + context
            total += (self.new + self.tokens + self.new_sq * new + self.new_x_seq * seq) * new
            total += self.context * context + self.seq * seq
        return total


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
    bend: float = math.inf

    @property
    def covers(self) -> frozenset[Phase]:
        """The phases that the fit answers for."""
        both: dict[Phase, tuple[Piece, ...]] = {"prefill": self.prefill, "decode": self.decode}
        return frozenset(phase for phase, pieces in both.items() if pieces or self.mixed)

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step, seconds. Raises ValueError for a phase that was not published."""
        prefill, rows, context = shape
        if not prefill:
            return self._decode(rows, context) if rows else 0.0
        new = sum(n for n, _ in prefill)
        if self.mixed:
            return _piece(self.mixed, new + rows, "prefill").milliseconds(shape) / 1e3
        alone = _piece(self.prefill, new, "prefill").milliseconds(StepShape(prefill)) / 1e3
        return alone + (self._decode(rows, context) if rows else 0.0)

    def decode_line(self, rows: int, context: int) -> tuple[float, float]:
        """(a, b) of `a + b i` seconds, see StepTimeModel."""
        piece = _piece(self.mixed or self.decode, rows, "decode")
        return self._decode(rows, context), piece.decode_context * rows / 1e3

    def _decode(self, rows: int, context: int) -> float:
        piece = _piece(self.mixed or self.decode, rows, "decode")
        return (piece.const + piece.decode_context * context + (piece.rows + piece.tokens) * rows) / 1e3


def _piece(pieces: tuple[Piece, ...], size: int, phase: Phase) -> Piece:
    for piece in pieces:
        if size < piece.below:
            return piece
    raise ValueError(f"the published step times do not cover {phase}")


@dataclass(frozen=True, slots=True)
class TableStepTime:
    """Measured iteration times: prefill by tokens, decode by batch; linear between points and beyond the last.

    A mixed step takes prefill over all its tokens, and what its decodes take beyond a single one: in the linear
    layers they ride along with the chunk, their attention does not (Sarathi-Serve artifact: 1,021 + 3 tokens
    take 217.65 ms, 1,024 prefill tokens 217.2 ms). Points are made monotone first. Context lengths are not
    resolved: the source measured none.
    """

    prefill_ms: Mapping[int, float]
    decode_ms: Mapping[int, float]
    source: Literal["published"] = "published"
    error_p90: float | None = None
    bend: float = math.inf
    _prefill: _Curve = field(init=False, repr=False, compare=False)
    _decode: _Curve = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_prefill", _Curve(self.prefill_ms))
        object.__setattr__(self, "_decode", _Curve(self.decode_ms))

    @property
    def covers(self) -> frozenset[Phase]:
        """Both phases."""
        return frozenset(("prefill", "decode"))

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step, seconds."""
        prefill, rows, _ = shape
        decode = self._decode.at(rows) if rows else 0.0
        new = sum(n for n, _ in prefill)
        if not new:
            return decode / 1e3
        beyond = decode - self._decode.at(1) if rows else 0.0
        return (self._prefill.at(new + rows) + beyond) / 1e3

    def decode_line(self, rows: int, context: int) -> tuple[float, float]:
        """(a, b) of `a + b i` seconds, see StepTimeModel; b is 0."""
        return self.seconds(StepShape((), rows, context)), 0.0


class _Curve:
    """A monotone piecewise-linear curve: flat below the first point, straight on beyond the last."""

    __slots__ = ("_xs", "_ys")

    def __init__(self, points: Mapping[int, float]) -> None:
        self._xs = sorted(points)
        highest = 0.0
        self._ys = [highest := max(highest, points[x]) for x in self._xs]

    def at(self, x: float) -> float:
        """Value at `x`."""
        xs, ys = self._xs, self._ys
        if x <= xs[0]:
            return ys[0]
        right = min(bisect_left(xs, x), len(xs) - 1)
        slope = (ys[right] - ys[right - 1]) / (xs[right] - xs[right - 1])
        return ys[right - 1] + (x - xs[right - 1]) * slope
