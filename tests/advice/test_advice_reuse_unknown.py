"""Plans where the log tells nothing of prefix reuse: the logged cached share, else none and what would flip."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.workloads import workload

from advisor.advice.advise import Advice, advise
from advisor.advice.plan import Plan
from advisor.advice.resolve import NoTarget
from advisor.advice.situation import Situation, draw
from advisor.advice.target import Target
from advisor.simulation.slo import Slo
from advisor.workload.model import Distribution, Workload

# Documents of 20,000 tokens, answers of 50: what is cached decides how many GPUs that takes.
LONG: dict[str, Any] = {"prompt": 20_000, "prompt_p90": 20_000, "prompt_p99": 20_000, "output": 50}


def gpus(**changes: Any) -> Target:
    slo = Slo(ttft_s=5.0, tpot_s=0.05)
    fields: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "gpus": "auto", "slo": slo}
    return Target(**(fields | changes))


def unknown_reuse(cached_share: float | None = None, **changes: Any) -> Workload:
    measured = workload(**(LONG | {"hit": None, "rate_rps": 5.0} | changes))
    sharing = measured.sharing.model_copy(update={"cached_share": cached_share})
    return measured.model_copy(update={"sharing": sharing})


def known_reuse(hit: float, **changes: Any) -> Workload:
    return workload(**(LONG | {"hit": hit, "rate_rps": 5.0} | changes))


def planned(advice: Advice) -> Plan:
    assert advice.plan is not None, advice.plan_reason
    return advice.plan


def without(plan: Plan, *names: str) -> dict[str, Any]:
    return plan.model_dump(exclude=set(names))


def settings_of(plan: Plan) -> dict[str, Any]:
    (pool,), router = plan.candidates[0].pools, plan.candidates[0].router
    settings: dict[str, Any] = {"verdict": plan.verdict, "gpus_needed": plan.gpus_needed}
    settings |= {f"pools.0.{name}": value for name, value in pool.model_dump().items()}
    return settings | {f"router.{name}": value for name, value in router.model_dump().items()}


def test_the_plan_counts_on_no_reuse_and_its_flips_are_the_plans_with_some() -> None:
    plan = planned(advise(unknown_reuse(), gpus()))
    plans = {hit: planned(advise(known_reuse(hit), gpus())) for hit in (0.0, 0.3, 0.6)}
    assert without(plan, "flips", "reasons") == without(plans[0.0], "flips", "reasons")
    assert plan.flips is not None
    assert [flip["value"] for flip in plan.flips] == [0.3, 0.6]
    assert {flip["parameter"] for flip in plan.flips} == {"hit_rate_tokens"}
    settings = settings_of(plan)
    for flip in plan.flips:
        assert not flip["becomes"].items() & settings.items()  # only what changes
        settings |= flip["becomes"]
        assert settings == settings_of(plans[flip["value"]])
    needed = [plans[hit].gpus_needed or 0 for hit in (0.0, 0.3, 0.6)]
    assert needed[0] > needed[1] > needed[2]


def test_a_target_that_only_reuse_can_keep_flips_the_verdict() -> None:
    # 20,000 tokens are 2 x 8e9 FLOP each; at two thirds of an H100's 989 TFLOP/s 0.49 s, attention on top.
    slow = planned(advise(unknown_reuse(), gpus(slo=Slo(ttft_s=0.5, tpot_s=0.05))))
    assert slow.verdict == "infeasible"
    assert slow.flips is not None
    verdicts = [flip["becomes"].get("verdict") for flip in slow.flips]
    assert "undecided" in verdicts


def test_traffic_that_hardly_loads_a_gpu_does_not_flip() -> None:
    small = unknown_reuse(prompt=50, prompt_p90=50, prompt_p99=50, output=400, rate_rps=0.01)
    plan = planned(advise(small, gpus(gpus=1)))
    assert plan.flips == ()


def test_known_reuse_has_no_assumption_to_flip() -> None:
    advice = advise(known_reuse(0.4), gpus())
    assert planned(advice).flips is None
    assert "plan.flips" in {entry.path for entry in advice.unknown}
    assert "plan.flips" not in {entry.path for entry in advise(unknown_reuse(), gpus()).unknown}


def test_the_logged_cached_share_is_planned_with_and_said() -> None:
    advice = advise(unknown_reuse(cached_share=0.6), gpus())
    plan = planned(advice)
    assert plan.gpus_needed == planned(advise(known_reuse(0.6), gpus())).gpus_needed
    assert plan.flips is None
    assert "60.0% of prompt tokens" in plan.reasons["pools.0.prefix_cache"]
    (found,) = [f for f in advice.findings if f.code == "ADV101"]
    assert (found.evidence["hit_rate_tokens"], found.evidence["hit_rate_basis"]) == (
        0.6,
        "cached tokens of the log",
    )
    assert found.evidence["hit_rate_unlimited"] is None
    (silent,) = [f for f in advice.findings if f.code == "ADV903"]
    assert silent.evidence == {"cached_share": 0.6}


def test_the_logged_cached_share_is_said_without_a_device_too() -> None:
    advice = advise(unknown_reuse(cached_share=0.6), NoTarget("no GPU", "--here"))
    (found,) = [f for f in advice.findings if f.code == "ADV101"]
    assert (found.evidence["hit_rate_tokens"], found.evidence["hit_rate_basis"]) == (
        0.6,
        "cached tokens of the log",
    )


def test_what_prompts_show_comes_before_what_was_cached() -> None:
    measured = known_reuse(0.4)
    sharing = measured.sharing.model_copy(update={"cached_share": 0.9})
    both = measured.model_copy(update={"sharing": sharing})
    assert planned(advise(both, gpus())) == planned(advise(measured, gpus()))


def test_nothing_is_claimed_of_reuse_that_is_assumed() -> None:
    codes = {finding.code for finding in advise(unknown_reuse(), gpus()).findings}
    assert not codes & {"ADV102", "ADV103", "ADV104", "ADV105"}


def situation(measured: Workload, assumed: float | None = None) -> Situation:
    return draw(measured, gpus(), {}, assumed)


def test_an_assumed_share_is_that_of_every_prompt() -> None:
    drawn = situation(unknown_reuse(), 0.3)
    assert (drawn.hit, drawn.hit_basis) == (0.3, "assumed")
    assert (drawn.uncached_p90, drawn.mean.uncached) == (pytest.approx(14_000), pytest.approx(14_000))
    assert situation(known_reuse(0.4), 0.3).hit == 0.4  # never over what is known


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        ({"prompt": None}, "no prompt lengths"),
        ({"prompt": Distribution(mean=400.0)}, "prompt lengths in sum only"),
        ({"output": Distribution(mean=50.0)}, "output lengths in sum only"),
    ],
)
def test_no_plan_without_the_length_of_each_request(lengths: dict[str, Any], reason: str) -> None:
    measured = known_reuse(0.4)
    advice = advise(
        measured.model_copy(update={"lengths": measured.lengths.model_copy(update=lengths)}), gpus()
    )
    assert advice.plan is None
    assert reason in str(advice.plan_reason)
