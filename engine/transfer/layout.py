"""How KV lies in memory and where an instance's can be pulled from: what two sides of a split agree on."""

from __future__ import annotations

from typing import Literal

import msgspec

Transport = Literal["shared_memory", "cuda_ipc", "tcp"]
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


class KvLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The KV pool of one instance: on each rank [layers, 2, blocks, block_size, kv_heads, head_dim].

    `model` is the digest of its config.json; `dtype` a name in ELEMENT_BYTES; `kv_heads` those of one of the
    `ranks`. How many blocks there are is not part of it: two sides may differ in that.
    """

    model: str
    dtype: str
    block_size: int
    layers: int
    kv_heads: int
    head_dim: int
    ranks: int = 1
    version: int = 1

    @property
    def slot_bytes(self) -> int:
        """Bytes of one position's keys, or values, in one layer of one rank."""
        return self.kv_heads * self.head_dim * ELEMENT_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block's keys, or values, in one layer of one rank."""
        return self.block_size * self.slot_bytes

    @property
    def bytes_per_token(self) -> int:
        """KV of one position on all ranks, bytes: what a pull moves for each token."""
        return 2 * self.layers * self.slot_bytes * self.ranks


def mismatch(ours: KvLayout, theirs: KvLayout) -> str | None:
    """The first field in which two layouts differ, with both values; None where KV can move between them."""
    for name in KvLayout.__struct_fields__:
        one, other = getattr(ours, name), getattr(theirs, name)
        if one != other:
            return f"the KV layouts differ in {name}: ours is {one}, theirs {other}"
    return None


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Where the KV of one start of an instance can be pulled from.

    `nonce` is random per process start; `address` a Unix socket's path, or host:port.
    """

    transport: Transport
    nonce: str
    address: str
    layout: KvLayout
