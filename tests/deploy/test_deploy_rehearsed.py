"""A small split, launched as `advise launch --emulate` does, beside its simulation and a colocated fleet.

The smallest part of benchmarks/rehearsal.py, which has the plans, the rates and the limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from helpers.faults_client import Ask, Client, Got

from advisor.advice.target import Target
from advisor.deploy.launch import launch
from advisor.deploy.rehearsal import rehearsal
from advisor.simulation.slo import Slo
from advisor.validation.prompts import PromptFactory
from benchmarks import _rehearsed
from benchmarks._rehearsed import REHEARSED, Lengths, Rehearsed, Traffic, expected, simulated

TARGET = Target(model="llama-3.1-8b", gpu="h100-sxm", gpus=2, slo=Slo(ttft_s=0.2, tpot_s=0.05))
SPLIT = Rehearsed(
    "small",
    TARGET,
    Traffic(Lengths(500, 1500), Lengths(10, 25), documents=3, document=320, share=0.5),
    "1 prefill x TP 1 + 1 decode x TP 1",
    rates=(10, 40),
    requests=40,
    time_scale=2,
)
RATE_RPS = 25.0


async def _replay(url: str, asks: Sequence[Ask], due_s: Sequence[float]) -> list[Got]:
    """Each request at its time, whatever became of the others; `sent_s` is when it was due."""
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:
        client = Client(url, session)
        start = asyncio.get_running_loop().time() + 0.1

        async def one(number: int) -> Got:
            await asyncio.sleep(start + due_s[number] - asyncio.get_running_loop().time())
            got = await client.ask(number, asks[number])
            got.sent_s = start + due_s[number]
            return got

        return await asyncio.gather(*(one(number) for number in range(len(asks))))


def test_a_small_split_serves_what_was_simulated_with_the_tokens_of_a_colocated_fleet(tmp_path: Path) -> None:
    """Mean TTFT is that of the simulation, but for a loose band: a busy machine wakes late, never early."""
    trace = SPLIT.trace(RATE_RPS)
    prompts = PromptFactory(128_256, seed=1).build(trace)
    outputs = trace.output_tokens.tolist()
    asks = [Ask(tuple(p.tolist()), out, stream=True) for p, out in zip(prompts, outputs, strict=True)]
    due_s = (trace.arrival_s * SPLIT.time_scale).tolist()
    what = SPLIT.write(tmp_path)
    with launch(what, port=0, emulate=TARGET.gpu, time_scale=SPLIT.time_scale) as launched:
        assert [one.role for one in launched.engine.info.instances] == ["prefill", "decode"]
        split = asyncio.run(_replay(launched.engine.url, asks, due_s))
    assert [(got.status, got.over, len(got.tokens)) for got in split] == [(200, True, out) for out in outputs]

    predicted = simulated(trace, what.config, rehearsal(what, TARGET.gpu, SPLIT.time_scale))
    ttft_s = np.array([got.times[0] - got.sent_s for got in split]) / SPLIT.time_scale
    assert predicted.served.all()
    assert 0.9 < ttft_s.mean() / predicted.ttft_s.mean() < 3.0

    alone = Rehearsed("alone", TARGET, SPLIT.traffic, "2 x TP 1, chunked 512", SPLIT.rates, SPLIT.requests, 1.0)
    folder = tmp_path / "alone"
    folder.mkdir()
    with launch(alone.write(folder), port=0, emulate=TARGET.gpu) as launched:
        colocated = asyncio.run(_replay(launched.engine.url, asks, [0.0] * len(asks)))
    assert [got.tokens for got in colocated] == [got.tokens for got in split]


@pytest.mark.parametrize("plan", REHEARSED, ids=lambda plan: plan.name)
def test_the_traffic_of_a_rehearsal_is_what_it_is_said_to_be(plan: Rehearsed) -> None:
    """Its rate and its shared share; no two runs arrive alike, and nothing else about them differs."""
    one, other = plan.trace(20.0, 1), plan.trace(20.0, 2)
    assert len(one) == plan.requests
    assert len(one) / one.arrival_s[-1] == pytest.approx(20.0, rel=0.15)
    assert np.array_equal(one.prompt_tokens, other.prompt_tokens)
    assert np.array_equal(one.output_tokens, other.output_tokens)
    assert not np.array_equal(one.arrival_s, other.arrival_s)
    assert abs(one.arrival_s - other.arrival_s).max() <= 2 / 20.0
    assert one.blocks is not None
    assert one.blocks.known is None
    first = one.blocks.ids[one.blocks.starts[:-1]]
    _, uses = np.unique(first, return_counts=True)
    about_a_document = uses[uses > 1].sum() / len(one)
    assert about_a_document == pytest.approx(plan.traffic.share, abs=0.06)


def test_what_is_expected_without_any_delay_is_the_one_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moved by nothing, all draws are the log's own arrivals; moved by much, they are other simulations."""
    what, trace = SPLIT.write(tmp_path), SPLIT.trace(RATE_RPS)
    emulation = rehearsal(what, TARGET.gpu, SPLIT.time_scale)
    alone = simulated(trace, what.config, emulation)
    monkeypatch.setattr(_rehearsed, "MOVED_S", 0.0)
    figures, by_chance = expected(trace, what.config, emulation, TARGET.slo)
    assert figures == pytest.approx(
        (alone.attainment(TARGET.slo), np.percentile(alone.ttft_s, 90), np.percentile(alone.tpot_s, 90))
    )
    assert by_chance == pytest.approx((0.0, 0.0))
    monkeypatch.setattr(_rehearsed, "MOVED_S", 1.0)
    assert expected(trace, what.config, emulation, TARGET.slo)[1][1] > 0
