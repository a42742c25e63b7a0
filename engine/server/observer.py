"""What the engine's thread records about itself: metrics and the step log, between the steps.

Owns the times per open request that TTFT and TBT are made of. It never changes what the engine does.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.core import CoreStats, TokenEvent
from engine.server.metrics import Metrics
from engine.server.step_log import StepLog
from engine.server.ticket import Ticket
from engine.step import Step


class _Times:
    """One open request, seconds of the engine's clock."""

    __slots__ = ("admitted", "arrived", "last_token")

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.admitted = False
        self.last_token: float | None = None


class Observer:
    """Records one engine. `token_budget` is the pool's, tokens."""

    def __init__(self, metrics: Metrics, token_budget: int, step_log: StepLog | None = None) -> None:
        self._metrics = metrics
        self._token_budget = token_budget
        self._step_log = step_log
        self._open: dict[str, _Times] = {}
        self._counted = {"prefix_query_tokens": 0, "prefix_hit_tokens": 0, "preemptions": 0}

    def added(self, ticket: Ticket) -> None:
        """A request is in the queue."""
        self._open[ticket.request.id] = _Times(ticket.arrived)

    def step_starts(self, step: Step, now: float) -> list[str]:
        """The ids of requests for which this is the first step."""
        admitted = []
        for row in step.rows:
            times = self._open.get(row.request_id)
            if row.prefill and times is not None and not times.admitted:
                times.admitted = True
                self._metrics.queue_seconds.observe(now - times.arrived)
                admitted.append(row.request_id)
        return admitted

    def step_ended(self, step: Step, started: float, now: float, stats: CoreStats) -> None:
        """A step ran from `started` to `now`."""
        metrics = self._metrics
        prefill = sum(len(row.tokens) for row in step.rows if row.prefill)
        metrics.computed_prefill.inc(prefill)
        metrics.computed_decode.inc(step.query_tokens - prefill)
        metrics.step_seconds.observe(now - started)
        metrics.budget_fill.observe(step.query_tokens / self._token_budget)
        self._record(stats)
        if self._step_log is not None:
            self._step_log.write(step, now - started, now)

    def events(self, events: Iterable[TokenEvent]) -> None:
        """Tokens came out, or requests ended."""
        metrics = self._metrics
        for event in events:
            times = self._open.get(event.request_id)
            if event.token is not None and times is not None:
                metrics.generated_tokens.inc()
                if times.last_token is None:
                    metrics.ttft_seconds.observe(event.at - times.arrived)
                else:
                    metrics.tbt_seconds.observe(event.at - times.last_token)
                times.last_token = event.at
            if event.finish_reason is not None:
                self._open.pop(event.request_id, None)
                metrics.requests.labels(event.finish_reason).inc()

    def idle(self, stats: CoreStats) -> None:
        """The engine has nothing to do."""
        self._record(stats)
        if self._step_log is not None:
            self._step_log.flush()

    def self_check_failed(self) -> None:
        """The core's books are wrong."""
        self._metrics.invariant_violations.inc()

    def close(self) -> None:
        """The engine is over."""
        if self._step_log is not None:
            self._step_log.close()

    def _record(self, stats: CoreStats) -> None:
        metrics, counted = self._metrics, self._counted
        metrics.prompt_tokens.inc(stats.prefix_query_tokens - counted["prefix_query_tokens"])
        metrics.prefix_hit_tokens.inc(stats.prefix_hit_tokens - counted["prefix_hit_tokens"])
        metrics.preemptions.inc(stats.preemptions - counted["preemptions"])
        for name in counted:
            counted[name] = getattr(stats, name)
        metrics.queued.set(stats.waiting)
        metrics.running.set(stats.running)
        metrics.blocks_free.set(stats.blocks_free)
        metrics.blocks_cached.set(stats.blocks_cached)
        metrics.blocks_used.set(stats.blocks_used)
        metrics.blocks_total.set(stats.blocks_total)
