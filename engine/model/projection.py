"""Matrices from their parameters: packed ones, split by outputs; those whose outputs are summed; by token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.model.linear import Linear
from engine.model.part import Part
from engine.model.weights import Weights
from engine.shape import ModelShape


def packed(
    weights: Weights, name: str, parts: Sequence[tuple[str, int, slice | None]], inputs: int, *, bias: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of several projections that read the same input, one behind the other.

    parts: name, whole number of outputs, and the outputs of this rank.
    """
    matrices = [weights.take(f"{name}.{one}.weight", rows, inputs, rows=own) for one, rows, own in parts]
    biases = [weights.take(f"{name}.{one}.bias", rows, rows=own) for one, rows, own in parts] if bias else []
    return _joined(matrices), _joined(biases) if biases else None


def by_token(weights: Weights, name: str, shape: ModelShape, part: Part) -> torch.Tensor:
    """The rows of this rank's tokens of a matrix of the vocabulary, [part.vocab_rows or vocab, hidden]."""
    return weights.take(name, shape.vocab, shape.hidden, rows=part.vocab, pad_to=part.vocab_rows)


def summed(
    weights: Weights, name: str, outputs: int, inputs: int, own: slice | None, part: Part, *, bias: bool
) -> Linear:
    """A Linear that sees this rank's `own` inputs; the ranks' outputs add up, and one rank adds the bias."""
    added = None
    if bias and part.adds_biases:
        added = weights.take(f"{name}.bias", outputs)
    elif bias:
        weights.source.skip(f"{name}.bias")
    return Linear(weights.take(f"{name}.weight", outputs, inputs, columns=own), added)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
