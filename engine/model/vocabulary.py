"""Token embedding and vocabulary head, split by tokens between ranks.

Every rank has the same number of rows; the last ones are padded with zeros and cut off the logits.
"""

from __future__ import annotations

import torch
from torch.nn.functional import embedding

from engine.model.collective import Collective
from engine.model.linear import Linear


class Vocabulary:
    """embeddings, head: [rows of this rank, hidden], the same tensor where they are tied; `size` tokens."""

    def __init__(self, size: int, embeddings: torch.Tensor, head: torch.Tensor, collective: Collective) -> None:
        self._size = size
        self._embeddings = embeddings
        self._head = Linear(head)
        self._collective = collective
        self._split = collective.ranks > 1
        self._first = collective.rank * len(embeddings)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[tokens] to [tokens, hidden], whole on every rank: others add zeros to the owner's row."""
        if not self._split:
            return embedding(ids, self._embeddings)
        local = ids - self._first
        others = (local < 0) | (local >= len(self._embeddings))
        rows = embedding(local.masked_fill(others, 0), self._embeddings)
        return self._collective.sum(rows.masked_fill(others[:, None], 0.0))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """[samples, hidden] to [samples, vocab] on rank 0, None elsewhere."""
        logits = self._head(hidden)
        if not self._split:
            return logits
        whole = self._collective.gather(logits)
        return None if whole is None else whole[:, : self._size]
