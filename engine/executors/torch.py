"""Carries Steps out with torch: on this machine's CPU, or on its CUDA GPUs.

Owns one worker thread that runs steps in the order submitted, and with tensor parallelism the processes of the
other ranks. Knows nothing of queues, clocks or requests beyond the rows of a step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import torch
from msgspec.structs import replace

from engine.devices import cores_of_rank, cuda_gpus, pin_thread
from engine.errors import MachineError
from engine.executors.runner import DeviceParts, Runner
from engine.executors.shared_pool import pages_of
from engine.executors.tensor_parallel import RankProcesses, rendezvous_file
from engine.executors.wire import RankConfig
from engine.executors.worker import Worker
from engine.model.linear import Linear
from engine.model.race import best_times
from engine.shape import ModelShape
from engine.step import PREVIOUS, Step, StepResult
from engine.transfer.memory import new_fd
from engine.transfer.pages import Pages

_PROBE_SIZE, _PROBE_LAYERS, _PROBE_TOKENS = 1024, 12, 8
_PROBE_S = 0.05
_CLEARLY = 1.3  # ours
_DEATH_SHOWS_S = 1.0


class TorchExecutor:
    """`Executor` on torch, ready to serve once made: loaded, joined, warmed up.

    `device` is `cpu` or `cuda`; rank r of `tp` uses `threads` cores of its own, or GPU `first_gpu` + r. `pin`
    keeps each rank's threads on its cores. `dtype` "auto" is what `probe_dtype` finds, on a GPU what it
    multiplies fast. `num_blocks`, of each rank, counts the trash block; `dummy` takes random weights of
    config.json's shapes. `parts`, of one rank, replace the device's own: kernels run under the interpreter like
    this. `shared`: KV lies where it can be moved from and to, `pages`; else `pages` is None.

    Close it, or use it as a context manager. Raises InputError where the folder's model cannot be run,
    MachineError where a rank cannot start. A rank that dies makes every open and later step raise MachineError.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: str,
        num_blocks: int,
        block_size: int,
        threads: int = 1,
        device: str = "cpu",
        tp: int = 1,
        pin: bool = False,
        max_seqs: int = 64,
        cuda_graphs: bool = True,
        dummy: bool = False,
        parts: DeviceParts | None = None,
        first_gpu: int = 0,
        shared: bool = False,
    ) -> None:
        cores = [cores_of_rank(rank, threads, tp) if pin and device == "cpu" else () for rank in range(tp)]

        def start() -> None:
            pin_thread(cores[0])
            torch.set_num_threads(threads)

        self._worker = Worker("torch", start)
        self._ranks: RankProcesses | None = None
        self._sampled: dict[str, int | None] = {}  # of the last step, by request
        self.dtype = self._worker.submit(lambda: auto_dtype(device)).result() if dtype == "auto" else dtype
        configs = [
            RankConfig(
                folder=str(folder),
                dtype=self.dtype,
                device=device if device == "cpu" else f"{device}:{first_gpu + rank}",
                rank=rank,
                ranks=tp,
                threads=threads,
                cores=cores[rank],
                num_blocks=num_blocks,
                block_size=block_size,
                max_seqs=max_seqs,
                cuda_graphs=cuda_graphs,
                dummy=dummy,
                shared=shared,
            )
            for rank in range(tp)
        ]
        self.pages: Pages | None = None
        try:
            self._runner = self._start(configs, parts)
        except BaseException:
            self.close()
            raise

    def _start(self, configs: list[RankConfig], parts: DeviceParts | None) -> Runner:
        with contextlib.ExitStack() as stack:
            rendezvous, others = "", configs[1:]
            if others:
                rendezvous = stack.enter_context(rendezvous_file())
                others = [
                    replace(config, rendezvous=rendezvous, memory_fd=_memory_fd(config, stack))
                    for config in others
                ]
                self._ranks = RankProcesses(others, self._worker.fail)
            runner = self._worker.submit(lambda: Runner(configs[0], parts)).result()
            reports = self._ranks.loaded() if self._ranks else ()
            self.weight_bytes = (runner.model.weight_bytes, *(report.weight_bytes for report in reports))
            if runner.memory is not None:
                self.pages = pages_of(runner.memory, runner.layout, others, reports)
            self._worker.submit(lambda: runner.join(rendezvous)).result()
            self._worker.submit(runner.prepare).result()
        return runner

    @property
    def shape(self) -> ModelShape:
        """The model's sizes."""
        return self._runner.model.shape

    @property
    def rank_pids(self) -> tuple[int, ...]:
        """Process ids of ranks 1 and above."""
        return self._ranks.pids if self._ranks else ()

    def submit(self, step: Step) -> Future[StepResult]:
        """Queue `step` for the worker thread."""
        return self._worker.submit(lambda: self._run(step))

    def close(self) -> None:
        """Wait for the steps in flight, stop the thread, end the other ranks."""
        self._worker.close()
        if self._ranks is not None:
            self._ranks.close()
        if self.pages is not None:
            self.pages.close()

    def __enter__(self) -> TorchExecutor:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _run(self, step: Step) -> StepResult:
        step = self._with_tokens(step)
        result = self._runner.run(step) if self._ranks is None else self._run_on_all(self._ranks, step)
        if result is None:
            raise RuntimeError("rank 0 made no tokens")
        self._sampled = dict(zip((row.request_id for row in step.rows), result.tokens, strict=True))
        return result

    def _with_tokens(self, step: Step) -> Step:
        """The step with the tokens that its PREVIOUS stands for; other ranks could not know them."""
        if all(row.tokens[0] != PREVIOUS for row in step.rows):
            return step
        rows = [
            row
            if row.tokens[0] != PREVIOUS
            else dataclasses.replace(row, tokens=(self._known(row.request_id),))
            for row in step.rows
        ]
        return Step(step.id, tuple(rows))

    def _known(self, request_id: str) -> int:
        token = self._sampled.get(request_id)
        if token is None:
            raise ValueError(f"no token of {request_id} was sampled in the step before")
        return token

    def _run_on_all(self, ranks: RankProcesses, step: Step) -> StepResult | None:
        try:
            ranks.send(step)
            return self._runner.run(step)
        except Exception as error:
            # The other ranks are somewhere in this step: none of them can take part in a next one.
            # A rank's death shows as a broken connection first, as a status soon after.
            failure = ranks.death(_DEATH_SHOWS_S) or _broken(error)
            self._worker.fail(failure)
            raise failure from error


def _memory_fd(config: RankConfig, stack: contextlib.ExitStack) -> int | None:
    """A file for the KV of another rank, closed with the stack. Raises MachineError where there is none."""
    if not config.shared or config.device != "cpu":
        return None
    fd = new_fd()
    if fd is None:
        raise MachineError(
            "KV of several ranks cannot be moved on this system",
            why="it has no memfd",
            hint="transport: tcp, or tp: 1",
        )
    stack.callback(os.close, fd)
    return fd


def _broken(error: Exception) -> MachineError:
    return MachineError(
        "a step of the tensor-parallel group failed",
        why=(str(error).splitlines() or [type(error).__name__])[0],
        hint="advise launch",
    )


def auto_dtype(device: str = "cpu") -> str:
    """The dtype of `dtype: auto` on a device."""
    return probe_dtype() if device == "cpu" else cuda_gpus()[0].dtype


def probe_dtype() -> str:
    """float32 where this CPU is clearly faster in it at a batch of 8 decodes, else bfloat16 (half the bytes).

    Prefill does not matter: where float32 is faster, bfloat16 weights are multiplied as float32 (`Linear`).
    """
    bfloat16, float32 = best_times([_batch(torch.bfloat16), _batch(torch.float32)], _PROBE_S)
    return "float32" if _CLEARLY * float32 < bfloat16 else "bfloat16"


def _batch(dtype: torch.dtype) -> Callable[[], object]:
    """A small batch through more weights than a core's cache holds."""
    layers = [Linear(torch.ones(_PROBE_SIZE, _PROBE_SIZE, dtype=dtype)) for _ in range(_PROBE_LAYERS)]
    x = torch.ones(_PROBE_TOKENS, _PROBE_SIZE, dtype=dtype)
    return lambda: [layer(x) for layer in layers]
