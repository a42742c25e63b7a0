"""A batch with a deadline, by hand: prompts of 512 tokens at a second each, whatever steps they are read in.

60 of them are 60 s of work: ceil(60 / k) seconds on k GPUs with an instance each.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from helpers.planning import devices, judged, layout
from helpers.quick import only_the_decision
from helpers.simulating import Affine, make_load
from helpers.workload_traces import make_trace

from advisor.advice.advise import advise
from advisor.advice.comparison import refuse_other_target
from advisor.advice.plan import Plan
from advisor.advice.search.deadline import in_time, missed, soonest, why_late
from advisor.advice.search.fleet import MOST_GPUS, fewest_gpus
from advisor.advice.search.judge import Goal, Job, Judged, judge
from advisor.advice.search.layout import Layout
from advisor.advice.search.search import Round
from advisor.advice.simulated import SimulationOptions
from advisor.advice.steps import StepTimes, choose_step_times
from advisor.advice.target import Target
from advisor.simulation.slo import Slo
from advisor.workload.measure import measure
from engine.errors import InputError

PROMPT = 512
SECOND_A_PROMPT = Affine(prefill=1 / PROMPT)


@pytest.fixture
def round_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step times of every plan, and nothing in it but the decision."""

    def chosen(*asked: Any) -> StepTimes:
        return replace(choose_step_times(*asked), model=SECOND_A_PROMPT)

    monkeypatch.setattr("advisor.advice.search.hardware.choose_step_times", chosen)
    only_the_decision(monkeypatch)


def target(gpus: int | str = 2, **values: Any) -> Target:
    given: dict[str, Any] = {"objective": "throughput", "slo": Slo(), "deadline_s": 40.0, "gpu_price": 3.6}
    return Target(model="llama-3-8b", gpu="a100-sxm-80g", gpus=gpus, **(given | values))


def plan(wanted: Target, requests: int = 60, **options: Any) -> Plan:
    trace = make_trace([PROMPT] * requests, [1] * requests, arrivals=[10.0 * i for i in range(requests)])
    simulation = SimulationOptions(processes=1, **options)
    found = advise(measure(trace), wanted, trace=trace, simulation=simulation).plan
    assert found is not None
    return found


def batch_s(found: Plan) -> float | None:
    assert found.simulation is not None
    return found.simulation.batch_s


@pytest.mark.parametrize("instances", [1, 2, 4])
def test_a_budget_of_prompt_a_step_takes_as_many_steps_as_requests_over_instances(instances: int) -> None:
    load = make_load([100.0 * i for i in range(20)], PROMPT, 1)
    one = layout("some", instances, token_budget=PROMPT)
    job = Job(one, devices(step_time=Affine(fixed=0.25)), 0, 1.0, 0.1)
    found = judge(job, load, Goal(Slo(), "throughput"))
    assert found.batch_s == pytest.approx(20 / instances * 0.25)
    assert found.low_rps == pytest.approx(instances / 0.25)


@pytest.mark.usefixtures("round_numbers")
@pytest.mark.parametrize(
    ("deadline_s", "needed"),
    [
        (70.0, 1),  # 60 s on one GPU, 66 with a tenth
        (65.0, 2),
        (33.1, 2),  # 30 s on two, 33 with a tenth
        (32.9, 3),  # in time on two, with nothing to spare
    ],
)
def test_the_gpus_needed_end_the_batch_with_a_tenth_to_spare(deadline_s: float, needed: int) -> None:
    found = plan(target(deadline_s=deadline_s))
    assert found.verdict == "keep_defaults"
    assert found.gpus_needed == needed
    assert batch_s(found) == pytest.approx(30.0)


@pytest.mark.usefixtures("round_numbers")
def test_a_deadline_that_every_layout_misses_is_infeasible_with_the_time_and_the_gpus() -> None:
    """Seven GPUs end it in 9 s, 9.9 with a tenth; six in 10."""
    found = plan(target(deadline_s=10.0))
    assert (found.verdict, found.chosen, found.gpus_needed) == ("infeasible", None, 7)
    assert batch_s(found) == pytest.approx(30.0)
    assert found.simulation is not None
    why = "no layout ends the batch within 10 s: on 2 GPUs it takes 30 s; 7 GPUs are needed"
    assert found.simulation.why == why
    (defaults,) = (one for one in found.candidates if one.name == "defaults")
    assert defaults.rejected == "ends the batch after 30 s only"
    assert found.usd_per_million_tokens is None


@pytest.mark.usefixtures("round_numbers")
def test_no_number_of_gpus_ends_a_batch_before_its_longest_request(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("fleet", "deadline"):
        monkeypatch.setattr(f"advisor.advice.search.{module}.MOST_GPUS", 16)
    found = plan(target(deadline_s=0.9))
    assert (found.verdict, found.gpus_needed) == ("infeasible", None)
    assert found.simulation is not None
    assert found.simulation.why.endswith("it takes 30 s; not on 16 GPUs either")


@pytest.mark.usefixtures("round_numbers")
def test_auto_plans_on_the_gpus_that_the_deadline_needs() -> None:
    found = plan(target("auto", deadline_s=24.0))  # three: 20 s, 22 with a tenth
    assert (found.target.gpus, found.gpus_needed, found.verdict) == (3, 3, "keep_defaults")
    assert batch_s(found) == pytest.approx(20.0)


@pytest.mark.usefixtures("round_numbers")
def test_what_runs_now_is_not_kept_where_it_misses_the_deadline() -> None:
    """One instance takes 60 s; two GPUs 30, no better per GPU."""
    now = layout("now", 1, token_budget=PROMPT)
    late = plan(target(deadline_s=40.0), control=now)
    assert late.verdict == "undecided"
    assert late.choice is not None
    assert late.choice.gpus == 2
    assert late.simulation is not None
    assert late.simulation.why == "60 requests are too few to tell, but what runs now misses the deadline"
    assert plan(target(deadline_s=61.0), control=now).chosen == "now"


@pytest.mark.usefixtures("round_numbers")
@pytest.mark.parametrize(("deadline_s", "verdict"), [(700.0, "change"), (600.0, "undecided")])
def test_a_change_ends_in_time_with_steps_slower_by_their_error_too(deadline_s: float, verdict: str) -> None:
    """500 s on two GPUs, 663 with prefill slower by its 33 %; on one 1,000, and 754 with it faster."""
    found = plan(target(deadline_s=deadline_s), 1000, control=layout("now", 1, token_budget=PROMPT))
    assert found.step_time.error_p90 == pytest.approx(0.33, abs=0.01)
    assert found.verdict == verdict


@pytest.mark.usefixtures("round_numbers")
@pytest.mark.parametrize("deadline_s", [None, 40.0])
def test_the_whole_log_is_the_batch_where_the_search_saw_a_part(
    monkeypatch: pytest.MonkeyPatch, deadline_s: float | None
) -> None:
    monkeypatch.setattr("advisor.advice.search.search.FINAL", Round(20, 0.025, 0))
    found = plan(target(deadline_s=deadline_s))
    assert found.simulation is not None
    assert found.simulation.requests == 60
    assert batch_s(found) == pytest.approx(30.0)
    assert found.chosen == "defaults"


@pytest.mark.usefixtures("round_numbers")
def test_a_batch_costs_the_rent_until_it_ends() -> None:
    """Two GPUs for 30 s at 3.6 US dollars an hour are 6 cents, for 60 x 513 tokens."""
    assert plan(target()).usd_per_million_tokens == pytest.approx(0.06 / (60 * 513 / 1e6))


@pytest.mark.usefixtures("round_numbers")
def test_without_a_deadline_the_end_of_the_batch_is_said_and_with_latency_targets_it_is_not() -> None:
    found = plan(target(deadline_s=None))
    assert (batch_s(found), found.gpus_needed) == (pytest.approx(30.0), 2)
    online = plan(target(deadline_s=None, objective="goodput", slo=Slo(ttft_s=4)), 10)
    assert batch_s(online) is None


@pytest.mark.usefixtures("round_numbers")
def test_a_batch_with_a_deadline_has_no_rate_to_multiply() -> None:
    with pytest.raises(InputError, match="there at once"):
        plan(target(), rate=2.0)


def test_plans_with_different_deadlines_are_not_ranked() -> None:
    earlier = Plan.model_construct(target=target())
    refuse_other_target(earlier, target(gpus=4))
    with pytest.raises(InputError) as error:
        refuse_other_target(earlier, target(deadline_s=41.0))
    assert error.value.why == "deadline_s: 40.0 and 41.0"


def ended(name: str, end_s: float, served: float = 1.0) -> Judged:
    one = judged(layout(name, 2), 1.0)
    assert one.at is not None
    return replace(one, at=replace(one.at, attainment=served), batch_s=end_s)


def test_who_leaves_requests_out_is_late_however_soon_it_ends() -> None:
    some = [ended("slow", 11.0, 0.9), ended("hasty", 1.0, 0.8), ended("good", 10.0, 0.9)]
    assert [one.low_rps > 0 for one in in_time(some, 10.0)] == [False, False, True]
    assert why_late(some[1], some, 10.0) == "leaves out requests of the batch that others serve"
    assert soonest(some).layout.name == "good"


def test_on_this_machines_cores_no_more_are_asked_for() -> None:
    told = missed([ended("one", 7200.0)], 5400.0, None, on_cpu=True)
    assert told == "no layout ends the batch within 90 min: on 2 cores it takes 2 h"


@pytest.mark.parametrize("guess", [1, 2, 5, 60, 10_000])
@pytest.mark.parametrize("wanted", [1, 4, 9, 100, 510, 511])
def test_the_fewest_gpus_are_whole_fleets_of_the_same_proportions(wanted: int, guess: int) -> None:
    """Two prefill instances for one decode instance: fleets of 3 GPUs, 510 at most of 512."""
    seen: list[Layout] = []

    def enough(more: Layout) -> bool:
        seen.append(more)
        return more.gpus >= wanted

    found = fewest_gpus(layout("split", 2, prefill=4), enough, guess)
    assert found == (None if wanted > 510 else 3 * math.ceil(wanted / 3))
    assert all(one.pools[0].count == 2 * one.pools[1].count for one in seen)
    assert max(one.gpus for one in seen) <= MOST_GPUS
    assert len(seen) <= 2 * math.log2(MOST_GPUS)
