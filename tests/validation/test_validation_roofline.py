"""The client's roofline: what a rung is judged by, and that both ladders run for real."""

from __future__ import annotations

import urllib.request

import msgspec
import pytest

from advisor.validation.null_server import Pace, null_server
from advisor.validation.record import Record
from advisor.validation.roofline import Ladder, Roofline, Rung, climb, judged, lines

LADDER = Ladder((10,), judged_s=2.0, tokens=4, gap_s=0.5)  # streams of 2 s, judged from 2 s to 4 s


def records(lag_s: float = 0.0, slow_s: float = 0.0, status: str = "ok") -> list[Record]:
    """Ten requests a second for 4 s; chunks 0.5 s apart, `slow_s` later than due."""
    return [
        Record(
            row=i,
            t_sched=i / 10,
            want_in=1,
            want_out=4,
            status=status,
            t_send=i / 10 + lag_s,
            t_chunk=tuple(i / 10 + (n + 1) * 0.5 + slow_s for n in range(4)),
            t_done=i / 10 + 2.0 + slow_s,
        )
        for i in range(40)
    ]


def test_a_rung_holds_when_all_come_whole_in_time_and_at_their_rate() -> None:
    rung = judged(LADDER, records(lag_s=0.004), 0.3, 0.2)
    assert rung.held
    assert rung.lag_p99_s == pytest.approx(0.004)
    assert rung.requests_per_s == 10
    assert rung.chunks_per_s == pytest.approx(40, rel=0.05)  # 10 requests/s of 4
    assert rung.streams == pytest.approx(20, rel=0.05)  # of 2 s each
    assert not judged(LADDER, records(lag_s=0.006), 0.3, 0.2).held
    assert not judged(LADDER, records(slow_s=3.0), 0.3, 0.2).held  # chunks do not come as fast as they are due
    assert not judged(LADDER, records(status="broken_stream"), 0.3, 0.2).held
    unsent = [*records(), Record(row=40, t_sched=4.0, want_in=1, want_out=4, status="unsent")]
    assert judged(LADDER, unsent, 0.3, 0.2).lag_p99_s is None
    # What was late while the streams built up is not counted.
    early = [*records()[20:], *records(lag_s=9.0)[:20]]
    assert judged(LADDER, early, 0.3, 0.2).lag_p99_s == pytest.approx(0.0)


def roofline(requests: float, chunks: float) -> Roofline:
    rung = judged(LADDER, records(lag_s=0.006), 0.95, 0.2)
    return Roofline(
        requests_per_s=requests,
        chunks_per_s=chunks,
        cores=2,
        loop="uvloop",
        bound_by="the client's core",
        request_rungs=(),
        chunk_rungs=(rung,),
    )


def test_the_share_that_a_replay_asks_for() -> None:
    assert roofline(1000, 20_000).share(250, 5000) == 0.5
    assert roofline(0, 20_000).share(1, 1) == float("inf")


def test_it_is_told_in_words() -> None:
    told = lines(roofline(1200, 20_480))
    assert told[0] == "client: 1,200 requests/s and 20,480 chunks/s at send lag P99 <= 5 ms"
    assert told[2].endswith("lag P99 6.00 ms, client 95% of a core, server 20%  not held")
    assert told[-1].endswith("600 requests/s, or 10,240 chunks/s")
    assert max(map(len, told)) <= 120


def test_both_ladders_run() -> None:
    heard: list[str] = []
    found = climb(Ladder((20,), judged_s=0.2), Ladder((20,), judged_s=0.2, tokens=4, gap_s=0.01), heard.append)
    assert len(heard) == 2
    (asked,), (paced,) = found.request_rungs, found.chunk_rungs
    assert asked.requests_per_s == pytest.approx(
        20, rel=0.3
    )  # how many of a second's 20 fall in the judged time
    assert paced.chunks_per_s == pytest.approx(80, rel=0.5)
    assert isinstance(paced, Rung)
    assert paced.client_cpu > 0


def test_the_null_server_answers_like_an_endpoint_and_ends_with_its_parent() -> None:
    with null_server(Pace(0.01, 0.01)) as url:
        with urllib.request.urlopen(f"{url}/health") as answer:  # noqa: S310 - our own address
            health = msgspec.json.decode(answer.read())
        with urllib.request.urlopen(f"{url}/v1/models") as answer:  # noqa: S310
            models = msgspec.json.decode(answer.read())
    assert health["status"] == "ok"
    assert models["data"][0]["id"] == "null"
