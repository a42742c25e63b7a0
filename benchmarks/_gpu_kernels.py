"""The Triton kernels against plain torch in float64 on the CPU, on fresh random inputs."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import torch

from benchmarks.gpu import Setup
from engine.attention.torch import TorchAttention
from engine.model.ops import Ops, TorchOps
from engine.request import SamplingParams
from engine.shape import ModelShape
from engine.step import StepRow

BLOCK = 16
# Rounding of the numbers: outputs are near 1, sums are kept in float32.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def compare_kernels(setup: Setup) -> bool:
    """Print the largest error of each kernel and dtype; whether all are within rounding."""
    # bfloat16 is wrong under the interpreter, silently; there it is float16's code.
    dtypes = [torch.float32, torch.float16] + ([] if setup.toy else [torch.bfloat16])
    right = True
    for dtype in dtypes:
        for name, ours, reference in (*attention_cases(setup, dtype), *op_cases(setup, dtype)):
            error = float(
                (ours.double().cpu() - reference).abs().max() / max(1.0, float(reference.abs().max()))
            )
            good = error <= TOLERANCE[dtype]  # a NaN is not
            right &= good
            print(f"{name:28}{str(dtype).removeprefix('torch.'):>10}{error:12.1e}{'' if good else '  WRONG'}")
    return right


def attention_cases(setup: Setup, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Decode, prefill and mixed steps over a pool with NaN wherever no context lies."""
    from engine.attention.triton import TritonAttention

    shape, random = ModelShape.from_config({**setup.config, "num_hidden_layers": 1}), Random(setup.seed)
    generator = torch.Generator().manual_seed(setup.seed)
    longest = 40 if setup.toy else 1000
    decodes = [(random.randrange(longest), 1) for _ in range(3)]
    prefills = [(random.randrange(longest), random.randrange(2, longest)) for _ in range(2)]
    for name, parts in (("decode", decodes), ("prefill", prefills), ("mixed", decodes + prefills)):
        rows, blocks = rows_of(parts, random)
        sizes = {"num_blocks": blocks, "block_size": BLOCK}
        kernel = TritonAttention(shape, **sizes, dtype=dtype, device=str(setup.device))
        oracle = TorchAttention(shape, **sizes, dtype=torch.float64)
        oracle.pool.fill_(torch.nan)
        for row in rows:
            for position in range(row.start):
                slot = row.blocks[position // BLOCK], position % BLOCK
                numbers = torch.randn(2, shape.kv_heads, shape.head_dim, generator=generator).to(dtype)
                oracle.pool[0, :, slot[0], slot[1]] = numbers.double()
        kernel.pool.copy_(oracle.pool.to(dtype))
        tokens = sum(len(row.tokens) for row in rows)
        heads = (shape.heads, shape.kv_heads, shape.kv_heads)
        qkv = [torch.randn(tokens, n, shape.head_dim, generator=generator).to(dtype) for n in heads]
        on_device = [x.to(setup.device) for x in qkv]
        ours = kernel.attend(0, *on_device, kernel.plan(rows))
        yield f"attention, {name}", ours, oracle.attend(0, *(x.double() for x in qkv), oracle.plan(rows))


def rows_of(parts: list[tuple[int, int]], random: Random) -> tuple[list[StepRow], int]:
    """Rows of (context, new tokens) in shuffled blocks of their own, and how many blocks the pool needs."""
    needed = [-(-(context + new) // BLOCK) for context, new in parts]
    free = random.sample(range(1, sum(needed) + 1), sum(needed))
    rows = []
    for (context, new), count in zip(parts, needed, strict=True):
        blocks, free = tuple(free[:count]), free[count:]
        rows.append(StepRow(str(len(rows)), (0,) * new, context, blocks, True, new > 1, SamplingParams()))
    return rows, sum(needed) + 1


def op_cases(setup: Setup, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Each of `Ops`."""
    from engine.kernels.ops import TritonOps

    shape, generator = ModelShape.from_config(setup.config), torch.Generator().manual_seed(setup.seed)

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    tokens = 5 if setup.toy else 333
    x, residual, weight = numbers(tokens, shape.hidden), numbers(tokens, shape.hidden), numbers(shape.hidden)
    qk, gate_up = numbers(tokens, shape.heads, shape.head_dim), numbers(tokens, 2 * shape.ffn)
    angles = torch.randn(tokens, 1, shape.head_dim // 2, generator=generator)
    cos = torch.cat((angles.cos(), angles.cos()), dim=-1).to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), dim=-1).to(dtype)

    def run(ops: Ops, place: torch.device, kind: torch.dtype) -> list[tuple[str, torch.Tensor]]:
        a, b, w, heads, wide, c, s = (
            part.to(place, kind) for part in (x, residual, weight, qk, gate_up, cos, sin)
        )
        normed, total = ops.add_norm(a, b, w, shape.norm_eps)
        return [
            ("norm", ops.norm(a, w, shape.norm_eps)),
            ("residual and norm", normed),
            ("residual", total),
            ("rotary", ops.rotate(heads, c, s)),
            ("SwiGLU", ops.gated(wide)),
        ]

    ours, reference = run(TritonOps(), setup.device, dtype), run(TorchOps(), torch.device("cpu"), torch.float64)
    for (name, result), (_, expected) in zip(ours, reference, strict=True):
        yield name, result, expected
