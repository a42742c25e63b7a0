"""Any step times on a pipeline of stages: what the stages' sizes and the hops between them add.

A step passes all stages one after another, so it takes as long as on one stage of all layers, and longer by its
hops; with as many steps in flight as there are stages, each stage is busy for its share of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from engine.step_time.derived import DerivedStepTime
from engine.step_time.model import StepShape
from engine.step_time.roofline import ACTIVATION_BYTES

# Send and receive of NCCL on A100s: 2 kB in 8 us, 67 MB at 0.76 of the link's peak (Vidur's network profiles).
HOP_S = 10e-6
LINK_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class PipelinedStepTime(DerivedStepTime):
    """`model`, the step times of all layers on the devices of one stage, on `pp` stages of such devices.

    `layers` and `hidden` are the model's sizes, `link_bytes_per_s` the link between two stages. The engine
    divides `seconds` evenly, so every stage counts as the fullest, one of ceil(layers / pp) layers. Ours: the
    embedding and the head, which only the ends have, and the fixed time of a step are divided like layers.
    """

    pp: int
    layers: int
    hidden: int
    link_bytes_per_s: float
    _uneven: float = field(init=False, repr=False, compare=False)  # the fullest stage over the mean one
    _token_s: float = field(init=False, repr=False, compare=False)  # of handing a token's activations on

    def __post_init__(self) -> None:
        further, rate = self.pp - 1, LINK_SHARE * self.link_bytes_per_s
        object.__setattr__(self, "_uneven", math.ceil(self.layers / self.pp) * self.pp / self.layers)
        object.__setattr__(self, "_token_s", further * self.hidden * ACTIVATION_BYTES / rate)

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step through all stages, seconds."""
        prefill, tokens, _ = shape
        for new, _ in prefill:
            tokens += new
        if not tokens:
            return 0.0
        hops_s = (self.pp - 1) * HOP_S + tokens * self._token_s
        return self._uneven * self.model.seconds(shape) + hops_s

    def decode_line(self, rows: int, context: int) -> tuple[float, float]:
        """(a, b) of `a + b i` seconds, see StepTimeModel."""
        start, growth = self.model.decode_line(rows, context)
        hops_s = (self.pp - 1) * HOP_S + rows * self._token_s
        return self._uneven * start + hops_s, self._uneven * growth
