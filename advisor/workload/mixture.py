"""A mixture of Gaussians, fitted by expectation maximisation (Dempster et al. 1977; Bishop 2006, section 9.2).

Ours, though scikit-learn has one: its import takes 0.8 s of every analysis, and this is a page. Tests hold the
two together. Sums run in one order, so that every machine gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.logs.trace import FloatColumn, IntColumn

MOST_STEPS = 100
LEAST_GAIN = 1e-3  # of the mean log likelihood, below which a fit is done
_AT_ONCE = 1 << 12  # points that are assigned together: their densities stay in a core's cache
_SEED_STEPS = 10  # of k-means, before the first expectation


@dataclass(frozen=True, slots=True)
class Mixture:
    """`k` Gaussians in `d` dimensions."""

    weights: FloatColumn  # [k]
    means: FloatColumn  # [k, d]
    covariances: FloatColumn  # [k, d, d]

    def log_densities(self, points: FloatColumn) -> FloatColumn:
        """Log of weight times density of every Gaussian at every point. [points, d] -> [points, k]"""
        inverse = np.linalg.inv(self.covariances)
        _, log_determinant = np.linalg.slogdet(self.covariances)
        away = points[:, None, :] - self.means
        distance: FloatColumn = np.einsum("nki,kij,nkj->nk", away, inverse, away)
        constant = np.log(self.weights) - (log_determinant + points.shape[1] * np.log(2 * np.pi)) / 2
        return np.asarray(constant - distance / 2)

    def log_likelihood(self, points: FloatColumn) -> float:
        """Of all points, summed. [points, d]"""
        return float(_log_sum(self.log_densities(points)).sum())

    def bic(self, points: FloatColumn) -> float:
        """Bayesian information criterion (Schwarz 1978): lower is better. [points, d]"""
        k, d = self.means.shape
        free = k * (d + d * (d + 1) // 2) + k - 1
        return float(free * np.log(len(points)) - 2 * self.log_likelihood(points))

    def predict(self, points: FloatColumn) -> IntColumn:
        """The likeliest Gaussian of every point. [points, d] -> [points]"""
        some = (points[start : start + _AT_ONCE] for start in range(0, max(1, len(points)), _AT_ONCE))
        return np.concatenate([np.argmax(self.log_densities(part), axis=1) for part in some])


def fit_mixture(points: FloatColumn, k: int, floor: float, rng: np.random.Generator) -> Mixture:
    """A local maximum of the likelihood. `floor` is added to every variance. [points, d]"""
    share = np.eye(k)[_nearest(points, _centres(points, k, rng))]
    mixture = _maximised(points, share, floor)
    before = -np.inf
    for _ in range(MOST_STEPS):
        densities = mixture.log_densities(points)
        total = _log_sum(densities)
        now = float(total.mean())
        if now - before < LEAST_GAIN:
            break
        mixture, before = _maximised(points, np.exp(densities - total[:, None]), floor), now
    return mixture


def _maximised(points: FloatColumn, share: FloatColumn, floor: float) -> Mixture:
    """The Gaussians that fit best where `share` is what each has of every point. [points, d], [points, k]"""
    weight = share.sum(axis=0) + 10 * np.finfo(np.float64).eps
    means = np.einsum("nk,nd->kd", share, points) / weight[:, None]
    away = points[:, None, :] - means
    covariances = np.einsum("nk,nki,nkj->kij", share, away, away) / weight[:, None, None]
    return Mixture(weight / weight.sum(), means, covariances + floor * np.eye(points.shape[1]))


def _centres(points: FloatColumn, k: int, rng: np.random.Generator) -> FloatColumn:
    """Start of a fit: k-means++ (Arthur and Vassilvitskii 2007) and some steps of k-means. -> [k, d]"""
    centres = points[rng.integers(len(points), size=1)]
    while len(centres) < k:
        distance = ((points[:, None, :] - centres) ** 2).sum(axis=2).min(axis=1)
        total = distance.sum()
        chosen = rng.choice(len(points), p=distance / total if total > 0 else None)
        centres = np.concatenate((centres, points[[chosen]]))
    for _ in range(_SEED_STEPS):
        label = _nearest(points, centres)
        count = np.bincount(label, minlength=k)
        sums = np.stack([np.bincount(label, column, minlength=k) for column in points.T], axis=1)
        centres = np.where(count[:, None] > 0, sums / np.maximum(count, 1)[:, None], centres)
    return centres


def _nearest(points: FloatColumn, centres: FloatColumn) -> IntColumn:
    return np.asarray(np.argmin(((points[:, None, :] - centres) ** 2).sum(axis=2), axis=1))


def _log_sum(densities: FloatColumn) -> FloatColumn:
    """log(sum(exp(row))) of every row. [points, k] -> [points]"""
    top = densities.max(axis=1)
    return np.asarray(top + np.log(np.exp(densities - top[:, None]).sum(axis=1)))
