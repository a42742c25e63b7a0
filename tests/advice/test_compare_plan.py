"""Drift since a plan (rule 12): each value past its tolerance and just below, and what must be no drift."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.compared import analysis, over
from helpers.workload_traces import azure, make_blocks, make_labels, make_trace, mooncake
from rich.console import Console

from advisor.advice.drift import PlanDrift, compare, compare_to, load_analysis
from advisor.advice.target import Target
from advisor.deploy.files import write_plan_files
from advisor.logs.trace import Trace
from advisor.report.drift import show_drift
from advisor.simulation.slo import Slo
from advisor.workload.measure import measure
from engine.errors import InputError


def target(**slo: Any) -> Target:
    return Target(
        model="smollm2-135m-instruct", gpu="cpu", gpus=2, memory_bytes=16 * 10**9, stack_version="0.1.0",
        slo=Slo(**({"ttft_s": 3, "tpot_s": 0.15} | slo)),
    )  # fmt: skip


SIZE = 16
PREFIX = list(range(400))  # blocks that the first request brings


def traffic(*hours: dict[str, float], seconds: float = 3600.0) -> Trace:
    """Requests at even gaps, hour by hour: `rate`, `prompt` tokens, `hit` (the share seen before), `output`."""
    arrivals, rows, prompts, outputs = [0.0], [PREFIX], [SIZE * len(PREFIX)], [100]
    fresh = len(PREFIX)
    for number, hour in enumerate(hours):
        values = {"rate": 0.5, "prompt": 1600, "hit": 0.5, "output": 100} | hour
        count, length = round(values["rate"] * seconds), round(values["prompt"] / SIZE)
        shared = round(values["hit"] * length)
        for index in range(count):
            arrivals.append((number + (index + 0.5) / count) * seconds)
            rows.append([*PREFIX[:shared], *range(fresh, fresh + length - shared)])
            fresh += length - shared
        prompts += [SIZE * length] * count
        outputs += [round(values["output"])] * count
    arrivals.append(len(hours) * seconds)  # the end of the last hour
    rows.append(PREFIX)
    trace = make_trace([*prompts, prompts[0]], [*outputs, 100], arrivals=arrivals)
    return replace(trace, blocks=make_blocks(rows, SIZE))


PLAN = analysis(traffic({}, {}))


@pytest.mark.parametrize(
    ("changed", "same", "moved"),
    [
        ({"output": 126}, {"output": 124}, {"output_mean"}),
        ({"output": 74}, {"output": 76}, {"output_mean"}),
        ({"rate": 0.63}, {"rate": 0.62}, {"rate_rps"}),
        ({"rate": 0.37}, {"rate": 0.38}, {"rate_rps"}),
        ({"prompt": 2032}, {"prompt": 1968}, {"uncached_mean"}),
        ({"hit": 0.64, "prompt": 2222}, {"hit": 0.61, "prompt": 2051}, {"hit_rate_tokens"}),  # 800 uncached
        ({"hit": 0.36, "prompt": 1250}, {"hit": 0.39, "prompt": 1312}, {"hit_rate_tokens"}),
    ],
)
def test_windows_past_a_quarter_are_enough(
    changed: dict[str, float], same: dict[str, float], moved: set[str]
) -> None:
    found = compare(PLAN, traffic({}, changed, {}, {}))
    assert found.replan
    assert over(found) == moved
    (move,) = [move for move in found.moves if move.over]
    assert 3600.0 <= move.from_s < 7200.0
    assert (found.windows, found.window_s) == (12, 1200.0)
    assert move.since_s == 3600.0
    still = compare(PLAN, traffic({}, same, {}, {}))
    assert not still.replan
    assert over(still) == set()


def test_a_move_says_what_was_and_is() -> None:
    moves = {move.name: move for move in compare(PLAN, traffic({"output": 150})).moves}
    assert list(moves) == ["uncached_mean", "output_mean", "rate_rps", "hit_rate_tokens"]
    output = moves["output_mean"]
    assert (output.was, output.now) == (pytest.approx(100), pytest.approx(150, rel=0.001))
    assert output.change == pytest.approx(0.5, abs=0.001)
    assert moves["uncached_mean"].was == pytest.approx(800, rel=0.01)
    assert moves["rate_rps"].now == pytest.approx(0.5, rel=0.002)  # the first window has one more
    assert not moves["rate_rps"].over


def test_since_when_is_the_first_window_and_not_the_farthest() -> None:
    found = compare(PLAN, traffic({}, {"output": 130}, {"output": 200}, {}))
    (move,) = [move for move in found.moves if move.over]
    assert (move.name, move.since_s) == ("output_mean", 3600.0)
    assert 7200.0 <= move.from_s < 10_800.0


def test_hours_of_few_requests_differ_by_chance() -> None:
    """Poisson arrivals, 15 an hour, beside a plan of two such hours: a day of them, twenty times."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        before, now = (np.sort(rng.uniform(0, hours * 3600, rng.poisson(15 * hours))) for hours in (2.2, 24))
        plan, log = (make_trace([10] * len(at), [10] * len(at), arrivals=at) for at in (before, now))
        assert over(compare(analysis(plan), log)) == set(), seed


def test_few_requests_that_differ_are_noise() -> None:
    # 36 requests an hour with outputs of 0 or 200: a standard error of 17 %, and three of them are 50 %.
    def trace(ones: int) -> Trace:
        quiet = traffic({"rate": 0.01})
        outputs = np.random.default_rng(0).permutation(np.where(np.arange(len(quiet)) < ones, 200, 0))
        return replace(quiet, output_tokens=outputs)

    plan = analysis(trace(19))
    assert "output_mean" not in over(compare(plan, trace(26)))  # + 37 %
    assert "output_mean" not in over(compare(plan, trace(29)))  # + 53 %; the plan has one, too
    assert "output_mean" in over(compare(plan, trace(31)))  # + 63 %, and a smaller error


def test_day_and_night_are_no_drift() -> None:
    day = [
        {"rate": 0.45 - 0.35 * np.cos(2 * np.pi * hour / 24), "prompt": 160, "output": 10} for hour in range(24)
    ]
    plan = analysis(traffic(*day))
    assert not compare(plan, traffic(*day)).replan
    assert not compare(plan, traffic(*day[13:], *day[:13])).replan
    busier = compare(plan, traffic(*[{**hour, "rate": 1.3 * hour["rate"]} for hour in day]))
    assert over(busier) == {"rate_rps"}
    rate = next(move for move in busier.moves if move.name == "rate_rps")
    assert (rate.from_s, rate.low, rate.high) == (
        12 * 3600.0,
        pytest.approx(0.1, rel=0.01),
        pytest.approx(0.8, rel=0.01),
    )


def test_a_cache_with_more_time_to_fill_is_no_drift() -> None:
    # Every prompt comes four times, at random in six hours: the longer the log, the more of them hit.
    rng = np.random.default_rng(0)
    places = np.sort(rng.uniform(0, 6 * 3600, 12_000))
    prompt = rng.permutation(np.repeat(np.arange(3000), 4))
    rows = [[10 * p + block for block in range(10)] for p in prompt.tolist()]
    trace = replace(make_trace([160] * 12_000, [50] * 12_000, arrivals=places), blocks=make_blocks(rows, SIZE))
    first = trace.take(np.flatnonzero(places < places[0] + 3600))
    whole, hour = measure(trace).sharing.hit_rate_tokens, measure(first).sharing.hit_rate_tokens
    assert whole > 2 * hour  # judged naively, the hit rate has moved
    assert not compare(analysis(first), trace).replan
    assert not compare(analysis(trace), first).replan
    minutes = trace.take(np.flatnonzero(places < places[0] + 900))
    assert not compare(analysis(trace), minutes).replan


def test_public_traces_do_not_drift_from_themselves(shared: Path) -> None:
    conversations = mooncake(shared)
    plan = analysis(conversations)
    assert not compare(plan, conversations).replan
    assert not compare(plan, conversations.take(np.flatnonzero(conversations.arrival_s < 1200))).replan
    # expected_stats.json: conversations of 1,155 and 211 tokens at 5.5/s, code of 2,048 and 28 at 2.6/s.
    code = compare(analysis(azure(shared, "conv")), azure(shared, "code"))
    assert over(code) == {"prompt_mean", "output_mean", "rate_rps"}
    moves = {move.name: move for move in code.moves}
    assert [moves[name].was for name in over(code)] == [
        pytest.approx({"prompt_mean": 1154.7, "output_mean": 211.1, "rate_rps": 5.530}[name], abs=0.06)
        for name in over(code)
    ]
    # Five full windows of ten minutes; which is farthest, straight from the columns.
    trace = azure(shared, "code")
    window = trace.arrival_s // 600
    prompts = [trace.prompt_tokens[window == at].mean() for at in range(5)]
    assert (code.windows, code.window_s) == (5, 600.0)
    assert moves["prompt_mean"].now == pytest.approx(max(prompts))
    assert moves["prompt_mean"].from_s == 600.0 * int(np.argmax(prompts))
    assert moves["rate_rps"].now == pytest.approx(min((window == at).sum() / 600 for at in range(5)))


def test_logs_of_less_than_a_window_are_judged_as_a_whole() -> None:
    plan = analysis(traffic({}, seconds=900.0))
    found = compare(plan, traffic({"output": 130}, seconds=900.0))
    assert (found.windows, found.window_s, over(found)) == (0, 1200.0, {"output_mean"})
    assert any("as a whole" in note for note in found.notes)


def test_a_plan_for_twice_the_rate_expects_it() -> None:
    doubled = PLAN.model_copy(
        update={"findings": tuple(f for f in analysis(traffic({}, {}), wanted=target()).findings)}
    )
    rates = [f.evidence["rate_rps"] for f in doubled.findings if f.code == "ADV802"]
    assert rates == [pytest.approx(0.5, rel=0.001)]
    twice = [
        f.model_copy(update={"evidence": f.evidence | {"rate_rps": 1.0}}) if f.code == "ADV802" else f
        for f in doubled.findings
    ]
    faster = traffic({"rate": 1.0}, {"rate": 1.0})
    assert over(compare(doubled, faster)) == {"rate_rps"}
    assert not compare(doubled.model_copy(update={"findings": tuple(twice)}), faster).replan


def with_latencies(slow: Sequence[float], missing: float = 0.0, status: bool = False) -> Trace:
    """Hours in each of which this share of requests is slow (or failed); a share has no latencies at all."""
    trace = traffic(*[{} for _ in slow])
    place = np.minimum(trace.arrival_s // 3600, len(slow) - 1).astype(int)
    turn = np.arange(len(trace)) % 100 / 100
    bad = turn < np.array(slow)[place]
    ttft_s = np.where(bad & (not status), 4.0, 1.0)
    ttft_s[turn >= 1 - missing] = np.nan
    words = ["error" if b and status else "ok" for b in bad]
    return replace(trace, ttft_s=ttft_s, e2e_s=ttft_s + 99 * 0.1, status=make_labels(words))


WITH_TARGET = analysis(traffic({}, {}), wanted=target())


@pytest.mark.parametrize("status", [False, True])
def test_attainment_missed_in_two_hours_in_a_row(status: bool) -> None:
    # TTFT 4 s against a target of 3 s; TPOT 0.1 s against 0.15 s; attainment 0.90.
    two = compare(WITH_TARGET, with_latencies([0.0, 0.12, 0.2, 0.0], status=status))
    assert over(two) == {"attainment"}
    move = two.moves[-1]
    assert (move.was, move.now, move.from_s) == (0.9, pytest.approx(0.88, abs=0.002), 3600.0)
    assert move.since_s == 3600.0
    apart = compare(WITH_TARGET, with_latencies([0.0, 0.12, 0.0, 0.2], status=status))
    assert not apart.replan
    assert not compare(WITH_TARGET, with_latencies([0.09, 0.09], status=status)).replan


def test_a_slow_stream_misses_its_target_too() -> None:
    good = with_latencies([0.0, 0.0])
    slow = replace(good, e2e_s=good.ttft_s + 99 * 0.16)
    assert over(compare(WITH_TARGET, slow)) == {"attainment"}
    assert not compare(WITH_TARGET, good).replan
    short = replace(slow, output_tokens=np.ones(len(slow), dtype=np.int64))  # one token has no gap
    assert "attainment" not in over(compare(WITH_TARGET, short))


def test_attainment_that_cannot_be_judged_is_said() -> None:
    for trace in (traffic({}, {}), with_latencies([0.5]), with_latencies([0.5, 0.5], missing=0.97)):
        found = compare(WITH_TARGET, trace)
        assert "attainment" not in {move.name for move in found.moves}
        assert any("attainment is not judged" in note for note in found.notes)


def test_another_model_is_refused() -> None:
    trace = traffic({}, {})
    labelled = replace(trace, model=make_labels(["qwen"] * len(trace)))
    plan = analysis(trace, "llama", target())
    with pytest.raises(InputError) as refused:
        compare(plan, labelled)
    assert "llama" in refused.value.message
    assert "qwen" in refused.value.message
    assert refused.value.hint.startswith("--where model=llama")
    for name in ("llama", "smollm2-135m-instruct"):  # that of the plan's log, and the one that it deploys
        assert not compare(plan, replace(trace, model=make_labels([name] * len(trace)))).replan
    assert any("name its model" in note for note in compare(plan, trace).notes)


def test_logs_without_times_are_refused() -> None:
    untimed = make_trace([10] * 3, arrivals=[np.nan] * 3)
    with pytest.raises(InputError, match="arrival times"):
        compare(PLAN, untimed)
    with pytest.raises(InputError, match="arrival times"):
        compare(analysis(untimed), traffic({}))


def test_block_sizes_that_differ_leave_whole_prompts() -> None:
    trace = traffic({}, {})
    found = compare(PLAN, replace(trace, blocks=replace(trace.blocks, size=32)))
    assert [move.name for move in found.moves] == ["prompt_mean", "output_mean", "rate_rps"]
    assert any("--block-size" in note for note in found.notes)


def test_a_hit_rate_that_hardly_matters_is_no_drift() -> None:
    plan = analysis(traffic({"hit": 0.02}, {"hit": 0.02}))
    assert "hit_rate_tokens" not in over(compare(plan, traffic({"hit": 0.04}, {"hit": 0.04})))
    assert "hit_rate_tokens" in over(compare(plan, traffic({"hit": 0.07}, {"hit": 0.07})))


def test_the_plan_is_read_from_its_folder_file_or_json(tmp_path: Path) -> None:
    trace = traffic({}, {})
    out, printed = tmp_path / "out", tmp_path / "printed.json"
    write_plan_files(out, WITH_TARGET, lambda path: path.write_text("{}"))
    printed.write_text(WITH_TARGET.model_dump_json())
    for path in (out, out / "plan.json", printed):
        assert load_analysis(path) == WITH_TARGET
        assert not compare_to(path, trace).replan


def test_a_plan_of_an_older_version_is_read_too(tmp_path: Path) -> None:
    old = json.loads(WITH_TARGET.model_dump_json())
    for name in ("sessions", "clients", "drift", "latency"):
        del old[name]
    (tmp_path / "plan.json").write_text(json.dumps(old))
    assert not compare_to(tmp_path, traffic({}, {})).replan
    assert compare_to(tmp_path, traffic({}, {"rate": 0.7})).replan


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"plan": "no"}', "\x00"])
def test_what_is_no_plan_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(InputError):
        load_analysis(path)
    path.write_text(content)
    with pytest.raises(InputError) as refused:
        load_analysis(path)
    assert (refused.value.where, refused.value.hint) == (str(path), "--compare-to advise-out")


def test_the_screen_says_what_moved_and_what_to_do() -> None:
    def shown(drift: PlanDrift) -> str:
        screen = io.StringIO()
        show_drift(Console(width=120, file=screen), drift)
        return screen.getvalue()

    text = shown(compare(PLAN, traffic({}, {"output": 150})))
    assert "plan again: output since 60 min" in text
    assert "150 tokens" in text
    assert "+50%" in text
    assert "6 windows of 20 min" in text
    fits = shown(compare(PLAN, traffic({}, {})))
    assert "the plan still fits" in fits
    assert "plan again" not in fits
