"""The decision from goodputs that are known: every verdict, the margins of a split, noise and error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from helpers.planning import devices, grades, judged, layout

from advisor.advice.search.decide import Decision, Longer, decide, in_both
from advisor.advice.search.hardware import Hardware
from advisor.advice.search.judge import Goal, Judged
from advisor.advice.search.layout import Layout
from advisor.simulation.slo import Slo

GOAL = Goal(Slo(ttft_s=1, tpot_s=0.1, attainment=0.9))
NOW = layout("now", 2)
OTHER = layout("other", 2, token_budget=2048)
SPLIT = layout("apart", 1, prefill=1)


def grade(one: Layout, per_gpu: float, **how: float) -> Judged:
    made = grades(per_gpu * one.gpus, **how)
    return judged(one, per_gpu, graded=made)


def choose(
    *finalists: Judged,
    goal: Goal = GOAL,
    error: float | None = None,
    requests: int = 2000,
    needed_rps: float = 1.0,
    weak_split: bool = False,
    moved: dict[tuple[str, str], float] | None = None,
    longer: Longer = lambda some, _length_s: some,
) -> Decision:
    """Decide with "now" as the control; `moved[layout, factor]` is its goodput with slower steps or links."""
    [control] = [one for one in finalists if one.layout.name == "now"]

    def again(hardware: Hardware, some: Sequence[Layout]) -> list[Judged]:
        slower = [n for n in ("prefill", "decode", "link") if getattr(hardware, f"{n}_factor") > 1]
        known = {one.layout.name: one.per_gpu for one in finalists}
        return [
            judged(one, (moved or {}).get((one.name, slower[0] if slower else ""), known[one.name]))
            for one in some
        ]

    return decide(
        sorted(finalists, key=lambda one: -one.per_gpu), control, goal, devices(), error=error,
        requests=requests, needed_rps=needed_rps, weak_split=weak_split, again=again,
        longer=longer,
    )  # fmt: skip


def test_half_as_much_again_is_a_change() -> None:
    found = choose(grade(NOW, 1.0), grade(OTHER, 1.5, seed=1), error=0.2)
    assert (found.verdict, found.chosen and found.chosen.layout.name) == ("change", "other")
    assert found.ratio is not None
    assert found.ratio.middle == pytest.approx(1.5, rel=0.05)
    assert found.ratio.low is not None
    assert found.ratio.high is not None
    assert 1.0 < found.ratio.low < 1.5 < found.ratio.high
    assert found.runner_up is not None
    assert found.runner_up.layout == NOW


def test_two_in_a_hundred_is_noise() -> None:
    found = choose(grade(NOW, 1.0), grade(OTHER, 1.02, seed=1))
    assert (found.verdict, found.chosen and found.chosen.layout.name) == ("keep_defaults", "now")
    assert "noise" in found.why
    assert found.runner_up is not None
    assert found.runner_up.layout == OTHER


def test_goodput_is_compared_per_gpu() -> None:
    """Hardly more than twice the requests on twice the GPUs are no gain."""
    found = choose(grade(NOW, 1.0), grade(layout("double", 4), 1.001, seed=1))
    assert found.verdict == "keep_defaults"
    assert found.ratio is not None
    assert found.ratio.middle == pytest.approx(1.0, rel=0.05)


def test_the_control_is_kept_where_nothing_is_better() -> None:
    found = choose(grade(NOW, 1.0), grade(OTHER, 0.8, seed=1))
    assert (found.verdict, found.why) == ("keep_defaults", "nothing that was tried is better")


def test_nothing_that_keeps_the_targets_is_infeasible() -> None:
    found = choose(judged(NOW, 0.0), judged(OTHER, 0.0))
    assert (found.verdict, found.chosen, found.ratio) == ("infeasible", None, None)


@pytest.mark.parametrize(
    ("ratio", "weak", "wins"),
    [(1.10, False, False), (1.20, False, True), (1.20, True, False), (1.35, True, True)],
)
def test_a_split_must_beat_the_best_colocated_layout_by_its_margin(
    ratio: float, weak: bool, wins: bool
) -> None:
    """1.15, and 1.3 where evidence is against it; however far behind the control is."""
    found = choose(grade(NOW, 0.5), grade(OTHER, 1.0, seed=1), grade(SPLIT, ratio, seed=2), weak_split=weak)
    assert found.verdict == "change"
    assert found.chosen is not None
    assert found.chosen.layout.name == ("apart" if wins else "other")
    assert found.runner_up is not None
    assert found.runner_up.layout.name == ("other" if wins else "apart")


def test_a_log_of_nine_minutes_has_no_interval_and_keeps_the_defaults() -> None:
    """Under 20 blocks of three times 10 s; what runs now serves what is needed."""
    found = choose(grade(NOW, 1.0, span_s=540), grade(OTHER, 2.0, span_s=540), needed_rps=1.0)
    assert found.verdict == "keep_defaults"
    assert found.ratio is not None
    assert found.ratio.low is None
    assert "blocks" in found.why


def test_what_was_simulated_too_briefly_is_simulated_longer_on_one_part_for_both() -> None:
    """Dense traffic: the search sees a minute or two of it."""
    asked: list[float] = []

    def longer(some: Sequence[Judged], length_s: float) -> list[Judged]:
        asked.append(length_s)
        return [grade(one.layout, 2.0 if one.layout == OTHER else 1.0, span_s=length_s) for one in some]

    found = choose(grade(NOW, 1.0, span_s=100), grade(OTHER, 2.0, span_s=60), longer=longer)
    assert found.verdict == "change"
    assert asked == [21 * 60]  # a block more than an interval needs
    assert found.ratio is not None
    assert found.ratio.middle == pytest.approx(2.0, rel=0.1)
    assert found.ratio.blocks >= 20


def test_a_short_log_that_the_control_cannot_serve_leaves_the_choice_open() -> None:
    found = choose(grade(NOW, 1.0, span_s=540), grade(OTHER, 2.0, span_s=540), needed_rps=3.0)
    assert (found.verdict, found.chosen and found.chosen.layout.name) == ("undecided", "other")
    assert "misses the targets" in found.why


def test_a_control_that_never_keeps_the_targets_is_left_where_the_log_is_long_enough() -> None:
    never = judged(NOW, 0.0, graded=grades(2.0, steep=0.0)[:1])
    found = choose(never, grade(OTHER, 1.0), needed_rps=1.0)
    assert (found.verdict, found.ratio) == ("change", None)
    short = choose(never, grade(OTHER, 1.0, span_s=540), needed_rps=1.0)
    assert short.verdict == "undecided"


@pytest.mark.parametrize("factor", ["prefill", "decode"])
def test_an_error_of_the_step_times_that_turns_the_result_is_named(factor: str) -> None:
    """Steps slower by their own P90 error make the winner no better than what runs now."""
    both = grade(NOW, 1.0), grade(OTHER, 1.5, seed=1)
    found = choose(*both, error=0.2, moved={("other", factor): 0.9})
    assert found.verdict == "undecided"
    assert factor in found.why
    assert "1.20" in found.why
    assert choose(*both, error=None, moved={("other", factor): 0.9}).verdict == "change"
    assert choose(*both, error=0.2, moved={("other", factor): 1.1}).verdict == "change"


def test_a_slower_link_only_matters_to_a_split() -> None:
    moved = {("apart", "link"): 0.9, ("other", "link"): 0.9}
    now, other, apart = grade(NOW, 1.0), grade(OTHER, 1.5, seed=1), grade(SPLIT, 2.0, seed=2)
    assert choose(now, other, error=0.2, moved=moved).verdict == "change"
    found = choose(now, apart, error=0.2, moved=moved)
    assert found.verdict == "undecided"
    assert "link" in found.why


def test_targets_that_nothing_keeps_with_slower_steps_leave_the_choice_open() -> None:
    moved = {("other", "decode"): 0.0, ("now", "decode"): 0.0}
    found = choose(grade(NOW, 1.0), grade(OTHER, 1.5, seed=1), error=0.2, moved=moved)
    assert found.verdict == "undecided"
    assert "nothing keeps the targets" in found.why


@pytest.mark.parametrize(
    ("ratio", "requests", "verdict"),
    [(1.2, 1000, "change"), (1.05, 1000, "keep_defaults"), (1.2, 999, "keep_defaults")],
)
def test_without_latency_targets_a_tenth_more_of_enough_requests_is_a_change(
    ratio: float, requests: int, verdict: str
) -> None:
    """All requests are there at once: no arrivals to draw again, so no interval (ours)."""
    goal = replace(GOAL, objective="throughput")
    found = choose(judged(NOW, 1.0), judged(OTHER, ratio), goal=goal, requests=requests)
    assert found.verdict == verdict
    assert found.ratio is not None
    assert (found.ratio.middle, found.ratio.low) == (pytest.approx(ratio), None)


@pytest.mark.parametrize(
    ("waiting", "verdict"),
    [((1.0, 1.5), "change"), ((1.5, 1.0), "undecided"), ((1.0, 1.01), "undecided")],
    ids=["the same", "what runs now is better", "within the noise"],
)
def test_turns_that_would_overlap_must_agree_with_turns_that_wait(waiting: tuple[float, float], verdict: str):
    sent = choose(grade(NOW, 1.0), grade(OTHER, 1.5, seed=1))
    now, other = waiting
    found = in_both(sent, choose(grade(NOW, now), grade(OTHER, other, seed=1)))
    assert (found.verdict, found.chosen) == (verdict, sent.chosen)
    assert ("if they wait: keep defaults with now" in found.why) == (verdict == "undecided")


def test_copies_of_thirty_requests_prove_nothing() -> None:
    """A trickle: at the goodput of its GPUs nearly all requests are copies, as many as one likes."""
    found = choose(grade(NOW, 1.0), grade(OTHER, 1.5, seed=1), requests=30)
    assert (found.verdict, found.why) == ("keep_defaults", "30 requests are too few to tell")
    assert found.ratio is not None
    assert (found.ratio.middle, found.ratio.low) == (pytest.approx(1.5), None)
