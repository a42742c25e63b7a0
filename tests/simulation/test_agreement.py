"""The rule of benchmarks/rehearsal.py: what counts as agreement, on figures made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks._agreement import Figures, Run, faults, guess

PLANS = {"a": 0.2, "b": 0.5, "c": 1.0, "d": 2.0}  # the TTFT that each is to keep, seconds
RATES = {10.0: 0.95, 15.0: 0.85, 20.0: 0.75}  # the attainment at each


def ttft_p90(attainment: float, ttft_s: float) -> float:
    """P90 TTFT of exponential ones of which so many keep `ttft_s`: at 90 % it is the target itself."""
    return float(ttft_s * np.log(0.1) / np.log(1 - attainment))


def runs(seed: int = 0, points: float = 0.01, share: float = 0.03) -> list[Run]:
    """Measured: what was predicted, and a bit of chance."""
    rng = np.random.default_rng(seed)
    made = []
    for plan, ttft_s in PLANS.items():
        for rate, attainment in RATES.items():
            predicted = Figures(attainment, ttft_p90(attainment, ttft_s))
            for _ in range(3):
                measured = Figures(
                    attainment + rng.uniform(-points, points),
                    predicted.ttft_p90_s * (1 + rng.uniform(-share, share)),
                )
                made.append(Run(plan, rate, Figures(0.9, ttft_s), predicted, measured))
    return made


def moved(run: Run, *, points: float = 0.0, share: float = 0.0) -> Run:
    measured = run.predicted
    return replace(run, measured=Figures(measured.attainment + points, measured.ttft_p90_s * (1 + share)))


def test_a_prediction_within_the_limits_agrees() -> None:
    for seed in range(20):
        assert faults(runs(seed)) == []


def test_who_always_answers_measured_equals_target_does_not_agree() -> None:
    found = faults(guess(run) for run in runs())
    for plan in PLANS:
        assert any(one.startswith(f"{plan} at 10.0/s: attainment +") for one in found)
        assert any(one.startswith(f"{plan} at 20.0/s: attainment -") for one in found)


def test_a_guess_that_is_right_about_attainment_is_wrong_about_ttft() -> None:
    """Just one of the two answers is constant."""
    half = [replace(run, predicted=replace(run.predicted, ttft_p90_s=run.target.ttft_p90_s)) for run in runs()]
    assert any("P90 TTFT" in one for one in faults(half))
    assert not any("attainment" in one for one in faults(half))


def test_rates_at_which_a_guess_would_have_agreed_prove_nothing() -> None:
    """91, 89 and 88 % are on both sides of 90, and "90, and the target" is right about each of them."""
    near = dict(zip(RATES, (0.91, 0.89, 0.88), strict=True))
    made = []
    for run in runs(points=0.0, share=0.0):
        figures = Figures(near[run.rate_rps], ttft_p90(near[run.rate_rps], run.target.ttft_p90_s))
        made.append(replace(run, predicted=figures, measured=figures))
    assert faults(made) == [f"{plan}: a guess would have agreed too" for plan in PLANS]


@pytest.mark.parametrize("points", [0.035, -0.035])
def test_an_attainment_that_is_off_everywhere_by_more_than_three_points_is_found(points: float) -> None:
    found = faults(moved(run, points=points) for run in runs())
    assert sum(f"attainment {points * 100:+.1f} points" in one for one in found) == len(runs())


@pytest.mark.parametrize("share", [0.11, -0.11])
def test_a_ttft_that_is_off_everywhere_by_more_than_a_tenth_is_found(share: float) -> None:
    found = faults(moved(run, share=share) for run in runs())
    assert sum(f"P90 TTFT {share:+.1%}" in one for one in found) == len(runs())


def test_the_limits_themselves_agree() -> None:
    assert faults(moved(run, points=0.02, share=0.10) for run in runs()) == []
    assert faults(moved(run, points=-0.03, share=-0.10) for run in runs()) == []


def test_one_run_that_is_off_is_enough() -> None:
    for place in range(len(runs())):
        some = runs(points=0.0, share=0.0)
        some[place] = moved(some[place], share=0.2)
        [found] = faults(some)
        assert found == f"{some[place].plan} at {some[place].rate_rps:.1f}/s: P90 TTFT +20.0%"


def test_figures_that_are_none_do_not_agree() -> None:
    """Nothing was served: no P90, and a comparison with it is false either way."""
    nothing = [replace(run, measured=replace(run.measured, ttft_p90_s=float("nan"))) for run in runs()]
    assert len(faults(nothing)) == len(nothing)


def test_what_is_missing_is_said() -> None:
    some = runs()
    assert faults(run for run in some if run.plan != "d") == ["3 of 4 plans"]
    assert "a: 2 of 3 rates" in faults(run for run in some if (run.plan, run.rate_rps) != ("a", 15.0))
    assert faults(some[1:]) == ["a at 10.0/s: 2 of 3 runs"]
    assert faults([]) == ["0 of 4 plans"]


@pytest.mark.parametrize(
    ("attainments", "words"),
    [
        ((0.98, 0.85, 0.75), "predicted attainment is not within 70% and 97% at every rate"),
        ((0.95, 0.85, 0.68), "predicted attainment is not within 70% and 97% at every rate"),
        ((0.88, 0.85, 0.75), "predicted attainment is not on both sides of 90%"),
        ((0.96, 0.95, 0.94), "measured attainment is not on both sides of 90%"),
    ],
)
def test_rates_that_are_not_those_to_compare_at_are_found(
    attainments: tuple[float, float, float], words: str
) -> None:
    other = dict(zip(RATES, attainments, strict=True))
    made = []
    for run in runs():
        figures = Figures(other[run.rate_rps], ttft_p90(other[run.rate_rps], run.target.ttft_p90_s))
        made.append(replace(run, predicted=figures, measured=figures))
    assert {f"{plan}: {words}" for plan in PLANS} <= set(faults(made))
