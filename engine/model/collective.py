"""The seam between a model and the other ranks of its tensor-parallel group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


class Collective(Protocol):
    """One rank's end of the group. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        ...

    @property
    def ranks(self) -> int:
        """How many there are."""
        ...

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `x`, on every rank. May use `x` for it."""
        ...

    def gather(self, x: torch.Tensor) -> torch.Tensor | None:
        """Every rank's `x` one behind the other in the last dimension, on rank 0; None on the others."""
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """`Collective` of a model that no one shares."""

    rank: int = 0
    ranks: int = 1

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """`x` itself."""
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor | None:
        """`x` itself."""
        return x
