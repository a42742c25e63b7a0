"""Logits to tokens: greedy, or temperature, top-k, top-p and a Gumbel argmax; and logprobs where asked for.

The noise comes from a counter-based generator (Philox) keyed by (seed, position), so that a request draws
the same tokens whatever the batch, the chunking, a preemption, or the instance it runs on; a GPU's generator is
another one than a CPU's. Logits may be on any device; a step waits for it once for the tokens, and once more
where logprobs are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch

from engine.request import SamplingParams
from engine.step import Step, StepResult, StepRow, TokenLogprobs

_KEY_MASK = 2**64 - 1
T = TypeVar("T")


class Choice(Protocol):
    """The last step of sampling: which token of the vocabulary, on some device. Results: int64 [rows]."""

    def greedy(self, logits: torch.Tensor) -> torch.Tensor:
        """The likeliest token of each row, the first of equals. logits: [rows, vocab]."""
        ...

    def draw(self, scaled: torch.Tensor, keys: Sequence[tuple[int, int]]) -> torch.Tensor:
        """A token of each row with probability softmax(scaled). keys: seed and position of each row."""
        ...


class TorchChoice:
    """`Choice` with numpy's 64-bit Philox."""

    def greedy(self, logits: torch.Tensor) -> torch.Tensor:
        """See `Choice`."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if logits.device.type == "cpu":
            # numpy takes a third of the time of torch, and torch over bfloat16 five times its own.
            return torch.from_numpy(logits.numpy().argmax(axis=-1))
        return logits.argmax(dim=-1)

    def draw(self, scaled: torch.Tensor, keys: Sequence[tuple[int, int]]) -> torch.Tensor:
        """See `Choice`."""
        noise = torch.from_numpy(np.stack([_exponentials(*key, scaled.shape[-1]) for key in keys]))
        # Minus the logarithm of an exponential variable is a Gumbel variable.
        return (scaled - noise.to(scaled.device).log_()).argmax(dim=-1)


_TORCH_CHOICE = TorchChoice()


def sample_step(
    logits: torch.Tensor, step: Step, eos_token_ids: frozenset[int], choice: Choice = _TORCH_CHOICE
) -> StepResult:
    """All of sampling for one step. logits: [rows that sample, vocab], in row order; they stay as they are.

    Logprobs are the log-softmax of these raw logits, before temperature, top-k, top-p and `min_tokens`.
    """
    rows = [row for row in step.rows if row.sample]
    drawn = _tokens(logits, rows, eos_token_ids, choice)
    tokens = _spread(step.rows, drawn)
    if all(row.sampling.logprobs is None for row in rows):
        return StepResult(step.id, tokens)
    return StepResult(step.id, tokens, _spread(step.rows, _logprobs(logits, rows, drawn)))


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
        ordered = _descending(probability)
        reached_before = ordered.cumsum(dim=-1) - ordered
        # The last of those kept, picked without asking the device how many they are.
        kept = (reached_before < params.top_p).sum().clamp(min=1)
        scaled = scaled.masked_fill(probability < ordered.gather(0, kept[None] - 1), -torch.inf)
    return scaled


def _tokens(
    logits: torch.Tensor, rows: Sequence[StepRow], eos_token_ids: frozenset[int], choice: Choice
) -> list[int]:
    """One token for each row. logits: [rows, vocab]."""
    early = [n for n, row in enumerate(rows) if row.output_index < row.sampling.min_tokens]
    if early and eos_token_ids:
        index = torch.tensor(early)[:, None], torch.tensor(sorted(eos_token_ids))[None]
        logits = logits.clone()
        logits[tuple(part.to(logits.device) for part in index)] = -torch.inf
    tokens = choice.greedy(logits)
    drawing = [n for n, row in enumerate(rows) if row.sampling.temperature > 0]
    if drawing:
        scaled = torch.stack([support(logits[n], rows[n].sampling) for n in drawing])
        keys = [(rows[n].sampling.seed, rows[n].start + len(rows[n].tokens)) for n in drawing]
        tokens[torch.tensor(drawing, device=tokens.device)] = choice.draw(scaled, keys)
    drawn: list[int] = tokens.tolist()
    return drawn


def _exponentials(seed: int, position: int, vocab: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Exponential variables of a seed and a position, [vocab]."""
    key = np.array([seed & _KEY_MASK, position], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).standard_exponential(vocab)


def _descending(values: torch.Tensor) -> torch.Tensor:
    if values.device.type == "cpu":
        # numpy sorts values ten times faster than torch sorts values with their indices.
        return torch.from_numpy(np.sort(values.numpy())[::-1].copy())
    return values.sort(descending=True).values


def _logprobs(
    logits: torch.Tensor, rows: Sequence[StepRow], tokens: Sequence[int]
) -> list[TokenLogprobs | None]:
    """Of each row that asks, in at least float32. logits: [rows, vocab]."""
    asking = [(n, asked) for n, row in enumerate(rows) if (asked := row.sampling.logprobs) is not None]
    device, numbers = logits.device, [n for n, _ in asking]
    picked = logits[torch.tensor(numbers, device=device)]
    spread = picked.to(torch.promote_types(picked.dtype, torch.float32)).log_softmax(dim=-1)
    most = min(max(asked for _, asked in asking), spread.shape[-1])
    chosen = torch.tensor([tokens[n] for n in numbers], device=device)[:, None]
    top = spread.topk(most, dim=-1)
    values = torch.cat((spread.gather(1, chosen), top.values), dim=-1).tolist()
    result: list[TokenLogprobs | None] = [None] * len(rows)
    for (n, asked), (own, *best), ids in zip(asking, values, top.indices.tolist(), strict=True):
        result[n] = TokenLogprobs(own, tuple(zip(ids, best, strict=True))[:asked])
    return result


def _spread(rows: Sequence[StepRow], values: Sequence[T]) -> tuple[T | None, ...]:
    """A value for each row: those that sample take the next one, the others None."""
    following = iter(values)
    return tuple([next(following) if row.sample else None for row in rows])
