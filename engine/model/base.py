"""What an executor sees of a model, whatever its architecture."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from engine.attention.base import AttentionBackend
from engine.shape import ModelShape


class Model(Protocol):
    """One rank's part of a model. Stateless: what must be remembered between steps is the backend's."""

    @property
    def shape(self) -> ModelShape:
        """Sizes of the whole model."""
        ...

    @property
    def local_shape(self) -> ModelShape:
        """The same with this rank's heads, KV heads and MLP width."""
        ...

    @property
    def windows(self) -> tuple[int, ...]:
        """Sliding window of each layer in tokens, 0 where it has none; empty where no layer has one."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that this rank holds."""
        ...

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        sampled: torch.Tensor,
        attention: AttentionBackend[Any],
        meta: Any,
    ) -> torch.Tensor | None:
        """Logits of the tokens that are sampled from.

        ids, positions: [tokens] int64; sampled: [samples] indices into them; `meta` is the backend's plan of
        the step. Returns [samples, vocab], or None on ranks other than 0.
        """
        ...
