"""Whether and how the layers of a model split between the ranks of tensor parallelism.

Owns the rule and the sizes of a part; moves no weights. Torch-free, so that a launcher can refuse early.
"""

from __future__ import annotations

from dataclasses import replace

from engine.errors import InputError
from engine.shape import ModelShape


def why_not_split(shape: ModelShape, ranks: int) -> str | None:
    """Why `shape` cannot be split between `ranks`; None where it can.

    Whole heads (Megatron-LM, section 3). KV heads that are fewer than the ranks are held by several of them.
    """
    if ranks < 1:
        return f"{ranks} ranks"
    if shape.heads % ranks:
        return f"{shape.heads} attention heads do not divide between {ranks} ranks"
    if shape.kv_heads % ranks and ranks % shape.kv_heads:
        return f"{shape.kv_heads} KV heads do not divide between {ranks} ranks"
    if shape.ffn % ranks:
        return f"the MLP's width {shape.ffn} does not divide between {ranks} ranks"
    if -(-shape.vocab // ranks) * (ranks - 1) >= shape.vocab:
        return f"{shape.vocab} tokens of the vocabulary do not spread over {ranks} ranks"
    return None


def local_shape(shape: ModelShape, ranks: int) -> ModelShape:
    """Sizes of one rank's part: its heads, KV heads and MLP width. Raises InputError where there is none."""
    why = why_not_split(shape, ranks)
    if why is not None:
        possible = [str(n) for n in range(1, min(shape.heads, 64) + 1) if why_not_split(shape, n) is None]
        raise InputError(
            "cannot split this model", why=why, hint=f"tensor parallelism of {', '.join(possible)}"
        )
    return replace(
        shape,
        heads=shape.heads // ranks,
        kv_heads=max(1, shape.kv_heads // ranks),
        ffn=shape.ffn // ranks,
    )
