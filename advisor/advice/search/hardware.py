"""What a target's devices do for its model: step times and KV cache of an instance, the link between two.

Plain data, so that it travels to other processes. Never reads profiles after it is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from advisor.advice.links import NODE_GPUS, links_of, stage_link
from advisor.advice.situation import Situation
from advisor.advice.sizing import BLOCK_SIZE, DEGREES, ModelCopy
from advisor.advice.steps import Calibrations, StepTimes, choose_step_times, cores_of, kv_bytes
from engine.config import PoolConfig
from engine.errors import MachineError
from engine.step_time.model import StepTimeModel
from engine.step_time.pipelined import PipelinedStepTime
from engine.step_time.roofline import PCIE_BYTES_PER_S
from engine.step_time.scaled import ScaledStepTime


@dataclass(frozen=True, slots=True)
class Hardware:
    """The devices of a target. `longest`: tokens of the longest request, which every instance must hold.

    An instance's size is its TP degree, on a CPU its cores.

    `link_bytes_per_s`: between two instances, one direction; `node_bytes_per_s`: between two GPUs of a node, as
    pipeline stages have it. The factors move step times and the link from what is known: 1.2 is a fifth slower.
    """

    on_cpu: bool
    step_times: dict[int, StepTimeModel]  # by size
    copies: dict[int, ModelCopy]  # by size
    longest: int
    kv_bytes_per_token: int
    link_bytes_per_s: float
    prefill_factor: float = 1.0
    decode_factor: float = 1.0
    link_factor: float = 1.0
    block_size: int = BLOCK_SIZE
    node_bytes_per_s: float = PCIE_BYTES_PER_S

    def size(self, pool: PoolConfig) -> int:
        """The size of a pool's instances."""
        return pool.devices_per_instance if self.on_cpu else pool.tp

    def step_time(self, tp: int, pp: int = 1) -> StepTimeModel:
        """Step times of an instance, through all its stages."""
        model = self.step_times[tp]
        if not self.prefill_factor == self.decode_factor == 1.0:
            model = ScaledStepTime(model, self.prefill_factor, self.decode_factor)
        if pp == 1:
            return model
        shape = self.copies[tp].shape
        link = self.node_bytes_per_s if tp * pp <= NODE_GPUS else self.link_bytes_per_s / self.link_factor
        return PipelinedStepTime(model, pp, shape.layers, shape.hidden, link)

    def kv_tokens(self, tp: int, budget: int, pp: int = 1) -> int:
        """KV cache of an instance, tokens. Raises MachineError where nothing is left."""
        return replace(self.copies[tp], pp=pp).kv_tokens(budget)

    def fits(self, tp: int, budget: int, pp: int = 1) -> bool:
        """Whether an instance holds the model and the longest request."""
        if tp not in self.copies:
            return False
        try:
            return self.kv_tokens(tp, budget, pp) >= self.longest
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


def hardware_of(s: Situation, calibrations: Calibrations) -> Hardware:
    """The devices of the target for the model, for every TP that its heads allow; on a CPU for `core_sizes`."""
    target, shape = s.target, s.shape
    if target.on_cpu:
        times = _on_cores(s, calibrations)
        copies = {size: ModelCopy(target, shape, 1, one.dtype, cores=size) for size, one in times.items()}
    else:
        degrees = [tp for tp in DEGREES if shape.heads % tp == 0]
        times = {tp: choose_step_times(target, shape, tp, calibrations) for tp in degrees}
        copies = {tp: ModelCopy(target, shape, tp, one.dtype) for tp, one in times.items()}
    dtype = next(iter(times.values())).dtype
    return Hardware(
        on_cpu=target.on_cpu,
        step_times={size: chosen.model for size, chosen in times.items()},
        copies=copies,
        longest=math.ceil(min(s.longest, target.max_len or shape.max_len)),
        kv_bytes_per_token=shape.kv_bytes_per_token(kv_bytes(target, dtype, shape)),
        link_bytes_per_s=links_of(target, s.gpus)[0],
        node_bytes_per_s=stage_link(target),
    )


def core_sizes(cores: int) -> list[int]:
    """Cores of the instances that are looked at on so many: all of them first, then powers of two."""
    return [cores, *(size for size in DEGREES if size < cores)]


def _on_cores(s: Situation, calibrations: Calibrations) -> dict[int, StepTimes]:
    """Step times by size. Sizes that were not measured are left out beside all cores that were.

    A guess beside a measurement would decide by the error of the guess. Nor may numbers (dtype) differ: one
    fleet has one model.
    """
    times = {
        size: choose_step_times(s.target, s.shape, 1, calibrations, size)
        for size in core_sizes(cores_of(s.target))
    }
    whole = next(iter(times.values()))
    alike = (whole.use.source, whole.dtype)
    return {size: one for size, one in times.items() if (one.use.source, one.dtype) == alike}
