"""An executor without a device on a wall clock: a step takes the time that a step-time model gives it.

For trying a configuration on a machine that could not run it, and for showing that engine and simulator make
the same steps. Tokens are those of the modelled executor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.executors.modelled import ModelledExecutor
from engine.step import Step, StepResult
from engine.step_time.model import StepTimeModel


@dataclass(frozen=True, slots=True)
class EmulatedHandle:
    """A step that is over at `ends_s` of the clock."""

    step_result: StepResult
    ends_s: float
    sleep: Callable[[float], None] = field(repr=False)
    clock: Callable[[], float] = field(repr=False)

    def result(self) -> StepResult:
        """Sleep for what is left of the step; then its tokens."""
        left = self.ends_s - self.clock()
        if left > 0:
            self.sleep(left)
        return self.step_result


class EmulatedExecutor:
    """Carries out one step after the other by sleeping. `clock` and `sleep` in seconds."""

    def __init__(
        self,
        step_time: StepTimeModel,
        *,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
        vocab: int = 32_000,
    ) -> None:
        self._modelled = ModelledExecutor(step_time, vocab)
        self._sleep = sleep
        self._clock = clock
        self._free_s = 0.0

    def submit(self, step: Step) -> EmulatedHandle:
        """Start `step` now, or once those before it are over."""
        priced = self._modelled.submit(step)
        self._free_s = max(self._free_s, self._clock()) + priced.seconds
        return EmulatedHandle(priced.step_result, self._free_s, self._sleep, self._clock)
