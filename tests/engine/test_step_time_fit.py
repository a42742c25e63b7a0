"""The fit of step times recovers known coefficients, and its error is that of steps it did not see."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from engine.errors import InvalidMeasurementError
from engine.shape import ModelShape
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.fit import fit, refit, term_scales
from engine.step_time.model import StepShape
from engine.step_time.roofline import Constants, Device, RooflineStepTime, Terms

# Orders of magnitude of a 135M model on two cores; the values themselves are arbitrary.
TRUE = Coefficients(base=0.012, prefill=0.003, per_new=0.0011, per_pair=2e-7, per_row=0.0015, per_context=6e-7)


def random_shapes(count: int, seed: int = 0) -> list[StepShape]:
    """Prefills, decodes and mixed steps of varied size."""
    random = Random(seed)
    shapes = []
    for _ in range(count):
        prefill = ((random.randint(8, 512), random.randint(0, 2000)),) if random.random() < 0.6 else ()
        rows = random.randint(0 if prefill else 1, 32)
        shapes.append(StepShape(prefill, rows, sum(random.randint(1, 3000) for _ in range(rows))))
    return shapes


def closed_form(shape: StepShape) -> float:
    """The model written out by hand, seconds."""
    total = TRUE.base + (TRUE.prefill if shape.prefill else 0)
    for new, context in shape.prefill:
        total += TRUE.per_new * new + TRUE.per_pair * new * (context + new / 2)
    return total + TRUE.per_row * shape.decode_rows + TRUE.per_context * shape.decode_context


def test_seconds_are_the_sum_of_the_terms() -> None:
    model = CalibratedStepTime(TRUE)
    for shape in random_shapes(50):
        assert model.seconds(shape) == pytest.approx(closed_form(shape))
    assert model.seconds(StepShape()) == 0


def test_recovers_the_coefficients_of_exact_steps() -> None:
    shapes = random_shapes(200)
    found = fit(shapes, [closed_form(s) for s in shapes])
    assert found.coefficients == pytest.approx(TRUE, rel=1e-6)
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


def test_finds_where_a_kernel_changes() -> None:
    """Up to 8 query tokens a step takes 5 ms each on top, which no line says; from 16 on nothing."""

    def stepped(shape: StepShape) -> float:
        return closed_form(shape) + np.interp(shape.tokens, (1, 8, 16), (0.0, 0.035, 0.0))

    shapes = [*random_shapes(300), *(StepShape((), rows, 500 * rows) for rows in (1, 2, 4, 8, 12, 16) * 10)]
    found = fit(shapes, [stepped(s) for s in shapes])
    for rows, beyond in ((1, 0.0), (4, 0.015), (8, 0.035), (12, 0.0175), (16, 0.0), (300, 0.0)):
        shape = StepShape((), rows, 700 * rows)
        assert found.seconds(shape) == pytest.approx(closed_form(shape) + beyond, rel=0.01)
    assert found.error_p90 == pytest.approx(0, abs=0.01)


def test_no_coefficient_is_negative() -> None:
    shapes = random_shapes(100)
    found = fit(shapes, [0.02 + 1e-5 * i for i in range(100)])
    assert min(found.coefficients) >= 0


@pytest.mark.parametrize("shapes", [random_shapes(39), [StepShape((), 1, 10)] * 100])
def test_too_little_is_refused(shapes: list[StepShape]) -> None:
    with pytest.raises(InvalidMeasurementError, match="too few"):
        fit(shapes, [0.01] * len(shapes))


# An 8B model on two devices with a link; the constants of a first guess.
GUESS = RooflineStepTime(
    ModelShape(32, 4096, 32, 8, 128, 14336, 128256, 8192),
    Device(flops=1e15, bytes_per_s=3e12, link_bytes_per_s=4e11),
    Constants(
        compute=0.7, weights=0.85, kv=0.85, attention=0.5, cached_attention=0.5, link=0.7,
        layer_us=50, step_us=200, all_reduce_us=8, activations=20,
    ),
    tp=2,
)  # fmt: skip
SLOWER = replace(GUESS, constants=GUESS.constants._replace(layer_us=80, weights=0.6, compute=0.5))


def test_a_roofline_learns_an_engine_from_ten_steps() -> None:
    """The guess is off by 30 % and more; ten steps of the slower engine bring it to a few percent."""
    few, many = random_shapes(10, seed=3), random_shapes(200, seed=4)
    learned = refit(GUESS, [GUESS.terms(s) for s in few], [SLOWER.seconds(s) for s in few])
    before, after = (
        np.median([abs(m.seconds(s) / SLOWER.seconds(s) - 1) for s in many]) for m in (GUESS, learned)
    )
    assert before > 0.25
    assert after < 0.03
    assert learned.source == "calibrated"
    assert learned.error_p90 is not None
    assert learned.error_p90 < 0.1


def test_steps_that_agree_leave_a_roofline_alone() -> None:
    shapes = random_shapes(20)
    terms = np.array([GUESS.terms(s) for s in shapes])
    scales = term_scales(terms, terms.sum(axis=1))
    assert list(scales) == pytest.approx([1.0] * len(Terms._fields), abs=1e-6)


def test_a_few_wrong_steps_do_not_move_a_roofline() -> None:
    shapes = random_shapes(60)
    seconds = [GUESS.seconds(s) * (5.0 if i % 10 == 0 else 1.0) for i, s in enumerate(shapes)]
    learned = refit(GUESS, [GUESS.terms(s) for s in shapes], seconds)
    for shape in random_shapes(30, seed=5):
        assert learned.seconds(shape) == pytest.approx(GUESS.seconds(shape), rel=0.1)
