"""`advise` as a whole: which findings come, what the plan holds, and that every null is explained."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.replay_traces import steady_trace
from helpers.workloads import workload

from advisor.advice.advise import Advice, advise
from advisor.advice.host import HostCosts
from advisor.advice.load import prefill_seconds
from advisor.advice.plan import Plan
from advisor.advice.profiles import gpu_rental, model
from advisor.advice.resolve import NoTarget
from advisor.advice.simulated import SimulationOptions
from advisor.advice.situation import hit_at
from advisor.advice.target import Target
from advisor.logs.trace import Trace
from advisor.simulation.slo import Slo
from advisor.workload.measure import measure
from engine.config import EngineConfig
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.files import Key
from engine.step_time.model import StepShape

# 20 ms a step, 1 ms a new token, 1.5 ms a decode row: about what two cores do with the embedded model.
STEPS = CalibratedStepTime(Coefficients(0.020, 0.0, 0.001, 0.0, 0.0015, 0.0), 0.03, 0.08, 100)
KEY = Key("advise", "0.1.0", "cpu", "smollm2-135m-instruct", "bfloat16", 2)


def cpu(**changes: Any) -> Target:
    """Two cores with the embedded model and the `here` preset; router and client cost nothing."""
    fields: dict[str, Any] = {
        "model": "smollm2-135m-instruct", "gpu": "cpu", "gpus": 2, "memory_bytes": 16 * 10**9,
        "slo": Slo(ttft_s=3, tpot_s=0.15), "stack_version": "0.1.0",
        "host": HostCosts(request_s=0, token_s=0),
    }  # fmt: skip
    return Target(**(fields | changes))


def gpu(**changes: Any) -> Target:
    """Four H100 with an 8B model and the chat preset."""
    slo = Slo(ttft_s=0.5, tpot_s=0.05, attainment=0.99)
    fields: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "gpus": 4, "slo": slo}
    return Target(**(fields | changes))


def small_trace(*, count: int = 60, prompt: int = 400, output: int = 30, gap_s: float = 4.0) -> Trace:
    """Requests at even gaps that share nothing."""
    return steady_trace(count, 1 / gap_s, prompt, output)


def planned(advice: Advice) -> Plan:
    assert advice.plan is not None, advice.plan_reason
    return advice.plan


def codes(advice: Advice) -> dict[str, str]:
    return {f.code: f.verdict for f in advice.findings}


def test_here_plans_one_colocated_instance_over_all_cores() -> None:
    plan = planned(advise(workload(), cpu(), {KEY: STEPS}))
    assert plan.verdict == "undecided"
    assert plan.choice is not None
    (pool,) = plan.choice.pools
    assert (pool.role, pool.count, pool.devices_per_instance, pool.batching) == ("colocated", 1, 2, "chunked")
    assert (pool.prefix_cache, pool.queue_policy, pool.block_size) == (True, "fcfs", 16)
    # 1.2 x (20 + tau + 0.5 ms a decode row) <= 150 ms: 96 fits with 1 row, 128 does not.
    assert pool.token_budget == 96
    # A quarter of 16 GB in blocks of 16 x 23,040 B, without the trash block (engine/kv/capacity.py).
    assert pool.kv_tokens == (4 * 10**9 // (16 * 23_040) - 1) * 16
    assert plan.runs_on == {"advise": "yes"}
    assert plan.target.dtype == "bfloat16"  # as calibrated


def test_the_plan_says_which_step_times_it_used() -> None:
    calibrated = planned(advise(workload(), cpu(), {KEY: STEPS})).step_time
    assert (calibrated.source, calibrated.error_p90) == ("calibrated", 0.08)
    others = [
        Key("advise", "0.0.9", "cpu", "smollm2-135m-instruct", "bfloat16", 2),  # another version
        Key("advise", "0.1.0", "cpu", "smollm2-135m-instruct", "bfloat16", 1),  # another number of cores
        Key("advise", "0.1.0", "cpu", "qwen2.5-0.5b", "bfloat16", 2),  # another model
    ]
    for other in others:
        assert planned(advise(workload(), cpu(), {other: STEPS})).step_time.source == "roofline"
    key = KEY.__class__("advise", "0.1.0", "cpu", "smollm2-135m-instruct", "float32", 2)
    assert planned(advise(workload(), cpu(dtype="bfloat16"), {key: STEPS})).step_time.source == "roofline"
    assert planned(advise(workload(), cpu(), {key: STEPS})).target.dtype == "float32"


def test_published_step_times_are_used_for_their_engine_only() -> None:
    mistral = {"model": "mistral-7b-v0.3", "gpu": "a100-sxm-80g", "gpus": 1}
    assert planned(advise(workload(), gpu(stack="sglang", **mistral))).step_time.source == "published"
    assert planned(advise(workload(), gpu(stack="vllm", **mistral))).step_time.source == "roofline"


def nulls_of(plan: Plan) -> set[str]:
    """Paths of everything in a plan that is null, but for a candidate that is not rejected."""
    nulls = {f"plan.{n}" for n, v in plan if v is None}
    nulls |= {f"plan.candidates.{n}" for c in plan.candidates for n, v in c if v is None and n != "rejected"}
    return nulls | {f"plan.simulation.{n}" for n, v in plan.simulation or () if v is None}


def test_every_null_of_a_plan_made_by_rules_is_explained() -> None:
    advice = advise(workload(), cpu(), {KEY: STEPS})
    assert nulls_of(planned(advice)) == {u.path for u in advice.unknown}
    assert all("not simulated yet" in u.why or "price" in u.why for u in advice.unknown)
    infeasible = advise(workload(), cpu(slo=Slo(ttft_s=3, tpot_s=0.015)), {KEY: STEPS})
    assert nulls_of(planned(infeasible)) == {u.path for u in infeasible.unknown}


@pytest.mark.parametrize("slo", [Slo(ttft_s=3, tpot_s=0.15), Slo(ttft_s=0.001, tpot_s=0.001)])
def test_every_null_of_a_simulated_plan_is_explained(slo: Slo) -> None:
    trace = small_trace(count=20, output=5)
    advice = advise(
        measure(trace), cpu(slo=slo), {KEY: STEPS}, trace=trace, simulation=SimulationOptions(processes=1)
    )
    plan = planned(advice)
    assert plan.simulation is not None
    assert (plan.chosen is None) == (slo.ttft_s == 0.001)
    assert nulls_of(plan) == {u.path for u in advice.unknown}
    assert not any("not simulated" in u.why for u in advice.unknown)


def test_the_plan_says_whether_rules_and_simulation_agree() -> None:
    trace = small_trace(count=20, output=5)
    plan = planned(advise(measure(trace), cpu(), {KEY: STEPS}, trace=trace, simulation=SimulationOptions()))
    assert plan.choice is not None
    # The rules take 96 (above); of the CPU budgets in the search that is near 64 and 128.
    near = plan.choice.pools[0].token_budget in (64, 128)
    assert plan.reasons["rules"].startswith("the rules agree" if near else "the rules differ: token budget 96")


def test_a_simulated_layout_that_keeps_the_targets_overrules_rule_0a() -> None:
    """Two H100, the fewest that hold a batch, take 2.2 s for a prompt of 60,000 tokens; four need 1.4 s."""
    trace = small_trace(count=20, prompt=60_000, output=4, gap_s=20.0)
    target = gpu(gpus=4, slo=Slo(ttft_s=2.0, tpot_s=0.1))
    assert codes(advise(measure(trace), target))["ADV401"] == "do"
    advice = advise(measure(trace), target, trace=trace, simulation=SimulationOptions(processes=1))
    plan = planned(advice)
    assert plan.verdict != "infeasible"
    assert plan.choice is not None
    assert plan.choice.pools[0].tp == 4
    assert "ADV401" not in codes(advice)
    assert "ADV401" in plan.reasons["rules"]


@pytest.mark.slow
def test_auto_takes_the_fewest_gpus_that_keep_the_targets_at_the_peak() -> None:
    target = gpu(gpus="auto", model="qwen2.5-14b", slo=Slo(ttft_s=1.0, tpot_s=0.05))
    # Prefill of 2,000 tokens takes an H100 about 0.1 s: one a second leaves it idle, 20 a second do not.
    few, many = (
        planned(advise(measure(t), target, trace=t, simulation=SimulationOptions(processes=1)))
        for t in (
            small_trace(count=40, prompt=2000, output=20),
            small_trace(count=200, prompt=2000, output=20, gap_s=0.05),
        )
    )
    assert (few.target.gpus, few.gpus_needed) == (1, 1)
    assert isinstance(many.target.gpus, int)
    assert many.target.gpus > 1


def test_the_rent_is_of_the_gpus_needed_at_the_price_given_else_the_dated_one() -> None:
    given = planned(advise(workload(), gpu(gpu_price=2.5)))
    assert given.gpus_needed is not None
    assert given.usd_per_month == given.gpus_needed * 2.5 * 730
    # 0.5 requests/s of 400 + 60 tokens are 828,000 tokens an hour.
    assert given.usd_per_million_tokens == pytest.approx(given.gpus_needed * 2.5 / 0.828)
    dated = planned(advise(workload(), gpu()))
    rental = gpu_rental("h100-sxm")
    assert rental is not None
    assert dated.usd_per_month == pytest.approx((dated.gpus_needed or 0) * rental.usd_per_hour * 730)
    assert rental.as_of in dated.reasons["usd_per_month"]
    assert rental.source in dated.reasons["usd_per_month"]
    assert planned(advise(workload(), cpu(), {KEY: STEPS})).usd_per_month is None


def test_an_idle_deployment_is_held_against_the_price_of_a_hosted_api() -> None:
    """gpt-oss-20b at 0.01 requests/s: list prices per million tokens are 0.075 in and 0.3 out at Groq."""
    target = gpu(model="gpt-oss-20b", gpus=1)
    quiet = workload(rate_rps=0.01, peak_60s=0.02, hit=0.0)
    advice = advise(quiet, target, no_operations=True)
    [found] = [f for f in advice.findings if f.code == "ADV601"]
    a_month = 0.01 * 730 * 3600 * (400 * 0.075 + 60 * 0.3) / 1e6
    assert found.evidence["hosted_usd_per_month"] == pytest.approx(a_month, rel=1e-5)
    assert "groq" in str(found.saving)
    assert planned(advice).verdict == "hosted"
    other = advise(quiet, gpu(gpus=1))
    [unpriced] = [f for f in other.findings if f.code == "ADV601"]
    assert unpriced.evidence["hosted_usd_per_month"] is None
    assert planned(other).verdict == "undecided"


def test_every_field_of_the_pool_has_a_reason() -> None:
    plan = planned(advise(workload(), cpu(), {KEY: STEPS}))
    pool = EngineConfig().pools[0]
    given = {name.rpartition(".")[2] for name in plan.reasons if name.startswith("pools.0.")}
    assert given == set(type(pool).model_fields) - {"pp"}
    assert "conservative" in plan.reasons["pools.0.token_budget"]
    tbt = planned(advise(workload(), cpu(slo=Slo(ttft_s=3, tbt_s=0.15)), {KEY: STEPS}))
    assert "conservative" not in tbt.reasons["pools.0.token_budget"]


def test_the_engine_config_of_a_plan_is_its_choice() -> None:
    plan = planned(advise(workload(), cpu(max_len=4096), {KEY: STEPS}))
    config = plan.engine_config()
    assert plan.choice is not None
    assert config.pools == plan.choice.pools
    assert (config.model.name, config.model.dtype, config.model.max_len) == (
        "smollm2-135m-instruct",
        "bfloat16",
        4096,
    )


@pytest.mark.parametrize("slo", [Slo(ttft_s=3, tpot_s=0.015), Slo(ttft_s=0.3, tpot_s=0.15)])
def test_targets_below_the_floor_are_infeasible(slo: Slo) -> None:
    # One decode takes 21.5 ms, the P90 prompt of 800 - 40 % cached = 480 tokens takes 500 ms.
    advice = advise(workload(), cpu(slo=slo), {KEY: STEPS})
    plan = planned(advice)
    assert codes(advice)["ADV401"] == "do"
    assert (plan.verdict, plan.chosen) == ("infeasible", None)
    assert plan.candidates[0].rejected
    with pytest.raises(ValueError, match="infeasible"):
        plan.engine_config()


def test_targets_just_above_the_floor_are_not_infeasible() -> None:
    advice = advise(workload(), cpu(slo=Slo(ttft_s=0.51, tpot_s=0.0216)), {KEY: STEPS})
    assert "ADV401" not in codes(advice)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"output": None}, "no output lengths"), ({"rate_rps": None}, "no arrival times")],
)
def test_no_plan_without_outputs_or_rate(changes: dict[str, Any], reason: str) -> None:
    advice = advise(workload(**changes), cpu(), {KEY: STEPS})
    assert advice.plan is None
    assert reason in str(advice.plan_reason)
    assert codes(advice)["ADV101"] == "do"


def test_without_a_target_the_hardware_free_findings_stand() -> None:
    advice = advise(
        workload(requests=10, tick_s=3.0, dispersion_10s=5.0, any_position_share=0.9),
        NoTarget("no GPU", "--here"),
    )
    assert advice.plan is None
    assert advice.plan_reason == "no GPU (add --here)"
    assert codes(advice) == {
        "ADV101": "do", "ADV402": "do", "ADV501": "do", "ADV901": "check", "ADV902": "check"
    }  # fmt: skip


def test_a_model_that_does_not_fit_gives_no_plan() -> None:
    advice = advise(workload(), gpu(model="llama-3.1-70b", gpus=1))
    assert advice.plan is None
    assert "do not fit" in str(advice.plan_reason)
    plan = planned(advise(workload(), gpu(model="llama-3.1-70b", gpus=4)))
    assert plan.choice is not None
    # 141 GB of bf16 weights on 80 GB GPUs: two hold them (144 GB at 0.9) but leave room for few requests.
    assert (plan.choice.pools[0].tp, plan.choice.pools[0].count) == (4, 1)


def test_offline_work_has_no_budget_search_and_depth_first_order() -> None:
    advice = advise(workload(), gpu(slo=Slo(), objective="throughput"))
    plan = planned(advice)
    assert plan.choice is not None
    assert (plan.choice.pools[0].token_budget, plan.choice.pools[0].queue_policy) == (2048, "prefix_first")
    assert codes(advice)["ADV204"] == "do"
    assert not {"ADV201", "ADV304"} & set(codes(advice))


def test_gpus_become_replicas_and_auto_counts_them() -> None:
    plan = planned(advise(workload(), gpu()))
    assert plan.choice is not None
    assert (plan.choice.pools[0].count, plan.choice.gpus) == (4, 4)
    assert plan.runs_on["advise"].startswith("no: ")
    few, many = (planned(advise(workload(rate_rps=rate), gpu(gpus="auto"))).choice for rate in (1.0, 300.0))
    assert few is not None
    assert many is not None
    assert few.gpus == 1 < many.gpus


def test_replicas_route_by_prefix_where_sharing_matters() -> None:
    prompts = {"prompt": 8000, "prompt_p90": 8000, "prompt_p99": 8000, "output": 5}
    shared = planned(advise(workload(hit=0.6, **prompts), gpu())).choice
    alone = planned(advise(workload(hit=0.0, **prompts), gpu())).choice
    assert shared is not None
    assert alone is not None
    assert (shared.router.policy, alone.router.policy) == ("prefix_affinity", "least_loaded")


def test_a_burst_sizes_at_the_peak_minute() -> None:
    calm, bursty = (
        advise(workload(rate_rps=0.5, peak_60s=1.5, dispersion_10s=d), cpu(), {KEY: STEPS}) for d in (1.0, 5.0)
    )
    assert codes(bursty)["ADV402"] == "do"
    assert "ADV402" not in codes(calm)
    assert planned(bursty).gpus_needed > planned(calm).gpus_needed  # type: ignore[operator]


def test_more_load_than_the_device_has_is_said() -> None:
    assert codes(advise(workload(rate_rps=20), cpu(), {KEY: STEPS}))["ADV403"] == "do"
    assert "ADV403" not in codes(advise(workload(rate_rps=0.2), cpu(), {KEY: STEPS}))


def test_a_load_far_beyond_a_tight_target_still_gets_a_plan() -> None:
    advice = advise(workload(rate_rps=20_000, output=500), gpu(slo=Slo(ttft_s=0.5, tpot_s=0.03)))
    plan = planned(advice)
    assert plan.choice is not None
    assert (plan.choice.pools[0].token_budget, plan.verdict) == (512, "undecided")
    assert {"ADV202", "ADV403"} <= set(codes(advice))
    assert plan.gpus_needed is not None
    assert plan.gpus_needed > 100


def test_the_hit_rate_is_that_of_the_memory_left() -> None:
    curve = ((16, 0.0), (1600, 0.1), (160_000, 0.5))
    measured = workload(hit=0.5, curve=curve)
    assert hit_at(measured, 16) == 0.0
    assert hit_at(measured, 16_000) == pytest.approx(0.3)  # halfway on the log scale
    assert hit_at(measured, 10**9) == 0.5
    small = advise(measured, cpu(memory_bytes=4 * 16_000 * 23_040), {KEY: STEPS})
    assert codes(small)["ADV104"] == "do"
    found = next(f for f in small.findings if f.code == "ADV101")
    assert found.evidence["hit_rate_tokens"] == pytest.approx(0.3, abs=0.01)


def test_conflicting_targets_are_said() -> None:
    # 2,000 tokens at 1 ms each, in chunks that keep 60 ms a token, cannot start within 2.2 s; alone they can.
    long = {"prompt": 1000, "prompt_p90": 2000, "hit": 0.0, "rate_rps": 0.01}
    advice = advise(workload(**long), cpu(slo=Slo(ttft_s=2.2, tpot_s=0.06)), {KEY: STEPS})
    assert prefill_seconds(STEPS, 2000) < 2.2
    assert codes(advice)["ADV203"] == "check"
    assert "ADV203" not in codes(advise(workload(**long), cpu(slo=Slo(ttft_s=9, tpot_s=0.06)), {KEY: STEPS}))


def test_max_seqs_keep_the_per_token_target_and_the_memory() -> None:
    plan = planned(advise(workload(), cpu(), {KEY: STEPS}))
    assert plan.choice is not None
    pool = plan.choice.pools[0]
    assert 1.2 * STEPS.seconds(StepShape((), pool.max_seqs, 430 * pool.max_seqs)) <= 0.15
    tight = planned(advise(workload(), cpu(memory_bytes=4 * 1600 * 23_040), {KEY: STEPS})).choice
    assert tight is not None
    assert tight.pools[0].max_seqs == 3  # 1,584 tokens of KV, 460 a request


def test_same_inputs_same_plan() -> None:
    first, second = (advise(workload(), cpu(), {KEY: STEPS}) for _ in range(2))
    assert planned(first).model_dump_json() == planned(second).model_dump_json()
    assert first.findings == second.findings


def test_the_embedded_model_has_a_profile() -> None:
    assert model("smollm2-135m-instruct").parameters == 134_515_008  # the GGUF's element count


def test_kv_in_other_numbers_than_the_weights_is_planned_and_not_launched() -> None:
    half = planned(advise(workload(), cpu(kv_dtype="fp8"), {KEY: STEPS}))
    whole = planned(advise(workload(), cpu(), {KEY: STEPS}))
    assert half.choice is not None
    assert whole.choice is not None
    # A quarter of the host's memory holds twice the tokens at one byte an element instead of two.
    assert half.choice.kv_tokens == pytest.approx(2 * (whole.choice.kv_tokens or 0), rel=0.001)
    assert half.runs_on["advise"].startswith("no: ")
    assert whole.runs_on["advise"] == "yes"
