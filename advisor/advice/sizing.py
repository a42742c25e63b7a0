"""From traffic, device and targets to the numbers of one instance: batch, budget, KV cache, most sequences.

Owns the arithmetic between the rules and the plan. No searching: one pass, each number from the one before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from advisor.advice import profiles
from advisor.advice.load import (
    Traffic,
    decode_step_seconds,
    mixed_step_seconds,
    prefill_seconds,
    running_rows,
    utilisation,
)
from advisor.advice.rules import budget as budgets
from advisor.advice.rules.queueing import kingman_wait
from advisor.advice.steps import cores_of, kv_bytes, weight_bytes
from advisor.advice.target import Target
from engine.errors import MachineError
from engine.kv.capacity import cpu_kv_bytes, gpu_kv_bytes, kv_blocks
from engine.shape import ModelShape
from engine.step_time.model import StepTimeModel

MOST_SEQS = 256  # ours: what current engines default to
LEAST_BATCH = 16  # ours: an instance whose memory holds fewer typical requests reads its weights for too few
BLOCK_SIZE = 16  # vLLM, section 7.2: 16 to 128 equal on chat traffic, 16 to 32 on short prompts
CPU_OFFLINE_BUDGET = 512  # ours
DEGREES = (1, 2, 4, 8)  # of TP that are looked at
STAGES = (2, 4)  # of a pipeline, where one is looked at
STAGED_BUDGET = 1536  # with stages at most: larger chunks are uneven and leave bubbles (Sarathi-Serve, 4.3)


@dataclass(frozen=True, slots=True)
class Sizing:
    """The numbers of one instance and what led to them; times in seconds, lengths in tokens.

    `rows`: decodes running at once in the sizing window. `max_seqs_by` names what bounds max_seqs.
    """

    rows: int
    budget: budgets.Budget
    max_seqs: int
    max_seqs_by: str
    kv_tokens: int
    load: float
    wait_s: float
    ttft_s: float


@dataclass(frozen=True, slots=True)
class ModelCopy:
    """One copy of the model on `pp` stages of `tp` devices of the target, its weights in `dtype`.

    On a CPU `cores` are those of the instance; None: all of the target's.
    """

    target: Target
    shape: ModelShape
    tp: int
    dtype: str
    pp: int = 1
    cores: int | None = None

    def kv_tokens(self, token_budget: int) -> int:
        """KV cache that fits beside it, tokens. Raises MachineError where nothing is left."""
        target, weights = self.target, weight_bytes(self.dtype, self.shape)
        kv = kv_bytes(target, self.dtype, self.shape)
        if target.on_cpu:
            every = cores_of(target)
            room = cpu_kv_bytes(
                host_bytes=target.memory_bytes or 0, host_devices=every, instance_devices=self.cores or every
            )
        else:
            room = gpu_kv_bytes(
                self.shape,
                memory_bytes=round(profiles.gpu(target.gpu).memory_gb * 1e9),
                token_budget=token_budget,
                max_seqs=MOST_SEQS,
                tp=self.tp,
                pp=self.pp,
                weight_element_bytes=weights,
            )
        blocks = kv_blocks(self.shape, room, block_size=BLOCK_SIZE, tp=self.tp, pp=self.pp, kv_element_bytes=kv)
        return (blocks - 1) * BLOCK_SIZE


def sizes(gpus: int) -> list[tuple[int, int]]:
    """(TP, PP) of an instance on at most so many GPUs, in the order in which the first that fits is taken.

    Stages come after every TP, since they make no token faster: the fewest GPUs first, then the fewest stages.
    """
    staged = [(tp, pp) for tp in DEGREES for pp in STAGES if tp * pp <= gpus]
    staged.sort(key=lambda size: (size[0] * size[1], size[1]))
    return [(tp, 1) for tp in DEGREES if tp <= gpus] + staged


def parallel(tp: int, pp: int) -> str:
    """The size of an instance in words."""
    return f"TP {tp}" if pp == 1 else f"TP {tp} x PP {pp}"


def smallest_size(target: Target, shape: ModelShape, longest: float, typical: float) -> tuple[int, int] | None:
    """First of `sizes` that holds the weights, the longest request's KV and a batch of typical ones.

    Where no TP alone holds the batch, the first that holds the longest request; None where none does that.
    """
    if target.on_cpu:
        return 1, 1
    every = [(tp, pp) for tp, pp in sizes(8 if target.gpus == "auto" else target.gpus) if shape.heads % tp == 0]
    rooms = {(tp, pp): _room(ModelCopy(target, shape, tp, target.dtype, pp)) for tp, pp in every}
    batch = max(longest, LEAST_BATCH * typical)
    alone = [size for size in every if size[1] == 1]
    for some, needed in ((alone, batch), (alone, longest), (every, batch), (every, longest)):
        fitting = [size for size in some if rooms[size] >= needed]
        if fitting:
            return fitting[0]
    return None


def _room(copy: ModelCopy) -> int:
    """KV tokens at the widest settings; 0 where the weights alone do not fit."""
    try:
        return copy.kv_tokens(budgets.OFFLINE_BUDGET)
    except MachineError:
        return 0


@dataclass(frozen=True, slots=True)
class _Instance:
    """One instance under its traffic: step, wait and TTFT of any token budget, seconds."""

    step_time: StepTimeModel
    traffic: Traffic
    rows: int
    arrival_cv: float

    def step_s(self, tau: int) -> float:
        return mixed_step_seconds(self.step_time, self.traffic, tau, self.rows)

    def load(self, tau: int) -> float:
        return utilisation(self.step_time, self.traffic, tau, self.rows)

    def wait_s(self, tau: int) -> float:
        rate = self.traffic.rate_rps
        return kingman_wait(self.load(tau) / rate, rate, self.arrival_cv)

    def ttft_s(self, tau: int, uncached: float) -> float:
        return budgets.prefill_seconds(uncached, tau, self.rows, self.step_s(tau), self.wait_s(tau))


def size_instance(
    copy: ModelCopy, step_time: StepTimeModel, traffic: Traffic, uncached_tail: float, arrival_cv: float
) -> Sizing:
    """Numbers of one instance under `traffic` (its share, at the sizing rate).

    `uncached_tail` is U at the attainment percentile, which TTFT must keep. Raises MachineError where the
    model leaves no memory for KV.
    """
    gap_s = copy.target.slo.gap_s
    rows = _decode_rows(step_time, traffic, gap_s)
    instance = _Instance(step_time, traffic, rows, arrival_cv)
    chosen = _budget(copy.target, instance, uncached_tail, math.inf if copy.pp == 1 else STAGED_BUDGET)
    tau = chosen.tokens
    room = copy.kv_tokens(tau)
    max_seqs, bound = _max_seqs(step_time, traffic, tau, gap_s, room, rows)
    load, wait_s = instance.load(tau), instance.wait_s(tau)
    return Sizing(rows, chosen, max_seqs, bound, room, load, wait_s, instance.ttft_s(tau, uncached_tail))


def _budget(target: Target, instance: _Instance, uncached_tail: float, most: float) -> budgets.Budget:
    """Rules 4 and 4a; without a per-token target the throughput budget of rule 2. At most `most` tokens."""
    gap_s, ttft_target_s = target.slo.gap_s, target.slo.ttft_s
    if gap_s is None:
        tokens = CPU_OFFLINE_BUDGET if target.on_cpu else int(min(most, budgets.OFFLINE_BUDGET))
        return budgets.Budget(tokens, instance.step_s(tokens), True)
    options = budgets.candidates(instance.step_s, gap_s, target.on_cpu)
    # With more decodes than the small budgets hold, none keeps the target: the usual smallest, marked so.
    options = tuple(tau for tau in options if instance.rows < tau <= most) or budgets.GPU_BUDGETS[:1]
    chosen = budgets.choose_budget(instance.step_s, options, gap_s)
    if ttft_target_s is None or not chosen.feasible:
        return chosen
    return budgets.raise_for_ttft(
        chosen, options, instance.step_s, gap_s, lambda tau: instance.ttft_s(tau, uncached_tail), ttft_target_s
    )


def _decode_rows(step_time: StepTimeModel, traffic: Traffic, gap_s: float | None) -> int:
    """Decodes running at once: Little's law on a decode step stretched by the prefills between; fixed point.

    At most what runs when a token takes exactly the per-token target.
    """
    busy = min(
        0.9, traffic.rate_rps * prefill_seconds(step_time, traffic.uncached, traffic.prompt - traffic.uncached)
    )
    most = MOST_SEQS if gap_s is None else running_rows(traffic, gap_s, MOST_SEQS)
    rows = 1
    for _ in range(MOST_SEQS):
        token_s = decode_step_seconds(step_time, traffic, rows) / (1 - busy)
        following = running_rows(traffic, token_s, most)
        if following <= rows:
            break
        rows = following
    return rows


def _max_seqs(
    step_time: StepTimeModel, traffic: Traffic, budget: int, gap_s: float | None, room: int, rows: int
) -> tuple[int, str]:
    """Most sequences at once, and what bounds them."""
    by_memory = max(1, int(room // (traffic.prompt + traffic.output)))
    bounds = {
        "KV memory": by_memory,
        "half of the token budget": max(1, budget // 2),
        "the usual limit": MOST_SEQS,
    }
    if gap_s is not None:
        bounds["the per-token target"] = _rows_within(step_time, traffic, gap_s)
    name = min(bounds, key=lambda bound: bounds[bound])
    return max(bounds[name], min(rows, by_memory, budget - 1), 1), name


def _rows_within(step_time: StepTimeModel, traffic: Traffic, gap_s: float) -> int:
    """Largest batch whose decode step keeps the per-token target with headroom, by bisection."""
    low, high = 1, MOST_SEQS
    while low < high:
        middle = math.ceil((low + high) / 2)
        if budgets.HEADROOM * decode_step_seconds(step_time, traffic, middle) <= gap_s:
            low = middle
        else:
            high = middle - 1
    return low
