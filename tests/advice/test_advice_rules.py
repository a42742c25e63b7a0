"""Every rule fires just past its threshold and stays silent just before it (docs/rules.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from advisor.advice.finding import Finding
from advisor.advice.rules import (
    ALL_RULES,
    budget,
    capacity,
    data_quality,
    hosted,
    prefix,
    prompts,
    risks,
    split,
)
from advisor.workload.model import Cap, PromptLayout, Regime

# Rule, arguments that fire it, the verdict, and changes each of which silences it.
Case = tuple[str, Callable[..., Finding | None], dict[str, Any], str, list[dict[str, Any]]]
ORDER = {
    "hit_fcfs": 0.5, "hit_optimal": 0.6, "queue": 10, "kv_tokens": 9000, "longest_request": 9000,
    "ttft_target": False,
}  # fmt: skip


LAYOUT = PromptLayout(
    requests=9,
    first_requests=9,
    unit="tokens",
    leading=10,
    trailing=64,
    shared_behind=64,
    hit_rate=0.4,
    any_position_share=0.6,
    hit_rate_reordered=0.41,
    examples=(),
)


def regime(rate_rps: float) -> Regime:
    """An hour at a rate."""
    return Regime(start_s=0.0, end_s=3600.0, requests=round(3600 * rate_rps), rate_rps=rate_rps)


CASES: list[Case] = [
    (
        "ADV102",
        prefix.sharing_matters,
        {"prefill_share": 0.5, "hit": 0.2, "replicas": 1},
        "do",
        [{"hit": 0.19}],
    ),
    (
        "ADV103",
        prefix.no_speedup,
        {"prefill_share": 0.5, "hit": 0.05},
        "off",
        [{"hit": 0.06}, {"prefill_share": 0.6}],
    ),
    (
        "ADV104",
        prefix.capacity_limited,
        {
            "hit": 0.2,
            "hit_unlimited": 0.31,
            "kv_tokens": 1000,
            "tokens_for_gap": 5000,
            "remote_reuse_bytes_per_s": 1e9,
        },
        "do",
        [{"hit": 0.22}],
    ),
    (
        "ADV105",
        prefix.queue_order,
        ORDER,
        "do",
        [{"hit_fcfs": 0.54}, {"queue": 1.9}, {"queue": 129}, {"longest_request": 9001}],
    ),
    (
        "ADV203",
        budget.targets_conflict,
        {"ttft_s": 3.01, "ttft_target_s": 3.0, "budget": 64, "uncached": 1000, "wait_s": 0.5},
        "check",
        [{"ttft_s": 3.0}],
    ),
    (
        "ADV401",
        capacity.infeasible,
        {"gap_target_s": 0.05, "decode_floor_s": 0.06, "ttft_target_s": 1.0, "prefill_floor_s": 0.9},
        "do",
        [{"decode_floor_s": 0.05}, {"gap_target_s": None}],
    ),
    (
        "ADV401",
        capacity.infeasible,
        {"gap_target_s": 0.05, "decode_floor_s": 0.01, "ttft_target_s": 1.0, "prefill_floor_s": 1.1},
        "do",
        [{"prefill_floor_s": 1.0}, {"ttft_target_s": None}],
    ),
    (
        "ADV402",
        capacity.bursty,
        {"dispersion_10s": 4.1, "cv": 1.0, "quantised": False, "peak_rps": 9.0},
        "do",
        [{"dispersion_10s": 4.0}, {"dispersion_10s": None}],
    ),
    (
        "ADV402",
        capacity.bursty,
        {"dispersion_10s": 1.0, "cv": 2.1, "quantised": False, "peak_rps": 9.0},
        "do",
        [{"cv": 2.0}, {"quantised": True}],
    ),
    (
        "ADV403",
        capacity.overloaded,
        {"peak_utilisation": 1.01, "instances": 2},
        "do",
        [{"peak_utilisation": 1.0}],
    ),
    ("ADV404", capacity.too_long, {"longest_prompt": 8193, "max_len": 8192}, "do", [{"longest_prompt": 8192}]),
    (
        "ADV405",
        capacity.dominant_client,
        {"clients": 2, "request_share": 0.26, "token_share": None},
        "check",
        [{"request_share": 0.25}, {"clients": 1}],
    ),
    (
        "ADV405",
        capacity.dominant_client,
        {"clients": 200, "request_share": 0.01, "token_share": 0.26},
        "check",
        [{"token_share": 0.25}],
    ),
    (
        "ADV501",
        prompts.stable_first,
        {"any_position_share": 0.6, "hit_unlimited": 0.4},
        "do",
        [{"any_position_share": 0.5}],
    ),
    (
        "ADV502",
        lambda **changes: prompts.fixed_behind(LAYOUT.model_copy(update=changes)),
        {"shared_behind": 64},
        "do",
        [
            {"shared_behind": 63},
            {"leading": 100},
            {"hit_rate_reordered": 0.4},
            {"unit": "bytes"},
        ],
    ),
    (
        "ADV601",
        hosted.mostly_idle,
        {"utilisation": 0.09, "no_operations": False},
        "check",
        [{"utilisation": 0.1}],
    ),
    ("ADV601", hosted.mostly_idle, {"utilisation": 0.09, "no_operations": True}, "do", [{"utilisation": 0.1}]),
    ("ADV801", risks.lone_side, {"copies": 3}, "check", [{"copies": 4}]),
    ("ADV901", data_quality.short_log, {"requests": 999, "span_s": 9e9}, "check", [{"requests": 1000}]),
    ("ADV901", data_quality.short_log, {"requests": 5000, "span_s": 1799.0}, "check", [{"span_s": 1800.0}]),
    ("ADV901", data_quality.short_log, {"requests": 5000, "span_s": None}, "check", [{"span_s": 1800.0}]),
    (
        "ADV902",
        data_quality.coarse_clock,
        {"tick_s": 3.0, "cv": 3.0, "cv_spread": 1.0},
        "check",
        [{"tick_s": None}],
    ),
    ("ADV903", data_quality.no_sharing, {"known": False}, "check", [{"known": True}]),
    (
        "ADV905",
        data_quality.incomplete,
        {"unexplained_share": 0.031, "cached_share": 0.4, "hit_unlimited": 0.2},
        "check",
        [{"unexplained_share": 0.03}, {"unexplained_share": None}],
    ),
    (
        "ADV906",
        data_quality.capped,
        {"caps": (Cap(at=500, share=0.2), Cap(at=7435, share=0.01)), "longest": 7437.0, "median": 1469.0},
        "check",
        [{"longest": 7438.0}, {"median": 7433.0}, {"caps": ()}, {"longest": None, "median": None}],
    ),
    (
        "ADV907",
        data_quality.changing_rate,
        {"regimes": (regime(1.0), regime(2.0)), "mean_rps": 1.59},
        "check",
        [{"mean_rps": 1.6}, {"regimes": (regime(2.0),)}, {"mean_rps": None}],
    ),
    (
        "ADV908",
        data_quality.idle_time,
        {"idle_share": 0.24, "requests_per_window": 2.0},  # Poisson: exp(-2) = 0.135
        "check",
        [{"idle_share": 0.23}, {"requests_per_window": 1.9}],
    ),
    ("ADV904", data_quality.no_outputs, {"known": False}, "check", [{"known": True}]),
]


@pytest.mark.parametrize(("code", "rule", "arguments", "verdict", "silences"), CASES)
def test_rule_fires_past_its_threshold_only(
    code: str,
    rule: Callable[..., Finding | None],
    arguments: dict[str, Any],
    verdict: str,
    silences: list[dict[str, Any]],
) -> None:
    found = rule(**arguments)
    assert found is not None
    assert (found.code, found.verdict) == (code, verdict)
    for change in silences:
        assert rule(**{**arguments, **change}) is None, change


def test_caching_is_always_on_and_states_saving_and_ceiling() -> None:
    found = prefix.prefix_caching(0.5, 0.6, 0.7, 0.4)
    assert (found.code, found.verdict) == ("ADV101", "do")
    # Amdahl: phi h = 0.4 x 0.5, ceiling 1 / (1 - 0.2).
    assert found.evidence["saved_time_share"] == pytest.approx(0.2)
    assert found.evidence["speedup_ceiling"] == pytest.approx(1.25)
    assert found.saving == "20.0% of device time"
    unknown = prefix.prefix_caching(None, None, None, 0.4)
    assert unknown.verdict == "do"
    assert unknown.saving is None
    assert unknown.evidence["saved_time_share"] is None


def test_affinity_routing_only_with_a_choice_of_instance() -> None:
    one, two = (prefix.sharing_matters(0.5, 0.5, replicas) for replicas in (1, 2))
    assert one is not None
    assert two is not None
    assert one.evidence["router"] is None
    assert two.evidence["router"] == "prefix_affinity"


def test_reordering_is_only_a_check_where_ttft_is_a_target() -> None:
    # LPMX: P99 +64 % with sharing to gain.
    found = prefix.queue_order(**{**ORDER, "ttft_target": True})
    assert found is not None
    assert found.verdict == "check"
    assert found.next == "advise validate"


def test_reordering_gains_nothing_where_fcfs_is_near_the_optimum() -> None:
    # LPMX: Qwen3-0.6B, FCFS already hit 0.992; reordering cost 13 % of P99 TTFT.
    assert prefix.queue_order(**{**ORDER, "hit_fcfs": 0.992, "hit_optimal": 1.0}) is None
    # Qwen3-8B: FCFS 0.757 of 0.934 left room to gain.
    assert prefix.queue_order(**{**ORDER, "hit_fcfs": 0.757, "hit_optimal": 0.934}) is not None


def test_budget_is_advised_or_missed() -> None:
    good, bad = (
        budget.budget_found(budget.Budget(512, 0.1, feasible), 0.2, 8, "tbt", "published")
        for feasible in (True, False)
    )
    assert (good.code, good.verdict) == ("ADV201", "do")
    assert (bad.code, bad.verdict) == ("ADV202", "check")
    assert good.evidence["conservative"] is False
    mean = budget.budget_found(budget.Budget(512, 0.1, True), 0.2, 8, "tpot", "published")
    assert mean.evidence["conservative"] is True


def test_offline_work_is_batched() -> None:
    assert (budget.offline().code, budget.offline().verdict) == ("ADV204", "do")


def test_replanning_names_the_values_to_watch() -> None:
    found = risks.replan_when(100.0, 50.0, 2.0, 0.3)
    assert (found.code, found.verdict) == ("ADV802", "check")
    assert found.evidence["tolerance"] == 0.25


BASE = split.SplitInputs(
    prefill_share=0.6,
    uncached_mean=2000,
    uncached_p50=1800,
    uncached_p90=4000,
    output_mean=100,
    gpus=8,
    gpus_per_copy=1,
    parameters=13e9,
    ttft_tightness=5.0,
    tbt_tightness=3.0,
    ttft_target_s=1.0,
    decode_step_s=0.03,
    kv_bytes_token=819_200,
    rate_rps=5.0,
    link_bytes_per_s=300e9,
    cross_node_bits_per_s=None,
)


def consider(**changes: Any) -> list[tuple[str, str]]:
    """Codes and verdicts for the base case with changes."""
    return [(f.code, f.verdict) for f in split.consider_split(replace(BASE, **changes))]


@pytest.mark.parametrize(
    ("ttft", "tbt", "expected"),
    # TaiChi; tight: TTFT < 3x, TBT <= 5x.
    [
        (2.4, 5.5, "colocated"),
        (13.0, 3.2, "split candidate"),
        (40.0, 2.4, "split candidate"),
        (5.5, 1.2, "split candidate"),
        (2.4, 2.4, "simulate all"),
        (10.0, 20.0, "colocated"),
        (3.0, 5.0, "split candidate"),
        (None, 3.0, "split candidate"),
        (2.0, None, "colocated"),
    ],
)  # the first four are DistServe's code-66b, chat-66b, summarization-66b and Figure 1
def test_taichi_classes(ttft: float | None, tbt: float | None, expected: str) -> None:
    assert split.placement(ttft, tbt) == expected


def test_split_rules_go_in_order_and_stop_at_the_first_no() -> None:
    assert consider() == [("ADV304", "check")]
    assert consider(prefill_share=0.19) == [("ADV301", "off")]
    assert consider(output_mean=2001) == [("ADV301", "off")]
    assert consider(output_mean=2000) == [("ADV304", "check")]
    assert consider(gpus=3, gpus_per_copy=2) == [("ADV302", "off")]
    assert consider(gpus=4, gpus_per_copy=2) == [("ADV304", "check")]
    assert consider(ttft_tightness=2.9, tbt_tightness=5.1) == [("ADV303", "off")]
    assert consider(ttft_tightness=2.9, tbt_tightness=5.0) == [("ADV304", "check")]


def test_a_slow_link_rules_the_split_out() -> None:
    # 819,200 B x 2,000 tokens x 5 rps = 8.19e9 B/s: more than 0.7 of 11.7e9, less than 0.7 of 11.8e9.
    slow = {"decode_step_s": 10.0, "ttft_target_s": None}
    assert consider(link_bytes_per_s=11.70e9, **slow) == [("ADV305", "off")]
    assert consider(link_bytes_per_s=11.71e9, **slow) == [("ADV304", "check")]
    # P90 transfer 819,200 B x 4,000 tokens over 100e9 B/s = 32.8 ms: longer than a decode step of 32 ms.
    assert consider(link_bytes_per_s=100e9, decode_step_s=0.032) == [("ADV305", "off")]
    assert consider(link_bytes_per_s=100e9, decode_step_s=0.033) == [("ADV304", "check")]
    # The same 32.8 ms against 10 % of the TTFT target.
    assert consider(link_bytes_per_s=100e9, decode_step_s=1.0, ttft_target_s=0.32) == [("ADV305", "off")]
    assert consider(link_bytes_per_s=100e9, decode_step_s=1.0, ttft_target_s=0.33) == [("ADV304", "check")]


def test_between_nodes_below_100_gbit_the_split_stays_in_one_node() -> None:
    assert consider(cross_node_bits_per_s=99e9) == [("ADV304", "check"), ("ADV306", "do")]
    assert consider(cross_node_bits_per_s=100e9) == [("ADV304", "check")]


@pytest.mark.parametrize(
    ("changes", "margin"),
    [({}, 1.15), ({"parameters": 9.9e9}, 1.3), ({"uncached_p50": 999}, 1.3)],
)
def test_small_models_and_short_prompts_need_a_larger_margin(changes: dict[str, Any], margin: float) -> None:
    (found,) = split.consider_split(replace(BASE, **changes))
    assert found.evidence["margin_required"] == margin


@pytest.mark.parametrize("prompt", [1e3, 33_600.0, 1e6])
def test_no_split_is_recommended_on_prompt_length_alone(prompt: float) -> None:
    # AGT: 33.6k mean input, 71 % reusable, 8 GPUs: colocated won, 0.74 s vs 1.99 s.
    uncached = prompt * (1 - 0.71)
    for ttft in (1.0, 100.0):
        found = consider(uncached_mean=uncached, uncached_p50=uncached, ttft_tightness=ttft, tbt_tightness=10.0)
        assert found == [("ADV303", "off")]
    every = [v for tbt in (1.0, 10.0) for _, v in consider(uncached_mean=uncached, tbt_tightness=tbt)]
    assert "do" not in every


def test_codes_belong_to_their_ideas_and_name_a_basis() -> None:
    ideas = {
        "1": prefix,
        "2": budget,
        "3": split,
        "4": capacity,
        "5": prompts,
        "6": hosted,
        "8": risks,
        "9": data_quality,
    }
    for code, rule in ALL_RULES.items():
        assert rule in vars(ideas[code[3]]).values()
        assert rule.basis
    covered = {case[0] for case in CASES} | {"ADV101", "ADV201", "ADV202", "ADV204", "ADV802"}
    covered |= {"ADV301", "ADV302", "ADV303", "ADV304", "ADV305", "ADV306"}
    assert covered == set(ALL_RULES)
