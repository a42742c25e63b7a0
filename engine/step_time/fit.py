"""Fit step times to measured steps: a calibrated model to a step log, a roofline's nine terms to a few points.

On relative error (DistServe's simulator does the same), so that short decode steps count as much as long
prefills. Every fourth step is held out before the fit and gives the error that plans print. Steps that the
machine disturbed (a page fault, a neighbour) are left out of the fit, never out of the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidMeasurementError
from engine.step_time.calibrated import KNOTS, CalibratedStepTime, Coefficients, bump_at, features
from engine.step_time.model import StepShape
from engine.step_time.roofline import Constants, RooflineStepTime, Terms

MIN_STEPS = 40
HOLD_OUT_EVERY = 4
DISTURBED = 5.0  # ours: medians of the relative error beyond which a step is left out of the fit
PULL = 0.05  # ours: what a term that is off by its whole size costs, in squared relative errors of one step
LEAST_SCALE = 0.02  # ours: no term may vanish

_INNER = [tuple(float(i == knot) for i in range(len(KNOTS))) for knot in range(1, len(KNOTS) - 1)]
Array = npt.NDArray[np.float64]


def fit(
    shapes: Sequence[StepShape], seconds: Sequence[float], *, fewest: int = MIN_STEPS
) -> CalibratedStepTime:
    """Fit measured steps by non-negative least squares on relative error.

    Raises InvalidMeasurementError below `fewest` steps, or where the log has only one kind of step.
    """
    kinds = {bool(s.prefill) for s in shapes}
    if len(shapes) < fewest or len(kinds) < 2:
        raise InvalidMeasurementError(
            f"{len(shapes)} steps are too few to fit step times",
            why=f"at least {fewest}, with and without prefill, are needed",
            hint="advise calibrate",
        )
    x, y = np.array([(*features(s), *_bumps(s)) for s in shapes]), np.asarray(seconds, dtype=float)
    held = np.arange(len(y)) % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1
    error = np.abs(x[held] @ _robust(x[~held], y[~held]) / y[held] - 1)
    p50, p90 = np.percentile(error, (50, 90))
    found = [float(c) for c in _robust(x, y)]
    line, bumps = found[: -len(_INNER)], found[-len(_INNER) :]
    return CalibratedStepTime(Coefficients(*line), float(p50), float(p90), len(y), (0.0, *bumps, 0.0))


def _bumps(shape: StepShape) -> tuple[float, ...]:
    """Weights of the bumps at the inner knots for one step: at most two are not 0."""
    return tuple(bump_at(unit, shape.tokens) for unit in _INNER)


def refit(model: RooflineStepTime, terms: Sequence[Terms], seconds: Sequence[float]) -> RooflineStepTime:
    """The roofline with each of its terms scaled to measured steps: enough from about ten of them on.

    `terms` are the model's own for each measurement (`RooflineStepTime.terms`, or sums of them where what was
    measured is a sum of steps). Terms that the measurements do not tell apart keep their proportions.
    """
    x, y = np.array(terms, dtype=float), np.asarray(seconds, dtype=float)
    held = np.arange(len(y)) % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1
    error = None
    if held.any():
        error = float(np.percentile(np.abs(x[held] @ term_scales(x[~held], y[~held]) / y[held] - 1), 90))
    constants = _scaled(model.constants, Terms(*(float(s) for s in term_scales(x, y))))
    return replace(model, constants=constants, source="calibrated", error_p90=error)


def term_scales(x: Array, y: Array) -> Array:
    """Factors near 1 of the terms that bring down the sum of absolute relative errors (reweighted squares)."""
    from scipy.optimize import nnls  # takes a quarter of a second to import

    relative, pull = x / y[:, None], np.sqrt(PULL) * np.eye(x.shape[1])
    weights = np.ones(len(y))
    scales = np.ones(x.shape[1])
    for _ in range(8):
        rows = np.vstack((relative * weights[:, None], pull))
        scales, _ = nnls(rows, np.concatenate((weights, pull.sum(axis=0))))
        weights = 1 / np.sqrt(np.maximum(np.abs(relative @ scales - 1) / 0.03, 1.0))
    return np.asarray(np.maximum(scales, LEAST_SCALE), dtype=np.float64)


def _scaled(constants: Constants, by: Terms) -> Constants:
    """Constants under which every term takes `by` times as long."""
    return constants._replace(
        compute=constants.compute / by.compute,
        weights=constants.weights / by.weights,
        kv=constants.kv / by.kv,
        attention=constants.attention / by.attention,
        cached_attention=constants.cached_attention / by.attention,
        layer_us=constants.layer_us * by.layers,
        step_us=constants.step_us * by.step,
        all_reduce_us=constants.all_reduce_us * by.all_reduces,
        pcie_all_reduce_us=constants.pcie_all_reduce_us * by.all_reduces,
        link=constants.link / by.link,
        pcie=constants.pcie / by.link,
        activations=constants.activations * by.activations,
    )


def _robust(x: Array, y: Array) -> Array:
    """Solve, leave out disturbed steps, solve again."""
    error = np.abs(x @ _solve(x, y) / y - 1)
    kept = error <= max(DISTURBED * float(np.median(error)), 0.05)
    return _solve(x[kept], y[kept])


def _solve(x: Array, y: Array) -> Array:
    """Coefficients >= 0 that minimise sum((x c / y - 1)^2); columns are scaled for conditioning."""
    from scipy.optimize import nnls  # takes a quarter of a second to import

    relative = x / y[:, None]
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-30)
    coefficients, _ = nnls(relative / scale, np.ones(len(y)))
    return np.asarray(coefficients / scale, dtype=np.float64)
