"""Carries Steps out with torch on this machine's CPU.

Owns the model, the KV pool and one worker thread that runs steps in the order submitted. Knows nothing of
queues, clocks or requests beyond the rows of a step.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from engine.attention.torch import TorchAttention
from engine.errors import InputError
from engine.model.load import load_decoder
from engine.request import SamplingParams
from engine.sampling import sample
from engine.shape import ModelShape
from engine.step import Step, StepResult, StepRow
from engine.text import eos_token_ids

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,  # for tests that compare exactly
}
_PROBE_SIZE = 512
_PROBE_S = 0.025


class TorchExecutor:
    """`Executor` on CPU. `threads` is the number of devices (cores) that it may use.

    `dtype` "auto" is what `probe_dtype` finds; `num_blocks` counts the trash block. Close it, or use it as a
    context manager. Raises InputError where the folder's model cannot be run.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: str,
        threads: int,
        num_blocks: int,
        block_size: int,
    ) -> None:
        self._thread = ThreadPoolExecutor(1, "torch", torch.set_num_threads, (threads,))
        self.dtype = self._thread.submit(probe_dtype).result() if dtype == "auto" else dtype
        if self.dtype not in _DTYPES:
            raise InputError(f"unknown dtype {dtype!r}", why=f"known are auto, {', '.join(_DTYPES)}")
        number_type = _DTYPES[self.dtype]
        self._model = load_decoder(folder, number_type)
        self._eos_token_ids = eos_token_ids(folder)
        self._attention = TorchAttention(
            self.shape, num_blocks=num_blocks, block_size=block_size, dtype=number_type
        )
        self._block_size = block_size

    @property
    def shape(self) -> ModelShape:
        """The model's sizes."""
        return self._model.shape

    def submit(self, step: Step) -> Future[StepResult]:
        """Queue `step` for the worker thread."""
        return self._thread.submit(self._run, step)

    def warm_up(self) -> None:
        """Run a prefill and a decode in the trash block, so that first requests do not pay for allocations."""
        for tokens in (self._block_size, 1):
            row = StepRow("warm-up", (0,) * tokens, 0, (0,), True, tokens > 1, SamplingParams())
            self.submit(Step(0, (row,))).result()

    def close(self) -> None:
        """Wait for the steps in flight and stop the thread."""
        self._thread.shutdown()

    def __enter__(self) -> TorchExecutor:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @torch.inference_mode()
    def _run(self, step: Step) -> StepResult:
        ids: list[int] = []
        positions: list[int] = []
        last: list[int] = []
        for row in step.rows:
            ids += row.tokens
            positions += range(row.start, row.start + len(row.tokens))
            if row.sample:
                last.append(len(ids) - 1)
        meta = self._attention.plan(step.rows)
        logits = self._model.forward(
            torch.tensor(ids), torch.tensor(positions), torch.tensor(last, dtype=torch.int64),
            self._attention, meta,
        )  # fmt: skip
        drawn = iter(sample(logits, [row for row in step.rows if row.sample], self._eos_token_ids))
        return StepResult(step.id, tuple(next(drawn) if row.sample else None for row in step.rows))


def probe_dtype() -> str:
    """bfloat16 where this CPU multiplies it faster than float32, by a 50 ms race, else float32."""
    return "bfloat16" if _products(torch.bfloat16) > _products(torch.float32) else "float32"


def _products(dtype: torch.dtype) -> int:
    """Matrix products done in a share of the probe's time."""
    left = torch.ones(_PROBE_SIZE, _PROBE_SIZE, dtype=dtype)
    torch.mm(left, left)
    count, end = 0, time.perf_counter() + _PROBE_S
    while time.perf_counter() < end:
        torch.mm(left, left)
        count += 1
    return count
