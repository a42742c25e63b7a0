"""Attribution and flip points: which layouts stand for each idea, and where another layout becomes the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from helpers.planning import devices, judged, layout

from advisor.advice.search.attribution import BASELINE_BUDGET, best_of_kind, rows
from advisor.advice.search.flips import find_flips
from advisor.advice.search.judge import Goal, Job, Judged
from advisor.advice.search.layout import Layout
from advisor.simulation.slo import Slo
from engine.config import RouterConfig

COLOCATED = Layout(
    "best", layout("best", 2, token_budget=1024, queue_policy="prefix_first").pools,
    RouterConfig(policy="prefix_affinity"),
)  # fmt: skip
SPLIT = Layout(
    "apart", layout("apart", 1, prefill=1).pools, RouterConfig(policy="prefix_affinity", bypass=True)
)
GOAL = Goal(Slo(ttft_s=1, tpot_s=0.1))


def ideas(one: Layout) -> tuple[bool, bool, bool]:
    """Whether it caches, has a budget, is split."""
    pool = one.pools[0]
    return pool.prefix_cache, pool.batching == "chunked" and not one.split, one.split


def test_each_row_has_its_ideas_and_no_other() -> None:
    table = dict(rows(COLOCATED, SPLIT))
    assert {name: ideas(one) for name, one in table.items()} == {
        "nothing": (False, False, False),
        "cache": (True, False, False),
        "budget": (False, True, False),
        "split": (False, False, True),
        "cache + budget": (True, True, False),
        "cache + split": (True, False, True),
    }
    assert [name for name, _ in rows(COLOCATED, None)] == ["nothing", "cache", "budget", "cache + budget"]


def test_the_last_row_of_each_kind_is_what_the_search_found_and_gpus_are_equal() -> None:
    table = dict(rows(COLOCATED, SPLIT))
    assert (table["cache + budget"].pools, table["cache + budget"].router) == (
        COLOCATED.pools,
        COLOCATED.router,
    )
    assert (table["cache + split"].pools, table["cache + split"].router) == (SPLIT.pools, SPLIT.router)
    assert {one.gpus for one in table.values()} == {2}


def test_nothing_is_whole_prompts_before_any_decode() -> None:
    """Sarathi-Serve's and DistServe's baseline: vLLM as it was, prompts batched up to a budget."""
    pool = dict(rows(COLOCATED, None))["nothing"].pools[0]
    assert (pool.batching, pool.token_budget) == ("prefill_first", BASELINE_BUDGET)


def test_without_a_cache_nothing_is_ordered_or_routed_by_prefix() -> None:
    for name, one in rows(COLOCATED, SPLIT):
        if "cache" not in name:
            assert {pool.queue_policy for pool in one.pools} == {"fcfs"}
            assert (one.router.policy, one.router.bypass) == ("least_loaded", False)


def test_the_best_of_a_kind_goes_by_goodput_per_gpu() -> None:
    few, many = judged(layout("few", 1), 1.0), judged(layout("many", 8), 0.9)
    assert best_of_kind([many, few], split=False) == few
    assert best_of_kind([many, few], split=True) is None


def flips(
    goodput: dict[str, float], moved: dict[tuple[str, str, float], float], *, reuse: bool = False
) -> set[tuple[str, float, str]]:
    """Flip points of "best" against "apart"; `moved[layout, parameter, value]` is its goodput there."""

    def judge(jobs: Sequence[Job]) -> list[Judged]:
        return [
            judged(job.layout, moved.get((job.layout.name, *where(job)), goodput[job.layout.name]))
            for job in jobs
        ]

    every = [judged(one, goodput[one.name]) for one in (COLOCATED, SPLIT)]
    found = find_flips(judge, GOAL, devices(), every[0], every[1:], reuse=reuse)
    return {(one["parameter"], one["value"], one["becomes"]) for one in found}


def where(job: Job) -> tuple[str, float]:
    """What a job has different."""
    if job.slo is not None:
        name = next(n for n in ("ttft_s", "tpot_s") if getattr(job.slo, n) != getattr(GOAL.slo, n))
        return name, getattr(job.slo, name)
    if job.reuse != 1.0:
        return "reuse", job.reuse
    if job.hardware.link_factor != 1.0:
        return "link_bytes_per_s", 100e9 / job.hardware.link_factor
    return "gpus", job.layout.gpus


def test_the_rate_flips_at_the_goodput_and_nothing_else_where_nothing_changes() -> None:
    assert flips({"best": 1.0, "apart": 0.5}, {}) == {("rate_rps", 2.0, "more GPUs: its goodput ends here")}


@pytest.mark.parametrize(
    "there", [("ttft_s", 0.5), ("tpot_s", 0.05), ("reuse", 0.0), ("link_bytes_per_s", 25e9), ("gpus", 4)]
)
def test_a_value_where_another_layout_is_better_is_named(there: tuple[str, float]) -> None:
    found = flips({"best": 1.0, "apart": 0.5}, {("apart", *there): 1.2}, reuse=True)
    assert {one for one in found if one[0] != "rate_rps"} == {(*there, "apart")}


def test_a_lead_within_the_noise_is_no_flip() -> None:
    assert len(flips({"best": 1.0, "apart": 0.5}, {("apart", "ttft_s", 0.5): 1.04})) == 1


def test_a_target_that_nothing_keeps_is_said() -> None:
    found = flips({"best": 1.0, "apart": 0.5}, {(name, "tpot_s", 0.05): 0.0 for name in ("best", "apart")})
    assert ("tpot_s", 0.05, "nothing keeps the targets") in found


def test_pools_that_cannot_be_halved_are_not() -> None:
    """1 prefill + 1 decode on one GPU is no layout."""
    every = [judged(replace(SPLIT), 1.0), judged(COLOCATED, 0.5)]
    asked: list[Job] = []

    def judge(jobs: Sequence[Job]) -> list[Judged]:
        asked.extend(jobs)
        return [judged(job.layout, 1.0) for job in jobs]

    find_flips(judge, GOAL, devices(), every[0], every[1:], reuse=False)
    assert {job.layout.gpus for job in asked} == {2, 4}
