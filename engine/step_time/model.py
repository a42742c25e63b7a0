"""The protocol that every source of step times answers to, and the shape of a step that they see."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from engine.step import Step

Source = Literal["calibrated", "published", "roofline"]


class StepShape(NamedTuple):
    """A step without identities: all that decides its time.

    `prefill` holds one (new tokens, context tokens already in KV) per prefill row. Decode rows count as a
    whole: how many, and the sum of their contexts. Unequal contexts cost what equal ones do: 2 % (median)
    apart on 26,044 measured batches.
    """

    prefill: tuple[tuple[int, int], ...] = ()
    decode_rows: int = 0
    decode_context: int = 0

    @classmethod
    def of(cls, step: Step) -> StepShape:
        """The shape of a scheduler's Step."""
        prefill, rows, context = [], 0, 0
        for row in step.rows:
            if row.prefill:
                prefill.append((len(row.tokens), row.start))
            else:
                rows += 1
                context += row.start
        return cls(tuple(prefill), rows, context)

    @property
    def tokens(self) -> int:
        """Tokens computed in the step, prefill and decode."""
        return sum(new for new, _ in self.prefill) + self.decode_rows


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

    @property
    def bend(self) -> float:
        """Mean context of a decode row, tokens, at which `decode_line` changes its slope; infinite: never.

        Only attention over a sliding window has one: beyond it a longer context reads no more KV.
        """
        ...

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step, seconds; an empty shape takes 0. With PP: through all stages."""
        ...

    def decode_line(self, rows: int, context: int) -> tuple[float, float]:
        """(a, b): the i-th of the pure decode steps ahead takes a + b i seconds, i from 0.

        `context` is the sum over the `rows` at the first; every step adds one token to each. Equal to
        `seconds`, as long as the mean context stays on one side of `bend`.
        """
        ...
