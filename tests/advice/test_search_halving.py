"""The search with a judge whose goodputs are known: what it finds, what it leaves out, and what it counts."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from helpers.planning import FakeJudge, devices, layout
from helpers.simulating import Affine

from advisor.advice.load import Traffic
from advisor.advice.search.judge import Goal
from advisor.advice.search.layout import Layout, layouts
from advisor.advice.search.search import AT_ONCE, FIRST, LEAST_OF_KIND, Search
from advisor.advice.sizing import DEGREES
from advisor.simulation.slo import Slo

TRAFFIC = Traffic(10, 500, 500, 100)
HARDWARE = devices(step_time=Affine(fixed=0.01, prefill=1e-4, row=1e-4))
CONTROL = layout("now", 8, max_seqs=64)


def search(judge: FakeJudge, *, reuse: bool = False, slo: Slo | None = None) -> Search:
    return Search(judge, HARDWARE, TRAFFIC, Goal(slo or Slo(ttft_s=1, tpot_s=0.1)), reuse=reuse)


def some_goodput(one: Layout) -> float:
    """From the pools alone, between 0.2 and 0.8."""
    pools = [(pool.role, pool.count, pool.tp, pool.token_budget, pool.max_seqs) for pool in one.pools]
    return 0.2 + 0.6 * zlib.crc32(repr(pools).encode()) / 2**32


def test_it_finds_the_best_of_what_it_looked_at() -> None:
    judge = FakeJudge(some_goodput)
    found = search(judge).run(layouts(HARDWARE, 8, reuse=False))
    assert found.best is not None
    assert found.best.per_gpu == max(some_goodput(job.layout) for job in judge.jobs)


def test_it_counts_every_request_that_was_simulated() -> None:
    judge = FakeJudge(some_goodput)
    found = search(judge).run(layouts(HARDWARE, 8, reuse=False), (CONTROL,))
    assert found.simulated == judge.simulated > 0


def test_the_control_is_a_finalist_however_bad_and_nothing_is_judged_twice_at_the_end() -> None:
    found = search(FakeJudge(lambda one: 0.001 if one == CONTROL else some_goodput(one))).run(
        layouts(HARDWARE, 8, reuse=False), (CONTROL,)
    )
    names = [one.layout.name for one in found.finalists]
    assert names[-1] == "now"
    assert len(set(names)) == len(names)
    assert not set(names) & {one.layout.name for one in found.others}


def test_a_control_that_is_listed_too_stands_for_itself_whatever_its_name() -> None:
    """The same pools and router under another name are the same layout; other pools under its name are not."""
    every = layouts(HARDWARE, 8, reuse=False)
    twin = Layout("now", every[3].pools, every[3].router)
    found = search(FakeJudge(some_goodput)).run(every, (twin,))
    assert [one.layout for one in found.finalists].count(twin) == 1
    assert every[3].name not in {one.layout.name for one in (*found.finalists, *found.others)}
    namesake = Layout(every[3].name, CONTROL.pools, CONTROL.router)
    found = search(FakeJudge(some_goodput)).run(every, (namesake,))
    assert [one.layout for one in found.finalists].count(namesake) == 1


def test_the_best_split_goes_to_the_end_only_where_it_contends() -> None:
    """Splits a quarter behind the best colocated layout need no more; a tenth behind they do."""
    for behind, goes in ((0.5, False), (0.9, True)):
        found = search(FakeJudge(lambda one, b=behind: b if one.split else 1.0)).run(
            layouts(HARDWARE, 8, reuse=False)
        )
        assert any(one.layout.split for one in found.finalists) == goes
        assert any(one.layout.split for one in (*found.finalists, *found.others))


def test_a_better_neighbour_of_the_best_is_found() -> None:
    """Half the sequences serve 1.5 times as much: no list of layouts has that."""
    found = search(FakeJudge(lambda one: 1.5 if one.pools[0].max_seqs == 128 else 1.0)).run(
        layouts(HARDWARE, 8, reuse=False)
    )
    assert found.best is not None
    assert found.best.layout.pools[0].max_seqs == 128


@pytest.mark.parametrize("wins", [True, False])
def test_routing_is_by_prefix_only_where_that_serves_more(wins: bool) -> None:
    def goodput(one: Layout) -> float:
        return 1.0 + 0.2 * ((one.router.policy == "prefix_affinity") == wins)

    every = layouts(HARDWARE, 8, reuse=True)
    best = search(FakeJudge(goodput), reuse=True).run(every).best
    assert best is not None
    assert (best.layout.router.policy == "prefix_affinity") == wins


def test_bounds_leave_out_what_cannot_serve_half_as_much_but_keep_some_of_each_kind() -> None:
    judge = FakeJudge(some_goodput)
    found = search(judge).run(layouts(HARDWARE, 8, reuse=False))
    first = [job.layout for job in judge.jobs if job.requests == judge.jobs[0].requests]
    assert len(first) <= FIRST + LEAST_OF_KIND
    assert min(sum(one.split == kind for one in first) for kind in (True, False)) >= LEAST_OF_KIND
    assert {"at most", "target"} >= {
        word for _, why in found.rejected for word in ("at most", "target") if word in why
    }
    assert len(found.rejected) + len(first) == len(layouts(HARDWARE, 8, reuse=False))


def test_targets_that_the_mean_request_misses_are_still_simulated() -> None:
    """Means prove nothing: nine of ten requests may be short."""
    judge = FakeJudge(some_goodput)
    found = search(judge, slo=Slo(ttft_s=0.001)).run(layouts(HARDWARE, 8, reuse=False))
    assert found.best is not None
    assert all(job.start_rps > 0.1 for job in judge.jobs)


def test_where_nothing_keeps_the_targets_there_is_no_best() -> None:
    found = search(FakeJudge(lambda _: 0.0)).run(layouts(HARDWARE, 8, reuse=True), (CONTROL,))
    assert found.best is None
    assert [one.layout.name for one in found.finalists] == ["now"]


def test_without_any_layout_the_control_is_all() -> None:
    found = search(FakeJudge(lambda _: 1.0)).run([], (CONTROL,))
    assert [one.layout.name for one in found.finalists] == ["now"]


def test_random_search_stops_at_the_count_it_is_given_and_repeats() -> None:
    every = layouts(HARDWARE, 8, reuse=False)
    judge = FakeJudge(some_goodput)
    one = search(judge).random(every, 100_000, seed=3)
    looked = [job.layout for job in judge.jobs]
    # Those begun together may run over, no others are begun.
    begun = sum(job.requests for job in judge.jobs[-AT_ONCE:])
    assert judge.simulated - begun < 100_000 <= judge.simulated
    assert len({layout.name for layout in looked}) == len(looked)
    assert one is not None
    assert one.per_gpu == max(map(some_goodput, looked))
    again = search(FakeJudge(some_goodput)).random(every, 100_000, seed=3)
    assert again == one


@pytest.mark.parametrize(("speedup", "worth"), [(1.0, False), (0.5, True)])
def test_stages_are_judged_only_where_means_promise_more_of_them(speedup: float, worth: bool) -> None:
    """OPT-66B. TP that divides all times leaves stages nothing to gain; they do where TP 4 is twice as fast."""
    times = {tp: Affine(fixed=0.1 / tp**speedup, prefill=4e-4 / tp**speedup) for tp in DEGREES}
    hardware = replace(devices("opt-66b", longest=2048), step_times=times)
    every, judge = layouts(hardware, 8, reuse=False), FakeJudge(some_goodput)
    found = Search(judge, hardware, Traffic(10, 500, 500, 50), Goal(Slo()), reuse=False).run(every)
    assert any(job.layout.staged for job in judge.jobs) == worth
    assert all(layout.staged for layout, why in found.rejected if "pipeline stages" in why)
