"""Prefill/decode split: never on prompt length alone, always on uncached tokens, and only a candidate here.

Adopting a split needs goodputs that only a simulation gives; until one has run the strongest verdict is
`check`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from advisor.advice.finding import Finding
from advisor.advice.rules.formulas import transfer_bits_per_s
from advisor.advice.rules.rule import Rule

PREFILL_SHARE = 0.2
TIGHT_TTFT = 3.0  # Splitwise P90 slowdown
TIGHT_TBT = 5.0  # Sarathi-Serve strict
LINK_SHARE = 0.7
TTFT_SHARE = 0.10
CROSS_NODE_BITS = 100e9
SMALL_MODEL = 10e9
SHORT_PROMPT = 1000
MARGIN, RAISED_MARGIN = 1.15, 1.3

Placement = Literal["colocated", "split candidate", "simulate all"]

DECODE_HEAVY = Rule(
    "ADV301",
    "Do not split: too little of the work is prefill",
    "phi < 0.2, or uncached prompt tokens below output tokens",
    ('NVIDIA, "Beyond the Buzz": generation-heavy traffic gains nothing', "ours: 0.2, 1"),
)
TOO_FEW = Rule(
    "ADV302",
    "Do not split: too few GPUs for two copies of the model",
    "GPUs < 2 x the GPUs of one copy",
    ("DistServe, section 7: with few GPUs, colocate", "arithmetic: each phase needs a copy"),
)
SLO_CLASS = Rule(
    "ADV303",
    "Do not split: these latency targets favour colocated instances",
    "tight TTFT (< 3x prefill of U P90) with loose TBT (> 5x decode step), or both loose",
    ("TaiChi, abstract", "Sarathi-Serve: 5x", "Splitwise: 3x at P90"),
)
CANDIDATE = Rule(
    "ADV304",
    "A split may pay: tight per-token target with room in the first-token target",
    "tight TBT (<= 5x decode step) with loose TTFT, or both tight; GPUs and traffic allow it",
    (
        "TaiChi, abstract",
        "DistServe, section 6: gains on loose TTFT with tight TPOT",
        "ours: margin 1.15, and 1.3 below 10 B parameters or 1,000 uncached tokens (NVIDIA, Dynamo)",
    ),
)
LINK = Rule(
    "ADV305",
    "Do not split across this link: the KV transfer is too slow",
    "KV bytes x U x R > 0.7 link, or the P90 transfer > one decode step, or > 10 % of the TTFT target",
    ("DistServe, section 3.3 and algorithm 2", "ours: 0.7, 10 %"),
)
SAME_NODE = Rule(
    "ADV306",
    "Keep both phases of a split inside one node",
    "link between nodes below 100 Gbit/s",
    ("Mooncake: TTFT rises sharply below 100 Gbit/s",),
)


def placement(ttft_tightness: float | None, tbt_tightness: float | None) -> Placement:
    """Rule 6. Tightness is target over unloaded time; None: no such target, which is as loose as can be."""
    tight_ttft = ttft_tightness is not None and ttft_tightness < TIGHT_TTFT
    tight_tbt = tbt_tightness is not None and tbt_tightness <= TIGHT_TBT
    if not tight_tbt:
        return "colocated"
    return "simulate all" if tight_ttft else "split candidate"


@dataclass(frozen=True, slots=True)
class SplitInputs:
    """What the split rules look at. Rates are per prefill node; `link_*` of the path between the two phases."""

    prefill_share: float
    uncached_mean: float
    uncached_p50: float
    uncached_p90: float
    output_mean: float
    gpus: int
    gpus_per_copy: int
    parameters: float
    ttft_tightness: float | None
    tbt_tightness: float | None
    ttft_target_s: float | None
    decode_step_s: float
    kv_bytes_token: float
    rate_rps: float
    link_bytes_per_s: float
    cross_node_bits_per_s: float | None  # None: everything sits in one node


def consider_split(x: SplitInputs) -> list[Finding]:
    """Rules 3 and 5 to 7 in order; the first that rules a split out ends the list. Prompt length is no rule."""
    if x.prefill_share < PREFILL_SHARE or x.uncached_mean < x.output_mean:
        return [
            DECODE_HEAVY.found(
                "off",
                {
                    "prefill_time_share": x.prefill_share,
                    "uncached_mean": x.uncached_mean,
                    "output_mean": x.output_mean,
                },
            )
        ]
    if x.gpus < 2 * x.gpus_per_copy:
        return [TOO_FEW.found("off", {"gpus": x.gpus, "gpus_per_copy": x.gpus_per_copy})]
    where = placement(x.ttft_tightness, x.tbt_tightness)
    tightness = {"ttft_tightness": x.ttft_tightness, "tbt_tightness": x.tbt_tightness}
    if where == "colocated":
        return [SLO_CLASS.found("off", {**tightness, "placement": where})]
    too_slow = _slow_link(x)
    if too_slow:
        return [too_slow]
    small = x.parameters < SMALL_MODEL or x.uncached_p50 < SHORT_PROMPT
    found = [
        CANDIDATE.found(
            "check",
            {**tightness, "placement": where, "margin_required": RAISED_MARGIN if small else MARGIN},
            next="the plan simulates it beside colocated layouts; adopt it only with the margin",
        )
    ]
    if x.cross_node_bits_per_s is not None and x.cross_node_bits_per_s < CROSS_NODE_BITS:
        found.append(SAME_NODE.found("do", {"link_gbit_per_s": x.cross_node_bits_per_s / 1e9}))
    return found


def _slow_link(x: SplitInputs) -> Finding | None:
    """Rule 7a."""
    share = transfer_bits_per_s(x.kv_bytes_token, x.uncached_mean, x.rate_rps) / (8 * x.link_bytes_per_s)
    transfer_s = x.kv_bytes_token * x.uncached_p90 / x.link_bytes_per_s
    over_ttft = x.ttft_target_s is not None and transfer_s > TTFT_SHARE * x.ttft_target_s
    if share <= LINK_SHARE and transfer_s <= x.decode_step_s and not over_ttft:
        return None
    return LINK.found(
        "off",
        {"link_share": share, "transfer_p90_s": transfer_s, "decode_step_s": x.decode_step_s},
        next="place both phases inside one NVLink domain",
    )
