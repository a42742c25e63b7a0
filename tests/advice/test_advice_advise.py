"""`advise` as a whole: which findings come, what the plan holds, and that every null is explained."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.workloads import workload

from advisor.advice.advise import Advice, advise
from advisor.advice.load import prefill_seconds
from advisor.advice.plan import Plan
from advisor.advice.profiles import model
from advisor.advice.resolve import NoTarget
from advisor.advice.situation import hit_at
from advisor.advice.target import Target
from advisor.simulation.slo import Slo
from engine.config import EngineConfig
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.files import Key
from engine.step_time.model import StepShape

# 20 ms a step, 1 ms a new token, 1.5 ms a decode row: about what two cores do with the embedded model.
STEPS = CalibratedStepTime(Coefficients(0.020, 0.0, 0.001, 0.0, 0.0015, 0.0), 0.03, 0.08, 100)
KEY = Key("advise", "0.1.0", "cpu", "smollm2-135m-instruct", "bfloat16", 2)


def cpu(**changes: Any) -> Target:
    """Two cores with the embedded model and the `here` preset."""
    fields: dict[str, Any] = {
        "model": "smollm2-135m-instruct", "gpu": "cpu", "gpus": 2, "memory_bytes": 16 * 10**9,
        "slo": Slo(ttft_s=3, tpot_s=0.15), "stack_version": "0.1.0",
    }  # fmt: skip
    return Target(**(fields | changes))


def gpu(**changes: Any) -> Target:
    """Four H100 with an 8B model and the chat preset."""
    slo = Slo(ttft_s=0.5, tpot_s=0.05, attainment=0.99)
    fields: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "gpus": 4, "slo": slo}
    return Target(**(fields | changes))


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


def test_every_null_of_the_plan_is_explained() -> None:
    advice = advise(workload(), cpu(), {KEY: STEPS})
    plan = planned(advice)
    explained = {u.path for u in advice.unknown}
    nulls = {f"plan.{n}" for n, v in plan if v is None}
    nulls |= {f"plan.candidates.{n}" for n, v in plan.candidates[0] if v is None and n != "rejected"}
    assert nulls == explained
    assert all("not simulated yet" in u.why or "price" in u.why for u in advice.unknown)


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
