"""What a target's devices do for its model: step times and KV cache of an instance, the link between two.

Plain data, so that it travels to other processes. Never reads profiles after it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from advisor.advice.sizing import BLOCK_SIZE, ModelCopy
from engine.errors import MachineError
from engine.step_time.model import StepTimeModel
from engine.step_time.scaled import ScaledStepTime


@dataclass(frozen=True, slots=True)
class Hardware:
    """The devices of a target. `longest`: tokens of the longest request, which every instance must hold.

    `link_bytes_per_s`: between two instances, one direction. The factors move step times and the link from what
    is known: 1.2 is a fifth slower.
    """

    on_cpu: bool
    step_times: dict[int, StepTimeModel]  # by TP
    copies: dict[int, ModelCopy]  # by TP
    longest: int
    kv_bytes_per_token: int
    link_bytes_per_s: float
    prefill_factor: float = 1.0
    decode_factor: float = 1.0
    link_factor: float = 1.0
    block_size: int = BLOCK_SIZE

    def step_time(self, tp: int) -> StepTimeModel:
        """Step times of an instance."""
        model = self.step_times[tp]
        if self.prefill_factor == self.decode_factor == 1.0:
            return model
        return ScaledStepTime(model, self.prefill_factor, self.decode_factor)

    def kv_tokens(self, tp: int, budget: int) -> int:
        """KV cache of an instance, tokens. Raises MachineError where nothing is left."""
        return self.copies[tp].kv_tokens(budget)

    def fits(self, tp: int, budget: int) -> bool:
        """Whether an instance holds the model and the longest request."""
        if tp not in self.copies:
            return False
        try:
            return self.kv_tokens(tp, budget) >= self.longest
        except MachineError:
            return False

    def moved(self, *, prefill: float = 1.0, decode: float = 1.0, link: float = 1.0) -> Hardware:
        """The same devices with other step times and links."""
        return replace(
            self,
            prefill_factor=self.prefill_factor * prefill,
            decode_factor=self.decode_factor * decode,
            link_factor=self.link_factor * link,
        )
