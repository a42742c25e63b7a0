"""Logits to tokens: greedy, or temperature, top-k, top-p and a Gumbel argmax.

The noise comes from a counter-based generator (Philox) keyed by (seed, position), so that a request draws
the same tokens whatever the batch, the chunking, a preemption, or the instance it runs on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.request import SamplingParams
from engine.step import StepRow

_KEY_MASK = 2**64 - 1


def sample(logits: torch.Tensor, rows: Sequence[StepRow], eos_token_ids: frozenset[int]) -> list[int]:
    """One token for each row. logits: [rows, vocab]; rows are those that sample."""
    # A copy that may be changed; and argmax over bfloat16 is five times slower than this.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    for number, row in enumerate(rows):
        if row.output_index < row.sampling.min_tokens and eos_token_ids:
            logits[number, list(eos_token_ids)] = -torch.inf
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    for number, row in enumerate(rows):
        if row.sampling.temperature > 0:
            position = row.start + len(row.tokens)
            tokens[number] = _draw(logits[number], row.sampling, position)
    return tokens


def support(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Scaled logits with -inf outside the top-k, then the top-p set. logits, result: [vocab].

    Top-p keeps the fewest tokens, likeliest first, whose probability reaches `top_p` (Holtzman et al. 2020,
    section 3.1). Both keep ties with their last member.
    """
    scaled = logits.double() / params.temperature
    if 0 < params.top_k < len(scaled):
        scaled = scaled.masked_fill(scaled < scaled.topk(params.top_k).values[-1], -torch.inf)
    if params.top_p < 1:
        probability = scaled.softmax(dim=-1)
        # numpy sorts values ten times faster than torch sorts values with their indices.
        ordered = np.sort(probability.numpy())[::-1]
        reached_before = np.cumsum(ordered) - ordered
        least = float(ordered[reached_before < params.top_p][-1])
        scaled = scaled.masked_fill(probability < least, -torch.inf)
    return scaled


def _draw(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    key = np.array([params.seed & _KEY_MASK, position], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key))
    # Minus the logarithm of an exponential variable is a Gumbel variable.
    noise = torch.from_numpy(generator.standard_exponential(len(logits))).log_()
    return int((support(logits, params) - noise).argmax())
