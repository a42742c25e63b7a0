"""KV as bytes: which positions are read and written, in which order, and nothing else."""

from __future__ import annotations

import gc
import os
import zlib
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from helpers.transfer import BLOCKS, LAYOUT, NUM_BLOCKS, OURS, TOKENS, content, filled

from engine.transfer.layout import ELEMENT_BYTES, KvLayout, mismatch
from engine.transfer.memory import Memory
from engine.transfer.pages import PIECE_BYTES, HostPages, Offer, checksum, piece_sizes, pool_bytes

RANGES = [(0, TOKENS), (0, 1), (4, 5), (8, 12), (996, 1001), (500, 1000), (0, 3)]
# Big blocks: pieces are cut within a plane.
WIDE = KvLayout(model="m", dtype="float64", block_size=16, layers=1, kv_heads=8, head_dim=64)


def snapshot(pages: HostPages) -> list[np.ndarray]:
    return [pages.array(rank).copy() for rank in range(pages.layout.ranks)]


def sizes(layout: KvLayout, **other: int) -> KvLayout:
    return msgspec.structs.replace(layout, **other)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        # Published sizes: engines.md section 5.1 (Qwen2.5-0.5B, 7B and Llama-3.1-8B in 16 bits).
        (KvLayout(model="", dtype="bfloat16", block_size=16, layers=24, kv_heads=2, head_dim=64), 12_288),
        (KvLayout(model="", dtype="float16", block_size=16, layers=28, kv_heads=4, head_dim=128), 57_344),
        (KvLayout(model="", dtype="bfloat16", block_size=16, layers=32, kv_heads=8, head_dim=128), 131_072),
        (
            KvLayout(model="", dtype="bfloat16", block_size=16, layers=32, kv_heads=4, head_dim=128, ranks=2),
            131_072,
        ),
    ],
)
def test_a_token_takes_what_the_models_authors_say(layout: KvLayout, expected: int) -> None:
    assert layout.bytes_per_token == expected


def test_a_mismatch_names_the_field_and_both_values() -> None:
    assert mismatch(LAYOUT, sizes(LAYOUT)) is None
    for field in KvLayout.__struct_fields__:
        value = getattr(LAYOUT, field)
        other = value + 1 if isinstance(value, int) else f"not {value}"
        why = mismatch(LAYOUT, msgspec.structs.replace(LAYOUT, **{field: other}))
        assert why is not None
        assert all(str(part) in why for part in (field, value, other))


@pytest.mark.parametrize(("start", "stop"), RANGES)
def test_what_is_read_is_the_positions_in_order(start: int, stop: int) -> None:
    pages = filled()
    pieces = [bytes(piece) for piece in pages.read(BLOCKS, start, stop)]
    assert b"".join(pieces) == content(pages, BLOCKS, start, stop)
    assert [len(piece) for piece in pieces] == piece_sizes(LAYOUT, start, stop)
    assert sum(map(len, pieces)) == (stop - start) * LAYOUT.bytes_per_token
    assert checksum(pages, BLOCKS, start, stop) == zlib.crc32(content(pages, BLOCKS, start, stop))


@pytest.mark.parametrize(("start", "stop"), RANGES)
@pytest.mark.parametrize("way", ["bytes", "memory"])
def test_a_write_changes_the_positions_and_zeroes_the_rest_of_the_last_block(
    start: int, stop: int, way: str
) -> None:
    theirs, ours = filled(seed=1), filled(seed=2)
    expected = snapshot(ours)
    for rank in range(LAYOUT.ranks):
        for position in range(start, -(-stop // 4) * 4):
            source = theirs.array(rank)[:, :, BLOCKS[position // 4], position % 4]
            expected[rank][:, :, OURS[position // 4], position % 4] = source if position < stop else 0
    if way == "bytes":
        pieces = [memoryview(bytes(piece)) for piece in theirs.read(BLOCKS, start, stop)]
        written = list(ours.write(OURS, start, stop, pieces))
    else:
        written = list(ours.copy(theirs, BLOCKS, OURS, start, stop))
    assert written == piece_sizes(LAYOUT, start, stop)
    assert all(np.array_equal(*pair) for pair in zip(snapshot(ours), expected, strict=True))


def test_big_planes_are_cut_into_pieces_between_which_a_copy_can_stop() -> None:
    theirs, ours = filled(WIDE, 1, 50), filled(WIDE, 2, 50)
    blocks = list(range(49, 0, -1))
    stop = 48 * 16 + 5
    assert max(piece_sizes(WIDE, 16, stop)) <= PIECE_BYTES
    assert len(piece_sizes(WIDE, 16, stop)) == 2 * -(-48 * WIDE.block_bytes // PIECE_BYTES)
    assert sum(ours.copy(theirs, blocks, blocks[::-1], 16, stop)) == (stop - 16) * WIDE.bytes_per_token
    assert content(ours, blocks[::-1], 16, stop) == content(theirs, blocks, 16, stop)


@pytest.mark.parametrize(
    ("blocks", "start", "stop"),
    [
        (BLOCKS, 1, 8),  # not at the beginning of a block
        (BLOCKS, 8, 8),
        (BLOCKS, -4, 8),
        (BLOCKS, 0, 1005),  # more than the blocks hold
        ((NUM_BLOCKS,), 0, 4),
        ((-1,), 0, 4),
    ],
)
def test_places_that_cannot_be_are_refused(blocks: tuple[int, ...], start: int, stop: int) -> None:
    pages = filled()
    before = snapshot(pages)
    with pytest.raises(ValueError, match=r"pool|blocks"):
        list(pages.read(blocks, start, stop))
    with pytest.raises(ValueError, match=r"pool|blocks"):
        list(pages.write(blocks, start, stop, [memoryview(bytes(stop))]))
    assert all(np.array_equal(*pair) for pair in zip(snapshot(pages), before, strict=True))


def test_another_process_may_look_but_not_write_and_the_size_cannot_change() -> None:
    pages = filled()
    offer = pages.offer()
    reached = pages.reach(replace(offer, fds=tuple(map(os.dup, offer.fds))))
    assert content(reached, BLOCKS, 0, TOKENS) == content(pages, BLOCKS, 0, TOKENS)
    with pytest.raises(ValueError, match="read-only"):
        list(reached.write(OURS, 0, 4, filled().read(BLOCKS, 0, 4)))
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(offer.fds[0], 0)
    reached.close()


def test_memory_that_is_not_what_the_layout_says_is_refused_and_let_go() -> None:
    pages = filled()
    before = open_fds()
    for bad in (replace(pages.offer(), num_blocks=NUM_BLOCKS + 1), Offer(NUM_BLOCKS, pages.offer().fds[:1])):
        with pytest.raises(ValueError, match="size"):
            pages.reach(replace(bad, fds=tuple(map(os.dup, bad.fds))))
    unsealed = os.memfd_create("not ours", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, pool_bytes(LAYOUT, NUM_BLOCKS))
    with pytest.raises(ValueError, match="sealed"):
        pages.reach(Offer(NUM_BLOCKS, (unsealed, os.dup(pages.offer().fds[1]))))
    pipe, end = os.pipe()
    with pytest.raises(ValueError, match="not memory"):
        Memory.open(pipe)
    os.close(end)
    assert open_fds() == before


def test_nothing_is_left_open() -> None:
    before = open_fds()
    pages = HostPages.create(LAYOUT, 10)
    assert open_fds() > before
    pages.close()
    pages.close()
    assert open_fds() == before


def open_fds() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_every_dtype_has_the_size_that_numpy_gives_it() -> None:
    for name, size in ELEMENT_BYTES.items():
        assert np.dtype("float16" if name == "bfloat16" else name).itemsize == size
