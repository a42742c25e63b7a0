"""The mixture of Gaussians against scikit-learn's, from the same start and from its own."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from advisor.workload.mixture import Mixture, fit_mixture

FLOOR = 0.01


def three_groups(rng: np.random.Generator) -> np.ndarray:
    return np.concatenate(
        [
            rng.multivariate_normal((5, 2), ((0.3, 0.2), (0.2, 0.4)), 900),
            rng.multivariate_normal((9, 4), ((0.2, -0.1), (-0.1, 0.5)), 500),
            rng.multivariate_normal((7, 7), ((0.1, 0.0), (0.0, 0.1)), 600),
        ]
    )


def theirs(points: np.ndarray, k: int) -> GaussianMixture:
    return GaussianMixture(k, reg_covar=FLOOR, random_state=0, n_init=5).fit(points)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_fit_is_as_likely_as_the_reference(k):
    points = three_groups(np.random.default_rng(0))
    ours = max(
        (fit_mixture(points, k, FLOOR, np.random.default_rng(seed)) for seed in range(5)),
        key=lambda mixture: mixture.log_likelihood(points),
    )
    reference = theirs(points, k)
    assert ours.log_likelihood(points) / len(points) == pytest.approx(reference.score(points), abs=2e-3)
    assert ours.bic(points) == pytest.approx(reference.bic(points), rel=1e-3)


def test_densities_criterion_and_labels_are_the_references_for_its_own_parameters():
    points = three_groups(np.random.default_rng(1))
    reference = theirs(points, 3)
    same = Mixture(reference.weights_, reference.means_, reference.covariances_)
    assert same.log_likelihood(points) == pytest.approx(reference.score(points) * len(points), rel=1e-9)
    assert same.bic(points) == pytest.approx(reference.bic(points), rel=1e-9)
    assert (same.predict(points) == reference.predict(points)).all()


def test_points_that_are_all_equal_are_one_group_of_the_least_width():
    found = fit_mixture(np.ones((50, 2)), 2, FLOOR, np.random.default_rng(0))
    assert found.covariances == pytest.approx(np.broadcast_to(FLOOR * np.eye(2), (2, 2, 2)))
    assert len(set(found.predict(np.ones((50, 2))).tolist())) == 1


def test_a_fit_is_the_same_for_the_same_seed():
    points = three_groups(np.random.default_rng(2))
    one, other = (fit_mixture(points, 3, FLOOR, np.random.default_rng(7)) for _ in range(2))
    assert (one.means == other.means).all()
    assert (one.covariances == other.covariances).all()
