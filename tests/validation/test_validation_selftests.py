"""Known truths through the real client and replay, on a virtual clock: what is reported must be them.

The server's latencies and faults are programmed, so every expected value is arithmetic on the program. The same
golden latencies on the real clock are in benchmarks/client.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from helpers.virtual_loop import Script, ScriptedProtocol, VirtualLoop, on_virtual_clock

from advisor.simulation.slo import Slo
from advisor.validation import gates, metrics
from advisor.validation.client import body_of, open_client
from advisor.validation.record import Record
from advisor.validation.replay import Due, Replay, replay

URL = "http://server"
TOKENS = 33
BODY = body_of("m", [1, 2, 3], TOKENS)


@dataclass
class Heard:
    """What was told while a run went on."""

    records: list[Record] = field(default_factory=list)
    enough_after: int | None = None

    def __call__(self, record: Record) -> bool:
        self.records.append(record)
        return len(self.records) == self.enough_after


def poisson(requests: int, rate: float, seed: int = 0) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, requests))


def schedule_of(arrivals: np.ndarray, tokens: int = TOKENS) -> list[Due]:
    body = body_of("m", [1, 2, 3], tokens)
    return [Due(i, float(at_s), body, 3, tokens) for i, at_s in enumerate(arrivals)]


def run(
    script: Script,
    schedule: list[Due],
    heard: Heard | None = None,
    *,
    timeout_s: float = 60.0,
    stop_at_s: float | None = None,
    send_delay_s: float = 0.0,
    sees: Callable[[VirtualLoop], None] = lambda _: None,
) -> Replay:
    async def main(loop: VirtualLoop) -> Replay:
        if stop_at_s is not None:
            task = asyncio.current_task()
            assert task is not None
            loop.call_later(stop_at_s, task.cancel)
        async with open_client(URL, timeout_s=timeout_s, clock=loop.clock) as client:
            outcome = await replay(
                schedule,
                client,
                tick=lambda _: None,
                ended=heard or Heard(),
                send_delay_s=send_delay_s,
                clock=loop.clock,
            )
        sees(loop)
        return outcome

    return on_virtual_clock(main, lambda: ScriptedProtocol(script))


def test_golden_latency() -> None:
    """TTFT of 100 ms in the median with a tail, TPOT 20 ms, 50 requests/s: bias <= 2 ms, P99 error <= 5 ms."""
    truth = 0.1 * np.random.default_rng(1).lognormal(0.0, 0.5, 1000)
    script = Script(ttft_s=lambda i: truth[i], gap_s=0.02)
    records = run(script, schedule_of(poisson(1000, 50.0))).records
    # Arrivals keep their order, so request i of the schedule is request i of the server.
    error = np.array([metrics.ttft_s(record) for record in records]) - truth
    assert abs(error.mean()) <= 0.002
    assert np.percentile(np.abs(error), 99) <= 0.005
    tpot = np.array([metrics.tpot_s(record) for record in records]) - 0.02
    assert abs(tpot.mean()) <= 0.002
    assert np.percentile(np.abs(tpot), 99) <= 0.005
    reported = metrics.latencies(records).ttft
    assert reported is not None
    assert reported.p99 == pytest.approx(np.percentile(truth, 99), abs=0.005)


def test_a_freeze_delays_rate_times_length_requests_and_p99_shows_it() -> None:
    """A server that stands still for F = 2 s at L = 20 requests/s: coordinated omission would hide it."""
    freeze_s, rate, requests, ttft_s = 2.0, 20.0, 400, 0.01
    start_s, lead_s = 1.0, 0.2  # of the loop's clock, of the replay
    frozen_from = start_s + lead_s + 5.0
    script = Script(ttft_s=lambda _: ttft_s, freeze=(frozen_from, frozen_from + freeze_s))
    arrivals = np.arange(requests) / rate
    records = run(script, schedule_of(arrivals, tokens=1)).records
    extra = np.array([metrics.ttft_s(record) for record in records]) - ttft_s
    delayed = extra[extra > 0.01]
    assert len(delayed) == pytest.approx(rate * freeze_s, abs=1)
    # Arrivals at equal distances find all of the freeze left, or less and less of it.
    assert np.sort(delayed) == pytest.approx(np.arange(len(delayed)) / rate + 1 / rate, abs=0.06)
    # The share of requests that is delayed by more than x is L (F - x) / N: 1 % at x = F - N / (100 L).
    closed_form = ttft_s + freeze_s - 0.01 * requests / rate
    reported = metrics.latencies(records).ttft
    assert reported is not None
    assert reported.p99 == pytest.approx(closed_form, rel=0.05)
    # Nobody waited for an answer: requests went out while the server stood still.
    assert len([t for t in script.asked if frozen_from < t < frozen_from + freeze_s]) >= 39


@pytest.mark.parametrize(("delay_s", "colour"), [(0.0, "green"), (0.2, "red")])
def test_constant_lateness_is_red(delay_s: float, colour: str) -> None:
    records = run(Script(), schedule_of(poisson(200, 50.0)), send_delay_s=delay_s).records
    slo = Slo(ttft_s=2.0, tpot_s=0.1)
    gate = gates.send_lag(metrics.latencies(records), slo)
    assert gate.colour == colour
    assert gate.value == pytest.approx(delay_s, abs=0.002)
    ttft = np.array([metrics.ttft_s(record) for record in records])
    assert ttft == pytest.approx(0.1 + delay_s, abs=0.002)


def test_each_failure_is_a_miss_under_its_own_label() -> None:
    """5 % answers of 500, 5 % cut streams, 1 % that never answer, and one of each other kind."""
    script = Script(
        ttft_s=lambda _: 0.05,
        gap_s=0.001,
        error_on=lambda i: 500 if i % 20 == 3 else {77: 429, 177: 404}.get(i),
        cut_on=lambda i: i % 20 == 8,
        hang_on=lambda i: i % 100 == 50,
    )
    heard = Heard()
    outcome = run(script, schedule_of(poisson(1000, 50.0)), heard, timeout_s=5.0)
    score = metrics.score(outcome.records, Slo(ttft_s=10.0, tpot_s=1.0), 20.0)
    labels = {"http_5xx": 50, "broken_stream": 50, "timeout": 10, "http_429": 1, "http_4xx": 1}
    assert score.misses == labels
    assert (score.requests, score.good, score.attainment) == (1000, 888, 0.888)
    assert outcome.end == "complete"
    # Told once each, in the order in which they ended.
    assert Counter(record.row for record in heard.records) == Counter(range(1000))
    ends = [record.t_done for record in heard.records]
    assert ends == pytest.approx(sorted(ends), abs=1e-3)


@pytest.mark.parametrize("packed", [1, 2, 4])
def test_packed_chunks_leave_tpot_alone_and_are_seen(packed: int) -> None:
    tokens = 65  # one, then 64 in chunks of 1, 2 or 4
    records = run(Script(packed=packed), schedule_of(poisson(50, 20.0), tokens)).records
    assert [metrics.tpot_s(record) for record in records] == pytest.approx([0.02] * 50, rel=0.01)
    per_chunk = metrics.tokens_per_chunk(records)
    assert per_chunk == pytest.approx(tokens / (1 + 64 / packed))
    assert (per_chunk > 1.05) == (packed > 1)  # what says that TBT is not comparable
    gaps = metrics.latencies(records).tbt
    assert gaps is not None
    assert gaps.p50 == pytest.approx(packed * 0.02, rel=0.05)


def test_a_turn_waits_for_the_one_before_and_that_is_no_lag() -> None:
    """Three turns due 0.1 s apart, each taking 0.1 + 32 x 0.02 = 0.74 s; another request is not held up."""
    due = [Due(7, 0.0, BODY, 3, TOKENS, session=4, turn=0, slo_class="chat")]
    due += [Due(8, 0.1, BODY, 3, TOKENS, 4, 1, after=0), Due(9, 0.2, BODY, 3, TOKENS, 4, 2, after=1)]
    due += [Due(10, 0.3, BODY, 3, TOKENS), Due(11, 5.0, BODY, 3, TOKENS, 4, 3, after=2)]
    records = run(Script(), due).records
    assert [r.row for r in records] == [7, 8, 9, 10, 11]
    assert [r.held_s for r in records] == pytest.approx([0, 0.64, 2 * 0.74 - 0.2, 0, 0], abs=0.005)
    assert [metrics.send_lag_s(r) for r in records] == pytest.approx([0] * 5, abs=0.002)
    assert [metrics.ttft_s(r) for r in records] == pytest.approx([0.1] * 5, abs=0.005)
    assert (records[0].session, records[0].turn, records[0].slo_class) == (4, 0, "chat")
    delay = metrics.latencies(records).dependency_delay
    assert delay is not None
    assert delay.n == 2


def test_a_turn_that_failed_lets_the_next_one_go() -> None:
    script = Script(gap_s=0.001, hang_on=lambda i: i == 0, error_on=lambda i: 500 if i == 1 else None)
    due = [Due(0, 0.0, BODY, 3, TOKENS), Due(1, 0.1, BODY, 3, TOKENS, after=0)]
    due.append(Due(2, 0.2, BODY, 3, TOKENS, after=1))
    records = run(script, due, timeout_s=2.0).records
    assert [record.status for record in records] == ["timeout", "http_5xx", "ok"]
    assert [record.held_s for record in records] == pytest.approx([0, 1.9, 1.8], abs=0.005)


def test_a_late_release_is_lag() -> None:
    """`send_delay_s` makes held requests late too, and never counts as a wait."""
    due = [Due(0, 0.0, BODY, 3, TOKENS), Due(1, 0.1, BODY, 3, TOKENS, after=0)]
    records = run(Script(), due, send_delay_s=0.2).records
    assert [metrics.send_lag_s(record) for record in records] == pytest.approx([0.2, 0.2], abs=0.002)
    assert records[1].held_s == pytest.approx(0.2 + 0.74 - 0.1, abs=0.005)


def test_enough_ends_a_run_early() -> None:
    heard = Heard(enough_after=30)
    outcome = run(Script(), schedule_of(poisson(300, 50.0)), heard)
    assert outcome.end == "enough"
    states = Counter(record.status for record in outcome.records)
    assert states["ok"] == 30
    # 0.74 s at 50 requests/s are under way, the rest has not been sent.
    assert 20 <= states["interrupted"] <= 60
    assert states["unsent"] > 200
    assert Counter(record.row for record in heard.records) == Counter(range(300))
    assert {record.status for record in heard.records[:30]} == {"ok"}


def test_an_interrupted_run_has_a_record_of_everything() -> None:
    heard = Heard()
    outcome = run(Script(), schedule_of(poisson(300, 50.0)), heard, stop_at_s=2.0)
    assert outcome.end == "interrupted"
    assert len(outcome.records) == 300
    assert {record.status for record in outcome.records} == {"ok", "interrupted", "unsent"}
    assert Counter(record.row for record in heard.records) == Counter(range(300))


def test_a_server_that_mostly_fails_is_left_alone() -> None:
    outcome = run(Script(error_on=lambda i: 500 if i % 10 < 7 else None), schedule_of(poisson(300, 50.0)))
    assert outcome.end == "aborted"
    assert sum(record.status == "unsent" for record in outcome.records) > 250


def test_what_the_listener_raises_ends_the_run() -> None:
    class DiskError(Exception):
        pass

    def full(record: Record) -> bool:
        if record.row == 3:
            raise DiskError
        return False

    async def main(loop: VirtualLoop) -> Replay:
        async with open_client(URL, clock=loop.clock) as client:
            return await replay(
                schedule_of(poisson(9, 50.0)), client, tick=lambda _: None, ended=full, clock=loop.clock
            )

    with pytest.raises(DiskError):
        on_virtual_clock(main, lambda: ScriptedProtocol(Script()))


def test_connections_are_used_again_and_never_limited() -> None:
    opened: list[int] = []
    script = Script(ttft_s=lambda _: 0.05, gap_s=0.0)
    # One at a time: the first connection carries all.
    records = run(
        script, schedule_of(np.arange(20) / 10), sees=lambda loop: opened.append(loop.connections)
    ).records
    assert [record.t_conn > 0 for record in records][1:] == [False] * 19
    # 500 at once: as many connections, all sent at once.
    records = run(
        Script(), schedule_of(np.zeros(500)), sees=lambda loop: opened.append(loop.connections)
    ).records
    assert opened == [1, 500]
    assert max(record.t_send for record in records) < 0.01
    # Idle for longer than servers keep a connection: not used again.
    run(script, schedule_of(np.arange(3) * 3.0), sees=lambda loop: opened.append(loop.connections))
    assert opened[2] == 3
