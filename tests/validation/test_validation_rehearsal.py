"""A replay against what emulates, shares cores, or loses instances: what is sent, divided, judged and said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fake_server import Program, fake_server
from helpers.replay_traces import steady_trace
from rich.console import Console

from advisor.deploy.scrape import Figures, Histogram, figures_of
from advisor.report.verdict import show_results
from advisor.simulation.slo import Slo
from advisor.validation.host_costs import Spent, solved
from advisor.validation.journal import read_journal
from advisor.validation.meanwhile import Look, Meanwhile
from advisor.validation.options import Options
from advisor.validation.record import Record
from advisor.validation.result import Result
from advisor.validation.validate import validate
from engine.server.metrics import Metrics

LOOSE = Slo(ttft_s=60.0, tpot_s=10.0)
EMULATED = {"status": "ok", "emulated": {"gpu": "h100-sxm", "time_scale": 4.0}, "oversubscribed": False}


def page(
    *,
    steps: int = 0,
    lag_ms: float = 0.1,
    late: int = 0,
    router_s: float = 0.0,
    decode_s: float = 0.0,
    requeued: int = 0,
    **gauges: float,
) -> str:
    """A metrics page: `steps` steps of 10 to 20 ms, each `lag_ms` late or a little less, `late` much later."""
    lines = [
        f'advise_cpu_seconds{{process="router"}} {router_s}',
        f'advise_cpu_seconds{{process="decode-0"}} {decode_s}',
    ]
    lines += [
        f'advise_emulated_step_seconds_bucket{{le="{edge}"}} {0 if edge == "0.01" else steps + late}'
        for edge in ("0.01", "0.02", "+Inf")
    ]
    for edge in (lag_ms / 2e3, lag_ms / 1e3, 1.0, math.inf):
        count = 0 if edge < lag_ms / 1e3 else steps if edge < 1.0 else steps + late
        lines.append(
            f'advise_emulated_lag_seconds_bucket{{le="{"+Inf" if math.isinf(edge) else edge}"}} {count}'
        )
    lines += [f"advise_{name} {value}" for name, value in gauges.items()]
    lines.append(f'advise_fleet_events_total{{event="requeued"}} {requeued}')
    return "\n".join(lines) + "\n"


def rehearse(
    health: Mapping[str, Any], metrics: list[str], slo: Slo = LOOSE, requests: int = 8, **options: Any
) -> Result:
    program = Program(ttft_s=0.2, tpot_s=0.04, health=dict(health), metrics=metrics)
    with fake_server(program) as url:
        trace = steady_trace(requests, 40.0)
        return validate(trace, url=url, slo=slo, window="all", options=Options(seed=1, **options))


def test_a_slow_clock_stretches_the_arrivals_and_shortens_what_is_measured(tmp_path: Path) -> None:
    """Four times: 25 ms between arrivals are sent 100 ms apart, a first token after 200 ms is one after 50."""
    journal = tmp_path / "requests.jsonl"
    result = rehearse(EMULATED, [page(), page(steps=100)], requests=20, journal=journal)
    sent = [record.t_sched for record in result.records]
    assert [later - earlier for earlier, later in pairwise(sent)] == pytest.approx([0.1] * 19)
    assert all(record.t_send - record.t_sched >= -0.001 for record in result.records if record.t_send)
    first = [record.t_first - record.t_sched for record in result.records]
    assert min(first) >= 0.2  # as it was: the file keeps what was stamped
    assert result.latencies.ttft is not None
    assert result.latencies.ttft.p50 == pytest.approx(np.median(first) / 4)
    assert result.latencies.tpot is not None
    rest = [(record.t_last - record.t_first) / 7 for record in result.records]
    assert result.latencies.tpot.p50 == pytest.approx(np.median(rest) / 4)
    assert result.replayed.length_s == pytest.approx(19 / 40)
    assert result.score.good_rate_rps == pytest.approx(20 / (19 / 40))
    [run] = read_journal(journal)
    assert {record.time_scale for record in run.records} == {4.0}
    assert sorted(record.t_sched for record in run.records) == pytest.approx(sent)


@pytest.mark.parametrize(("tpot_s", "would_be"), [(10.0, "LIKELY PASS"), (0.001, "FAIL")])
def test_an_emulated_fleet_is_rehearsed_whatever_it_would_have_been(tpot_s: float, would_be: str) -> None:
    result = rehearse(EMULATED, [page(), page(steps=100)], Slo(ttft_s=60.0, tpot_s=tpot_s))
    assert (result.verdict, result.exit_code) == ("REHEARSED", 0)
    assert result.rehearsal is not None
    assert (result.rehearsal.would_be, result.rehearsal.gpu) == (would_be, "h100-sxm")
    assert f"would have been {would_be}" in result.reason
    assert "proves plumbing, not advice" in result.reason
    stream = StringIO()
    show_results(Console(file=stream, width=100), {"measured": result})
    assert "REHEARSED" in stream.getvalue()
    assert f"would have been {would_be}" in stream.getvalue().replace("\n", " ")


@pytest.mark.parametrize(("lag_ms", "verdict"), [(0.7, "REHEARSED"), (0.8, "INVALID")])
def test_a_clock_more_than_a_twentieth_of_the_median_step_late_is_invalid(lag_ms: float, verdict: str) -> None:
    """Steps of 10 to 20 ms: the median is 15 ms, 5 % of it 0.75. Only steps of the run count: 100,000 late
    ones before it do not."""
    pages = [page(steps=steps, lag_ms=lag_ms, late=100_000) for steps in (0, 200)]
    result = rehearse(EMULATED, pages)
    assert result.verdict == verdict
    [gate] = [gate for gate in result.gates if gate.name == "clock_lag"]
    assert gate.value == pytest.approx(lag_ms * (0.5 + 0.99 / 2) / 15)
    assert result.exit_code == {"REHEARSED": 0, "INVALID": 4}[verdict]


def test_an_emulation_that_does_not_tell_its_lag_is_invalid() -> None:
    result = rehearse(EMULATED, [])
    assert result.verdict == "INVALID"
    assert "clock_lag" in result.reason


def test_instances_that_share_cores_are_never_judged() -> None:
    result = rehearse({"status": "ok", "oversubscribed": True, "emulated": None}, [])
    assert (result.verdict, result.exit_code) == ("INVALID", 4)
    assert result.reason == "cores: more instances than cores: correctness only"


def test_losses_during_the_run_are_said() -> None:
    before = page(restarts=1, requeued=5, degraded=0)
    after = page(restarts=2, requeued=12, degraded=1)
    result = rehearse({"status": "ok"}, [before, after])
    assert result.verdict == "LIKELY PASS"
    assert result.incidents == (
        "the fleet was degraded in part of the run",
        "1 restarts of an instance",
        "7 requests begun again elsewhere",
    )
    assert "7 requests begun again elsewhere" in result.reason


def test_the_engines_own_page_is_understood() -> None:
    """Steps of two instances are one histogram; a bucket is a fifth wide, and a step is known to that."""
    metrics = Metrics()
    metrics.processor_seconds.labels("router").set(3.0)
    metrics.processor_seconds.labels("decode-0").set(40.0)
    metrics.restarts.labels("decode-0").set(2)
    metrics.degraded.set(1)
    metrics.fleet_events.labels("requeued").inc(5)
    metrics.fleet_events.labels("bypassed").inc(7)
    for instance in ("decode-0", "decode-1"):
        metrics.emulated_step_seconds.labels(instance).observe(0.02)
        metrics.emulated_lag_seconds.labels(instance).observe(0.0002)
    seen = figures_of(metrics.exposition().decode(), 1.0)
    assert seen is not None
    assert seen.cpu_s == {"router": 3.0, "decode-0": 40.0}
    assert (seen.restarts, seen.requeued, seen.degraded) == (2, 5, True)
    assert max(seen.step.counts.values()) == max(seen.lag.counts.values()) == 2
    assert seen.step.quantile(0.5) == pytest.approx(0.02, rel=0.2)
    assert seen.lag.quantile(0.99) == pytest.approx(0.0002, rel=0.2)


def test_a_quiet_fleet_has_no_incidents() -> None:
    assert rehearse({"status": "ok"}, [page(restarts=3, requeued=4)]).incidents == ()


def test_the_cpu_share_is_of_each_used_core() -> None:
    """Ten seconds on two cores: a router that took one has 5 % of each, a client that took three 15 %."""

    def figures(**seconds: float) -> Figures | None:
        return figures_of(page(**seconds), 0.0)

    before = Look(figures(router_s=4.0, decode_s=100.0), wall_s=50.0, client_s=7.0)
    after = Look(figures(router_s=5.0, decode_s=108.0), wall_s=60.0, client_s=10.0)
    used = Meanwhile(before, after).cpu(2)
    assert (used.router_s, used.client_s, used.instances_s) == (1.0, 3.0, 8.0)
    assert (used.router_share, used.client_share) == (0.05, 0.15)
    alone = Meanwhile(Look(None, 50.0, 7.0), Look(None, 60.0, 10.0)).cpu(None)
    assert (alone.client_s, alone.router_s, alone.client_share) == (3.0, None, None)


def test_the_cpu_share_is_in_the_result_and_on_the_screen() -> None:
    result = rehearse({"status": "ok"}, [page(router_s=1.0), page(router_s=1.5)], cores=2)
    assert result.cpu is not None
    assert result.cpu.router_s == pytest.approx(0.5)
    assert result.cpu.client_s > 0
    assert result.cpu.router_share == pytest.approx(0.5 / (2 * result.cpu.wall_s))
    stream = StringIO()
    show_results(Console(file=stream, width=100), {"measured": result})
    assert f"router {result.cpu.router_share:.1%}" in stream.getvalue()


def test_other_servers_are_judged_as_before() -> None:
    """A server whose /health says nothing and that has no metrics page."""
    result = rehearse({}, [])
    assert result.verdict == "LIKELY PASS"
    assert result.rehearsal is None
    assert {record.time_scale for record in result.records} == {1.0}
    assert not {"clock_lag", "cores"} & {gate.name for gate in result.gates}


def test_quantiles_are_interpolated_in_their_bucket() -> None:
    """100 samples: 50 up to 1 s, 40 more up to 2 s, 10 beyond, as Prometheus' histogram_quantile has it."""
    histogram = Histogram({1.0: 50, 2.0: 90, math.inf: 100})
    assert histogram.quantile(0.25) == 0.5
    assert histogram.quantile(0.7) == 1.5
    assert histogram.quantile(0.99) == 2.0
    assert Histogram().quantile(0.5) is None
    assert Histogram({1.0: 0, math.inf: 0}).quantile(0.5) is None


def test_every_time_of_a_record_is_undilated() -> None:
    """What is a time and what is not, by name: t_..."""
    record = Record(
        3, 8.0, 64, 2, "ok", held_s=0.2, t_send=8.1, t_conn=0.4, t_hdr=8.2, t_any=8.3, t_chunk=(9.0, 10.0),
        t_done=10.4, n_in=64, n_cached=0, n_out=2, time_scale=2.0,
    )  # fmt: skip
    back = record.undilated()
    names = "t_sched t_due held_s t_send t_conn t_hdr t_any t_done t_first t_last"
    for name in names.split():
        assert getattr(back, name) == getattr(record, name) / 2
    assert back.t_chunk == (4.5, 5.0)
    assert (back.row, back.want_in, back.n_in, back.n_out, back.time_scale) == (3, 64, 64, 2, 1.0)
    assert back.undilated() == back


def test_two_replays_tell_a_request_from_a_token() -> None:
    """80 requests of 2 tokens and 40 of 64, at 3 ms a request and 0.25 ms a token."""
    few = Spent(80, 160, 80 * 0.003 + 160 * 0.00025)
    many = Spent(40, 2560, 40 * 0.003 + 2560 * 0.00025)
    assert solved(few, many) == pytest.approx((0.003, 0.00025))
