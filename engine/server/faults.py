"""Faults on purpose, to prove that a measurement notices them. Only `--fault` turns one on."""

from __future__ import annotations

import time
from dataclasses import dataclass

from engine.errors import InputError
from engine.step import Executor, Handle, Step, StepResult


@dataclass(frozen=True, slots=True)
class _SlowHandle:
    inner: Handle
    started: float
    factor: float

    def result(self) -> StepResult:
        result = self.inner.result()
        time.sleep((self.factor - 1) * (time.monotonic() - self.started))
        return result


class SlowSteps:
    """An Executor whose every step takes `factor` times as long as the wrapped one's."""

    def __init__(self, inner: Executor, factor: float) -> None:
        self._inner, self._factor = inner, factor

    def submit(self, step: Step) -> Handle:
        """Start `step`; its result comes late."""
        started = time.monotonic()
        return _SlowHandle(self._inner.submit(step), started, self._factor)


def slow_factor(fault: str | None) -> float:
    """What `--fault` asks for, `slow-steps:FACTOR`; 1 without a fault. Raises InputError for anything else."""
    if fault is None:
        return 1.0
    kind, _, value = fault.partition(":")
    try:
        factor = float(value)
    except ValueError:
        factor = 0.0
    if kind != "slow-steps" or not 1 <= factor <= 100:
        raise InputError(f"no such fault: {fault}", hint="--fault slow-steps:3   (1 to 100)")
    return factor
