"""The seam between a model and the paged KV cache: who stores keys and values, and attends over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch

from engine.step import StepRow

Meta = TypeVar("Meta")


class AttentionBackend(Protocol[Meta]):
    """Owns the KV pool of one instance. Rows of a step stand in the order of its query tokens."""

    def plan(self, rows: Sequence[StepRow]) -> Meta:
        """Index tensors of one step, made once and used by every layer."""
        ...

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, meta: Meta) -> torch.Tensor:
        """Store `k` and `v`, then attend, causally, over everything stored of each row's sequence.

        q: [tokens, heads, head_dim], rotated; k, v: [tokens, kv_heads, head_dim], k rotated.
        Returns [tokens, heads, head_dim].
        """
        ...
