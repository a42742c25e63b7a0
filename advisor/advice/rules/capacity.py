"""Capacity and bursts: can it work at all, does it keep up, and which window to size for."""

from __future__ import annotations

import math

from advisor.advice.finding import Finding
from advisor.advice.rules.risks import DRIFT
from advisor.advice.rules.rule import Rule

DISPERSION_10S = 4.0
CV = 2.0
FULL = 1.0
SIZING_LOAD = 0.8

INFEASIBLE = Rule(
    "ADV401",
    "These latency targets cannot be met on this device, whatever the load",
    "per-token target < t_dec(1), or TTFT target < t_pre(U at the attainment percentile)",
    ("arithmetic on the step times", "Vidur's analyzer: P25 > 0.75 of the target means the model is too slow"),
)
BURSTY = Rule(
    "ADV402",
    "Arrivals come in bursts: size for the peak, not for the mean",
    "dispersion over 10 s > 4, or CV > 2 with unquantised stamps",
    ("BurstGPT; ServeGen: naive generators under-provision by up to 50 %", "Kingman 1961", "ours: 4, 2"),
)
OVERLOADED = Rule(
    "ADV403",
    "The peak asks for more than the devices give",
    "utilisation in the peak minute > 1 at the plan's step times",
    ("arithmetic on the step times; DistServe, section 3.1: RD < 1", "ours: sized at 0.8"),
)
TOO_LONG = Rule(
    "ADV404",
    "Some requests do not fit the model's context",
    "longest prompt > context",
    ("arithmetic",),
)
DOMINANT_CLIENT = Rule(
    "ADV405",
    "One client is so much of the traffic that the plan stands and falls with it",
    "several clients, and one of them has more than 25 % of the requests or tokens",
    (
        "ServeGen, abstract: a few clients dominate",
        "arithmetic: without it the rate moves by more than ADV802 allows",
    ),
)


def infeasible(
    gap_target_s: float | None, decode_floor_s: float, ttft_target_s: float | None, prefill_floor_s: float
) -> Finding | None:
    """Rule 0a: one decode alone, one prefill alone, already over the target."""
    slow_decode = gap_target_s is not None and gap_target_s < decode_floor_s
    slow_prefill = ttft_target_s is not None and ttft_target_s < prefill_floor_s
    if not slow_decode and not slow_prefill:
        return None
    return INFEASIBLE.found(
        "do",
        {
            "per_token_target_s": gap_target_s,
            "per_token_floor_s": decode_floor_s,
            "ttft_target_s": ttft_target_s,
            "ttft_floor_s": prefill_floor_s,
        },
        next="loosen the target, raise tensor parallelism, or take a smaller or quantised model",
    )


def bursty(
    dispersion_10s: float | None, cv: float | None, quantised: bool, peak_rps: float | None
) -> Finding | None:
    """Rule 9. `peak_rps` is the highest rate of any 10 s window."""
    by_count = dispersion_10s is not None and dispersion_10s > DISPERSION_10S
    by_gap = cv is not None and cv > CV and not quantised
    if not by_count and not by_gap:
        return None
    return BURSTY.found(
        "do",
        {"dispersion_10s": dispersion_10s, "cv": None if quantised else cv, "peak_rps_10s": peak_rps},
        next="advise validate --window busiest:10m",
    )


def overloaded(peak_utilisation: float, instances: int) -> Finding | None:
    """Utilisation of all instances together, requests spread evenly; 1 is the calibrated limit."""
    if peak_utilisation <= FULL:
        return None
    return OVERLOADED.found(
        "do",
        {
            "peak_utilisation": peak_utilisation,
            "instances": instances,
            "instances_needed": math.ceil(peak_utilisation * instances / SIZING_LOAD),
        },
        next="add instances (--gpus), or replay a part of the log (--fit rate)",
    )


def too_long(longest_prompt: float, max_len: int) -> Finding | None:
    """Prompts over the context fail; no setting changes that."""
    if longest_prompt <= max_len:
        return None
    return TOO_LONG.found(
        "do",
        {"longest_prompt": longest_prompt, "max_len": max_len},
        next="choose a model with a longer context (--model), or replay with --fit lengths",
    )


def dominant_client(clients: int, request_share: float, token_share: float | None) -> Finding | None:
    """Shares are those of the largest client; a log of one client alone says nothing about others."""
    if clients < 2 or max(request_share, token_share or 0.0) <= DRIFT:
        return None
    return DOMINANT_CLIENT.found(
        "check",
        {"clients": clients, "request_share": request_share, "token_share": token_share},
        next="advise analyze LOG --where client=NAME, to see it alone",
    )
