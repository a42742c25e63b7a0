"""What the router records: tokens and endings as it sees them, steps and blocks as the instances report them.

Metrics always, and where one is kept a row of the request log for every request.

Never changes what anybody does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from engine.config import PoolConfig
from engine.core import CoreStats
from engine.fleet.fleet import Fleet
from engine.request import Request
from engine.request_log import Ended, RequestLog
from engine.server.instances import Member
from engine.server.messages import Event, Pulled, Rested, Stepped
from engine.server.metrics import Metrics
from engine.server.ticket import Ending, Origin, Ticket

_COUNTED = ("prefix_query_tokens", "prefix_hit_tokens", "preemptions")


_STATUS = {"stop": "ok", "length": "ok", "abort": "aborted", "error": "error", "unavailable": "503"}


class Observer:
    """Records one fleet; `names` and `pools` are those of its instances, in order. `log` has every request."""

    def __init__(
        self,
        metrics: Metrics,
        names: Sequence[str],
        pools: Sequence[PoolConfig],
        log: RequestLog | None = None,
    ) -> None:
        self._metrics = metrics
        self._log = log
        self._instances = [_Instance(metrics, name, pool) for name, pool in zip(names, pools, strict=True)]
        self._counts: dict[str, int] = {}

    def stepped(self, index: int, report: Stepped) -> None:
        """An instance has made a step."""
        self._instances[index].stepped(report)

    def rested(self, index: int, report: Rested) -> None:
        """An instance has nothing to do."""
        self._instances[index].stats(report.stats)
        if report.books_wrong:
            self._metrics.invariant_violations.inc()

    def down(self, index: int) -> None:
        """An instance is dead: it runs and holds nothing."""
        self._instances[index].down()

    def pulled(self, report: Pulled) -> None:
        """A copy of KV is over."""
        metrics = self._metrics
        metrics.kv_transfers.labels(report.transport, report.result).inc()
        if report.result == "ok":
            metrics.kv_transfer_bytes.labels(report.transport).inc(report.bytes)
            metrics.kv_transfer_seconds.observe(report.seconds)

    def token(self, ticket: Ticket, event: Event, now: float) -> None:
        """A token came out; the ticket does not have it yet."""
        metrics = self._metrics
        metrics.generated_tokens.inc()
        if ticket.tokens:
            metrics.tbt_seconds.observe(now - ticket.last_token_at)
        else:
            metrics.queue_seconds.observe(event.queued_s)
            metrics.ttft_seconds.observe(now - ticket.arrived)
            ticket.first_token_at = now
        ticket.last_token_at = now

    def ended(self, ticket: Ticket, ending: Ending, now: float) -> None:
        """A request is over for its client."""
        self._metrics.requests.labels(ending.reason).inc()
        if self._log is None:
            return
        status, first = _STATUS.get(ending.reason, "error"), ticket.first_token_at
        self._log.put(
            Ended(
                ticket.request.prompt,
                ticket.request.namespace,
                ticket.arrived,
                status,
                outputs=len(ticket.tokens) or None,
                cached_tokens=ticket.cached_tokens if ticket.tokens else None,
                ttft_s=None if first is None else first - ticket.arrived,
                e2e_s=(ticket.last_token_at if status == "ok" else now) - ticket.arrived,
                route=ticket.origin.route,
                session=ticket.origin.session,
            )
        )

    def refused(self, request: Request, origin: Origin, now: float) -> None:
        """A request was turned away: the queue is full."""
        if self._log is not None:
            self._log.put(
                Ended(request.prompt, request.namespace, now, "429", route=origin.route, session=origin.session)
            )

    def fleet(self, fleet: Fleet, members: Sequence[Member], waiting: int) -> None:
        """How things are now."""
        metrics, counts = self._metrics, fleet.counts
        metrics.queued.set(waiting)
        metrics.degraded.set(fleet.degraded)
        metrics.leases.set(fleet.leases)
        self._count(
            {
                "requeued": counts.requeued,
                "bypassed": counts.bypassed,
                "transferred": counts.transferred,
                "voided": counts.voided,
            }
        )
        metrics.processor_seconds.labels("router").set(time.process_time())
        for member in members:
            metrics.instance_up.labels(member.name).set(member.state == "up")
            metrics.restarts.labels(member.name).set(member.restarts)
            metrics.processor_seconds.labels(member.name).set(member.cpu_before_s + member.cpu_s)

    def _count(self, counts: Mapping[str, int]) -> None:
        for name, value in counts.items():
            self._metrics.fleet_events.labels(name).inc(value - self._counts.get(name, 0))
            self._counts[name] = value


class _Instance:
    """The metrics of one instance, and what its counters were when it last reported."""

    def __init__(self, metrics: Metrics, name: str, pool: PoolConfig) -> None:
        self._metrics = metrics
        self._budget = pool.token_budget
        self._before = dict.fromkeys(_COUNTED, 0)
        self._step_seconds = metrics.step_seconds.labels(name)
        self._budget_fill = metrics.budget_fill.labels(name)
        self._prefill = metrics.computed_tokens.labels(name, "prefill")
        self._decode = metrics.computed_tokens.labels(name, "decode")
        self._running = metrics.running.labels(name)
        self._preemptions = metrics.preemptions.labels(name)
        self._blocks = {
            state: metrics.kv_blocks.labels(name, state) for state in ("free", "cached", "used", "total")
        }
        self._name = name

    def stepped(self, report: Stepped) -> None:
        """A step is over."""
        self._prefill.inc(report.prefill_tokens)
        self._decode.inc(report.decode_tokens)
        self._step_seconds.observe(report.seconds)
        self._budget_fill.observe((report.prefill_tokens + report.decode_tokens) / self._budget)
        if report.emulated is not None:
            seconds, lag_s = report.emulated
            self._metrics.emulated_step_seconds.labels(self._name).observe(seconds)
            self._metrics.emulated_lag_seconds.labels(self._name).observe(lag_s)
        self.stats(report.stats)

    def down(self) -> None:
        """Nothing runs, nothing is held."""
        for gauge in (self._running, *self._blocks.values()):
            gauge.set(0)

    def stats(self, stats: CoreStats) -> None:
        """The counters and gauges of its core."""
        metrics, before = self._metrics, self._before
        if any(getattr(stats, name) < before[name] for name in _COUNTED):
            before.update(dict.fromkeys(_COUNTED, 0))  # it was started again
        metrics.prompt_tokens.inc(stats.prefix_query_tokens - before["prefix_query_tokens"])
        metrics.prefix_hit_tokens.inc(stats.prefix_hit_tokens - before["prefix_hit_tokens"])
        self._preemptions.inc(stats.preemptions - before["preemptions"])
        for name in _COUNTED:
            before[name] = getattr(stats, name)
        self._running.set(stats.running)
        self._blocks["free"].set(stats.blocks_free)
        self._blocks["cached"].set(stats.blocks_cached)
        self._blocks["used"].set(stats.blocks_used)
        self._blocks["total"].set(stats.blocks_total)
