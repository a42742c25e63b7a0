"""`measure` as a whole: determinism, reasons for every null, odd traces, and the length classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.workload_traces import azure, chain, make_labels, make_trace, mooncake

from advisor.logs.trace import Unknown
from advisor.workload.measure import measure
from advisor.workload.model import Workload
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


ODD = {
    "one request": make_trace([100], [10]),
    "no times": make_trace([100, 200], [10, 20], arrivals=[np.nan, np.nan]),
    "one stamp": make_trace([100] * 5, [10] * 5, arrivals=[0.0] * 5),
    "one length": make_trace([100] * 200, [10] * 200),
    "no outputs": make_trace([100] * 50, blocks=[[0]] * 50, size=100),
    "no tokens": make_trace([0, 0], [0, 0], blocks=[[], []], size=16),
    "no tokens in its blocks": make_trace([0, 0], [0, 0], blocks=[[0], [0]], size=16),
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


def test_the_readers_reason_stands():
    told = Unknown("lengths.output", "the column is empty", "--map output=tokens_out")
    workload = measure(make_trace([1, 2], unknown=(told,)))
    (entry,) = [entry for entry in workload.unknown if entry.path == "lengths.output"]
    assert (entry.why, entry.how_to_get) == (told.why, told.how_to_get)
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
