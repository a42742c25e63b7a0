"""Plans of traffic that papers and independent measurements speak of: which kind of layout is chosen.

TaiChi (2508.01989), an agentic production trace and a benchmark of two B200, all in section 5 of the reference.
Llama-size models of 27 to 34B, of which step times are known.
"""

from __future__ import annotations

import pytest
from helpers.planning import goodputs, plan_for
from helpers.planted import agents, independent
from helpers.quick import only_the_decision

from advisor.advice.simulated import Simulated
from advisor.simulation.slo import Slo
from advisor.workload.measure import measure

TIGHT_TTFT, LOOSE_TTFT = 1.8, 10.0  # a prompt of 6,000 takes some 0.7 s alone: under 3 and over 10 times that
TIGHT_TPOT, LOOSE_TPOT = 0.022, 0.2  # a decode step of 32 rows of 4,096 takes 23 ms


@pytest.fixture(autouse=True)
def _decision(monkeypatch: pytest.MonkeyPatch) -> None:
    only_the_decision(monkeypatch)


def outcome(plan: Simulated) -> tuple[str, str]:
    """(kind of the chosen layout, verdict)."""
    chosen = plan.decision.chosen
    kind = "none" if chosen is None else "split" if chosen.layout.split else "colocated"
    return kind, plan.decision.verdict


def summaries(ttft_s: float, tpot_s: float) -> Simulated:
    """Prompts around 6,000 and outputs around 200 tokens, 3/s on four H100, Qwen3-32B in 8 bits."""
    trace = independent(400, 3.0, prompt=(5000, 7000), output=(150, 250))
    return plan_for(trace, "qwen3-32b", "h100-sxm", 4, Slo(ttft_s=ttft_s, tpot_s=tpot_s), dtype="fp8")


@pytest.mark.slow
def test_taichi_a_tight_first_token_and_loose_tokens_colocate() -> None:
    plan = summaries(TIGHT_TTFT, LOOSE_TPOT)
    assert outcome(plan) == ("colocated", "keep_defaults")
    worth = goodputs(plan)
    assert worth["split"] < worth["budget"]


@pytest.mark.slow
def test_taichi_tight_tokens_and_a_loose_first_token_split() -> None:
    """Two minutes of log have no interval, but what runs now misses the targets: `undecided`, and the split."""
    plan = summaries(LOOSE_TTFT, TIGHT_TPOT)
    assert outcome(plan) == ("split", "undecided")
    worth = goodputs(plan)
    assert worth["split"] > 1.15 * worth["budget"]


@pytest.mark.slow
def test_taichi_with_both_tight_every_kind_is_presented() -> None:
    plan = summaries(TIGHT_TTFT, TIGHT_TPOT)
    simulated = [*plan.found.finalists, *plan.found.others]
    assert {one.layout.split for one in simulated if one.low_rps > 0} == {True, False}
    assert {"split", "budget"} <= set(goodputs(plan))
    assert outcome(plan) == ("split", "undecided")


@pytest.mark.slow
def test_agents_with_long_prompts_and_much_reuse_are_colocated_and_routed_by_prefix() -> None:
    """AGT: 8 GPUs, 33.6k tokens in, 71 % seen before; colocated with cache-aware routing beat 4P4D and 6P2D."""
    trace = agents(400, 0.9)
    sharing = measure(trace).sharing.hit_rate_tokens
    assert sharing == pytest.approx(0.71, abs=0.05)
    plan = plan_for(trace, "qwen3-32b", "h100-sxm", 8, Slo(ttft_s=5, tpot_s=0.08), dtype="fp8")
    assert outcome(plan) == ("colocated", "undecided")
    assert plan.decision.chosen is not None
    assert plan.decision.chosen.layout.router.policy == "prefix_affinity"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tpot_s", "expected"), [(0.018, ("split", "undecided")), (0.1, ("colocated", "keep_defaults"))]
)
def test_a_split_of_two_buys_time_per_token_and_pays_in_throughput(
    tpot_s: float, expected: tuple[str, str]
) -> None:
    """B200: a 27B on two, TPOT 9.9 ms as 1P1D against 32.8 and 44.1; 27 to 40 % less throughput."""
    trace = independent(300, 3.5, prompt=(3000, 5000), output=(100, 300))
    plan = plan_for(trace, "gemma-3-27b", "b200-sxm", 2, Slo(ttft_s=5, tpot_s=tpot_s))
    assert outcome(plan) == expected
    worth = goodputs(plan)
    if expected[0] == "colocated":
        assert worth["split"] < (1 - 0.27) * worth["budget"]
