"""Decodes cut along their context, and the static buffers of CUDA graphs, under the interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.interpreter import interpreted
from helpers.paged_kv import Filled, Sizes, dense, filled

pytest.importorskip("triton")

PLAIN = Sizes()
EXACT = {"rtol": 3e-6, "atol": 3e-6}  # float32 averages of values near 1


def backend_of(case: Filled):  # type: ignore[no-untyped-def] # importing its type here would import triton
    from engine.attention.triton import TritonAttention

    sizes = case.sizes
    return TritonAttention(
        sizes.shape, num_blocks=case.num_blocks, block_size=sizes.block, dtype=case.q[0].dtype,
        windows=(0, sizes.window), device="cpu",
    )  # fmt: skip


def attend(case: Filled, splits: int) -> torch.Tensor:
    """Layer 1's output with decodes cut into `splits`; what the parts hold before is NaN."""
    from engine.kernels.paged import Parts

    backend = backend_of(case)
    case.fill(backend.pool)
    meta = backend.plan(case.rows)
    sizes = case.sizes
    parts = Parts.empty(meta.decodes, sizes.heads, sizes.head_dim, splits, "cpu") if splits > 1 else None
    for tensor in (parts.mixed, parts.peaks, parts.sums) if parts else ():
        tensor.fill_(torch.nan)
    return backend.attend(1, *case.step(), replace(meta, parts=parts))


@interpreted
@pytest.mark.parametrize("splits", [2, 8])
@pytest.mark.parametrize("length", [63, 64, 65, 127, 128, 129, 300])
def test_a_split_decode_is_the_formula_around_tile_boundaries(length: int, splits: int) -> None:
    case = filled([(length - 1, 1)], torch.float32, Sizes(heads=2, kv_heads=1))
    torch.testing.assert_close(attend(case, splits).double(), case.expected(), **EXACT)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_empty_splits_leave_no_nan_in_the_merge_pegainfer_21(dtype: torch.dtype) -> None:
    case = filled([(0, 1), (200, 1), (16, 1), (40, 30)], dtype, Sizes(heads=4))
    tolerance = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else EXACT
    torch.testing.assert_close(attend(case, 16).double(), case.expected(), **tolerance)


@interpreted
@pytest.mark.parametrize("window", [1, 40])
def test_windows_are_split_over_what_the_window_shows(window: int) -> None:
    case = filled([(200, 1), (30, 1)], torch.float32, Sizes(heads=2, window=window))
    torch.testing.assert_close(attend(case, 4).double(), case.expected(), **EXACT)


@interpreted
def test_padded_heads_split() -> None:
    case = filled([(100, 1), (3, 1)], torch.float32, Sizes(heads=4, kv_heads=4, head_dim=24))
    torch.testing.assert_close(attend(case, 2).double(), case.expected(), **EXACT)


@interpreted
def test_the_merge_is_the_softmax_of_all_parts() -> None:
    """Parts made here, by the formula, with one of them empty."""
    from engine.kernels.attention import merge_kernel

    generator = torch.Generator().manual_seed(0)
    scores, values = (torch.randn(2, 3, 40, *last, generator=generator).double() for last in ((), (16,)))
    expected = torch.einsum("rhk,rhkd->rhd", (scores * 0.6931471805599453).softmax(-1), values)
    mixed, peaks, sums = torch.full((2, 3, 4, 16), torch.nan), torch.empty(2, 3, 4), torch.empty(2, 3, 4)
    for part, (first, last) in enumerate([(0, 7), (7, 7), (7, 30), (30, 40)]):
        own = scores[..., first:last]
        peaks[..., part] = own.amax(-1) if last > first else -torch.inf
        weights = (own - peaks[..., part : part + 1]).exp2()
        sums[..., part] = weights.sum(-1) if last > first else torch.nan
        if last > first:
            mixed[..., part, :] = torch.einsum("rhk,rhkd->rhd", weights, values[..., first:last, :])
    out = torch.empty(2, 3, 16)
    merge_kernel[(2, 3)](mixed, peaks, sums, out, 48, 16, HEADS=3, HEAD_DIM=16, HEAD_PAD=16, SPLITS=4)
    torch.testing.assert_close(out.double(), expected, **EXACT)


@interpreted
def test_a_row_without_any_full_part_is_zero_and_not_nan() -> None:
    from engine.kernels.attention import merge_kernel

    nothing, peaks = torch.full((1, 1, 2, 16), torch.nan), torch.full((1, 1, 2), -torch.inf)
    out = torch.full((1, 1, 16), torch.nan)
    merge_kernel[(1, 1)](
        nothing, peaks, nothing[..., 0], out, 16, 16, HEADS=1, HEAD_DIM=16, HEAD_PAD=16, SPLITS=2
    )
    assert (out == 0).all()


@interpreted
def test_a_padded_batch_of_a_graph_gives_the_rows_answers_and_writes_padding_to_the_trash_vllm_43869() -> None:
    case = replace(filled([(70, 1), (15, 1), (16, 1)], torch.float32, Sizes(heads=4)), num_blocks=80)
    backend = backend_of(case)
    case.fill(backend.pool)
    meta = backend.capture_meta(8)
    assert meta.parts is not None  # with room for 1,264 positions eight rows are split
    backend.refill(meta, case.rows)
    before = backend.pool.clone()
    padded = [torch.cat((x, torch.ones(5, *x.shape[1:]))) for x in case.step()]
    out = backend.attend(1, *padded, meta)
    torch.testing.assert_close(out[:3].double(), case.expected(), **EXACT)
    changed = (backend.pool != before) & ~(backend.pool.isnan() & before.isnan())
    blocks = {block for _, _, block, *_ in changed.nonzero().tolist()}
    assert blocks == {0, *(row.blocks[row.start // 16] for row in case.rows)}
    assert changed[1, :, 0, 0].all()
    assert not changed[1, :, 0, 1:].any()


@interpreted
def test_a_batch_that_shrinks_leaves_nothing_of_the_one_before_in_the_buffers_vllm_43810() -> None:
    case = filled([(70, 1), (15, 1), (16, 1)], torch.float32, Sizes(heads=2, kv_heads=1))
    backend = backend_of(case)
    meta = backend.capture_meta(4)
    addresses = [x.data_ptr() for x in (meta.starts, meta.lengths, meta.table, meta.slots)]
    backend.refill(meta, case.rows)
    backend.refill(meta, case.rows[:1])
    assert meta.lengths.tolist() == [71, 1, 1, 1]
    assert meta.slots.tolist() == [case.rows[0].blocks[4] * 16 + 6, 0, 0, 0]
    assert meta.table[1:, 0].tolist() == [0, 0, 0]
    assert meta.table[0, :5].tolist() == list(case.rows[0].blocks)
    assert addresses == [x.data_ptr() for x in (meta.starts, meta.lengths, meta.table, meta.slots)]
    case.fill(backend.pool)
    q, k, v = (torch.cat((x[:1], torch.ones(3, *x.shape[1:]))) for x in case.step())
    expected = dense(case.q[0], case.k[0], case.v[0], 70)
    torch.testing.assert_close(backend.attend(1, q, k, v, meta)[:1].double(), expected, **EXACT)


@interpreted
def test_only_decodes_that_fit_go_into_a_graphs_buffers() -> None:
    case = filled([(70, 1), (0, 2)], torch.float32, PLAIN)
    backend = backend_of(case)
    with pytest.raises(ValueError, match="at most 4 rows"):
        backend.refill(backend.capture_meta(4), case.rows)
    with pytest.raises(ValueError, match="at most 1 rows"):
        backend.refill(backend.capture_meta(1), case.rows[:1] * 2)


@interpreted
def test_warming_up_writes_only_the_trash_block_vllm_43009() -> None:
    case = filled([(20, 1)], torch.float32, Sizes(heads=1, kv_heads=1, window=8))
    backend = backend_of(case)
    backend.pool.fill_(7)
    backend.warm_up()
    assert (backend.pool[:, :, 1:] == 7).all()
    assert (backend.pool[:, :, 0] != 7).any()
