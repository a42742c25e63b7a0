"""`measure` as a whole: determinism, reasons for every null, odd traces, and the length classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.workload_traces import azure, chain, make_labels, make_trace, mooncake

from advisor.logs.trace import Totals, Unknown
from advisor.workload.measure import measure
from advisor.workload.model import Workload
from advisor.workload.traits import find_traits
from engine.errors import InputError


def null_paths(workload: Workload) -> set[str]:
    """The JSON paths of all nulls, as the JSON contract names them."""

    def walk(value: Any, path: str) -> set[str]:
        if value is None:
            return {path}
        if isinstance(value, dict):
            return set().union(*(walk(item, f"{path}.{name}".lstrip(".")) for name, item in value.items()))
        return set()

    paths = walk(workload.model_dump(exclude={"unknown"}), "")
    return {{"model": "log.models", "span_s": "log.span_s"}.get(path, path) for path in paths}


SUMS = Totals(
    "usage buckets",
    requests=100,
    prompt_tokens=5000,
    output_tokens=700,
    cached_tokens=1000,
    span_s=3600.0,
    model="m",
)
ODD = {
    "one request": make_trace([100], [10]),
    "no times": make_trace([100, 200], [10, 20], arrivals=[np.nan, np.nan]),
    "one stamp": make_trace([100] * 5, [10] * 5, arrivals=[0.0] * 5),
    "one length": make_trace([100] * 200, [10] * 200),
    "no outputs": make_trace([100] * 50, blocks=[[0]] * 50, size=100),
    "no tokens": make_trace([0, 0], [0, 0], blocks=[[], []], size=16),
    "no tokens in its blocks": make_trace([0, 0], [0, 0], blocks=[[0], [0]], size=16),
    "no prompt lengths": make_trace([-1, -1], [10, 20]),
    "some prompt lengths": make_trace([-1, 100, 200], [10, 20, 30], blocks=[[0], [0], [0, 1]], size=100),
    "no lengths at all": make_trace([-1] * 3),
    "sums": make_trace([], totals=SUMS),
    "sums of a few things": make_trace([], totals=Totals("engine statistics", cached_share=0.5)),
    "sums beside requests": make_trace([-1, -1], [10, 20], totals=SUMS),
    "no content": make_trace([9, 9], [1, 1], arrivals=[0.0, 0.0], cached_tokens=np.array([0, 4])),
    "one request with blocks": make_trace([100], [10], blocks=[[0, 1]], size=64, sessions=["a"]),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_traces_are_measured_and_every_null_is_explained(name: str):
    workload = measure(ODD[name])
    reasons = {entry.path: entry for entry in workload.unknown}
    assert null_paths(workload) <= set(reasons)
    assert all(entry.why and entry.how_to_get for entry in workload.unknown)
    assert Workload.model_validate_json(workload.model_dump_json()) == workload


def test_only_nulls_are_explained(shared: Path):
    workload = measure(mooncake(shared))
    assert {entry.path for entry in workload.unknown} == null_paths(workload)


def test_reasons_fit_the_trace(shared: Path):
    def why(workload: Workload, path: str) -> str:
        return next(entry.why for entry in workload.unknown if entry.path == path)

    plain = measure(azure(shared, "code"))
    # The reader says why for all of `sharing`.
    assert "Azure" in why(plain, "sharing.hit_rate_tokens")
    assert "Azure" in why(plain, "sharing.capacity_curve")
    assert "sharing" not in {entry.path for entry in plain.unknown}
    assert "hashes" in why(measure(make_trace([1])), "sharing.hit_rate_tokens")
    assert "session" in why(measure(make_trace([1], blocks=[[0]])), "sharing.within_session")
    assert "times" in why(measure(ODD["no times"]), "arrivals.rate_rps")
    assert "times" in why(measure(ODD["no times"]), "log.span_s")
    assert "tick of 3 s" in why(measure(mooncake(shared)), "arrivals.on_off_share")
    assert "output" in why(measure(ODD["no outputs"]), "classes")
    minute = measure(make_trace([1] * 60))  # arrivals span 59 s
    assert "span 59 s" in why(minute, "arrivals.dispersion.60")
    assert next(e for e in minute.unknown if e.path == "arrivals.peak_rps.60").how_to_get.endswith("60 s")


def test_sums_give_means_rate_and_cached_share():
    workload = measure(ODD["sums"])
    assert (workload.model, workload.requests, workload.span_s) == ("m", 100, 3600.0)
    assert (workload.arrivals.rate_rps, workload.sharing.cached_share) == (100 / 3600, 0.2)
    assert workload.lengths.prompt is not None
    assert workload.lengths.output is not None
    assert (workload.lengths.prompt.mean, workload.lengths.output.mean) == (50.0, 7.0)
    values = workload.model_dump(exclude={"unknown", "model", "requests", "span_s", "lengths"})
    values["arrivals"].pop("rate_rps")
    values["sharing"].pop("cached_share")

    def known(value: Any) -> bool:
        return any(map(known, value.values())) if isinstance(value, dict) else value not in (None, (), [])

    assert not known(values)
    reasons = {entry.why for entry in workload.unknown if entry.path != "log.models"}
    assert reasons == {"the log holds sums, not requests"}


def test_a_log_of_nothing_is_an_error_and_sums_without_a_count_are_none():
    with pytest.raises(InputError):
        measure(make_trace([]))
    workload = measure(ODD["sums of a few things"])
    assert workload.requests is None
    assert "requests" in {entry.path for entry in workload.unknown}


@pytest.mark.parametrize("name", ODD)
def test_no_number_is_made_of_unknown_lengths(name: str):
    """No -1 and nothing that a -1 or a 0 in its place would pull down."""
    workload, trace = measure(ODD[name]), ODD[name]
    text = workload.model_dump_json(exclude={"unknown"})
    assert ":-" not in text
    if np.any(trace.prompt_tokens >= 0):
        assert workload.lengths.prompt is not None
        assert workload.lengths.prompt.mean == trace.prompt_tokens[trace.prompt_tokens >= 0].mean()
    for found in workload.classes:
        assert found.prompt_p50 in trace.prompt_tokens or found.prompt_p50 == 150


@pytest.mark.parametrize("name", ODD)
def test_traits_need_no_length_of_each_request(name: str):
    traits = {trait.name: trait for trait in find_traits(measure(ODD[name]))}
    if measure(ODD[name]).lengths.prompt is None:
        assert traits["long prompts beside streaming users"].evidence["prompt_p90"] is None
        assert traits["low or spiky volume"].evidence["tokens_per_s"] is None
        assert traits["long shared prompts"].strength is None


def test_the_readers_reason_stands():
    told = Unknown("lengths.output", "the column is empty", "--map output=tokens_out")
    workload = measure(make_trace([1, 2], unknown=(told,)))
    (entry,) = [entry for entry in workload.unknown if entry.path == "lengths.output"]
    assert (entry.why, entry.how_to_get) == (told.why, told.how_to_get)
    counted = measure(make_trace([1, 2], [3, 4], unknown=(told,)))  # by a tokenizer, say
    assert not any(entry.path.startswith("lengths.output") for entry in counted.unknown)
    of_sums = measure(make_trace([1, 2], unknown=(told,), totals=SUMS))  # the mean is known, not the rest of it
    whys = {entry.path: entry.why for entry in of_sums.unknown if entry.path.startswith("lengths.output")}
    assert whys == dict.fromkeys([f"lengths.output.{name}" for name in ("p50", "p90", "p99", "max")], told.why)
    elsewhere = Unknown("log.prefix_basis", "no field names the tenant", "--map client=FIELD")
    assert "log.prefix_basis" in {e.path for e in measure(make_trace([1], unknown=(elsewhere,))).unknown}


def test_same_seed_gives_the_same_bytes(shared: Path):
    trace = mooncake(shared)
    assert measure(trace, seed=4).model_dump_json() == measure(trace, seed=4).model_dump_json()
    assert measure(trace, seed=4).arrivals.cv_spread != measure(trace, seed=5).arrivals.cv_spread


def test_cache_tokens_are_added_to_the_curve():
    trace = make_trace([32] * 4, blocks=chain([[0, 1]] * 4), size=16)
    asked = measure(trace, cache_tokens=[1_000_000, 20]).sharing.capacity_curve
    rates = {point.tokens: point.hit_rate_tokens for point in asked}
    assert rates[1_000_000] == pytest.approx(0.75)
    assert rates[20] == pytest.approx(3 * 16 / 128)  # one whole block
    assert list(rates) == sorted(rates)


def test_uncached_prompts():
    trace = make_trace([32, 32, 48], blocks=chain([[0, 1], [0, 1], [0, 1, 2]]), size=16)
    uncached = measure(trace).uncached_prompt
    assert uncached is not None
    assert (uncached.mean, uncached.p50, uncached.max) == (16.0, 16.0, 32.0)  # of 32, 0, 16


def test_one_model_only():
    assert measure(make_trace([1, 1], model=make_labels(["m", "m"]))).model == "m"
    with pytest.raises(InputError) as failure:
        measure(make_trace([1, 1], model=make_labels(["m", "n"])))
    assert failure.value.hint == "add --where model=m"
    with pytest.raises(InputError):
        measure(make_trace([]))


def test_three_classes_are_told_apart():
    # Lognormal groups far apart in log lengths, 20 % wide: 500 chats, 300 documents, 200 completions.
    rng = np.random.default_rng(0)
    sizes = np.repeat([500, 300, 200], [500, 300, 200])
    groups = {500: (800, 400), 300: (20_000, 150), 200: (1500, 8)}
    prompts, outputs = (
        np.array([rng.lognormal(np.log(groups[s][side]), 0.2) for s in sizes]).astype(np.int64)
        for side in (0, 1)
    )
    classes = measure(make_trace(prompts, outputs)).classes
    assert [found.share for found in classes] == pytest.approx([0.5, 0.3, 0.2], abs=0.005)
    assert [found.prompt_p50 for found in classes] == pytest.approx([800, 20_000, 1500], rel=0.05)
    assert [found.output_p50 for found in classes] == pytest.approx([400, 150, 8], rel=0.13)
    assert sum(found.prompt_token_share for found in classes) == pytest.approx(1.0)
    assert classes[1].prompt_token_share == pytest.approx(prompts[500:800].sum() / prompts.sum(), abs=0.01)


def test_few_or_equal_requests_are_one_class():
    assert [found.share for found in measure(ODD["one length"]).classes] == [1.0]
    assert [found.share for found in measure(make_trace([10, 5000], [1, 900])).classes] == [1.0]
    assert measure(ODD["no outputs"]).classes == ()
