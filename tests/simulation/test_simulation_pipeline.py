"""Pipeline stages in the simulator, against DistServe's findings on inter-op and intra-op parallelism.

Step times are DistServe's fits (OPT-13B on A100s), KV tokens those of its repository by TP and PP.
"""

from __future__ import annotations

import pytest
from helpers.papers import INSTANT, highest_rate, poisson, pool, published, whole
from helpers.simulating import Affine, make_load, one_pool

from advisor.simulation.goodput import Attainment
from advisor.simulation.load import Load
from advisor.simulation.scaling import time_scaled
from advisor.simulation.simulate import simulate
from advisor.simulation.slo import Slo
from engine.step_time.pipelined import HOP_S, PipelinedStepTime

PROMPT, OUTPUT = 512, 200
D, D_TP2 = 0.0721509, 0.0505007  # 512 tokens on one GPU and on two
KV = {(1, 1): 66_144, (1, 2): 163_008, (1, 4): 356_752, (2, 1): 163_008}  # by TP, PP


def staged(pp: int) -> PipelinedStepTime:
    return PipelinedStepTime(
        published("distserve-opt-13b-tp1"), pp, layers=40, hidden=5120, link_bytes_per_s=3e11
    )


@pytest.mark.parametrize("pp", [2, 4])
def test_one_request_alone_is_served_no_sooner_by_stages_but_by_tp(pp: int) -> None:
    """A prompt in one step passes every stage: D, and hops of 5 MB that take less than 0.1 ms each."""
    load = make_load([0.0], PROMPT, 1)
    [alone] = simulate(load, one_pool(staged(pp), token_budget=PROMPT, pp=pp)).ttft_s  # type: ignore[arg-type]
    assert D + (pp - 1) * HOP_S < alone < D + (pp - 1) * 1e-4
    tp2 = published("distserve-opt-13b-tp2")
    [faster] = simulate(load, one_pool(tp2, token_budget=PROMPT)).ttft_s  # type: ignore[arg-type]
    assert faster == pytest.approx(D_TP2, abs=1e-5)


def test_chunks_of_a_long_prompt_are_in_all_stages_at_once() -> None:
    """8 chunks of 0.1 s: the last leaves the fourth of 4 stages after 8 + 3 times 0.025 s."""
    load = make_load([0.0], 8 * PROMPT, 1)
    [alone] = simulate(load, one_pool(Affine(fixed=0.1), token_budget=PROMPT, pp=4)).ttft_s
    assert alone == pytest.approx(11 * 0.025)


# R D at which two-way splitting with a speedup of K and two stages have the same mean TTFT (DistServe, 3.1).
CROSSOVER = {1.2: 0.434, 1.3: 0.611, 1.5: 0.936, 1.6: 1.095}


@pytest.mark.parametrize("k", CROSSOVER)
def test_for_prefill_splitting_layers_wins_below_the_published_utilisation_and_stages_above(k: float) -> None:
    for rd, splitting_wins in ((CROSSOVER[k] - 0.15, True), (CROSSOVER[k] + 0.15, False)):
        load = time_scaled(poisson(4_000, PROMPT, 1), rd / D)
        split, stages = (
            simulate(load, one_pool(Affine(fixed=step_s), token_budget=PROMPT, pp=pp)).ttft_s.mean()
            for step_s, pp in ((D / k, 1), (D, 2))
        )
        assert (split < stages) == splitting_wins


def decode_rps(load: Load, tpot_s: float, tp: int, pp: int) -> float:
    """The highest rate of a decode side whose prompts come for nothing."""
    step_time = published(f"distserve-opt-13b-tp{tp}") if pp == 1 else staged(pp)
    side = whole(step_time, KV[tp, pp], role="decode", tp=tp, pp=pp, max_seqs=1024, token_budget=2048)
    pools = [pool(INSTANT, 1 << 24, role="prefill", token_budget=2048), side]
    return highest_rate(pools, load, Attainment(Slo(tpot_s=tpot_s)), 4.0 * tp * pp, 0.05)


def test_decode_throughput_grows_as_the_stages_do() -> None:
    """DistServe, section 3.2: inter-op scales it linearly."""
    load = poisson(800, PROMPT, OUTPUT)
    one, two, four = (decode_rps(load, 0.05, 1, pp) for pp in (1, 2, 4))
    assert two / one == pytest.approx(2.0, rel=0.15)
    assert four / one == pytest.approx(4.0, rel=0.15)


def test_a_tight_tpot_is_kept_by_tp_only() -> None:
    """A decode step of OPT-13B takes 20 ms on one GPU and as long on stages, 13.3 ms on two with TP."""
    load = poisson(300, PROMPT, OUTPUT)
    assert decode_rps(load, 0.017, 1, 4) < 0.2
    assert decode_rps(load, 0.017, 2, 1) > 2
