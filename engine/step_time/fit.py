"""Fit the six numbers of a calibrated model to a step log.

On relative error (DistServe's simulator does the same), so that short decode steps count as much as long
prefills. Every fourth step is held out before the fit and gives the error that plans print. Steps that the
machine disturbed (a page fault, a neighbour) are left out of the fit, never out of the error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidMeasurementError
from engine.step_time.calibrated import CalibratedStepTime, Coefficients, features
from engine.step_time.model import StepShape

MIN_STEPS = 40
HOLD_OUT_EVERY = 4
DISTURBED = 5.0  # ours: medians of the relative error beyond which a step is left out of the fit

Array = npt.NDArray[np.float64]


def fit(shapes: Sequence[StepShape], seconds: Sequence[float]) -> CalibratedStepTime:
    """Fit measured steps by non-negative least squares on relative error.

    Raises InvalidMeasurementError below `MIN_STEPS` steps, or where the log has only one kind of step.
    """
    kinds = {bool(s.prefill) for s in shapes}
    if len(shapes) < MIN_STEPS or len(kinds) < 2:
        raise InvalidMeasurementError(
            f"{len(shapes)} steps are too few to fit step times",
            why=f"at least {MIN_STEPS}, with and without prefill, are needed",
            hint="advise calibrate",
        )
    x, y = np.array([features(s) for s in shapes]), np.asarray(seconds, dtype=float)
    held = np.arange(len(y)) % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1
    error = np.abs(x[held] @ _robust(x[~held], y[~held]) / y[held] - 1)
    p50, p90 = np.percentile(error, (50, 90))
    coefficients = Coefficients(*(float(c) for c in _robust(x, y)))
    return CalibratedStepTime(coefficients, float(p50), float(p90), len(y))


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
