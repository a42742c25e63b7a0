"""Workloads made by hand, for tests of the advice: every number stands in the test or here."""

from __future__ import annotations

from typing import Any

from advisor.workload.model import (
    Arrivals,
    CapacityPoint,
    Distribution,
    Latency,
    Lengths,
    Sharing,
    Workload,
)


def lengths(mean: float, p90: float | None = None, p99: float | None = None) -> Distribution:
    """A distribution around `mean`; the tail defaults to 2 and 3 times the mean."""
    tail = p99 or 3 * mean
    return Distribution(mean=mean, p50=0.9 * mean, p90=p90 or 2 * mean, p99=tail, max=1.1 * tail)


def sharing(hit: float | None, curve: tuple[tuple[int, float], ...] = (), **values: Any) -> Sharing:
    """Sharing at a token hit rate, blocks of 16; `curve` holds (tokens, hit rate)."""
    points = tuple(CapacityPoint(tokens=t, hit_rate_tokens=h, hit_rate_blocks=h) for t, h in curve)
    fields: dict[str, Any] = dict.fromkeys(Sharing.model_fields)
    fields |= {"block_size": 16, "known_share": 1.0 if hit is not None else 0.0}
    fields |= {"top_prefixes": (), "capacity_curve": points, "cache_life": (), "window_curve": ()}
    return Sharing(**(fields | {"hit_rate_tokens": hit, "hit_rate_blocks": hit} | values))


def workload(
    *,
    prompt: float = 400,
    output: float | None = 60,
    hit: float | None = 0.4,
    curve: tuple[tuple[int, float], ...] = (),
    rate_rps: float | None = 0.5,
    requests: int = 5000,
    span_s: float = 10_000,
    dispersion_10s: float | None = 1.0,
    peak_60s: float = 1.0,
    cv: float = 1.0,
    tick_s: float | None = None,
    any_position_share: float | None = None,
    hit_optimal: float | None = None,
    prompt_p90: float | None = None,
    prompt_p99: float | None = None,
) -> Workload:
    """A workload that fires no data-quality and no burst rule unless told to."""
    whole = lengths(prompt, prompt_p90, prompt_p99)
    uncached = (
        None if hit is None else Distribution(**{k: v * (1 - hit) for k, v in whole.model_dump().items()})
    )
    return Workload(
        model=None,
        requests=requests,
        span_s=span_s,
        lengths=Lengths(prompt=whole, output=None if output is None else lengths(output), caps=()),
        arrivals=Arrivals(
            rate_rps=rate_rps,
            cv=cv,
            cv_spread=cv,
            tick_s=tick_s,
            dispersion={"1": 1.0, "10": dispersion_10s, "60": 1.0},
            peak_rps={"10": 2 * peak_60s, "60": peak_60s},
            gamma_shape=1.0,
            on_off_share=0.0,
        ),
        latency=Latency(ttft_s=None, tpot_s=None, e2e_s=None),
        sharing=sharing(hit, curve, any_position_share=any_position_share, hit_rate_optimal=hit_optimal),
        uncached_prompt=uncached,
        classes=(),
        unknown=(),
    )
