"""The figures on the metrics page of a running bundled engine, at two moments, and what lies between them.

CPU seconds by process, steps of an emulation and how late their clock was, losses and restarts: the metrics
that engine.server.metrics lists. What they count only grows; where a process started anew and counts from zero
again, nothing is taken off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from advisor.advice.current.metrics import fetch, samples_of
from engine.errors import InputError

ROUTER = "router"
"""Name of the router's process among those of the engine."""
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Histogram:
    """Samples by bucket: `counts[edge]` of them are at most `edge` seconds, as Prometheus counts."""

    counts: Mapping[float, float] = field(default_factory=dict)

    def since(self, earlier: Histogram) -> Histogram:
        """The samples that came after an earlier look."""
        before = earlier.counts
        return Histogram({edge: max(0.0, n - before.get(edge, 0.0)) for edge, n in self.counts.items()})

    def quantile(self, share: float) -> float | None:
        """The value that `share` of the samples do not exceed, on a line within its bucket; None: no samples.

        Beyond the last edge with a number it is that edge: a lower bound.
        """
        edges = sorted(self.counts)
        total = self.counts[edges[-1]] if edges else 0.0
        if total <= 0:
            return None
        wanted = share * total
        for low, high in pairwise((0.0, *edges)):
            below = self.counts.get(low, 0.0)
            if self.counts[high] >= wanted:
                inside = self.counts[high] - below
                within = (wanted - below) / inside if inside > 0 else 1.0
                return low if math.isinf(high) else low + (high - low) * within
        return edges[-1]


@dataclass(frozen=True, slots=True)
class Figures:
    """One look at an engine. `cpu_s`: CPU seconds by process; `at_s`: when, of the monotonic clock."""

    at_s: float
    cpu_s: Mapping[str, float]
    step: Histogram
    lag: Histogram
    restarts: float
    requeued: float
    degraded: bool

    def cpu_since(self, earlier: Figures) -> dict[str, float]:
        """CPU seconds of each process since an earlier look."""
        return {name: max(0.0, s - earlier.cpu_s.get(name, 0.0)) for name, s in self.cpu_s.items()}


async def look(url: str, api_key: str | None = None) -> Figures | None:
    """The figures of the engine at `url` now; None where it has no such page, as other engines have not."""
    try:
        page = await fetch(url.rstrip("/") + "/metrics", TIMEOUT_S, api_key)
    except InputError:
        return None
    return figures_of(page, time.monotonic())


def figures_of(page: str, at_s: float) -> Figures | None:
    """The figures of a metrics page; None where it is not of the bundled engine."""
    cpu_s: dict[str, float] = {}
    histograms: dict[str, dict[float, float]] = {"step": {}, "lag": {}}
    restarts = requeued = degraded = 0.0
    for name, labels, text in samples_of(page):
        value = float(text)
        if name == "advise_cpu_seconds":
            cpu_s[labels.get("process", "")] = value
        elif name == "advise_restarts":
            restarts += value
        elif name == "advise_degraded":
            degraded = value
        elif name == "advise_fleet_events_total" and labels.get("event") == "requeued":
            requeued = value
        elif name.startswith("advise_emulated_") and name.endswith("_seconds_bucket"):
            counts = histograms[name.removeprefix("advise_emulated_").removesuffix("_seconds_bucket")]
            edge = float(labels["le"])
            counts[edge] = counts.get(edge, 0.0) + value  # of all instances
    if not cpu_s:
        return None
    return Figures(
        at_s,
        cpu_s,
        Histogram(histograms["step"]),
        Histogram(histograms["lag"]),
        restarts=restarts,
        requeued=requeued,
        degraded=degraded > 0,
    )
