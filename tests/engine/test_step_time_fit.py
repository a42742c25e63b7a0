"""The fit of step times recovers known coefficients, and its error is that of steps it did not see."""

from __future__ import annotations

from dataclasses import astuple
from random import Random

import numpy as np
import pytest

from engine.errors import InvalidMeasurementError
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.fit import fit
from engine.step_time.model import StepShape

# Orders of magnitude of a 135M model on two cores; the values themselves are arbitrary.
TRUE = Coefficients(base=0.012, prefill=0.003, per_new=0.0011, per_pair=2e-7, per_row=0.0015, per_context=6e-7)


def random_shapes(count: int, seed: int = 0) -> list[StepShape]:
    """Prefills, decodes and mixed steps of varied size."""
    random = Random(seed)
    shapes = []
    for _ in range(count):
        prefill = ((random.randint(8, 512), random.randint(0, 2000)),) if random.random() < 0.6 else ()
        rows = random.randint(0 if prefill else 1, 32)
        shapes.append(StepShape(prefill, tuple(random.randint(1, 3000) for _ in range(rows))))
    return shapes


def closed_form(shape: StepShape) -> float:
    """The model written out by hand, seconds."""
    total = TRUE.base
    for new, context in shape.prefill:
        total += TRUE.prefill + TRUE.per_new * new + TRUE.per_pair * new * (context + new / 2)
    for context in shape.decode:
        total += TRUE.per_row + TRUE.per_context * context
    return total


def test_seconds_are_the_sum_of_the_terms() -> None:
    model = CalibratedStepTime(TRUE)
    for shape in random_shapes(50):
        assert model.seconds(shape) == pytest.approx(closed_form(shape))
    assert model.seconds(StepShape()) == 0


def test_recovers_the_coefficients_of_exact_steps() -> None:
    shapes = random_shapes(200)
    found = fit(shapes, [closed_form(s) for s in shapes])
    assert astuple(found.coefficients) == pytest.approx(astuple(TRUE), rel=1e-6)
    assert found.error_p90 == pytest.approx(0, abs=1e-9)


def test_recovers_the_step_times_of_noisy_steps() -> None:
    noise = np.random.default_rng(1).lognormal(0, 0.05, 400)
    shapes = random_shapes(400)
    found = fit(shapes, [closed_form(s) * n for s, n in zip(shapes, noise, strict=True)])
    for shape in random_shapes(100, seed=9):
        assert found.seconds(shape) == pytest.approx(closed_form(shape), rel=0.05)
    # P90 of |N(0, 0.05)| is 1.645 sigma.
    assert found.error_p90 == pytest.approx(1.645 * 0.05, rel=0.25)
    assert found.error_p50 == pytest.approx(0.674 * 0.05, rel=0.25)


def test_disturbed_steps_do_not_move_the_fit_but_count_in_the_error() -> None:
    shapes = random_shapes(200)
    seconds = [closed_form(s) * (6.0 if i % 20 == 3 else 1.0) for i, s in enumerate(shapes)]
    found = fit(shapes, seconds)
    for shape in random_shapes(50, seed=9):
        assert found.seconds(shape) == pytest.approx(closed_form(shape), rel=0.02)
    assert found.error_p50 == pytest.approx(0, abs=0.02)
    # Every fourth step is held out, and of those every fifth took six times as long: |1/6 - 1| at the P90.
    assert found.error_p90 == pytest.approx(5 / 6, abs=0.02)


def test_no_coefficient_is_negative() -> None:
    shapes = random_shapes(100)
    found = fit(shapes, [0.02 + 1e-5 * i for i in range(100)])
    assert min(astuple(found.coefficients)) >= 0


@pytest.mark.parametrize("shapes", [random_shapes(39), [StepShape(decode=(10,))] * 100])
def test_too_little_is_refused(shapes: list[StepShape]) -> None:
    with pytest.raises(InvalidMeasurementError, match="too few"):
        fit(shapes, [0.01] * len(shapes))
