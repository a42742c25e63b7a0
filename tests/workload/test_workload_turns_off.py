"""What an unknown takes away: the codes exist, and the findings are really gone."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.workload_traces import chain, make_trace
from helpers.workloads import lengths, workload

from advisor.advice.advise import Advice, advise
from advisor.advice.resolve import NoTarget
from advisor.advice.rules import ALL_RULES
from advisor.advice.target import Target
from advisor.simulation.slo import Slo
from advisor.workload.measure import measure
from advisor.workload.model import Distribution, Workload
from advisor.workload.turns_off import TURNS_OFF, findings_off

TARGET = Target(model="llama-3.1-8b", gpu="h100-sxm", gpus=2, slo=Slo(ttft_s=0.5, tpot_s=0.05))


@pytest.mark.parametrize("path", TURNS_OFF)
def test_every_code_is_a_rule(path: str) -> None:
    assert set(TURNS_OFF[path]) <= set(ALL_RULES)
    assert len(set(TURNS_OFF[path])) == len(TURNS_OFF[path])


def busy(**changes: Any) -> Workload:
    """A workload that fires as many rules as one can."""
    fields: dict[str, Any] = {
        "prompt": 8000, "output": 40, "hit": 0.6, "curve": ((16, 0.0), (10**7, 0.6)), "rate_rps": 5.0,
        "dispersion_10s": 9.0, "cv": 3.0, "any_position_share": 0.9, "hit_optimal": 0.7,
    }  # fmt: skip
    return workload(**(fields | changes))


def nulled(path: str) -> Workload:
    """The busy workload with what the path names not known, and what cannot be known without it."""
    whole = busy()
    if path == "sharing.hit_rate_tokens":
        return busy(hit=None, curve=(), hit_optimal=None, any_position_share=None)
    group, _, name = path.partition(".")
    changes: dict[str, Any]
    if not name:
        return whole.model_copy(update={group: None})
    if name.endswith(".max"):
        changes = {name.partition(".")[0]: Distribution(mean=400.0)}
    elif path == "arrivals.cv":
        changes = {
            "cv": None,
            "cv_spread": None,
            "tick_s": None,
            "dispersion": dict.fromkeys(("1", "10", "60")),
        }
    else:
        changes = {name: () if name == "capacity_curve" else None}
    return whole.model_copy(update={group: getattr(whole, group).model_copy(update=changes)})


def codes(advice: Advice) -> set[str]:
    return {finding.code for finding in advice.findings}


@pytest.mark.parametrize("path", TURNS_OFF)
def test_the_findings_are_gone(path: str) -> None:
    fired = codes(advise(nulled(path), TARGET))
    assert not fired & (set(findings_off(path, cached_share_known=False)) - {"ADV101"})


def test_the_busy_workload_fires_what_the_others_do_not() -> None:
    # So that the test above has something to lose.
    assert {"ADV102", "ADV104", "ADV201", "ADV402", "ADV404", "ADV501", "ADV802"} <= codes(
        advise(busy(prompt_p99=200_000), TARGET)
    )


def test_adv101_always_fires_and_has_no_figures_without_reuse() -> None:
    for measured in (nulled("sharing.hit_rate_tokens"), nulled("lengths.prompt")):
        for target in (TARGET, NoTarget("no GPU", "--here")):
            (found,) = [f for f in advise(measured, target).findings if f.code == "ADV101"]
            assert found.evidence["saved_time_share"] is None


def test_logged_cached_tokens_leave_the_findings_that_need_only_a_share() -> None:
    off = set(findings_off("sharing.hit_rate_tokens", cached_share_known=True))
    assert off == {"ADV104", "ADV105", "ADV501"}
    logged = busy(hit=None, curve=(), hit_optimal=None, any_position_share=None)
    logged = logged.model_copy(update={"sharing": logged.sharing.model_copy(update={"cached_share": 0.6})})
    fired = codes(advise(logged, TARGET))
    assert "ADV102" in fired
    assert not fired & off


def test_entries_of_a_workload_carry_them() -> None:
    off = {entry.path: entry.turns_off for entry in measure(make_trace([100] * 5, [9] * 5)).unknown}
    assert off["sharing.hit_rate_tokens"] == TURNS_OFF["sharing.hit_rate_tokens"]
    assert off["sharing.unexplained_share"] == ("ADV905",)
    assert off["latency.e2e_s"] == ()
    known = measure(make_trace([20] * 5, [9] * 5, blocks=chain([[0]] * 5), size=20))
    assert "sharing.hit_rate_tokens" not in {entry.path for entry in known.unknown}
    assert lengths(1.0).max is not None
