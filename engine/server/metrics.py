"""What /metrics says, in Prometheus form.

Owns the registry of one router; nothing is registered globally, and only the event loop writes. Seconds are of
the router's clock: TTFT counts from the arrival of the request's body, TBT is the gap between two tokens of one
request as they reached the router. A request whose first token another server sent (docs/two-call.md) has no
TTFT here.

| metric | labels | meaning |
|---|---|---|
| advise_requests_total | finish_reason | requests that ended: stop, length, abort, error, unavailable |
| advise_rejected_total | reason | requests refused before the queue: queue_full, draining |
| advise_ignored_fields_total | | fields of request bodies that nobody knows |
| advise_prompt_tokens_total | | prompt tokens of requests first admitted by an instance |
| advise_prefix_hit_tokens_total | | of those, found in its prefix cache |
| advise_generated_tokens_total | | tokens sampled for clients |
| advise_computed_tokens_total | instance, phase | query tokens run through the model: prefill, decode |
| advise_preemptions_total | instance | times a running request lost its blocks and went back to the queue |
| advise_requests_queued | | requests that wait now, for their first token or for room on the decode side |
| advise_requests_running | instance | requests now |
| advise_kv_blocks | instance, state | blocks now: free, cached (reusable, no request holds them), used, total |
| advise_invariant_violations_total | | idle self-checks that found the block accounting wrong |
| advise_step_seconds | instance | duration of a step |
| advise_budget_fill | instance | query tokens of a step over the token budget |
| advise_queue_seconds, advise_ttft_seconds, advise_tbt_seconds | | waiting, first token, gaps |
| advise_instance_up | instance | 1 while it serves |
| advise_restarts | instance | times it was started again |
| advise_degraded | | 1 while one side of the split is gone |
| advise_fleet_events_total | event | requests requeued, bypassed, transferred; pulls voided |
| advise_leases | | requests whose KV a prefill instance keeps for a pull now |
| advise_kv_transfers_total | transport, result | copies of KV: ok, or why they do not count |
| advise_kv_transfer_bytes_total | transport | bytes of those that count |
| advise_kv_transfer_seconds | | duration of those that count |
| advise_cpu_seconds | process | seconds of a core used: router, each instance (once a second) |
| advise_emulated_step_seconds, advise_emulated_lag_seconds | instance | emulated steps: how long, how late |
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SHORT = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_LONG = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
_SHARE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_FINE = tuple(1e-5 * 1.2**n for n in range(80))  # to 18 s, each 20 % above the one before


class Metrics:
    """The registry and its metrics; one instance a router."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"advise_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"advise_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"advise_{name}", text, labels, buckets=buckets, registry=registry)

        self.requests = counter("requests", "requests that ended", "finish_reason")
        self.rejected = counter("rejected", "requests refused before the queue", "reason")
        self.ignored_fields = counter("ignored_fields", "unknown fields of request bodies")
        self.prompt_tokens = counter("prompt_tokens", "prompt tokens of admitted requests")
        self.prefix_hit_tokens = counter("prefix_hit_tokens", "prompt tokens found in the prefix cache")
        self.generated_tokens = counter("generated_tokens", "tokens sampled for clients")
        self.computed_tokens = counter("computed_tokens", "query tokens computed", "instance", "phase")
        self.preemptions = counter("preemptions", "requests that lost their blocks", "instance")
        self.queued = gauge("requests_queued", "requests that wait for a first token or for room to decode")
        self.running = gauge("requests_running", "requests running", "instance")
        self.kv_blocks = gauge("kv_blocks", "KV blocks", "instance", "state")
        self.invariant_violations = counter("invariant_violations", "idle self-checks that failed")
        self.step_seconds = histogram("step_seconds", "duration of a step", _SHORT, "instance")
        self.budget_fill = histogram("budget_fill", "query tokens over token budget", _SHARE, "instance")
        self.queue_seconds = histogram("queue_seconds", "arrival to first step", _LONG)
        self.ttft_seconds = histogram("ttft_seconds", "arrival to first token", _LONG)
        self.tbt_seconds = histogram("tbt_seconds", "gap between tokens of one request", _SHORT)
        self.instance_up = gauge("instance_up", "instances that serve", "instance")
        self.restarts = gauge("restarts", "starts of an instance after its first", "instance")
        self.degraded = gauge("degraded", "one side of the split is gone")
        self.fleet_events = counter("fleet_events", "what the fleet did with requests", "event")
        self.leases = gauge("leases", "requests whose KV is kept for a pull")
        self.kv_transfers = counter("kv_transfers", "copies of KV", "transport", "result")
        self.kv_transfer_bytes = counter("kv_transfer_bytes", "bytes of KV copied", "transport")
        self.kv_transfer_seconds = histogram("kv_transfer_seconds", "duration of a copy of KV", _SHORT)
        self.processor_seconds = gauge("cpu_seconds", "seconds of a core used", "process")
        self.emulated_step_seconds = histogram(
            "emulated_step_seconds", "duration of an emulated step", _FINE, "instance"
        )
        self.emulated_lag_seconds = histogram(
            "emulated_lag_seconds", "how late an emulated step was", _FINE, "instance"
        )

    def exposition(self) -> bytes:
        """The text of /metrics."""
        return generate_latest(self._registry)
