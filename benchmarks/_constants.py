"""Finds the constants of profiles/roofline.yaml again: nine numbers for a family's chosen measurements.

Weak priors hold what the data do not tell: log-normal around the values below, against absolute log errors that
are smooth below 3 %.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks._silicon import Measured, matrix
from engine.step_time.roofline import Constants

PRIOR = Constants(
    compute=0.70, weights=0.85, kv=0.85, attention=0.50, link=0.70,
    layer_us=50, step_us=200, all_reduce_us=8, activations=20,
)  # fmt: skip
SPREAD = (0.2, 0.08, 0.08, 0.3, 0.3, 0.5, 0.5, 0.15, 0.5)  # in logs, in the order of Terms
EAGER_PRIOR = PRIOR._replace(layer_us=300, all_reduce_us=20, activations=40)
EAGER_SPREAD = (0.2, 0.1, 0.1, 0.4, 0.5, 0.5, 0.5, 0.3, 0.6)
SMOOTH, STRENGTH = 0.03, 0.27

CHOSEN = {
    "vllm": (("inferencex-h100",), PRIOR, SPREAD),
    "trtllm": (
        ("nv-gap-h100-trtllm-meta-llama-llama-3.1-8b-instruct", "nv-gap-h100-trtllm-qwen-qwen3-32b"),
        PRIOR,
        SPREAD,
    ),
    "trtllm-0": (("trtllm09-a100", "trtllm09-h100"), PRIOR, SPREAD),
    "eager": (("splitwise-h100",), EAGER_PRIOR, EAGER_SPREAD),
}

Array = np.ndarray[Any, np.dtype[np.float64]]


def fit_constants(family: str, rows: list[Measured]) -> dict[str, float]:
    """The constants of a family from the rows of its chosen sources."""
    _, prior, spread = CHOSEN[family]
    x, y = matrix(rows)
    units = x / np.array([_costs(row.model.constants) for row in rows])
    start, width = _costs(prior), np.array(spread)

    def residuals(logs: Array) -> Array:
        error = np.log(units @ (start * np.exp(logs * width)) / y)
        smooth = np.sign(error) * np.sqrt(2 * (np.sqrt(error**2 + SMOOTH**2) - SMOOTH))
        return np.concatenate((smooth, np.sqrt(STRENGTH) * logs))

    costs = start * np.exp(least_squares(residuals, np.zeros(len(start))).x * width)
    shares = ("compute", "weights", "kv", "attention", "", "", "", "link", "")
    names = ("", "", "", "", "layer_us", "step_us", "all_reduce_us", "", "activations")
    return {
        share or name: 1 / cost if share else cost
        for share, name, cost in zip(shares, names, costs, strict=True)
    }


def _costs(constants: Constants) -> Array:
    """What each term is proportional to, in the order of Terms."""
    c = constants
    return np.array([
        1 / c.compute, 1 / c.weights, 1 / c.kv, 1 / c.attention,
        c.layer_us, c.step_us, c.all_reduce_us, 1 / c.link, c.activations,
    ])  # fmt: skip
