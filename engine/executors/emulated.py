"""An executor without a device on a wall clock: a step takes the time that a step-time model gives it, slept.

For rehearsing a configuration on a machine that could not run it. Tokens and KV are those of
`engine.executors.hashed`. A step's ideal time is the model's seconds times `time_scale`. Steps that follow each
other without a pause are laid end to end on the ideal clock, whatever the host takes in between, so that its
lateness is a lag of this moment and never adds up; how late each one was is on its handle. One stage only: a
pipeline is refused by `engine.emulated_backend`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.executors.hashed import Halves, HashedKV
from engine.step import Step, StepResult
from engine.step_time.model import StepShape, StepTimeModel

PAUSE_S = 0.002
"""A step submitted so soon after the one before was taken follows it without a pause. Ours."""
STANDSTILL_S = 1.0
"""A host that comes later than this stood still, and its device with it: the time is not caught up. Ours."""


@dataclass(slots=True)
class EmulatedHandle:
    """A step that is to be over at `ends_s` of the clock, `seconds` after its ideal beginning; wall seconds.

    `late_s`: how long after the end of the step before it was submitted, of a step that followed without a
    pause. `taken_s`: when its result was taken, infinite before; `lag_s`: how long after `ends_s` that was.
    """

    step_result: StepResult
    seconds: float
    ends_s: float
    late_s: float
    sleep: Callable[[float], None] = field(repr=False)
    clock: Callable[[], float] = field(repr=False)
    taken_s: float = math.inf
    lag_s: float = 0.0

    def result(self) -> StepResult:
        """Sleep for what is left of the step; then its tokens."""
        if self.taken_s == math.inf:
            left = self.ends_s - self.clock()
            if left > 0:
                self.sleep(left)
            self.taken_s = self.clock()
            self.lag_s = max(0.0, self.taken_s - self.ends_s)
        return self.step_result


class EmulatedExecutor:
    """Carries out one step after the other by sleeping. `clock` and `sleep` in seconds of the wall.

    `kv` is the memory of the instance's KV, uint32 [2, blocks, block_size]; tokens are below `vocab` and none
    of `never`, where end-of-sequence belongs: a request ends by its length.
    """

    def __init__(
        self,
        step_time: StepTimeModel,
        kv: Halves,
        *,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
        time_scale: float = 1.0,
        vocab: int = 32_000,
        never: frozenset[int] = frozenset(),
    ) -> None:
        self._step_time = step_time
        self._kv = HashedKV(kv, vocab=vocab, never=never)
        self._sleep = sleep
        self._clock = clock
        self._time_scale = time_scale
        self._last: EmulatedHandle | None = None
        self._reached: dict[str, int] = {}  # by request of the last step, the position behind its tokens

    def submit(self, step: Step) -> EmulatedHandle:
        """Start `step` now, or where the one before ends."""
        now = self._clock()
        seconds = self._time_scale * self._step_time.seconds(StepShape.of(step))
        begins, late = self._begins(step, now)
        result = StepResult(step.id, self._kv.carry_out(step))
        handle = EmulatedHandle(result, seconds, begins + seconds, late, self._sleep, self._clock)
        self._last = handle
        self._reached = {row.request_id: row.start + len(row.tokens) for row in step.rows}
        return handle

    def _begins(self, step: Step, now: float) -> tuple[float, float]:
        """The ideal beginning of a step that is submitted now, and how late it comes."""
        last = self._last
        if last is None:
            return now, 0.0
        late = now - last.ends_s
        if late <= 0:
            return last.ends_s, 0.0
        # What goes on where the last step left it waited for no arrival and no blocks: the host was late.
        reached = self._reached
        follows = now - last.taken_s <= PAUSE_S or any(
            reached.get(row.request_id) == row.start for row in step.rows
        )
        if not follows:
            return now, 0.0
        return (last.ends_s if late <= STANDSTILL_S else now), late
