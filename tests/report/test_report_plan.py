"""The plan on the screen: verdict first, every figure with its unit, within 80 columns and 50 lines."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from advisor.advice.plan import (
    Candidate,
    Group,
    Interval,
    LengthGroup,
    Loss,
    Plan,
    Simulation,
    StepTimeUse,
    Waiting,
)
from advisor.advice.target import Target
from advisor.report.plan import show_plan
from advisor.simulation.slo import Slo
from engine.config import PoolConfig, RouterConfig


def candidate(name: str, per_gpu: float, **values: Any) -> Candidate:
    pools = (
        PoolConfig(count=2, tp=4, devices_per_instance=4, token_budget=8192, max_seqs=256, kv_tokens=1_500_000),
    )
    goodput = Interval(low=0.98 * per_gpu, mid=per_gpu, high=1.02 * per_gpu)
    fields: dict[str, Any] = {
        "attainment": 0.91, "ttft_p90_s": 1.9, "tpot_p90_s": 0.031, "tbt_p99_s": 0.2, "hit_rate_tokens": 0.352,
        "goodput_rps_per_gpu": goodput,
    }  # fmt: skip
    return Candidate(name=name, pools=pools, router=RouterConfig(), gpus=8, **(fields | values))


def group(name: str, share: float, kept: float) -> Group:
    return Group(name=name, share=share, attainment=kept, ttft_p90_s=1.5, tpot_p90_s=0.03)


def length_class(number: int, share: float, kept: float, prompt: int) -> LengthGroup:
    given = dict(group(f"class {number}", share, kept))
    return LengthGroup(**given, prompt_p50=prompt, output_p50=182)


CLASSES = (length_class(1, 0.6, 0.97, 210), length_class(2, 0.4, 0.791, 8_123))
LOSS = Loss(
    role="decode", left=3, at_s=1800, down_s=60, caught_up_s=84.4, requests=312, attainment=0.61,
    attainment_without=0.88, rerun=14, dropped=2, attainment_of_all=0.89,
)  # fmt: skip


def plan(**changes: Any) -> Plan:
    """A change with everything that a plan may say."""
    rows = {
        "nothing": 0.10,
        "cache": 0.12,
        "budget": 0.30,
        "split": 0.2,
        "cache + budget": 0.42,
        "cache + split": 0.25,
    }
    fields: dict[str, Any] = {
        "target": Target(model="llama-3.1-8b", gpu="h100-sxm", gpus=8, slo=Slo(ttft_s=2.0, tpot_s=0.05),
                         origins={"gpu": "flag", "gpus": "flag", "model": "flag", "stack": "preset"}),
        "step_time": StepTimeUse(source="roofline", error_p90=0.326, key="llama-3.1-8b, h100-sxm x 4"),
        "candidates": (
            candidate("2 x TP 4, chunked 8192", 0.42),
            candidate("4 prefill x TP 1 + 4 decode x TP 1", 0.25),
            candidate("now: vLLM, 8 x TP 1", 0.2),
            *(candidate(f"8 x TP 1, chunked {budget}", 0.1, rejected="worse on a part of the log")
              for budget in (128, 256, 512)),
        ),
        "attribution": tuple(
            {"name": name, "layout": name, "attainment": 0.9,
             "goodput_rps_per_gpu": {"low": value, "mid": value, "high": value}}
            for name, value in rows.items()
        ),
        "chosen": "2 x TP 4, chunked 8192",
        "runner_up": "4 prefill x TP 1 + 4 decode x TP 1",
        "margin": {"ratio": 2.1, "low": 1.8, "high": 2.4},
        "verdict": "change",
        "gpus_needed": 16,
        "usd_per_month": 34_456.0,
        "usd_per_million_tokens": 0.311,
        "flips": (
            {"parameter": "rate_rps", "value": 3.36, "becomes": "more GPUs: its goodput ends here"},
            {"parameter": "ttft_s", "value": 1.0, "becomes": "4 prefill x TP 1 + 4 decode x TP 1"},
            {"parameter": "tpot_s", "value": 0.025, "becomes": "4 prefill x TP 1 + 4 decode x TP 1"},
        ),
        "mean_trap": {
            "answer": {"gpus": 4, "basis": "mean lengths, evenly spaced requests"},
            "replay": {"attainment": 0.41, "ttft_p90_s": 31.0, "tpot_p90_s": 0.06, "gpus_needed": 16},
        },
        "backtest": {
            "requests": 12_031, "off": True, "prefill_factor": 1.4, "decode_factor": 0.9, "planned_with": True,
            "whole": [
                {"metric": "ttft_s", "quantile": 90, "predicted": 1.0, "logged": 1.6, "error": -0.375},
                {"metric": "hit_rate_tokens", "quantile": None, "predicted": 0.3, "logged": 0.4, "error": -0.2},
            ],
            "second_half": [], "second_half_fitted": [],
        },
        "runs_on": {"advise": "yes"},
        "simulation": Simulation(
            requests=12_031, simulated=185_963, needed_rps=3.4,
            why="better beyond the noise and the error of the step times",
            random={"name": "4 x TP 2, chunked 4096", "goodput_rps_per_gpu": 0.39},
            at_needed={"rate_rps": 3.4, "attainment": 0.899, "ttft_p90_s": 2.03, "tpot_p90_s": 0.031},
            regimes=(group("steady", 0.92, 0.945), group("bursts", 0.08, 0.37)), classes=CLASSES, loss=LOSS,
        ),
        "reasons": {
            "usd_per_month": "16 x h100-sxm at 2.95 USD an hour (an assumption of 2026-05); source: somewhere",
            "rules": "the rules differ: token budget 640 (ADV201), here 8,192",
            "control": "now: vLLM, 8 x TP 1",
            "control.max_seqs": "read: 100 (--max-num-seqs)",
            "control.token_budget": "assumed: 8192 (vLLM arg_utils; 0.8.5 to 0.33)",
            "control.unknown.--max-sequences": "not known, left out; the nearest are --max-num-seqs",
            "control.notes.0": "425,328 KV tokens an instance: what the GPU's memory allows",
        },
    }  # fmt: skip
    return Plan(**(fields | changes))


def screen(shown: Plan) -> list[str]:
    """The lines, 80 columns wide."""
    out = StringIO()
    show_plan(Console(width=80, file=out, force_terminal=False), shown)
    return out.getvalue().splitlines()


def words(shown: Plan) -> str:
    return " ".join(" ".join(screen(shown)).split())


def test_pipeline_stages_of_the_chosen_layout_are_shown() -> None:
    pool = PoolConfig(count=2, tp=2, pp=2, devices_per_instance=4)
    staged = candidate("2 x TP 2 x PP 2, chunked 512", 0.42).model_copy(update={"pools": (pool,)})
    shown = words(plan(candidates=(staged,), chosen=staged.name, runner_up=None))
    assert "2 x TP 2 x PP 2: chunked, token budget 512" in shown


def test_everything_fits_80_columns_and_50_lines() -> None:
    lines = screen(plan(backtest=None))
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 50


def test_the_verdict_comes_first_with_its_reason_and_its_margin() -> None:
    first, why, margin, *_ = [line for line in screen(plan(backtest=None)) if line.strip()]
    assert first.split() == ["verdict", "change", "to", "2", "x", "TP", "4,", "chunked", "8192"]
    assert why.strip() == "better beyond the noise and the error of the step times"
    assert "2.10x the goodput per GPU of what runs now" in margin
    assert "1.80 to 2.40" in margin


def test_a_backtest_that_is_off_is_said_above_the_verdict() -> None:
    text = words(plan())
    assert text.index("off by more than 25 %") < text.index("verdict")
    assert "TTFT P90 1.00 s for 1.60 s" in text
    assert "prefill x 1.40, decode x 0.90; planned with them" in text
    assert "off by" not in words(plan(backtest=None))


@pytest.mark.parametrize(
    "expected",
    [
        "TTFT <= 2 s, TPOT <= 0.05 s, 90% of requests",
        "2 x TP 4: chunked, token budget 8,192, at most 256 at once, prefix cache, fcfs, 1,500,000 KV tokens",
        "2 x TP 4, chunked 8192 [chosen] 0.412 1.90 s 31 ms 35%",
        "[runner-up]",
        "chosen, at 3.4 requests/s share kept TTFT P90 TPOT P90 all 100% 89.9% 2.03 s 31 ms steady 92% 94.5%",
        "in bursts 8% 37.0% 1.50 s 30 ms prompt ~8,123, output ~182 40% 79.1% 1.50 s 30 ms loss",
        "one decode instance dies at the peak, for 60 s: 61.0% of 312 requests in 84 s keep the targets, "
        "88.0% without; 14 begun again, 2 lost",
        "cache + budget 0.42 ########################",
        "at rate 3.36/s: more GPUs",
        "at TTFT 1 s, TPOT 0.025 s: 4 prefill x TP 1 + 4 decode x TP 1",
        "a planner of mean lengths says 4 GPUs; replayed on that, 41.0% keep the targets, TTFT P90 31.00 s",
        "16 GPUs for the busiest 10 minutes",
        "34,456 USD a month, 0.311 a million tokens: 16 x h100-sxm at 2.95 USD an hour (an assumption",
        "12,031 requests of the log; the search simulated 185,963",
        "random search for as many finds 0.39 good requests/s per GPU (4 x TP 2, chunked 4096)",
        "the rules differ: token budget 640 (ADV201), here 8,192",
        "now vLLM, 8 x TP 1 read: max_seqs 100 assumed: token_budget 8192",
        "--max-sequences not known, left out",
        "425,328 KV tokens an instance",
    ],
)
def test_what_the_plan_holds_is_on_the_screen(expected: str) -> None:
    assert expected in words(plan())


def test_bars_are_as_long_as_the_goodput_they_stand_for() -> None:
    lines = [line for line in screen(plan()) if "#" in line]
    # 24 characters for 0.42: 0.10, 0.12, 0.30, 0.2 and 0.25 are 6, 7, 17, 11 and 14.
    assert [line.count("#") for line in lines] == [6, 7, 17, 11, 24, 14]


def looked_at(**changes: Any) -> str:
    """The screen of a plan whose chosen layout, looked at more closely, is as said."""
    simulation = plan().simulation
    assert simulation is not None
    return words(plan(simulation=simulation.model_copy(update=changes)))


def test_where_every_part_keeps_the_targets_a_sentence_says_so_with_the_worst_class() -> None:
    kept = {"rate_rps": 3.4, "attainment": 0.97, "ttft_p90_s": 1.03, "tpot_p90_s": 0.031}
    regimes = (group("steady", 0.92, 0.98), group("bursts", 0.08, 0.91))
    classes = (length_class(1, 0.6, 0.99, 210), length_class(2, 0.4, 0.94, 8_123))
    assert (
        "the chosen one at 3.4 requests/s, the rate to plan for: 97.0% keep the targets, TTFT P90 1.03 s, "
        "TPOT P90 31 ms; 91.0% in bursts; 94.0% prompt ~8,123, output ~182 loss"
    ) in looked_at(at_needed=kept, regimes=regimes, classes=classes)
    alike = (length_class(1, 0.6, 0.97, 210), length_class(2, 0.4, 0.97, 8_123))
    assert "TPOT P90 31 ms loss" in looked_at(at_needed=kept, regimes=regimes[:1], classes=alike)


def test_turns_that_would_come_too_early_are_said_with_what_holds_if_they_wait() -> None:
    early = {"rate_rps": 3.4, "attainment": 0.97, "ttft_p90_s": 1.0, "tpot_p90_s": 0.03, "early_turns": 0.4}
    told = "turns 40% would be sent before the turn before has ended; "
    waiting = Waiting(verdict="keep_defaults", chosen="now")
    assert f"{told}if they wait: keep defaults now" in looked_at(at_needed=early, waiting=waiting)
    waiting = Waiting(verdict="infeasible", chosen=None)
    assert f"{told}if they wait: infeasible loss" in looked_at(at_needed=early, waiting=waiting)
    assert f"{told}the log has no think times" in looked_at(at_needed=early)
    assert told not in looked_at(at_needed=early | {"early_turns": 0.05})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"role": "colocated", "left": 0},
            "the only instance dies at the peak, for 60 s: 61.0% of 312 requests in 84 s keep the targets, "
            "88.0% without; 14 begun again, 2 lost; all that come meanwhile wait until it is back, or are lost",
        ),
        ({"left": 0}, "2 lost; the prefill side serves alone meanwhile, or everything stops"),
        ({"caught_up_s": None}, "of 312 requests from then on keep"),
        (
            {"requests": 0, "attainment": None, "attainment_without": None},
            "for 60 s: no request comes meanwhile; 14",
        ),
    ],
)
def test_what_a_lost_instance_costs_is_said_as_it_is(change: dict[str, Any], expected: str) -> None:
    assert expected in looked_at(loss=LOSS.model_copy(update=change))


def test_a_plan_of_an_earlier_version_is_shown_without_them() -> None:
    text = looked_at(regimes=None, classes=None, loss=None)
    assert "all 100% 89.9%" in text
    assert "steady" not in text
    assert " dies " not in text


def test_an_infeasible_plan_says_so_and_no_layout() -> None:
    text = words(plan(verdict="infeasible", chosen=None, runner_up=None, margin=None, backtest=None))
    assert text.startswith("verdict infeasible: no layout keeps the targets")
    assert "[chosen]" not in text


def test_a_margin_without_an_interval_and_without_a_number() -> None:
    assert "(no interval)" in words(plan(margin={"ratio": 1.3, "low": None, "high": None}))
    assert "x the goodput per GPU" not in words(plan(margin={"ratio": float("nan"), "low": None, "high": None}))


def test_a_plan_made_by_rules_says_that_nothing_was_simulated() -> None:
    text = words(
        plan(simulation=None, attribution=None, flips=None, mean_trap=None, backtest=None, margin=None)
    )
    assert "nothing was simulated" in text
    assert "random search" not in text


def batch(deadline_s: float | None, **changes: Any) -> Plan:
    """A plan without latency targets, of a log that ends in 5 h as a batch."""
    shown = plan()
    assert shown.simulation is not None
    target = shown.target.model_copy(update={"slo": Slo(), "objective": "throughput", "deadline_s": deadline_s})
    simulation = shown.simulation.model_copy(
        update={"batch_s": 18_000.0, "at_needed": None, "regimes": None, "classes": None, "loss": None}
    )
    flips = ({"parameter": "deadline_s", "value": 18_000.0, "becomes": "more GPUs: it ends no sooner"},)
    return plan(**{"target": target, "simulation": simulation, "flips": flips} | changes)


def test_a_batch_says_when_it_ends_beside_the_deadline_and_with_slower_steps() -> None:
    text = words(batch(21_600.0))
    assert "no latency target, all done within 6 h" in text
    # 32.6 % slower steps make 5 h of them 6.63 h.
    told = "batch all 12,031 requests, there at once, end in 5 h, in 6.63 h with steps slower by their error"
    assert f"{told}; asked for: 6 h" in text
    assert "16 GPUs to end within 6 h, with a tenth to spare" in text
    assert "flips at deadline 5 h: more GPUs: it ends no sooner" in text
    assert "busiest 10 minutes" not in text


def test_a_batch_without_a_deadline_says_when_it_ends_and_nothing_of_a_peak() -> None:
    text = words(batch(None))
    assert "end in 5 h" in text
    assert "asked for" not in text
    assert "needed 16 GPUs 34,456 USD" in text
    assert "batch" not in words(plan())


def test_a_batch_that_ends_too_late_says_so() -> None:
    text = words(batch(3_600.0, verdict="infeasible", chosen=None, runner_up=None, margin=None, backtest=None))
    assert text.startswith("verdict infeasible: no layout ends by the deadline")
