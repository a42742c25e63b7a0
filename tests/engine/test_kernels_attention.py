"""The paged attention kernel under triton's interpreter, against the formula in float64 and `TorchAttention`.

Every pool is NaN where no context lies, and blocks are in shuffled order. bfloat16 is missing on purpose: the
interpreter multiplies its raw bits and truncates stores (triton#11584), so a test could only be wrong; it is
compiled in test_kernels_compile.py and differs from float16 in no line of a kernel. What the interpreter cannot
show at all: races, alignment, asynchronous copies.
"""

from __future__ import annotations

import pytest
import torch
from helpers.interpreter import interpreted
from helpers.paged_kv import Filled, Sizes, filled

from engine.attention.torch import TorchAttention
from engine.errors import InputError

pytest.importorskip("triton")

# Rounding of the number format is about 2^-24 and 2^-11 of values near 1; outputs are averages of such values.
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3}
BLOCK = 16
PLAIN = Sizes()
MIXED = [(15, 1), (100, 1), (16, 1), (0, 1), (0, 40), (33, 17), (64, 64)]


def attend(case: Filled) -> torch.Tensor:
    from engine.attention.triton import TritonAttention

    sizes = case.sizes
    dtype = case.q[0].dtype
    backend = TritonAttention(
        sizes.shape, num_blocks=case.num_blocks, block_size=sizes.block, dtype=dtype,
        windows=(0, sizes.window), device="cpu",
    )  # fmt: skip
    case.fill(backend.pool)
    return backend.attend(1, *case.step(), backend.plan(case.rows))


def check(parts: list[tuple[int, int]], dtype: torch.dtype = torch.float32, sizes: Sizes = PLAIN) -> None:
    case = filled(parts, dtype, sizes, seed=len(parts))
    out = attend(case)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), case.expected(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@interpreted
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_decodes_prefills_and_lone_tokens_in_one_step(dtype: torch.dtype) -> None:
    check(MIXED, dtype)


@interpreted
@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 31, 32, 33, 63, 64, 65])
def test_a_decode_at_block_and_tile_boundaries_with_nan_past_its_length_vllm_47305(length: int) -> None:
    check([(length - 1, 1)])


@interpreted
@pytest.mark.parametrize("new", [BLOCK - 1, BLOCK, BLOCK + 1, 31, 32, 33])
@pytest.mark.parametrize("start", [0, BLOCK - 1, BLOCK])
def test_a_chunk_at_block_and_tile_boundaries(start: int, new: int) -> None:
    check([(start, new)], sizes=Sizes(heads=1, kv_heads=1))


@interpreted
@pytest.mark.parametrize("new", [9, 10, 11, 21])
def test_chunks_whose_tokens_do_not_fill_a_tile_of_three_heads_a_token(new: int) -> None:
    check([(5, new), (0, new), (3, 2)], sizes=Sizes(heads=3, kv_heads=1))


@interpreted
@pytest.mark.parametrize("heads", [2, 6, 8, 16])
def test_one_three_four_and_eight_query_heads_to_a_kv_head(heads: int) -> None:
    check([(40, 1), (7, 1), (20, 21)], sizes=Sizes(heads=heads))


@interpreted
@pytest.mark.parametrize("head_dim", [8, 80, 96])
def test_heads_that_are_no_power_of_two_and_one_shorter_than_a_tensor_core(head_dim: int) -> None:
    check([(40, 1), (20, 13)], sizes=Sizes(heads=4, head_dim=head_dim))


@interpreted
def test_more_query_heads_than_rows_in_a_tile() -> None:
    check([(40, 1), (20, 3)], sizes=Sizes(heads=40, kv_heads=1))


@interpreted
@pytest.mark.parametrize("block", [32, 48])
def test_larger_blocks_and_blocks_that_straddle_tiles(block: int) -> None:
    check([(100, 1), (block - 1, 1), (block - 1, 50)], sizes=Sizes(heads=2, block=block))


@interpreted
@pytest.mark.parametrize("window", [1, 16, 33, 1000])
def test_sliding_windows(window: int) -> None:
    check([(15, 1), (100, 1), (90, 40)], sizes=Sizes(window=window))


@interpreted
def test_tiles_before_the_window_are_not_read() -> None:
    case = filled([(200, 1), (190, 9)], torch.float32, Sizes(heads=2, window=20))
    expected = case.expected()
    for k, v in zip(case.k, case.v, strict=True):
        k[:100] = v[:100] = torch.nan
    torch.testing.assert_close(attend(case).double(), expected, rtol=3e-6, atol=3e-6)


@interpreted
def test_agrees_with_the_torch_backend_on_the_same_pool() -> None:
    case = filled(MIXED, torch.float32, PLAIN)
    torch_backend = TorchAttention(
        case.sizes.shape, num_blocks=case.num_blocks, block_size=BLOCK, dtype=torch.float32
    )
    case.fill(torch_backend.pool)
    expected = torch_backend.attend(1, *case.step(), torch_backend.plan(case.rows))
    torch.testing.assert_close(attend(case), expected, rtol=3e-6, atol=3e-6)


@interpreted
def test_a_row_of_one_token_behind_a_chunk_is_no_decode() -> None:
    check([(3, 1), (5, 20), (30, 1), (0, 1)])


@interpreted
def test_what_a_row_is_depends_on_its_tokens_and_not_on_its_phase_tt_plugin_52() -> None:
    """A preempted request computes its own output again, in chunks; a prompt's last chunk may be one token."""
    from dataclasses import replace

    case = filled([(30, 1), (17, 5), (40, 1)], torch.float32, PLAIN)
    case.rows = [replace(row, prefill=number == 2) for number, row in enumerate(case.rows)]
    torch.testing.assert_close(attend(case).double(), case.expected(), rtol=3e-6, atol=3e-6)


@interpreted
def test_a_program_writes_the_tokens_of_its_own_tile_only() -> None:
    """The interpreter runs tiles one after the other: what spills into the next would be written over."""
    from dataclasses import replace

    from engine.kernels.paged import Rows, attention
    from engine.kernels.tiles import Tile

    q, k, v = filled([(0, 12)], torch.float32, Sizes(heads=3, kv_heads=1)).step()
    out = torch.full((12, 3, 32), torch.nan)
    pool = torch.zeros(2, 2, BLOCK, 1, 32)
    pool[0, 1, :12], pool[1, 1, :12] = k, v
    starts, lengths, table = (torch.tensor(x, dtype=torch.int32) for x in ([0, 12], [12], [[1]]))
    rows = Rows(starts, lengths, table, first=0, count=1, tokens=12, decode=False)
    (launch,) = attention(q, pool[0], pool[1], out, rows, tile=Tile(16, 16, 4, 1))
    replace(launch, grid=(1, 1, 1)).run()
    assert not out[:5].isnan().any()  # 16 rows hold 5 tokens of 3 heads; one row is left over
    assert out[5:].isnan().all()


@interpreted
def test_large_scores_do_not_overflow() -> None:
    case = filled([(40, 1), (0, 20)], torch.float32, PLAIN)
    case.q = [q * 300 for q in case.q]
    torch.testing.assert_close(attend(case).double(), case.expected(), rtol=1e-4, atol=1e-4)


@interpreted
def test_only_the_own_layer_and_slots_are_written() -> None:
    from engine.attention.triton import TritonAttention

    case = filled([(20, 1), (0, 18)], torch.float32, PLAIN)
    backend = TritonAttention(
        case.sizes.shape, num_blocks=case.num_blocks, block_size=BLOCK, dtype=torch.float32, device="cpu"
    )
    case.fill(backend.pool)
    before = backend.pool.clone()
    q, k, v = case.step()
    backend.attend(1, q, k, v, backend.plan(case.rows))
    changed = (backend.pool != before) & ~(backend.pool.isnan() & before.isnan())
    touched = changed.flatten(4).any(dim=-1).nonzero().tolist()
    decode, prefill = case.rows
    slots = [(decode.blocks[1], 4)] + [(prefill.blocks[p // BLOCK], p % BLOCK) for p in range(18)]
    assert sorted(map(tuple, touched)) == sorted((1, kv, *slot) for kv in (0, 1) for slot in slots)
    for kv, new in ((0, k), (1, v)):
        for token, slot in enumerate(slots):
            assert torch.equal(backend.pool[1, kv, slot[0], slot[1]], new[token])


@interpreted
def test_blocks_that_the_kernel_cannot_read_are_refused() -> None:
    from engine.attention.triton import TritonAttention

    with pytest.raises(InputError, match="blocks of 24 tokens"):
        TritonAttention(Sizes().shape, num_blocks=4, block_size=24, dtype=torch.float32, device="cpu")


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("heads", [2, 6, 8, 16])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_whole_matrix(dtype: torch.dtype, heads: int, head_dim: int, window: int) -> None:
    check([*MIXED, (700, 1), (511, 130)], dtype, Sizes(heads=heads, head_dim=head_dim, window=window))
