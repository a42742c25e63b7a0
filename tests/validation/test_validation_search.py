"""The goodput search: servers of known theory on a virtual clock, and its steps on one without noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.one_server import knee, records_of_queue, wait_within
from sklearn.isotonic import IsotonicRegression

from advisor.simulation.slo import Slo
from advisor.validation.metrics import score
from advisor.validation.probes import Judged, Probe, Stage, curve, not_monotone, pooled, together_keep
from advisor.validation.probing import judge_attainment, judge_capacity, probe_seconds
from advisor.validation.record import Record
from advisor.validation.search import MOST_PROBES, Search, find_goodput
from advisor.validation.statistics import evidence

Ask = Callable[[float, int, Stage], Probe | None]


def search_for(probe: Ask, **changes: Any) -> Search:
    fields: dict[str, Any] = {
        "start": 1.0, "rate_rps": 10.0, "lowest": 0.01, "highest": 100.0, "gpus": 2, "predicted_rps": 10.0,
    }  # fmt: skip
    return find_goodput(probe, **(fields | changes))


def made(factor: float, seed: int, stage: Stage, good: int, judged: Judged, requests: int = 300) -> Probe:
    return Probe(
        factor=factor, rate_rps=10 * factor, seed=seed, stage=stage, judged=judged, why="as made",
        evidence=evidence(good, requests, 0.9), good_rate_rps=None, in_flight_slope=0.0, ended_early=False,
    )  # fmt: skip


class Server:
    """95 % are kept at every rate below its knee, 70 % from there on; notes what it is asked."""

    def __init__(self, knee: float, interrupt_after: int | None = None) -> None:
        self.knee = knee
        self.interrupt_after = interrupt_after
        self.asked: list[tuple[float, int, Stage]] = []

    def __call__(self, factor: float, seed: int, stage: Stage) -> Probe | None:
        if len(self.asked) == self.interrupt_after:
            return None
        self.asked.append((factor, seed, stage))
        keeps = factor < self.knee
        return made(factor, seed, stage, 285 if keeps else 210, "keeps" if keeps else "fails")


# Known knees.


def test_known_knee_of_a_queue() -> None:
    # M/D/1, a target of 3 service times of waiting for 90 %; the truth is Erlang's series.
    truth, slo, close = knee(lambda rate: wait_within(rate, 3.0), 0.9), Slo(ttft_s=3.0), 0
    assert truth == pytest.approx(0.694, abs=0.001)

    def probe(factor: float, seed: int, stage: Stage) -> Probe:
        records = records_of_queue(factor, 1000, seed)
        judged = judge_attainment(records, slo)
        if stage == "bracket":
            assert judged.evidence.misses == 1000 - score(records, slo, window_s=1.0).good
        return Probe(
            factor=factor, rate_rps=factor, seed=seed, stage=stage, judged=judged.judged, why=judged.why,
            evidence=judged.evidence, good_rate_rps=None, in_flight_slope=judged.growth,
            ended_early=False,
        )  # fmt: skip

    for seed in range(20):
        start = truth * math.exp(
            np.random.default_rng(seed).uniform(-0.4, 0.4)
        )  # the prediction, 50 % off at most
        found = search_for(probe, start=start, rate_rps=1.0, base_seed=seed)
        assert found.end == "found"
        assert found.low_rps is not None
        assert found.high_rps is not None
        assert found.goodput_rps is not None
        assert found.low_rps <= found.goodput_rps <= found.high_rps <= 1.0501 * found.low_rps
        close += abs(found.goodput_rps / truth - 1) <= 0.05
    assert close >= 19


def test_known_knee_of_exponential_service() -> None:
    # M/M/1: P(sojourn > t) = exp(-(mu - rate) t), so 90 % within t at mu - ln(10) / t. Drawn from that.
    mu, limit_s, close = 10.0, 1.0, 0
    truth = mu - math.log(10) / limit_s

    def probe(factor: float, seed: int, stage: Stage) -> Probe:
        share = 1 - math.exp(-max(mu - factor, 0.0) * limit_s)
        good = int(np.random.default_rng(seed).binomial(600, share))
        return made(factor, seed, stage, good, "keeps" if good >= 540 else "fails", 600)

    for seed in range(20):
        start = truth * math.exp(np.random.default_rng(seed).uniform(-1, 1))
        found = search_for(probe, start=start, rate_rps=1.0, base_seed=seed)
        close += abs((found.goodput_rps or 0.0) / truth - 1) <= 0.05
    assert close >= 19


# Without noise.


@pytest.mark.parametrize("true_factor", [0.05, 0.3, 0.81, 0.99, 1.0, 1.01, 1.2, 3.0, 40.0])
def test_the_knee_is_between_two_rates_five_per_cent_apart(true_factor: float) -> None:
    server = Server(true_factor)
    found = search_for(server)
    assert found.end == "found"
    assert found.low_rps is not None
    assert found.high_rps is not None
    assert found.low_rps < 10 * true_factor <= found.high_rps <= 1.05 * found.low_rps * (1 + 1e-9)
    assert found.low_attainment == 0.95
    assert found.evidence is not None
    assert (found.evidence.requests, found.evidence.misses) == (900, 45)  # three runs, nothing else
    assert (found.gpus, found.predicted_rps, found.not_monotone) == (2, 10.0, None)


def test_the_order_of_the_probes() -> None:
    server = Server(1.0)
    search_for(server)
    factors, _, stages = zip(*server.asked, strict=True)
    assert stages == ("bracket",) * 2 + ("bisect",) * 4 + ("confirm",) * 6
    assert factors[:3] == pytest.approx((0.8, 1.25, 1.0))
    assert len(set(factors[6:9])) == len(set(factors[9:])) == 1
    assert factors[6] < 1 <= factors[9]


def test_strides_of_half_as_much_again_until_one_keeps_and_one_fails() -> None:
    up, down = Server(4.0), Server(0.3)
    search_for(up)
    search_for(down)
    assert [factor for factor, _, stage in up.asked if stage == "bracket"] == pytest.approx(
        [0.8, 1.25, 1.875, 2.8125, 4.21875]
    )
    assert [factor for factor, _, stage in down.asked if stage == "bracket"] == pytest.approx(
        [0.8, 0.8 / 1.5, 0.8 / 1.5**2, 0.8 / 1.5**3]
    )


def test_every_probe_has_a_seed_of_its_own_and_the_same_one_next_time() -> None:
    once, again, other = Server(1.0), Server(1.0), Server(1.0)
    search_for(once, base_seed=1)
    search_for(again, base_seed=1)
    search_for(other, base_seed=2)
    seeds = [seed for _, seed, _ in once.asked]
    assert len(set(seeds)) == len(seeds)
    assert once.asked == again.asked
    assert not set(seeds) & {seed for _, seed, _ in other.asked}


@pytest.mark.parametrize("after", range(12))
def test_an_interrupted_search_goes_on_without_repeating(after: int) -> None:
    whole = Server(1.1)
    expected = search_for(whole)
    assert len(whole.asked) == 12
    first = search_for(Server(1.1, interrupt_after=after))
    assert (first.end, len(first.probes)) == ("interrupted", after)
    rest = Server(1.1)
    assert (
        search_for(rest, done=[Probe.model_validate_json(p.model_dump_json()) for p in first.probes])
        == expected
    )
    assert rest.asked == whole.asked[after:]


def test_what_is_not_confirmed_is_not_reported() -> None:
    first = search_for(Server(1.1, interrupt_after=7))
    assert (first.low_rps, first.goodput_rps, first.evidence, first.low_attainment) == (None, None, None, None)
    assert first.why == "interrupted after 7 probes"
    low_confirmed = search_for(Server(1.1, interrupt_after=9))
    assert low_confirmed.low_rps is not None


def test_the_replay_of_the_log_itself_spares_rates() -> None:
    of_log = made(1.0, 7, "log", 210, "fails")
    server = Server(0.9)
    found = search_for(server, start=1.5, done=[of_log])
    assert found.end == "found"
    assert found.probes[0] == of_log
    assert max(factor for factor, _, _ in server.asked) < 1.0  # 0.8 and 1.25 of 1.5 are known to fail
    keeps = Server(1.1)
    search_for(keeps, start=1.0, done=[made(1.0, 7, "log", 290, "keeps")])
    assert [factor for factor, _, stage in keeps.asked if stage == "bracket"] == [1.25]


# Limits.


def test_no_rate_above_the_highest_is_ever_asked_for() -> None:
    server = Server(5.0)
    found = search_for(server, highest=2.0)
    assert max(factor for factor, _, _ in server.asked) == 2.0
    assert (found.end, found.low_rps, found.high_rps) == ("limit", 20.0, None)
    assert found.why == "20 requests/s kept it, and no higher rate may be sent"
    assert found.evidence is not None
    below = Server(5.0)
    assert search_for(below, highest=0.5, done=[made(1.0, 7, "log", 290, "keeps")]).low_rps == 5.0
    assert {factor for factor, _, _ in below.asked} == {0.5}


def test_nothing_kept_down_to_the_lowest() -> None:
    server = Server(0.001)
    found = search_for(server, lowest=0.2)
    assert min(factor for factor, _, _ in server.asked) == 0.2
    assert (found.end, found.low_rps, found.high_rps) == ("limit", None, 2.0)
    assert found.why == "not even 2 requests/s, the lowest rate tried, kept it"


@pytest.mark.parametrize("bounds", [{"lowest": 2.0, "highest": 1.0}, {"lowest": 0.0}, {"start": 0.0}])
def test_bounds_out_of_order(bounds: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cannot search"):
        search_for(Server(1.0), **bounds)


def test_two_invalid_probes_at_one_rate_end_it_and_one_does_not() -> None:
    server = Server(1.0)

    def spoilt(times: int) -> Ask:
        left = [times]

        def probe(factor: float, seed: int, stage: Stage) -> Probe | None:
            if stage == "bisect" and left[0]:
                left[0] -= 1
                return made(factor, seed, stage, 0, "invalid")
            return server(factor, seed, stage)

        return probe

    assert search_for(spoilt(1)).end == "found"
    twice = search_for(spoilt(2))
    assert (twice.end, twice.low_rps) == ("invalid", None)
    assert twice.why == "2 probes at 10 requests/s were invalid: as made"
    assert len(twice.probes) == 4
    assert all(point.share > 0 for point in twice.curve)  # what an invalid probe counted is in no curve


def test_the_number_of_probes_is_bounded() -> None:
    def never_fails(factor: float, seed: int, stage: Stage) -> Probe:
        return made(factor, seed, stage, 300, "keeps")

    found = search_for(never_fails, highest=1e30)
    assert (found.end, len(found.probes)) == ("limit", MOST_PROBES)


# Confirmation.


def test_a_low_end_that_is_refuted_moves_down_and_a_high_end_that_keeps_moves_up() -> None:
    def fooled(shift: float) -> tuple[Ask, Server]:
        """Single runs see the knee at 1; confirmations, three to a rate, see it at 1 + shift."""
        truth = Server(1 + shift)

        def probe(factor: float, seed: int, stage: Stage) -> Probe | None:
            return truth(factor, seed, stage) if stage == "confirm" else Server(1.0)(factor, seed, stage)

        return probe, truth

    for shift in (-0.15, -0.07, 0.07, 0.15):
        probe, truth = fooled(shift)
        found = search_for(probe)
        assert found.end == "found"
        assert found.low_rps is not None
        assert found.high_rps is not None
        assert found.low_rps < 10 * truth.knee <= found.high_rps <= 1.05 * found.low_rps * (1 + 1e-9)
    unsettled = search_for(fooled(-0.6)[0])
    assert (unsettled.end, unsettled.low_rps) == ("limit", None)
    assert "did not settle" in unsettled.why
    assert search_for(fooled(0.6)[0]).high_rps is None  # a rate that was never replayed is no upper end


@pytest.mark.parametrize("truth", [0.1, 10.0])
def test_steps_stay_within_the_bounds(truth: float) -> None:
    confirming = Server(truth)

    def probe(factor: float, seed: int, stage: Stage) -> Probe | None:
        return confirming(factor, seed, stage) if stage == "confirm" else Server(1.0)(factor, seed, stage)

    found = search_for(probe, lowest=0.93, highest=1.07)
    assert found.end == "limit"
    assert min(factor for factor, _, _ in confirming.asked) == (
        0.93 if truth < 1 else pytest.approx(0.99, abs=0.02)
    )
    assert max(factor for factor, _, _ in confirming.asked) == (
        1.07 if truth > 1 else pytest.approx(0.99, abs=0.02)
    )
    assert (found.low_rps, found.high_rps) == ((None, 9.3) if truth < 1 else (pytest.approx(10.7), None))


def test_confirmations_decide_together() -> None:
    def runs(*goods: int) -> list[Probe]:
        return [
            made(1.0, seed, "confirm", good, "keeps" if good >= 270 else "fails")
            for seed, good in enumerate(goods)
        ]

    assert together_keep(runs(290, 265, 266))  # two of three fell short, 821 of 900 did not
    assert not together_keep(runs(271, 271, 240))  # two of three kept, 782 of 900 did not
    assert together_keep(runs(270, 270, 270))
    assert not together_keep(runs(270, 270, 269))
    growing = [run.model_copy(update={"judged": "fails"}) for run in runs(300, 300, 300)]
    assert not together_keep([*growing[:2], *runs(300)])  # requests piled up in most of them
    assert together_keep([*growing[:1], *runs(300, 300)])


def test_runs_together_have_the_interval_of_independent_runs() -> None:
    one = made(1.0, 0, "confirm", 270, "keeps")
    blocks = one.evidence.model_copy(update={"block_low": 0.84, "block_high": 0.96, "block_s": 10.0})
    with_blocks = one.model_copy(update={"evidence": blocks})
    found = pooled([with_blocks] * 4)  # four runs: half the width
    assert (found.requests, found.misses, found.block_s) == (1200, 120, 10.0)
    assert (found.block_low, found.block_high) == pytest.approx((0.87, 0.93))
    assert pooled([with_blocks, one]).block_low is None
    assert (found.low, found.high) == (evidence(1080, 1200, 0.9).low, evidence(1080, 1200, 0.9).high)


# The curve.


def test_the_curve_is_scikit_learns_isotonic_regression() -> None:
    rng = np.random.default_rng(5)
    probes = [
        made(factor, i, "bracket", int(rng.binomial(n, 0.99 - 0.1 * factor)), "keeps", int(n))
        for i, (factor, n) in enumerate(
            zip(np.linspace(0.5, 2.0, 12).tolist(), rng.integers(50, 500, 12), strict=True)
        )
    ]
    points = curve(probes, 10.0)
    theirs = IsotonicRegression(increasing=False).fit_transform(
        [p.factor for p in probes],
        [p.evidence.share for p in probes],
        sample_weight=[p.evidence.requests for p in probes],
    )
    assert [point.fitted for point in points] == pytest.approx(theirs.tolist())
    assert [point.share for point in points] != [point.fitted for point in points]
    assert [point.rate_rps for point in points] == pytest.approx([10 * p.factor for p in probes])


def test_a_pair_that_is_not_monotone_is_flagged_beyond_noise_only() -> None:
    def at(*goods: int) -> str | None:
        return not_monotone(
            curve([made(f, f, "bracket", good, "keeps") for f, good in enumerate(goods, 1)], 10.0)
        )

    assert at(280, 240, 290) == "80.0% kept the targets at 20 requests/s, but 96.7% at 30 requests/s"
    assert at(280, 262, 272) is None  # 87.3 % and 90.7 % of 300: bounds overlap
    assert at(290, 280, 100) is None


def test_wide_blocks_count_as_noise() -> None:
    low, high = made(1.0, 1, "bracket", 240, "fails"), made(2.0, 2, "bracket", 290, "keeps")
    wide = low.evidence.model_copy(update={"block_low": 0.6, "block_high": 0.97, "block_s": 10.0})
    assert not_monotone(curve([low, high], 10.0)) is not None
    assert not_monotone(curve([low.model_copy(update={"evidence": wide}), high], 10.0)) is None
    wide = high.evidence.model_copy(update={"block_low": 0.8, "block_high": 1.0, "block_s": 10.0})
    assert not_monotone(curve([low, high.model_copy(update={"evidence": wide})], 10.0)) is None


def test_runs_that_ended_early_count_only_where_there_are_no_others() -> None:
    bound = made(1.0, 1, "bracket", 269, "fails").model_copy(update={"ended_early": True})
    assert curve([bound], 10.0)[0].share == pytest.approx(269 / 300)
    assert curve([bound, made(1.0, 2, "confirm", 200, "fails")], 10.0)[0].share == pytest.approx(200 / 300)


# What one run says.


def record(row: int, **changes: Any) -> Record:
    """Every second one; first token after 0.1 s, 5 tokens 0.05 s apart."""
    at = float(row)
    fields: dict[str, Any] = {
        "t_sched": at, "want_in": 8, "want_out": 5, "status": "ok", "t_send": at, "n_in": 8, "n_out": 5,
        "t_chunk": tuple(at + 0.1 + 0.05 * i for i in range(5)), "t_done": at + 0.3, "n_out_source": "usage",
    }  # fmt: skip
    return Record(row, **(fields | changes))


def late(row: int, by_s: float) -> Record:
    return record(row, t_chunk=tuple(row + by_s + 0.05 * i for i in range(5)), t_done=row + by_s + 0.2)


def test_attainment_of_a_run() -> None:
    slo = Slo(ttft_s=0.5)
    good = [record(row) for row in range(270)]
    kept = judge_attainment([*good, *(late(row, 0.6) for row in range(270, 300))], slo)
    assert (kept.judged, kept.why, kept.evidence.misses) == ("keeps", "90.0% kept the targets", 30)
    missed = judge_attainment([*good[1:], *(late(row, 0.6) for row in range(269, 300))], slo)
    assert (missed.judged, missed.evidence.misses) == ("fails", 31)


def test_a_run_that_ended_early_is_at_most_as_good_as_it_says() -> None:
    slo = Slo(ttft_s=0.5)
    ended = [late(row, 0.6) if row < 31 else record(row, status="unsent", t_chunk=()) for row in range(300)]
    found = judge_attainment(ended, slo, ended_early=True)
    assert (found.judged, found.why, found.evidence.misses) == ("fails", "at most 89.7% kept the targets", 31)
    assert judge_attainment(ended, slo).evidence.misses == 300


def test_a_run_with_a_wide_gap_or_a_growing_queue_does_not_keep_its_rate() -> None:
    steady = [record(row) for row in range(300)]
    stalls = [
        record(row, t_chunk=(row + 0.1, row + 0.15, row + 0.2, row + 0.25, row + 0.5))
        for row in range(0, 300, 15)
    ]
    # 20 of 1,200 gaps are 0.25 s: over 1 %, while 93 % of the requests have none.
    stalled = sorted([*stalls, *(one for one in steady if one.row % 15)], key=lambda one: one.row)
    judged = judge_attainment(stalled, Slo(tbt_s=0.2))
    assert (judged.judged, judged.why) == ("fails", "93.3% kept the targets, but the P99 gap is 250 ms")
    assert judge_attainment(stalled, Slo(tbt_s=0.26)).judged == "keeps"
    growing = judge_attainment([late(row, 0.5 * row) for row in range(300)], Slo(ttft_s=1000.0))
    assert growing.judged == "fails"
    assert growing.why.startswith("100.0% kept the targets, but requests pile up")
    assert growing.growth == pytest.approx(2 / 3, rel=0.05)


def test_capacity_is_sarathis_rule() -> None:
    steady = [record(row) for row in range(300)]
    kept = judge_capacity(steady, 0.06)
    assert (kept.judged, kept.why) == ("keeps", "P99 gap 50 ms, median queueing delay 0.10 s")
    assert (kept.evidence.of, kept.evidence.requests, kept.evidence.target) == ("gaps", 1200, 0.99)
    assert judge_capacity(steady, 0.049).judged == "fails"
    queued = [late(row, 2.5) for row in range(300)]
    assert judge_capacity(queued, 0.06).judged == "fails"
    assert judge_capacity(queued, 0.06, idle_ttft_s=0.6).judged == "keeps"  # 1.9 s of it are queueing
    assert judge_capacity(queued, 0.06, idle_ttft_s=0.4).judged == "fails"
    assert (
        judge_capacity([late(row, 2.5) if row % 3 == 0 else record(row) for row in range(300)], 0.06).judged
        == "keeps"
    )
    lost = [record(row, status="http_429", t_chunk=()) if row % 50 == 0 else record(row) for row in range(300)]
    assert judge_capacity(lost, 0.06).why == "2.0% of the requests failed"
    growing = judge_capacity([late(row, 0.3 * row) for row in range(300)], 0.06, idle_ttft_s=44.0)
    assert growing.judged == "fails"
    assert growing.why.startswith("P99 gap 50 ms, median queueing delay 0.85 s, but requests pile up")


@pytest.mark.parametrize(
    ("rate_rps", "e2e_p99_s", "target", "seconds"),
    [
        (100, 5, 0.9, 60),
        (100, 50, 0.9, 150),
        (2, 5, 0.9, 143),
        (2, 5, 0.95, 288.5),
        (2, 5, 0.99, 1451),
        (5, 9, 1, 60),
    ],
)  # the reference: 286, 577 and 2,902 requests certify with 20 misses
def test_length_of_a_probe(rate_rps: float, e2e_p99_s: float, target: float, seconds: float) -> None:
    assert probe_seconds(rate_rps, e2e_p99_s, target) == seconds
