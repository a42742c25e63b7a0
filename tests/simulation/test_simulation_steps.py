"""Simulator and engine make the same steps: emulated on a virtual clock, and replayed from a real log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from helpers.embedded import embedded_folder
from helpers.simulating import BLOCK, TYPICAL, make_load, random_load, record
from helpers.tiny_model import write_tiny_model
from helpers.virtual_engine import Ran, run_emulated, run_real

from advisor.logs.trace import FloatColumn
from advisor.simulation.deployment import Deployment, Pool
from advisor.simulation.simulate import simulate
from engine.config import PoolConfig
from engine.executors.torch import TorchExecutor
from engine.request import Request, Run, SamplingParams
from engine.step_time.model import StepShape

PLANS: dict[str, dict[str, Any]] = {
    "chunked": {"token_budget": 64, "max_seqs": 12, "kv_tokens": 4000},
    "without cache": {"token_budget": 48, "max_seqs": 16, "kv_tokens": 900, "prefix_cache": False},
    "prefill first": {"token_budget": 128, "max_seqs": 16, "kv_tokens": 900, "batching": "prefill_first"},
    "prefix first": {"token_budget": 64, "max_seqs": 32, "kv_tokens": 640, "queue_policy": "prefix_first"},
}


@pytest.mark.parametrize("name", PLANS)
def test_engine_and_simulator_make_the_same_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = PoolConfig(block_size=BLOCK, **PLANS[name])
    load = random_load(4, 200, rate=12.0)
    ran = run_emulated(load, pool, TYPICAL, tmp_path / "steps.jsonl")
    assert set(ran.ended.values()) == {"length"}
    recording = record(monkeypatch, jumps=True)
    outcome = simulate(load, Deployment((Pool(pool, TYPICAL),)))
    assert recording.steps == [ran.steps]
    assert len(ran.steps) > 500
    assert metric(ran, "prefix_hit_tokens_total") == outcome.cached_tokens.sum()
    assert metric(ran, "preemptions_total") == outcome.preemptions
    assert outcome.end_s == pytest.approx(ran.ended_s[-1], abs=1e-9)
    assert (outcome.cached_tokens.sum() > 0) == pool.prefix_cache
    assert outcome.preemptions > 0 or pool.kv_tokens != 640


def metric(ran: Ran, name: str) -> float:
    found = re.search(rf"^advise_{name}(?:{{[^}}]*}})? (\S+)$", ran.metrics, re.MULTILINE)
    assert found
    return float(found[1])


@dataclass
class Replayed:
    """The times of a real run's steps, one after the other."""

    durations_s: Iterator[float]
    source: Literal["published"] = "published"
    error_p90: float | None = None
    bend: float = float("inf")

    def seconds(self, shape: StepShape) -> float:  # noqa: ARG002 - as StepTimeModel
        return next(self.durations_s)

    def decode_line(self, rows: int, context: int) -> tuple[float, float]:  # noqa: ARG002
        raise AssertionError("a replay makes every step")


def replay_times(ran: Ran) -> Iterator[float]:
    """A step lasts until the next begins, unless the engine was idle in between."""
    for number, (began, following) in enumerate(pairwise(ran.began_s), start=1):
        yield (ran.ended_s[number - 1] if number in ran.idle_after else following) - began
    yield ran.ended_s[-1] - ran.began_s[-1]


def replay_arrivals(ran: Ran, requests: int) -> FloatColumn:
    """When requests were taken in; where the engine was idle, when it had woken up and made a step of them."""
    arrived = [ran.taken_s[str(row)] for row in range(requests)]
    wakes = [(ran.ended_s[n - 1] if n else 0.0, ran.began_s[n]) for n in ran.idle_after if n < len(ran.began_s)]
    return np.array([next((s for e, s in wakes if e <= at <= s), at) for at in arrived])


def traffic(seed: int, number: int, vocab: int, spread_s: float) -> list[tuple[float, Request]]:
    """Prompts of 5 to 90 tokens, two thirds behind one of two documents of 48, and outputs of up to 30."""
    rng = np.random.default_rng(seed)
    documents = rng.integers(3, vocab, (2, 48)).tolist()
    made = []
    for row, at in enumerate(np.sort(rng.uniform(0, spread_s, number)).tolist()):
        tail = rng.integers(3, vocab, int(rng.integers(5, 40))).tolist()
        prompt = (documents[row % 3] if row % 3 < 2 else []) + tail
        sampling = SamplingParams(max_tokens=int(rng.integers(1, 30)), ignore_eos=True)
        made.append((at, Request(str(row), tuple(prompt), sampling)))
    return made


def check_replay(ran: Ran, sent: list[tuple[float, Request]], pool: PoolConfig, patch: Any) -> None:
    requests = [request for _, request in sent]
    runs = [(Run(row % 3, 0, 48 // BLOCK),) if row % 3 < 2 else () for row in range(len(sent))]
    load = make_load(
        replay_arrivals(ran, len(sent)),
        [len(one.prompt) for one in requests],
        [one.sampling.max_tokens for one in requests],
        runs=runs,
    )
    recording = record(patch, jumps=False)
    step_time: Any = Replayed(replay_times(ran))
    outcome = simulate(load, Deployment((Pool(pool, step_time),)))
    assert recording.steps == [ran.steps]
    logged = metric(ran, "prefix_hit_tokens_total") / metric(ran, "prompt_tokens_total")
    assert 0.2 < logged < 0.7
    assert outcome.hit_rate_tokens == pytest.approx(logged, abs=0.005)


def test_a_real_step_log_replayed_with_its_own_times_gives_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = PoolConfig(token_budget=50, max_seqs=6, kv_tokens=640, block_size=BLOCK)
    sent = traffic(1, 60, 200, 1.0)
    folder = write_tiny_model(tmp_path)
    with TorchExecutor(folder, dtype="float32", threads=1, num_blocks=41, block_size=BLOCK) as executor:
        ran = run_real(sent, pool, executor, tmp_path / "steps.jsonl")
    assert len(ran.idle_after) >= 1
    check_replay(ran, sent, pool, monkeypatch)


@pytest.mark.slow
def test_a_step_log_of_the_embedded_model_replayed_gives_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = PoolConfig(token_budget=50, max_seqs=8, kv_tokens=1024, block_size=BLOCK)
    sent = traffic(2, 40, 40_000, 15.0)
    with TorchExecutor(
        embedded_folder(), dtype="float32", threads=1, num_blocks=65, block_size=BLOCK
    ) as executor:
        ran = run_real(sent, pool, executor, tmp_path / "steps.jsonl")
    check_replay(ran, sent, pool, monkeypatch)
