"""Whole replays against a fake server: warm-up, turns, resuming, other rates, and the search for goodput."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_server import Program, fake_server
from helpers.replay_traces import steady_trace

from advisor.logs.trace import Labels, Trace
from advisor.simulation.slo import Slo
from advisor.validation import roofline
from advisor.validation.journal import Journal, read_journal
from advisor.validation.metrics import send_lag_s
from advisor.validation.options import Options, Silent
from advisor.validation.refuse import Limits
from advisor.validation.seek import Sought, seek
from advisor.validation.validate import validate
from engine.errors import InputError, MachineError

LOOSE = Slo(ttft_s=60.0, tpot_s=10.0)
FAST = Program(ttft_s=0.01, tpot_s=0.002)


class Heard(Silent):
    """A Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.costs: list[object] = []
        self.probes: list[str] = []

    def cost(self, cost: object) -> None:
        self.costs.append(cost)

    def probe(self, factor: float, said: str) -> None:
        self.probes.append(f"{factor:g} times: {said}")


def one_session(requests: int, rate: float) -> Trace:
    trace = steady_trace(requests, rate, output=4)
    return replace(trace, session=Labels(("s",), np.zeros(requests, dtype=np.int64)))


def test_the_warm_up_is_sent_and_not_judged(tmp_path: Path) -> None:
    journal, heard = tmp_path / "requests.jsonl", Heard()
    # Arrivals at odd times: a schedule in nanoseconds begins the window a little before or after its start.
    arrivals = np.cumsum(np.random.default_rng(2).uniform(0.01, 0.04, 60))
    trace = replace(steady_trace(60, 40.0), arrival_s=arrivals - arrivals[0])
    start_s = float(trace.arrival_s[40])
    with fake_server(FAST) as url:
        options = Options(seed=1, cache="warm", warm_up_s=0.5, journal=journal)
        result = validate(trace, url=url, slo=LOOSE, window=f"{start_s!r}..10", options=options, progress=heard)
    before = int(np.count_nonzero((arrivals < arrivals[40]) & (arrivals >= arrivals[40] - 0.5)))
    warmed = result.replayed.warm_up_requests
    assert (result.score.requests, warmed, result.replayed.cache) == (20, before, "warm")
    assert [record.row for record in result.records] == list(range(40, 60))
    assert min(record.t_sched for record in result.records) == pytest.approx(0, abs=1e-6)
    [run] = read_journal(journal)
    assert sorted(record.row for record in run.records) == list(range(40, 60))
    [cost] = heard.costs
    assert (cost.requests, cost.warm_up_requests) == (20, before)  # type: ignore[attr-defined]


def test_causal_turns_wait_for_the_one_before_and_their_wait_is_no_lag() -> None:
    """Arrivals 50 ms apart, each answered after 10 ms + 3 x 50 ms: every turn but the first is held."""
    slow = Program(ttft_s=0.01, tpot_s=0.05)
    with fake_server(slow) as url:
        options = Options(seed=1, turns="causal")
        result = validate(one_session(5, 20.0), url=url, slo=LOOSE, window="all", options=options)
    held = [record.held_s for record in result.records]
    assert held[0] == 0
    assert all(later > earlier for earlier, later in pairwise(held))
    ends = [record.t_done for record in result.records]
    assert [record.t_due for record in result.records[1:]] == pytest.approx(ends[:-1], abs=0.005)
    lags = [send_lag_s(record) for record in result.records]
    assert all(lag is not None and lag < 0.1 < held[4] for lag in lags)
    assert result.latencies.dependency_delay is not None
    assert result.latencies.dependency_delay.n == 4
    assert [record.turn for record in result.records] == [0, 1, 2, 3, 4]


def test_an_interrupted_run_goes_on_from_its_first_request_without_an_outcome(tmp_path: Path) -> None:
    journal, trace = tmp_path / "requests.jsonl", steady_trace(40, 40.0)
    options = Options(seed=1, journal=journal, warm_up_s=0.25)
    with fake_server(FAST) as url:
        whole = validate(trace, url=url, slo=LOOSE, window="all", options=options)
        [run] = read_journal(journal)
        cut = [record for record in run.records if record.row not in (25, 30)]  # 25 to 40 are sent again
        with Journal(journal) as again:
            again.begin(run.header)
            again.add_all(cut)
        result = validate(trace, url=url, slo=LOOSE, window="all", options=replace(options, resume=True))
    assert result.replayed.seed != whole.replayed.seed  # what was sent before is in no cache
    last = read_journal(journal)[-1]
    assert sorted(record.row for record in last.records) == list(range(40))
    assert (result.replayed.resumed, result.score.requests, result.score.good) == (25, 40, 40)
    assert result.replayed.warm_up_requests == 10
    assert [record.row for record in result.records] == list(range(40))
    assert [record.t_sched for record in result.records] == pytest.approx(
        [record.t_sched for record in whole.records], abs=0.01
    )
    assert result.predicted is None
    with pytest.raises(InputError, match="came to its end"), fake_server(FAST) as url:
        validate(trace, url=url, slo=LOOSE, window="all", options=replace(options, resume=True))


def test_copies_of_one_request_are_told_apart_when_a_run_goes_on(tmp_path: Path) -> None:
    journal, trace = tmp_path / "requests.jsonl", steady_trace(20, 20.0)
    options = Options(seed=1, journal=journal, rate=3.0, warm_up_s=0.1)
    with fake_server(FAST) as url:
        validate(trace, url=url, slo=LOOSE, window="all", options=options)
        [run] = read_journal(journal)
        assert len({record.key for record in run.records}) == 60 > len({record.row for record in run.records})
        ended = sorted(run.records, key=lambda record: record.t_sched)[:30]
        with Journal(journal) as again:
            again.begin(run.header)
            again.add_all(ended)
        result = validate(trace, url=url, slo=LOOSE, window="all", options=replace(options, resume=True))
    assert (result.replayed.resumed, result.score.requests) == (30, 60)
    assert len({record.key for record in result.records}) == 60


def test_only_the_same_traffic_is_resumed(tmp_path: Path) -> None:
    journal = tmp_path / "requests.jsonl"
    options = Options(seed=1, journal=journal)
    with fake_server(FAST) as url:
        validate(steady_trace(10, 40.0), url=url, slo=LOOSE, window="all", options=options)
        with pytest.raises(InputError, match="other traffic"):
            validate(
                steady_trace(11, 40.0), url=url, slo=LOOSE, window="all", options=replace(options, resume=True)
            )
        journal.unlink()
        with pytest.raises(InputError):
            validate(
                steady_trace(10, 40.0), url=url, slo=LOOSE, window="all", options=replace(options, resume=True)
            )


def test_another_rate_is_said_to_be_other_traffic() -> None:
    with fake_server(FAST) as url:
        result = validate(
            steady_trace(40, 40.0), url=url, slo=LOOSE, window="all", options=Options(seed=1, rate=0.5)
        )
    assert result.score.requests == 20
    assert "not your traffic" in result.label


def test_limits_are_kept_before_anything_is_sent() -> None:
    heard, options, trace = Heard(), Options(seed=1, limits=Limits(max_requests=39)), steady_trace(40, 40.0)
    with fake_server(FAST) as url, pytest.raises(MachineError, match="max-requests"):
        validate(trace, url=url, slo=LOOSE, window="all", options=options, progress=heard)
    assert not heard.costs


def test_a_search_is_journalled_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers at once keeps every rate: the search ends at the user's limit."""
    monkeypatch.setattr(roofline, "measure_client", lambda **_: Unknown())
    journal, heard = tmp_path / "requests.jsonl", Heard()
    options = Options(seed=1, journal=journal, limits=Limits(max_rate=9.0))
    with fake_server(FAST) as url:
        result = seek(
            steady_trace(40, 40.0), url=url, slo=LOOSE, sought=Sought(gpus=2), window="all",
            options=options, progress=heard,
        )  # fmt: skip
        search = result.search
        assert search is not None
        assert search.end == "limit"
        assert search.low_rps is not None
        assert search.high_rps is None
        assert {probe.judged for probe in search.probes} == {"keeps"}
        assert len({part.header.seed for part in read_journal(journal)}) == len(read_journal(journal))
        parts = read_journal(journal)
        assert [part.probe for part in parts] == list(search.probes)
        again = seek(
            steady_trace(40, 40.0), url=url, slo=LOOSE, sought=Sought(gpus=2), window="all",
            options=replace(options, resume=True), progress=heard,
        )  # fmt: skip
    assert again.search is not None
    assert again.search.probes[1:] == search.probes[1:]
    assert len(read_journal(journal)) == len(parts) + 1  # only the log's own rate was replayed again
    assert "would tell more" in search.why  # one second of requests
    with Journal(journal) as halfway:  # a search that was interrupted is no run at the log's rate to go on from
        halfway.begin(parts[2].header)
    with fake_server(FAST) as url, pytest.raises(InputError, match="other traffic"):
        validate(
            steady_trace(40, 40.0), url=url, slo=LOOSE, window="all", options=replace(options, resume=True)
        )


class Unknown:
    """A roofline that was not to be had."""

    def share(self, *_: float) -> float:
        return float("inf")
