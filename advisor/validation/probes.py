"""What replays at several rates say together: the evidence at a rate, the curve, and where it crosses.

Data and pure functions; which rate to replay next is `search`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from pydantic import Field

from advisor.validation.statistics import Evidence, allowed, evidence
from advisor.workload.model import Report

Judged = Literal["keeps", "fails", "invalid"]
Stage = Literal["log", "bracket", "bisect", "confirm"]


class Probe(Report):
    """One replay at one rate."""

    factor: float = Field(description="of the log's rate in the window")
    rate_rps: float = Field(description="requests a second as replayed")
    seed: int
    stage: Stage
    judged: Judged
    why: str = Field(description="one clause")
    evidence: Evidence
    good_rate_rps: float | None
    in_flight_slope: float | None = Field(
        description="growth of requests in flight, last third of the run over the middle one, minus 1"
    )
    ended_early: bool = Field(description="stopped once its outcome was certain: the share is a bound")


class Point(Report):
    """All valid runs at one rate together."""

    rate_rps: float
    runs: int
    share: float = Field(description="measured attainment; the most it could be where every run ended early")
    low: float = Field(
        description="of its 95 % band: the wider of the exact bounds and those from blocks of time"
    )
    high: float
    fitted: float = Field(description="of the isotonic curve through all rates, which never rises")


def pooled(runs: Sequence[Probe]) -> Evidence:
    """The evidence of several runs together; they are independent of one another, so their intervals add up."""
    found = [run.evidence for run in runs]
    if len(found) == 1:
        return found[0]
    requests = sum(one.requests for one in found)
    good = requests - sum(one.misses for one in found)
    first = found[0]
    together = evidence(good, requests, first.target, first.confidence, of=first.of)
    half = 0.0
    for one in found:
        if one.block_low is None or one.block_high is None:
            return together
        half += (one.requests / requests * (one.block_high - one.block_low) / 2) ** 2
    ends = {
        "block_low": max(0.0, together.share - half**0.5),
        "block_high": min(1.0, together.share + half**0.5),
    }
    return together.model_copy(update=ends | {"block_s": first.block_s})


def together_keep(runs: Sequence[Probe]) -> bool:
    """Whether runs at one rate keep the objective: their shares together, and most of them in all else."""
    share = pooled(runs)
    otherwise = sum(run.judged == "fails" and _share_kept(run.evidence) for run in runs)
    return _share_kept(share) and 2 * otherwise < len(runs)


def curve(probes: Sequence[Probe], rate_rps: float) -> tuple[Point, ...]:
    """Attainment by rate, and the isotonic fit through it."""
    from scipy.optimize import isotonic_regression  # slow to import

    factors = sorted({probe.factor for probe in probes if probe.judged != "invalid"})
    if not factors:
        return ()
    runs = [[one for one in probes if one.factor == factor and one.judged != "invalid"] for factor in factors]
    exact = [[one for one in at if not one.ended_early] or at for at in runs]
    found = [pooled(at) for at in exact]
    weights = [max(1, one.requests) for one in found]
    fit = isotonic_regression([one.share for one in found], weights=weights, increasing=False).x
    return tuple(
        Point(
            rate_rps=factor * rate_rps,
            runs=len(at),
            share=one.share,
            low=min(one.low, one.low if one.block_low is None else one.block_low),
            high=max(one.high, one.high if one.block_high is None else one.block_high),
            fitted=float(fitted),
        )
        for factor, at, one, fitted in zip(factors, runs, found, fit, strict=True)
    )


def not_monotone(points: Sequence[Point]) -> str | None:
    """The pair of rates whose bands are furthest apart the wrong way round, in words; None without one."""
    pairs = [(b.low - a.high, a, b) for i, a in enumerate(points) for b in points[i + 1 :] if b.low > a.high]
    if not pairs:
        return None
    _, a, b = max(pairs, key=lambda pair: pair[0])
    return (
        f"{a.share:.1%} kept the targets at {a.rate_rps:.3g} requests/s, "
        f"but {b.share:.1%} at {b.rate_rps:.3g} requests/s"
    )


def crossing(points: Sequence[Point], low_rps: float, high_rps: float, target: float) -> float | None:
    """Where the isotonic curve falls below the target, by a line over log(rate); within the two rates."""
    for before, after in pairwise(points):
        if before.fitted >= target > after.fitted:
            weight = (before.fitted - target) / (before.fitted - after.fitted)
            rate_rps = before.rate_rps * float((after.rate_rps / before.rate_rps) ** weight)
            return min(max(rate_rps, low_rps), high_rps)
    return None


def _share_kept(found: Evidence) -> bool:
    return found.misses <= allowed(found.requests, found.target)
