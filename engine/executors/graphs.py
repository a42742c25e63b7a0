"""Decode steps as CUDA graphs: one replay where a step would be hundreds of kernel launches.

A graph is captured for each of a few batch sizes, the largest first into one memory pool, before the engine is
ready. A step of n rows runs in the smallest graph of at least n; the rows that fill it up read and write the
trash block, and all that is made for a step is made for its size (vllm#43810, #57156). Only steps whose rows
all have one token are replayed, every other one is launched kernel by kernel. Recording itself is a function
that is passed in, so that all the rest runs, and is tested, without a GPU.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from engine.attention.base import AttentionBackend
from engine.executors.warm_up import decode_sizes
from engine.model.base import Model
from engine.step import Step, StepRow


class Graph(Protocol):
    """Recorded launches."""

    def replay(self) -> None:
        """Launch them all again, on the same memory."""
        ...


class GraphAttention(AttentionBackend[Any], Protocol):
    """What a backend has besides `AttentionBackend` so that its steps can be replayed."""

    def capture_meta(self, rows: int) -> Any:
        """A plan of `rows` decode rows whose tensors stay where they are, good for every context."""
        ...

    def refill(self, meta: Any, rows: Sequence[StepRow]) -> None:
        """Overwrite such a plan with these rows; those left over read and write the trash block."""
        ...


Record = Callable[[Callable[[], None]], Graph]
"""Runs a function once, recording what it launches."""


class DecodeGraphs:
    """Every graph of one rank. Captures them when made, while no request holds a block (TRT-LLM#16072)."""

    def __init__(
        self, model: Model, attention: GraphAttention, *, max_seqs: int, device: torch.device, record: Record
    ) -> None:
        self._model = model
        self._attention = attention
        self._sizes = decode_sizes(max_seqs)
        # The inputs of every graph are leading parts of these.
        self._ids = torch.zeros(max_seqs, dtype=torch.int64, device=device)
        self._positions = torch.zeros(max_seqs, dtype=torch.int64, device=device)
        self._sampled = torch.arange(max_seqs, device=device)
        self._metas: dict[int, Any] = {}
        self._graphs: dict[int, Graph] = {}
        self._logits: dict[int, torch.Tensor | None] = {}
        for size in reversed(self._sizes):
            self._metas[size] = attention.capture_meta(size)
            self._fill(size, ())
            self._forward(size)  # kernels that are made at their first use cannot be made while recording
            self._graphs[size] = record(partial(self._forward, size))

    def covers(self, step: Step) -> bool:
        """Whether `step` can be replayed: every row one token that is sampled from, and not too many rows."""
        rows = step.rows
        return len(rows) <= self._sizes[-1] and all(len(row.tokens) == 1 and row.sample for row in rows)

    def run(self, step: Step) -> torch.Tensor | None:
        """Logits of the step's rows, [rows, vocab], good until the next run; None on ranks above 0."""
        size = self._sizes[bisect_left(self._sizes, len(step.rows))]
        self._fill(size, step.rows)
        self._graphs[size].replay()
        logits = self._logits[size]
        return None if logits is None else logits[: len(step.rows)]

    def _fill(self, size: int, rows: Sequence[StepRow]) -> None:
        padding = [0] * (size - len(rows))
        self._ids[:size].copy_(torch.tensor([row.tokens[0] for row in rows] + padding))
        self._positions[:size].copy_(torch.tensor([row.start for row in rows] + padding))
        self._attention.refill(self._metas[size], rows)

    def _forward(self, size: int) -> None:
        self._logits[size] = self._model.forward(
            self._ids[:size],
            self._positions[:size],
            self._sampled[:size],
            self._attention,
            self._metas[size],
        )


def cuda_recorder(device: torch.device) -> Record:
    """Records with torch.cuda.graph; all graphs share one memory pool, since one runs at a time."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(body: Callable[[], None]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            body()
        return graph

    return record
