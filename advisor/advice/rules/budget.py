"""The token budget of a step: the largest one is not the best one, and the target decides.

A budget tau is feasible iff 1.2 * t_mix(tau) <= the per-token target; of the feasible ones the least time per
token wins, ties go to the smaller (fitted to the budgets that Sarathi-Serve chose).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from advisor.advice.finding import Finding
from advisor.advice.rules.rule import Rule

HEADROOM = 1.2  # Niyama's scheduler: predicted time x 1.2 <= slack
GPU_BUDGETS = tuple(range(512, 8193, 128))
GPU_FALLBACK = (128, 256)
PIPELINE_LIMIT = 1536  # Sarathi-Serve: smaller batches keep pipeline bubbles small
# Ours: a step of 512 tokens takes about a second on a few cores, so a CPU needs finer and smaller steps.
CPU_BUDGETS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
OFFLINE_BUDGET = 2048
StepSeconds = Callable[[int], float]

BUDGET = Rule(
    "ADV201",
    "Set the token budget",
    "a per-token target, colocated: 1.2 t_mix(tau) <= target, least t / tau, ties to the smaller; tau a "
    "multiple of 128 from 512 (128, 256 only if 512 misses; PP > 1: <= 1536); on a CPU from 16",
    ("Sarathi-Serve, section 4.3: 5x -> 512, 25x -> 2048", "Niyama: factor 1.2", "ours: CPU budgets"),
)
NO_BUDGET = Rule(
    "ADV202",
    "No token budget keeps the per-token target at this load",
    "1.2 t_mix(tau) > target for every candidate",
    ("Sarathi-Serve, section 4.3", "Niyama: factor 1.2"),
)
TARGETS_CONFLICT = Rule(
    "ADV203",
    "The first-token and per-token targets pull the budget apart",
    "chunks * t(tau) + wait > TTFT target at the chosen tau",
    ("Sarathi-Serve, section 5.4: chunking trades TTFT for TBT", "arithmetic: chunks = ceil(U / (tau - B))"),
)
OFFLINE = Rule(
    "ADV204",
    "Nobody waits: batch for throughput",
    "no latency target",
    (
        "DistServe, section 7: offline work prefers colocated chunked prefill",
        "vLLM documentation: budgets of 2048 to 8192",
        "SGLang, section 3: depth-first order is optimal offline",
    ),
)


@dataclass(frozen=True, slots=True)
class Budget:
    """A token budget and the time of a full step, seconds; `feasible`: it keeps the target with headroom."""

    tokens: int
    step_s: float
    feasible: bool


def candidates(step_s: StepSeconds, target_s: float, on_cpu: bool, pipeline: bool = False) -> tuple[int, ...]:
    """Budgets worth a look, ascending."""
    if on_cpu:
        return CPU_BUDGETS
    usable = tuple(b for b in GPU_BUDGETS if not pipeline or b <= PIPELINE_LIMIT)
    return usable if HEADROOM * step_s(512) <= target_s else GPU_FALLBACK


def choose_budget(
    step_s: StepSeconds, budgets: tuple[int, ...], target_s: float, headroom: float = HEADROOM
) -> Budget:
    """Rule 4: the feasible budget of least time per token; the smallest one where none is feasible."""
    feasible = [b for b in budgets if headroom * step_s(b) <= target_s]
    best = min(feasible, key=lambda b: (step_s(b) / b, b), default=None)
    tokens = budgets[0] if best is None else best
    return Budget(tokens, step_s(tokens), best is not None)


def prefill_seconds(
    uncached: float, budget: int, decode_rows: float, step_s: float, wait_s: float = 0.0
) -> float:
    """TTFT >= wait + ceil(U / (tau - B)) * t(tau), seconds; infinite where decodes fill the budget."""
    room = budget - decode_rows
    return math.inf if room <= 0 else wait_s + math.ceil(uncached / room) * step_s


def raise_for_ttft(
    chosen: Budget, budgets: tuple[int, ...], step_s: StepSeconds, target_s: float,
    ttft_of: Callable[[int], float], ttft_target_s: float,
) -> Budget:  # fmt: skip
    """Rule 4a: the next larger budget that keeps both targets; the chosen one where there is none."""
    if ttft_of(chosen.tokens) <= ttft_target_s:
        return chosen
    larger = (b for b in budgets if b > chosen.tokens and HEADROOM * step_s(b) <= target_s)
    found = next((b for b in larger if ttft_of(b) <= ttft_target_s), None)
    return chosen if found is None else Budget(found, step_s(found), True)


def budget_found(budget: Budget, target_s: float, decode_rows: float, kind: str, source: str) -> Finding:
    """ADV201 or, where no budget is feasible, ADV202. `kind` is `tbt` or `tpot`, `source` of the step times."""
    rule = BUDGET if budget.feasible else NO_BUDGET
    return rule.found(
        "do" if budget.feasible else "check",
        {
            "token_budget": budget.tokens,
            "step_s": budget.step_s,
            "target_s": target_s,
            "target_kind": kind,
            "conservative": kind == "tpot",  # a mean is held to as if it were every gap's limit
            "headroom": HEADROOM,
            "decode_rows": decode_rows,
            "step_time_source": source,
        },
        next=f"token_budget: {budget.tokens} by this rule; engine.yaml has the plan's own"
        if budget.feasible
        else "loosen the target (--tpot or --tbt), or use a faster device",
    )


def targets_conflict(
    ttft_s: float, ttft_target_s: float, budget: int, uncached: float, wait_s: float
) -> Finding | None:
    """Rule 4a, when no larger feasible budget helps: one target, the prompts or the device must give."""
    if ttft_s <= ttft_target_s:
        return None
    return TARGETS_CONFLICT.found(
        "check",
        {
            "ttft_s": None if math.isinf(ttft_s) else ttft_s,
            "ttft_target_s": ttft_target_s,
            "token_budget": budget,
            "uncached_tokens": uncached,
            "wait_s": None if math.isinf(wait_s) else wait_s,
        },
        next="loosen one target (--ttft or --tpot), or plan for more devices (--gpus)",
    )


def offline() -> Finding:
    """Rule 2."""
    return OFFLINE.found("do", {"token_budget": OFFLINE_BUDGET, "queue_policy": "prefix_first"})
