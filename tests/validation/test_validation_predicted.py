"""Predictions of a replay, against closed forms of a few requests on step times of round numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.workload_traces import chain, make_trace

from advisor.advice.plan import Candidate, Plan, StepTimeUse
from advisor.advice.target import Target
from advisor.logs.trace import Trace
from advisor.simulation.slo import Slo
from advisor.validation.metrics import Score
from advisor.validation.miss import attribution
from advisor.validation.planned import Planned, planned
from advisor.validation.predicted import Compared, Predicted, Served, predict
from advisor.validation.record import Record
from advisor.validation.window import Window, select
from engine.config import PoolConfig, RouterConfig
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.files import Key

BASE, PER_NEW = 0.010, 0.0001  # seconds: of a step, and of a prompt token in it
KEY = Key("advise", "1", "h100-sxm", "llama-3.1-8b", "bfloat16", 1)
TARGET = Target(model=KEY.model, gpu=KEY.device, gpus=1, slo=Slo(ttft_s=0.0255, tpot_s=0.02))


def served(
    error_p90: float | None = None, target: Target = TARGET, router: RouterConfig | None = None, **changes: Any
) -> Served:
    """One instance with room for everything; a prompt is computed in one step."""
    pool = PoolConfig(token_budget=8192, kv_tokens=100_000, max_seqs=64)
    use = StepTimeUse(source="calibrated", error_p90=error_p90, key=str(KEY))
    router = router or RouterConfig()
    plan = Plan(
        target=target,
        step_time=use,
        candidates=(Candidate(name="one", pools=(pool,), router=router, gpus=1),),
        chosen="one",
        verdict="change",
        runs_on={"advise": "yes"},
    )
    steps = CalibratedStepTime(Coefficients(BASE, 0, PER_NEW, 0, 0, 0), error_p90=error_p90)
    return replace(Served(plan, plan.engine_config(), {KEY: steps}), **changes)


def replayed(
    window: Window, *, ttft_s: float, tpot_s: float, cached: Sequence[int] | None = None
) -> list[Record]:
    """Measured records of the judged requests, all alike."""
    rows = np.flatnonzero(window.judged).tolist()
    return [
        _measured(window, row, ttft_s, tpot_s, None if cached is None else cached[i])
        for i, row in enumerate(rows)
    ]


def _measured(window: Window, row: int, ttft_s: float, tpot_s: float, cached: int | None) -> Record:
    due, prompt, output = (
        float(window.due_s[row]),
        *(int(column[row]) for column in (window.trace.prompt_tokens, window.trace.output_tokens)),
    )
    return Record(
        row=row, t_sched=due, want_in=prompt, want_out=output, status="ok", t_send=due,
        t_chunk=tuple(due + ttft_s + tpot_s * i for i in range(output)), t_done=due + 1.0, n_in=prompt,
        n_cached=cached, n_out=output, n_out_source="usage",
    )  # fmt: skip


def prediction(window: Window, records: Sequence[Record], what: Served) -> Predicted:
    found = predict(window, records, what)
    assert isinstance(found, Predicted), found
    return found


def by_metric(found: Predicted) -> dict[str, Compared]:
    return {row.metric: row for row in found.rows}


def apart(prompt: int = 100, output: int = 11, requests: int = 20) -> Trace:
    """Requests that never meet."""
    return make_trace([prompt] * requests, [output] * requests, arrivals=np.arange(requests) * 1.0)


def test_requests_that_never_meet_take_what_their_steps_take() -> None:
    window = select(apart(), "all")
    found = prediction(window, replayed(window, ttft_s=0.025, tpot_s=0.008), served())
    rows = by_metric(found)
    # 100 prompt tokens: 0.010 + 100 x 0.0001; then ten decode steps of 0.010.
    for p in ("p50", "p90", "p99"):
        assert rows[f"ttft_{p}_s"].predicted == pytest.approx(0.020)
        assert rows[f"tpot_{p}_s"].predicted == pytest.approx(0.010)
        assert rows[f"e2e_{p}_s"].predicted == pytest.approx(0.120)
    assert rows["ttft_p50_s"].measured == pytest.approx(0.025)
    assert rows["ttft_p50_s"].error == pytest.approx(-0.20)
    assert rows["tpot_p90_s"].error == pytest.approx(0.25)
    assert rows["attainment"].predicted == rows["attainment"].measured == 1.0
    assert rows["attainment"].error == 0.0
    assert rows["good_rate_rps"].predicted == pytest.approx(20 / 19)
    assert rows["hit_rate_tokens"].measured is rows["hit_rate_tokens"].error is None
    assert found.source == f"calibrated: {KEY}"
    assert found.step_error_p90 is found.low_attainment is found.high_attainment is None


def test_step_times_longer_and_shorter_by_their_error_move_attainment() -> None:
    """TTFT 20 ms against 25.5 ms asked: 30 % longer steps miss all, and at 24 ms they keep all."""
    window = select(apart(), "all")
    records = replayed(window, ttft_s=0.020, tpot_s=0.010)
    found = prediction(window, records, served(0.30))
    assert (found.low_attainment, found.high_attainment) == (0.0, 1.0)
    assert prediction(window, records, served(0.20)).low_attainment == 1.0
    late = served(0.30, TARGET.model_copy(update={"slo": Slo(ttft_s=0.015, tpot_s=0.02)}))
    found = prediction(window, records, late)
    assert (found.low_attainment, found.high_attainment) == (0.0, 1.0)
    assert by_metric(found)["attainment"].predicted == 0.0


def turns(**columns: Any) -> Trace:
    """A second turn, due after 50 ms, whose prompt shows the 64 tokens of the first and its reply of 41."""
    first = [1, 2, 3, 4]
    blocks = chain([first, [*first, 5, 6, 7, 8, 9, 10]])
    return make_trace(
        [64, 160], [41, 2], arrivals=[0.0, 0.05], blocks=blocks, size=16, sessions=["a", "a"], **columns
    )


def test_a_reply_of_the_log_is_in_no_cache() -> None:
    """The first turn ends after 64 x 0.0001 + 0.41 s; the second, a second later, hits its prompt alone."""
    trace = replace(turns(), arrival_s=np.array([0.0, 1.0]))
    window = select(trace, "all")
    rows = by_metric(prediction(window, replayed(window, ttft_s=0.02, tpot_s=0.01, cached=[0, 64]), served()))
    assert rows["hit_rate_tokens"].predicted == rows["hit_rate_tokens"].measured == pytest.approx(64 / 224)
    assert rows["hit_rate_tokens"].error == 0.0


def test_a_held_turn_is_sent_when_the_one_before_has_ended() -> None:
    window = select(turns(), "all")
    assert window.parent.tolist() == [-1, 0]
    # Of a copied session the window alone knows who waits for whom.
    window = replace(window, trace=replace(window.trace, session=None, blocks=None))
    records = replayed(window, ttft_s=0.02, tpot_s=0.01)
    held, free = (by_metric(prediction(window, records, served(causal=causal))) for causal in (True, False))
    # 64 tokens: 0.0164 s; the 160 of the second turn, alone or in a step with a decode: 0.0260 s.
    assert held["ttft_p99_s"].predicted == pytest.approx(0.0164 + 0.99 * 0.0096)
    # Sent at 50 ms, it waits for the step that began at 46.4 ms: 6.4 ms more.
    assert free["ttft_p99_s"].predicted == pytest.approx(0.0164 + 0.99 * (0.0064 + 0.0096))


def test_the_warm_up_is_simulated_in_front_and_not_judged() -> None:
    shared = chain([[1, 2, 3, 4, 5, 6, 7, 10 + i] for i in range(4)])
    trace = make_trace([128] * 4, [2] * 4, arrivals=[0.0, 10.0, 20.0, 30.0], blocks=shared, size=16)
    cold, warm = select(trace, "20..31"), select(trace, "20..31", warm_up_s=20)
    assert (int(cold.judged.sum()), len(cold), int(warm.judged.sum()), len(warm)) == (2, 2, 2, 4)
    rates = [
        by_metric(prediction(window, replayed(window, ttft_s=0.02, tpot_s=0.01), served()))["hit_rate_tokens"]
        for window in (cold, warm)
    ]
    assert [one.predicted for one in rates] == [pytest.approx(112 / 256), pytest.approx(224 / 256)]


def test_classes_are_judged_by_their_own_targets_in_both() -> None:
    window = select(apart(), "all")
    records = [
        replace(one, slo_class="batch" if i % 2 else None)
        for i, one in enumerate(replayed(window, ttft_s=0.022, tpot_s=0.01))
    ]
    for limit, predicted in ((0.021, 1.0), (0.019, 0.5)):
        row = by_metric(prediction(window, records, served(targets={"batch": Slo(ttft_s=limit)})))["attainment"]
        assert (row.predicted, row.measured) == (predicted, 0.5)
        assert row.error == predicted - 0.5


def test_a_largest_gap_is_the_simulated_one() -> None:
    """A second prompt of 300 tokens comes while the first decodes: one gap of 0.040 s among gaps of 0.010."""
    trace = make_trace([100, 300], [31, 2], arrivals=[0.0, 0.1])
    window = select(trace, "all")
    slos = [Slo(tbt_s=limit) for limit in (0.039, 0.041)]
    records = replayed(window, ttft_s=0.02, tpot_s=0.01)
    found = [
        prediction(window, records, served(target=TARGET.model_copy(update={"slo": slo}))).rows[0].predicted
        for slo in slos
    ]
    assert found == [0.5, 1.0]


def test_what_finds_the_queue_full_is_a_miss() -> None:
    window = select(make_trace([100] * 4, [11] * 4, arrivals=[0.0] * 4), "all")
    what = served()
    config = what.config.model_copy(update={"server": what.config.server.model_copy(update={"max_queued": 1})})
    found = prediction(window, replayed(window, ttft_s=0.02, tpot_s=0.01), replace(what, config=config))
    assert found.rows[0].predicted == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"edited": True}, "edited"),
        ({"fault": "decode-kill"}, "decode-kill"),
        ({"stack": "vllm"}, "vllm"),
        ({"stack": "unknown"}, "unknown"),
        ({"calibrations": {}}, "not here any more"),
    ],
)
def test_why_nothing_is_predicted(changes: dict[str, Any], word: str) -> None:
    window = select(apart(), "all")
    found = predict(window, replayed(window, ttft_s=0.02, tpot_s=0.01), served(**changes))
    assert isinstance(found, str)
    assert word in found


def test_a_plan_without_a_choice_predicts_nothing() -> None:
    what = served()
    window = select(apart(), "all")
    records = replayed(window, ttft_s=0.02, tpot_s=0.01)
    assert isinstance(
        predict(window, records, replace(what, plan=what.plan.model_copy(update={"chosen": None}))), str
    )


def test_a_plan_for_another_engine_takes_a_newer_calibration() -> None:
    """It was made on published or roofline step times; the calibration from outside is of its very engine."""
    what = served(target=TARGET.model_copy(update={"stack": "vllm"}), stack="unknown")
    plan = what.plan.model_copy(
        update={"step_time": StepTimeUse(source="roofline", error_p90=0.4, key="guess")}
    )
    theirs = replace(KEY, engine="vllm")
    (steps,) = what.calibrations.values()
    before = planned(plan, what.config, {})
    after = planned(plan, what.config, {theirs: steps})
    assert isinstance(before, Planned)
    assert isinstance(after, Planned)
    assert before.use.source != after.use.source == "calibrated"
    ours = planned(plan.model_copy(update={"target": TARGET}), what.config, what.calibrations)
    assert isinstance(ours, Planned)
    assert ours.use.source == "roofline"  # what it was made with


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({}, ": advise calibrate"),
        ({"url": "http://h:8000"}, ": advise calibrate --url http://h:8000"),
        ({"emulates": "h100-sxm"}, "advise launch --emulate h100-sxm --time-scale K"),
    ],
)
def test_over_ten_per_cent_says_what_to_do(changes: dict[str, Any], command: str) -> None:
    window = select(apart(), "all")
    near = replayed(window, ttft_s=0.0212, tpot_s=0.0101)
    assert prediction(window, near, served(**changes)).advice is None
    off = prediction(window, replayed(window, ttft_s=0.0200, tpot_s=0.0125), served(**changes))
    assert off.advice is not None
    assert "tpot_p50_s is off by -20 %" in off.advice
    assert command in off.advice


def test_a_hit_rate_that_is_off_is_named() -> None:
    window = select(replace(turns(), arrival_s=np.array([0.0, 1.0])), "all")
    records = replayed(window, ttft_s=0.03, tpot_s=0.01, cached=[0, 0])
    advice = prediction(window, records, served()).advice
    assert advice is not None
    assert "cache hit rate by +29 points" in advice


def test_misses_by_what_was_missed() -> None:
    misses = {
        "ttft": 1, "tpot": 2, "ttft+tpot": 4, "tbt": 8, "ttft+tbt": 16, "tpot+tbt": 32, "ttft+tpot+tbt": 64,
        "http_429": 128, "wrong_length": 256, "unsent": 512,
    }  # fmt: skip
    scored = Score(requests=2000, good=977, attainment=0.5, good_rate_rps=None, misses=misses)
    assert attribution(scored) == {"TTFT only": 1, "TPOT only": 34, "both": 84, "TBT only": 8, "error": 896}
