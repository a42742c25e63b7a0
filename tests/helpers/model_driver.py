"""Runs a model on the torch backend, without an executor: greedy tokens and logits, on one rank or several."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import torch

from engine.attention.torch import TorchAttention
from engine.model.base import Model
from engine.model.load import load_model
from engine.request import SamplingParams
from engine.step import StepRow

BLOCK = 16


class OneSequence:
    """One sequence in a KV pool of its own, in blocks of descending order."""

    def __init__(self, model: Model, tokens: int, dtype: torch.dtype = torch.float64) -> None:
        blocks = -(-tokens // BLOCK)
        self._model = model
        self._blocks = tuple(range(blocks, 0, -1))
        self._attention = TorchAttention(
            model.local_shape,
            num_blocks=blocks + 1,
            block_size=BLOCK,
            dtype=dtype,
            windows=model.windows,
        )
        self._stored = 0

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> torch.Tensor | None:
        """Logits behind each of the next tokens, [tokens, vocab]; None on ranks other than 0."""
        start, self._stored = self._stored, self._stored + len(tokens)
        row = StepRow("alone", tuple(tokens), start, self._blocks, True, start == 0, SamplingParams(), start)
        meta = self._attention.plan([row])
        positions = torch.arange(start, self._stored)
        return self._model.forward(
            torch.tensor(tokens), positions, torch.arange(len(tokens)), self._attention, meta
        )


def greedy(model: Model, prompt: Sequence[int], count: int) -> list[int]:
    """`count` greedy tokens: one whole prefill, then single steps."""
    sequence, tokens, out = OneSequence(model, len(prompt) + count), list(prompt), []
    for _ in range(count):
        logits = sequence.logits(tokens)
        assert logits is not None
        tokens = [int(logits[-1].argmax())]
        out += tokens
    return out


class ThreadRanks:
    """`Collective`s of ranks that are threads of one process; sums in the order of ranks."""

    def __init__(self, ranks: int) -> None:
        self.slots: list[Any] = [None] * ranks
        self.barrier = Barrier(ranks, timeout=30)

    def exchange(self, rank: int, x: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, on every rank."""
        self.slots[rank] = x
        self.barrier.wait()
        everyone = list(self.slots)
        self.barrier.wait()
        return everyone


class ThreadRank:
    """One rank's end of `ThreadRanks`."""

    def __init__(self, group: ThreadRanks, rank: int, ranks: int) -> None:
        self._group = group
        self.rank = rank
        self.ranks = ranks

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """See `Collective`."""
        everyone = self._group.exchange(self.rank, x)
        total = everyone[0]
        for other in everyone[1:]:
            total = total + other
        return total

    def gather(self, x: torch.Tensor) -> torch.Tensor | None:
        """See `Collective`."""
        everyone = self._group.exchange(self.rank, x)
        return torch.cat(everyone, dim=-1) if self.rank == 0 else None


def load_ranks(folder: Path, ranks: int, *, dummy: bool = False) -> list[Model]:
    """The float64 model of `folder`, one part for each of `ranks` threads."""
    group = ThreadRanks(ranks)
    return [
        load_model(folder, torch.float64, collective=ThreadRank(group, rank, ranks), dummy=dummy)
        for rank in range(ranks)
    ]


def logits_of_ranks(models: Sequence[Model], prompt: Sequence[int]) -> torch.Tensor:
    """Logits behind every token of `prompt`, computed by all ranks at once: [tokens, vocab]."""

    def run(model: Model) -> torch.Tensor | None:
        return OneSequence(model, len(prompt)).logits(prompt)

    with ThreadPoolExecutor(len(models)) as threads:
        first, *others = threads.map(run, models)
    assert first is not None
    assert all(other is None for other in others)
    return first
