"""Tile sizes of the attention kernel, by GPU, head size and phase; and how many splits a decode is cut into.

Plain tables, no autotuning: the first request of a shape must not wait for a search (vllm#43009). Numbers are
ours, chosen so that no kernel spills and each fits in shared memory (`engine.kernels.compile` checks both);
none has been measured on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import InputError, MachineError
from engine.kernels.launch import padded

LEAST_QUERIES = 16  # rows that a tensor core's product needs
LONGEST_HEAD = 128
MOST_SPLITS = 64
_KEYS_PER_SPLIT = 256  # fewer are not worth a merge; ours, as is the next
_PROGRAMS_PER_PROCESSOR = 4


@dataclass(frozen=True, slots=True)
class Tile:
    """`queries` rows (tokens times the query heads of a KV head) against `keys` positions at a time."""

    queries: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """What tile sizes depend on: compute capability, and streaming multiprocessors."""

    capability: tuple[int, int]
    processors: int


# (capability, padded head size, decode) -> tile of 16-bit numbers. (8, 6) stands for every GPU with 99 KB of
# shared memory a block: Ada and the consumer Ampere and Blackwell parts. Five stages, because a key's address
# waits for its block's number: with four or fewer triton 3.9 keeps one buffer of K and V, and the next tile's
# loads wait until this one is multiplied (read in the compiled code).
_HALF = {
    ((8, 0), 64, False): Tile(128, 64, 8, 5),
    ((8, 0), 64, True): Tile(16, 64, 4, 5),
    ((8, 0), 128, False): Tile(128, 64, 8, 5),
    ((8, 0), 128, True): Tile(16, 64, 4, 5),
    ((8, 6), 64, False): Tile(64, 64, 4, 5),
    ((8, 6), 64, True): Tile(16, 64, 4, 5),
    ((8, 6), 128, False): Tile(64, 32, 4, 5),
    ((8, 6), 128, True): Tile(16, 32, 4, 5),
    ((9, 0), 64, False): Tile(128, 64, 8, 5),
    ((9, 0), 64, True): Tile(16, 64, 4, 5),
    ((9, 0), 128, False): Tile(128, 64, 8, 5),
    ((9, 0), 128, True): Tile(16, 64, 4, 5),
}
# Exact float32 products run outside the tensor cores and keep their operands in registers; one row fits all.
_SINGLE = {64: Tile(32, 32, 4, 3), 128: Tile(16, 16, 4, 3)}
KNOWN_CAPABILITIES = tuple(dict.fromkeys(capability for capability, _, _ in _HALF))


def tile_of(gpu: Gpu, head_dim: int, group: int, itemsize: int, *, decode: bool) -> Tile:
    """The tile for heads of `head_dim` numbers of `itemsize` bytes, `group` query heads to a KV head.

    InputError where the head is too long or the numbers too wide, MachineError before capability 8.0.
    """
    if gpu.capability < (8, 0):
        raise MachineError(
            f"no kernels for compute capability {'.'.join(map(str, gpu.capability))}",
            why="they need 8.0 or more",
            hint="CUDA_VISIBLE_DEVICES= advise launch   (serves on cores)",
        )
    if head_dim > LONGEST_HEAD:
        raise InputError(
            f"no kernels for heads of {head_dim}",
            why=f"the longest are {LONGEST_HEAD}",
            hint="CUDA_VISIBLE_DEVICES= advise launch   (serves on cores)",
        )
    if itemsize not in (2, 4):
        raise InputError(
            f"no kernels for numbers of {itemsize} bytes", why="known are 2 and 4", hint="dtype: bfloat16"
        )
    size = max(64, padded(head_dim))
    tile = _SINGLE[size] if itemsize == 4 else _HALF[_nearest(gpu.capability), size, decode]
    # A tile holds at least one token with all its query heads.
    return Tile(max(tile.queries, LEAST_QUERIES, padded(group)), tile.keys, tile.warps, tile.stages)


def splits_of(gpu: Gpu, rows: int, kv_heads: int, longest: int) -> int:
    """Parts that each decode row's context is cut into, a power of two; 1 where there are programs enough.

    `longest`: positions of the longest row. A decode of few rows would leave most processors idle otherwise
    (Flash-Decoding, Dao et al. 2023).
    """
    wanted = -(-_PROGRAMS_PER_PROCESSOR * gpu.processors // max(rows * kv_heads, 1))
    worthwhile = -(-longest // _KEYS_PER_SPLIT)
    return min(padded(max(1, min(wanted, worthwhile))), MOST_SPLITS)


def _nearest(capability: tuple[int, int]) -> tuple[int, int]:
    if capability in KNOWN_CAPABILITIES:
        return capability
    if capability[0] == 10:  # data-centre Blackwell has Hopper's shared memory
        return (9, 0)
    return (8, 6)
