"""Queueing formulas of a prefill and of a decode instance. Times in seconds, rates in requests/s."""

from __future__ import annotations

import math


def mdone_ttft(prefill_s: float, rate_rps: float) -> float:
    """Mean TTFT of one device: M/D/1 wait plus the prefill itself (DistServe, section 3.1).

    Infinite once the utilisation R*D reaches 1.
    """
    load = rate_rps * prefill_s
    return math.inf if load >= 1 else prefill_s + rate_rps * prefill_s**2 / (2 * (1 - load))


def inter_op_ttft(prefill_s: float, rate_rps: float) -> float:
    """The same for two pipeline stages: D + R D^2 / (4 (2 - R D)) (DistServe, section 3.1)."""
    load = rate_rps * prefill_s
    return math.inf if load >= 2 else prefill_s + rate_rps * prefill_s**2 / (4 * (2 - load))


def intra_op_ttft(prefill_s: float, rate_rps: float, speedup: float) -> float:
    """The same for two-way tensor parallelism with speedup 1 < K < 2 (DistServe, section 3.1)."""
    load = rate_rps * prefill_s
    if load >= speedup:
        return math.inf
    return prefill_s / speedup + rate_rps * prefill_s**2 / (2 * speedup * (speedup - load))


def crossover(speedup: float) -> float:
    """Utilisation R*D above which two pipeline stages beat two-way TP of this speedup on mean TTFT.

    With x = R D and the two means equal: (1 - 1/K) + x / (4 (2 - x)) = x / (2 K (K - x)), a quadratic in x.
    Its root below min(K, 2) is the answer.
    """
    k = speedup
    gain = 1 - 1 / k
    # Multiplied out by 4 K (2 - x)(K - x): a x^2 + b x + c = 0.
    a = 4 * k * gain - k + 2
    b = -4 * k * gain * (2 + k) + k * k - 4
    c = 8 * k * k * gain
    root = math.sqrt(b * b - 4 * a * c)
    return min(x for x in ((-b - root) / (2 * a), (-b + root) / (2 * a)) if 0 < x < min(k, 2))


def kingman_wait(service_s: float, rate_rps: float, arrival_cv: float, service_cv: float = 0.0) -> float:
    """Mean wait of a G/G/1 queue: rho / (1 - rho) * (Ca^2 + Cs^2) / 2 * service (Kingman 1961).

    With Ca = 1 and Cs = 0 it is the M/D/1 wait.
    """
    load = rate_rps * service_s
    if load >= 1:
        return math.inf
    return load / (1 - load) * (arrival_cv**2 + service_cv**2) / 2 * service_s


def decode_equilibrium(
    base_s: float, per_context_s: float, per_row_s: float, rate_rps: float, output_tokens: float, context: float
) -> tuple[float, float] | None:
    """(TPOT, batch) that a decode instance settles at; None where the rate is more than it can take.

    Little's law on `base + per_context * contexts + per_row * rows`: TPOT = a / (1 - R O (b L + c)), B = R O
    TPOT.
    """
    left = 1 - rate_rps * output_tokens * (per_context_s * context + per_row_s)
    if left <= 0:
        return None
    tpot = base_s / left
    return tpot, rate_rps * output_tokens * tpot
