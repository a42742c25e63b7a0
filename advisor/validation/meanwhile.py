"""What went on beside a replay: CPU time of client and engine, an emulation's clock, what befell the fleet.

Looks at the engine before and after, never in between: a look costs the router time. Other engines tell
nothing, and then only the client's own time is known.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from advisor.deploy.scrape import ROUTER, Figures, look
from advisor.validation.result import CpuUse


@dataclass(frozen=True, slots=True)
class Look:
    """One look, before or after: the engine's figures, and this process's times, seconds."""

    figures: Figures | None
    wall_s: float
    client_s: float


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """What lies between two looks."""

    before: Look
    after: Look

    def cpu(self, cores: int | None) -> CpuUse:
        """CPU time of client, router and instances; `cores` are those that instances run on."""
        wall_s = self.after.wall_s - self.before.wall_s
        client_s = self.after.client_s - self.before.client_s
        engine = self._both()
        used = None if engine is None else engine[1].cpu_since(engine[0])
        router_s = None if used is None else used.get(ROUTER)

        def share(cpu_s: float | None) -> float | None:
            return None if cpu_s is None or cores is None or wall_s <= 0 else cpu_s / (wall_s * cores)

        return CpuUse(
            wall_s=wall_s,
            cores=cores,
            client_s=client_s,
            router_s=router_s,
            instances_s=None if used is None else sum(s for name, s in used.items() if name != ROUTER),
            client_share=share(client_s),
            router_share=share(router_s),
        )

    def clock(self) -> tuple[float | None, float | None]:
        """Median step of an emulation and the P99 of its steps' lateness, seconds of its clock."""
        engine = self._both()
        if engine is None:
            return None, None
        before, after = engine
        return after.step.since(before.step).quantile(0.5), after.lag.since(before.lag).quantile(0.99)

    def incidents(self) -> tuple[str, ...]:
        """What befell the fleet, one clause each; empty where nothing is known to have."""
        engine = self._both()
        if engine is None:
            return ()
        before, after = engine
        found = []
        if before.degraded or after.degraded:
            when = "all through" if before.degraded and after.degraded else "in part of"
            found.append(f"the fleet was degraded {when} the run")
        for name, count in (
            ("restarts of an instance", after.restarts - before.restarts),
            ("requests begun again elsewhere", after.requeued - before.requeued),
        ):
            if count > 0:
                found.append(f"{count:.0f} {name}")
        return tuple(found)

    def _both(self) -> tuple[Figures, Figures] | None:
        before, after = self.before.figures, self.after.figures
        return None if before is None or after is None else (before, after)


async def look_at(url: str, api_key: str | None) -> Look:
    """Look now."""
    figures = await look(url, api_key)
    return Look(figures, time.monotonic(), time.process_time())
