"""Findings about who sends the traffic and how it changes, from measured traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from helpers.workload_traces import azure, make_labels, make_trace, mooncake

from advisor.advice.advise import advise
from advisor.advice.finding import Finding
from advisor.advice.resolve import NoTarget
from advisor.logs.trace import FloatColumn, Trace
from advisor.workload.measure import measure

ABOUT_TRAFFIC = ("ADV405", "ADV906", "ADV907", "ADV908")


def found(trace: Trace) -> dict[str, Finding]:
    """The findings about traffic by code, without a target."""
    advice = advise(measure(trace), NoTarget("none was given", "--here"))
    return {finding.code: finding for finding in advice.findings if finding.code in ABOUT_TRAFFIC}


def poisson(rates: FloatColumn, width_s: float = 3600.0) -> FloatColumn:
    """Arrivals of a Poisson process with a rate for each window."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rates * width_s)
    starts = np.repeat(np.arange(len(rates)) * width_s, counts)
    return np.sort(starts + rng.uniform(0, width_s, len(starts)))


def test_only_azure_code_has_capped_prompts(shared: Path) -> None:
    # traces/README.md: 322 of 8,819 prompts end at 7,435 to 7,437 tokens, the longest.
    capped = found(azure(shared, "code"))
    assert set(capped) == {"ADV906"}
    assert capped["ADV906"].evidence == {"at": 7437, "share": 0.0365121, "median": 1469.0}
    assert found(azure(shared, "conv")) == {}
    assert found(mooncake(shared)) == {}


def test_a_quiet_night_asks_for_the_busier_part() -> None:
    rates = np.repeat([0.1, 0.5, 0.1], [8, 10, 6])
    arrivals = poisson(np.append(rates, 0.1))
    changed = found(make_trace([1] * len(arrivals), arrivals=arrivals))
    assert set(changed) == {"ADV907"}
    evidence = changed["ADV907"].evidence
    assert (evidence["busiest_from_s"], evidence["busiest_to_s"]) == (8 * 3600.0, 18 * 3600.0)
    # 0.5 over a mean of (15 x 0.1 + 10 x 0.5) / 25 = 0.26.
    assert changed["ADV907"].next.startswith("advise analyze LOG --rate 1.9")
    assert found(make_trace([1] * 6000, arrivals=poisson(np.full(25, 0.3))[:6000])) == {}


def test_idle_nights_are_not_rare_requests() -> None:
    idle = poisson(np.append(np.tile(np.repeat([1.0, 0.0], [4, 4]), 3), 1.0))
    assert "ADV908" in found(make_trace([1] * len(idle), arrivals=idle))
    rare = poisson(np.full(49, 0.5 / 3600))  # three hours of five have no request, by chance
    workload = measure(make_trace([1] * len(rare), arrivals=rare))
    assert workload.drift.idle_share > 0.4
    assert "ADV908" not in found(make_trace([1] * len(rare), arrivals=rare))


def test_one_client_can_make_the_plan() -> None:
    names = ["big"] * 30 + [f"small-{number}" for number in range(70)]
    assert found(make_trace([1] * 100, client=make_labels(names)))["ADV405"].evidence["clients"] == 71
    assert found(make_trace([1] * 100, client=make_labels(names[10:30] * 5))) == {}  # one client is no risk
    assert "big" not in repr(found(make_trace([1] * 100, client=make_labels(names))))
