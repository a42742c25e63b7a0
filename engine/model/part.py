"""Which part of every weight one rank of tensor parallelism holds."""

from __future__ import annotations

from dataclasses import dataclass

from engine.shape import ModelShape
from engine.split import local_shape


@dataclass(frozen=True, slots=True)
class Part:
    """Slices of the whole: `q` and `kv` of head rows, `ffn` of the MLP's width, `vocab` of tokens; None: all.

    `shape` has this rank's counts. `vocab_rows` is the height of the vocabulary's matrices, the same on every
    rank, padding included. `adds_biases`: biases behind a sum over ranks are added by one rank only.
    """

    shape: ModelShape
    q: slice | None = None
    kv: slice | None = None
    ffn: slice | None = None
    vocab: slice | None = None
    vocab_rows: int = 0
    adds_biases: bool = True

    @classmethod
    def of(cls, shape: ModelShape, rank: int, ranks: int) -> Part:
        """The part of `rank`. Raises InputError where `shape` does not divide."""
        local = local_shape(shape, ranks)
        if ranks == 1:
            return cls(local)
        each = -(-shape.vocab // ranks)
        # Where KV heads are fewer than ranks, neighbours hold the same one.
        first = rank * shape.kv_heads // ranks
        return cls(
            local,
            q=_span(rank * local.heads, local.heads, shape.head_dim),
            kv=_span(first, local.kv_heads, shape.head_dim),
            ffn=_span(rank, 1, local.ffn),
            vocab=slice(rank * each, min((rank + 1) * each, shape.vocab)),
            vocab_rows=each,
            adds_biases=rank == 0,
        )


def _span(first: int, count: int, size: int) -> slice:
    return slice(first * size, (first + count) * size)
