"""Figures as people read them: shares, rates, times, counts, targets."""

from __future__ import annotations

from datetime import UTC, datetime

from advisor.report.rows import seconds
from advisor.simulation.slo import Slo

_SHORT = {"ttft": "TTFT", "tpot": "TPOT", "tbt": "TBT", "e2e": "E2E", "itl": "ITL"}
_NAMES = {
    "hit_rate_tokens": "prompt tokens cached",
    "attainment": "attainment",
    "good_rate_rps": "good requests/s",
}


def share(value: float | None) -> str:
    """`93.4%`."""
    return "-" if value is None else f"{value:.1%}"


def points(value: float | None) -> str:
    """A difference of two shares: `-1.2 points`."""
    return "-" if value is None else f"{value * 100:+.1f} points"


def rate(value: float | None) -> str:
    """`12.3/s`."""
    return "-" if value is None else f"{value:.3g}/s"


def count(value: float | None) -> str:
    """`12,345`."""
    return "-" if value is None else f"{value:,.0f}"


def plural(number: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def kept(slo: Slo) -> str:
    """Latency targets in words."""
    limits = (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s), ("TBT", slo.tbt_s))
    asked = ", ".join(f"{name} <= {seconds(limit)}" for name, limit in limits if limit is not None)
    return f"{asked or 'complete answers'}, for {slo.attainment * 100:.4g} % of requests"


def metric(name: str) -> str:
    """`ttft_p90_s` as `TTFT p90`."""
    if name in _NAMES:
        return _NAMES[name]
    parts = name.removesuffix("_s").split("_")
    return " ".join(_SHORT.get(part, part) for part in parts)


def figure(name: str, value: float | None) -> str:
    """A metric's value in its unit."""
    if value is None:
        return "-"
    if name.endswith("_s"):
        return seconds(value)
    return rate(value) if name.endswith("_rps") else share(value)


def utc(unix_s: float) -> str:
    """`2026-09-21 14:13:20 UTC`."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
