"""The other kernels under the interpreter: against formulas in float64, and `TorchOps`."""

from __future__ import annotations

import mmap

import pytest
import torch
from helpers.interpreter import interpreted

from engine.model.ops import TorchOps

pytest.importorskip("triton")

DTYPES = [(torch.float32, 2e-6), (torch.float16, 2e-3)]  # a few roundings of values up to 4


def normal(seed: int, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(ours: torch.Tensor, formula: torch.Tensor, dtype: torch.dtype, tolerance: float) -> None:
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), formula, rtol=tolerance, atol=tolerance)


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@interpreted
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("size", [64, 80, 576])
def test_norm(size: int, dtype: torch.dtype, tolerance: float) -> None:
    from engine.kernels.ops import TritonOps

    x, weight = normal(1, 3, size, dtype=dtype), normal(2, size, dtype=dtype)
    close(TritonOps().norm(x, weight, 0.01), rms(x, weight, 0.01), dtype, tolerance)


@interpreted
def test_norm_of_heads_that_are_a_view_of_packed_q_and_k() -> None:
    from engine.kernels.ops import TritonOps

    qkv, weight = normal(1, 3, 8, 24), normal(2, 24)
    _, k, _ = torch.split(qkv, [4, 2, 2], dim=1)
    close(TritonOps().norm(k, weight, 1e-5), rms(k, weight, 1e-5), torch.float32, 2e-6)


@interpreted
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_add_norm_gives_the_sum_and_the_norm_of_the_sum_as_stored(dtype: torch.dtype, tolerance: float) -> None:
    from engine.kernels.ops import TritonOps

    x, residual, weight = (
        normal(seed, *size, dtype=dtype) for seed, size in enumerate([(3, 72), (3, 72), (72,)])
    )
    normed, total = TritonOps().add_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    close(normed, rms(total, weight, 1e-5), dtype, tolerance)


@interpreted
def test_add_norm_normalises_what_later_layers_will_read() -> None:
    """2,048 + 1 is 2,048 in float16; with a weight of 1.95 the norm of 2,049 would be another number."""
    from engine.kernels.ops import TritonOps

    x, residual = torch.zeros(1, 16, dtype=torch.float16), torch.full((1, 16), 2048.0, dtype=torch.float16)
    x[0, 0] = 1
    normed, _ = TritonOps().add_norm(x, residual, torch.full((16,), 1.95, dtype=torch.float16), 1e-5)
    assert (normed == normed[0, 1]).all()


@interpreted
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("head_dim", [32, 80])
def test_rotate(head_dim: int, dtype: torch.dtype, tolerance: float) -> None:
    from engine.kernels.ops import TritonOps

    half = head_dim // 2
    qkv = normal(1, 3, 9, head_dim, dtype=dtype)
    qk = qkv[:, :6]  # a view whose tokens are not adjacent
    angles = torch.arange(3.0)[:, None] * torch.arange(1, half + 1) / 7
    cos, sin = (
        torch.cat((left, right), dim=1).to(dtype)[:, None]
        for left, right in ((angles.cos(), angles.cos()), (-angles.sin(), angles.sin()))
    )
    pairs = torch.complex(qk[..., :half].double(), qk[..., half:].double())
    turned = pairs * torch.complex(cos[..., :half].double(), sin[..., half:].double())
    expected = torch.cat((turned.real, turned.imag), dim=-1)
    close(TritonOps().rotate(qk, cos, sin), expected, dtype, tolerance)


@interpreted
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("ffn", [96, 1500])
def test_gated(ffn: int, dtype: torch.dtype, tolerance: float) -> None:
    from engine.kernels.ops import TritonOps

    gate_up = normal(1, 3, 2 * ffn, dtype=dtype)
    gate, up = gate_up.double().chunk(2, dim=1)
    close(TritonOps().gated(gate_up), gate / (1 + (-gate).exp()) * up, dtype, tolerance)


@interpreted
def test_the_torch_ops_say_the_same() -> None:
    from engine.kernels.ops import TritonOps

    ours, reference = TritonOps(), TorchOps()
    x, residual, weight = normal(1, 4, 64), normal(2, 4, 64), normal(3, 64)
    for one, other in zip(
        ours.add_norm(x, residual, weight, 1e-5), reference.add_norm(x, residual, weight, 1e-5), strict=True
    ):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(ours.norm(x, weight, 1e-5), reference.norm(x, weight, 1e-5))
    torch.testing.assert_close(ours.gated(x), reference.gated(x))
    qk, cos, sin = normal(1, 4, 3, 32), normal(2, 4, 1, 32), normal(3, 4, 1, 32)
    torch.testing.assert_close(ours.rotate(qk, cos, sin), reference.rotate(qk, cos, sin))


@interpreted
def test_no_tokens_are_no_work() -> None:
    from engine.kernels.ops import TritonOps

    assert TritonOps().norm(torch.empty(0, 16), torch.ones(16), 1e-5).shape == (0, 16)


@interpreted
def test_tokens_of_a_negative_slot_are_not_stored_vllm_57156() -> None:
    from engine.kernels.store import store

    pool = torch.full((2, 4, 16, 2, 24), 7.0)
    k, v = torch.split(normal(1, 3, 4, 24), [2, 2], dim=1)
    store(k, v, pool[0], pool[1], torch.tensor([17, -1, 63])).run()
    for kv, new in ((0, k), (1, v)):
        slots = pool[kv].flatten(0, 1)
        assert torch.equal(slots[17], new[0])
        assert torch.equal(slots[63], new[2])
        slots[17] = slots[63] = 7.0
        assert (slots == 7).all()


@interpreted
def test_a_block_whose_offset_passes_31_bits_is_stored_and_read_vllm_47671() -> None:
    """Blocks 2^28 numbers apart: block 9 lies past 2^31, in a mapping whose pages are hardly touched."""
    from engine.kernels.paged import Rows, attention
    from engine.kernels.store import store
    from engine.kernels.tiles import Tile

    slot, block, far = 2**24, 16 * 2**24, 9
    memory = torch.frombuffer(mmap.mmap(-1, 4 * (far + 1) * block + 4096), dtype=torch.float32)
    pool = memory.as_strided((far + 1, 16, 1, 16), (block, slot, 16, 1))
    k, v, q = (normal(seed, 1, 1, 16) for seed in range(3))
    store(k, v, pool, pool.as_strided(pool.shape, pool.stride(), 64), torch.tensor([far * 16])).run()
    assert torch.equal(pool[far, 0], k[0])
    out = torch.full((1, 1, 16), torch.nan)
    rows = Rows(
        *(torch.tensor(x, dtype=torch.int32) for x in ([0, 1], [1], [[far]])),
        first=0,
        count=1,
        tokens=1,
        decode=True,
    )
    values = pool.as_strided(pool.shape, pool.stride(), 64)
    for launch in attention(q, pool, values, out, rows, tile=Tile(16, 16, 4, 1)):
        launch.run()
    torch.testing.assert_close(out, v)  # a softmax over one key weighs its value with 1
