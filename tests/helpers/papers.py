"""The papers' experiments as simulations: their lengths, step times and deployments, and what comes out.

What each paper printed is in the tests and in benchmarks/papers.py, which both run these.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from helpers.simulating import BLOCK, Affine, make_load

from advisor.advice import profiles
from advisor.advice.steps import gpu_roofline
from advisor.simulation.deployment import Deployment, Pool
from advisor.simulation.goodput import Attainment, Capacity, Objective, goodput, throughput
from advisor.simulation.load import Load
from advisor.simulation.outcome import Outcome
from advisor.simulation.scaling import time_scaled
from advisor.simulation.simulate import Turns, Watch, simulate
from advisor.simulation.slo import Slo
from engine import policy
from engine.config import PoolConfig
from engine.kv.capacity import gpu_kv_bytes, kv_blocks
from engine.request import Run
from engine.step_time.model import StepShape, StepTimeModel

Lengths = npt.NDArray[np.int64]
INSTANT = Affine(fixed=1e-9)
KV_13B = {1: 66_144, 2: 163_008}  # tokens by TP (DistServe repository)
KV_66B = 78_496  # tokens, OPT-66B TP4
BUDGET = 2048  # prefill tokens of one vLLM step then: the model's context
FIGURE_1 = Slo(ttft_s=0.4, tpot_s=0.04)


def published(name: str) -> StepTimeModel:
    """Step times of a profile by id."""
    return next(profile.step_time() for profile in profiles.step_times() if profile.id == name)


def roofline(model: str, gpu: str = "a100-sxm-80g", tp: int = 1, stack: str = "vllm") -> StepTimeModel:
    return gpu_roofline(profiles.model(model).shape, gpu, stack, tp=tp)


def kv_tokens(model: str, gpu: str = "a100-sxm-80g", tp: int = 1) -> int:
    """KV that fits beside the weights, tokens."""
    shape = profiles.model(model).shape
    memory = round(profiles.gpu(gpu).memory_gb * 1e9)
    room = gpu_kv_bytes(shape, memory_bytes=memory, token_budget=BUDGET, max_seqs=128, tp=tp)
    return kv_blocks(shape, room, block_size=BLOCK, tp=tp) * BLOCK


def pool(step_time: StepTimeModel, kv: int, **config: Any) -> Pool:
    """One instance, or what `config` says; no cache unless it does."""
    return Pool(PoolConfig(**{"prefix_cache": False, "kv_tokens": kv, "max_seqs": 256} | config), step_time)


def whole(step_time: StepTimeModel, kv: int = KV_13B[1], **config: Any) -> Pool:
    """Whole prompts before any decode, as vLLM of 2023 and DistServe's prefill side do."""
    return pool(step_time, kv, **{"batching": "prefill_first", "token_budget": BUDGET} | config)


def poisson(
    requests: int, prompt: Lengths | int, output: Lengths | int, seed: int = 0, *, cv: float = 1.0
) -> Load:
    """One request a second, lengths drawn together. Gamma gaps where `cv` is not 1."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.gamma(1 / cv**2, cv**2, requests))
    prompts, outputs = np.atleast_1d(prompt), np.atleast_1d(output)
    rows = rng.integers(0, len(prompts), requests)
    return make_load(arrival_s, prompts[rows].tolist(), outputs[rows % len(outputs)].tolist())


def highest_rate(
    pools: Sequence[Pool], load: Load, objective: Objective, start: float, tolerance: float = 0.025
) -> float:
    """Requests/s, between 1/50 and 50 of the load's, that keep the objective."""
    run = partial(_run, Deployment(tuple(pools)))
    limits = {"lowest": 0.02, "highest": 50.0, "start": start}
    found = goodput(run, load, objective, scale=time_scaled, tolerance=tolerance, check=False, **limits)
    return found.low_rps


def _run(deployment: Deployment, load: Load, watch: Watch, turns: Turns = "open") -> Outcome:
    return simulate(load, deployment, turns=turns, watch=watch)


class Phases(NamedTuple):
    """Goodput of Figure 1, requests/s: one instance for both phases or for one; 2P1D on three, in all."""

    colocated: float
    prefill: float
    decode: float
    split: float

    @property
    def ratios(self) -> tuple[float, float, float]:
        """Prefill-only and decode-only over colocated, and 2P1D a GPU over colocated."""
        return (
            self.prefill / self.colocated,
            self.decode / self.colocated,
            self.split / 3 / self.colocated,
        )


def figure_one(step_time: StepTimeModel, requests: int, seed: int = 0, tolerance: float = 0.025) -> Phases:
    """DistServe Figure 1. Prefill-only: one output token. Decode-only: a split whose prefill takes no time."""
    load, first = poisson(requests, 512, 64, seed), poisson(requests, 512, 1, seed)
    both, ttft = Attainment(FIGURE_1), Attainment(Slo(ttft_s=FIGURE_1.ttft_s))
    tpot = Attainment(Slo(tpot_s=FIGURE_1.tpot_s))
    decode = whole(step_time, role="decode")
    return Phases(
        highest_rate([whole(step_time)], load, both, 2.5, tolerance),
        highest_rate([whole(step_time)], first, ttft, 8.0, tolerance),
        highest_rate([whole(INSTANT, 1 << 24, role="prefill"), decode], load, tpot, 15.0, tolerance),
        highest_rate([whole(step_time, role="prefill", count=2), decode], load, both, 15.0, tolerance),
    )


def openchat(shared: Path, longest: int = 8192) -> tuple[Lengths, Lengths]:
    """Prompt and output tokens of openchat_sharegpt4, of requests below `longest` in all."""
    file = shared / "traces/etalon-lengths/sharegpt_8k_filtered_stats_llama2_tokenizer.csv.gz"
    with gzip.open(file, "rt") as lines:
        rows = [(int(r["num_prefill_tokens"]), int(r["num_decode_tokens"])) for r in csv.DictReader(lines)]
    lengths = np.array(rows)
    lengths = lengths[lengths.sum(axis=1) <= longest]
    return lengths[:, 0], lengths[:, 1]


def vllm_66b() -> list[Pool]:
    """OPT-66B TP4, with DistServe's step times: vLLM's own are not published."""
    return [whole(published("distserve-opt-66b-tp4"), KV_66B)]


def distserve_low() -> list[Pool]:
    """Prefill TP4, decode TP2 PP2: its plan for OPT-66B. The decode side's KV is not published."""
    decode = whole(published("distserve-opt-66b-tp2"), KV_66B, role="decode", tp=2, pp=2)
    return [whole(published("distserve-opt-66b-tp4"), KV_66B, role="prefill"), decode]


def attainment(pools: Sequence[Pool], load: Load, rate_rps: float, slo: Slo) -> float:
    """Share of requests that keep both targets at a rate."""
    return simulate(time_scaled(load, rate_rps), Deployment(tuple(pools))).attainment(slo)


def prefill_rate_per_gpu(tp: int, load: Load, ttft_s: float) -> float:
    """OPT-13B, requests/s a GPU of a prefill instance alone (DistServe, algorithm 1)."""
    first = replace(load, output_tokens=np.ones(len(load), dtype=np.int64))
    side = whole(published(f"distserve-opt-13b-tp{tp}"), 1 << 20)
    return highest_rate([side], first, Attainment(Slo(ttft_s=ttft_s)), 4.0 * tp) / tp


def decode_rate_per_gpu(tp: int, load: Load, tpot_s: float) -> float:
    """OPT-13B, requests/s a GPU of a decode instance alone."""
    side = whole(published(f"distserve-opt-13b-tp{tp}"), KV_13B[tp], role="decode")
    pools = [whole(INSTANT, 1 << 24, role="prefill"), side]
    return highest_rate(pools, load, Attainment(Slo(tpot_s=tpot_s)), 4.0 * tp) / tp


@dataclass(frozen=True)
class Served:
    """A model on A100s in Sarathi-Serve's experiments: its step times, and KV tokens beside the weights."""

    step_time: StepTimeModel
    kv: int

    def pool(self, batching: Literal["chunked", "prefill_first"], budget: int) -> Pool:
        """One instance with the paper's batch limit of 128."""
        return pool(self.step_time, self.kv, batching=batching, token_budget=budget, max_seqs=128)

    def capacity(
        self,
        load: Load,
        tbt_s: float,
        budget: int,
        *,
        batching: Literal["chunked", "prefill_first"] = "chunked",
        tolerance: float = 0.025,
    ) -> float:
        """Requests/s with a pooled P99 TBT and a median scheduling delay within the limits."""
        return highest_rate([self.pool(batching, budget)], load, Capacity(tbt_s), 1.0, tolerance)

    def stall_free_gain(self, load: Load, tbt_s: float, budget: int) -> float:
        """Capacity of stall-free batching over that of whole prompts first."""
        stalling = self.capacity(load, tbt_s, 8192, batching="prefill_first")
        return self.capacity(load, tbt_s, budget) / stalling


def yi_34b(step_time: StepTimeModel | None = None) -> Served:
    return Served(step_time or roofline("yi-34b", tp=2), kv_tokens("yi-34b", tp=2))


def mistral_7b(step_time: StepTimeModel | None = None) -> Served:
    return Served(step_time or published("sglang-mistral-7b-a100"), kv_tokens("mistral-7b-v0.1"))


@dataclass(frozen=True)
class Apart:
    """Chunks that are not mixed with decodes: such a step takes as long as a chunk and then the decodes.

    The core knows no such scheduler. Two steps as one: only first tokens come later, by the decodes.
    """

    inner: StepTimeModel
    source: Literal["published"] = "published"
    error_p90: float | None = None
    bend: float = float("inf")

    def seconds(self, shape: StepShape) -> float:
        alone = self.inner.seconds(StepShape((), shape.decode_rows, shape.decode_context))
        return self.inner.seconds(StepShape(shape.prefill)) + alone

    def decode_line(self, rows: int, context: int) -> tuple[float, float]:
        return self.inner.decode_line(rows, context)


class Latency(NamedTuple):
    """Median TTFT and pooled P99 TBT, seconds."""

    ttft_s: float
    tbt_s: float


def ablation(model: Served, load: Load, budget: int) -> dict[str, Latency]:
    """Sarathi-Serve's ablation: whole prompts mixed with decodes, chunks beside decodes, and both."""
    apart = replace(model, step_time=Apart(model.step_time))
    pools = {
        "hybrid batching only": model.pool("chunked", 1 << 20),
        "chunked prefill only": apart.pool("chunked", budget),
        "both": model.pool("chunked", budget),
    }
    outcomes = {name: simulate(load, Deployment((one,))) for name, one in pools.items()}
    return {
        name: Latency(float(np.median(one.ttft_s)), one.gap_quantile(0.99) or 0.0)
        for name, one in outcomes.items()
    }


def chats(conversations: int, output: tuple[int, int], seed: int = 0) -> Load:
    """Conversations that all begin at 0, 4 turns with 256 to 512 new input tokens (SGLang's benchmark).

    Each turn comes when the one before has ended.
    """
    rng = np.random.default_rng(seed)
    history = np.zeros(conversations, dtype=np.int64)
    prompts: list[int] = []
    outputs: list[int] = []
    runs: list[tuple[Run, ...]] = []
    for _ in range(4):
        prompt = history + rng.integers(256, 513, conversations)
        reply = rng.integers(output[0], output[1] + 1, conversations)
        history = prompt + reply
        prompts, outputs = [*prompts, *prompt.tolist()], [*outputs, *reply.tolist()]
        runs += [(Run(chat, 0, (tokens - 1) // BLOCK),) for chat, tokens in enumerate(history.tolist())]
    parent = np.arange(4 * conversations) - conversations
    think_s = np.where(parent >= 0, 0.0, np.nan)
    parents = np.maximum(parent, -1).tolist()
    zero = np.zeros(len(prompts))
    return make_load(zero, prompts, outputs, runs=runs, parent=parents, think_s=think_s.tolist())


Order = Literal["fcfs", "prefix_first", "longest"]  # longest: prefix_first as the papers have it, without aging
ORDERS: tuple[Order, ...] = get_args(Order)


@contextmanager
def _order(order: Order) -> Iterator[dict[str, Any]]:
    """Settings of a pool with a prefix cache and this order, which `longest` only has inside."""
    with aging(0.0 if order == "longest" else policy.AGING_TOKENS_PER_S):
        yield {"prefix_cache": True, "queue_policy": "fcfs" if order == "fcfs" else "prefix_first"}


@contextmanager
def aging(tokens_per_s: float) -> Iterator[None]:
    """Queues that age at another rate, which only these have."""
    before = policy.AGING_TOKENS_PER_S
    policy.AGING_TOKENS_PER_S = tokens_per_s
    try:
        yield
    finally:
        policy.AGING_TOKENS_PER_S = before


def cache_gain(load: Load, order: Order) -> float:
    """How much sooner the chats of a batch end with a prefix cache; Llama-2-7B on A10G (SGLang, 6.1)."""
    step_time = roofline("llama-2-7b", "a10g", stack="sglang")
    kv = kv_tokens("llama-2-7b", "a10g")

    def rate(config: dict[str, Any]) -> float:
        deployment = Deployment((pool(step_time, kv, token_budget=BUDGET, **config),))
        return throughput(partial(_run, deployment, turns="causal"), load)[0]

    with _order(order) as config:
        return rate(config) / rate({}) - 1


def shared_documents(requests: int, rate_rps: float, seed: int = 0) -> Load:
    """Poisson arrivals, each with one of 32 documents of 512 to 2,560 tokens in front of a question (ours)."""
    rng = np.random.default_rng(seed)
    pages = rng.integers(32, 161, 32)
    which = rng.integers(0, 32, requests)
    return make_load(
        np.cumsum(rng.exponential(1 / rate_rps, requests)),
        (pages[which] * BLOCK + rng.integers(64, 257, requests)).tolist(),
        rng.integers(8, 33, requests).tolist(),
        runs=[(Run(one, 0, int(pages[one])),) for one in which.tolist()],
    )


def queue_order(load: Load, kv: int, order: Order) -> Outcome:
    """What the order does; Qwen3-8B: 228 ms for 2,048 tokens, 52.9 ms for 256 (LPMX), decodes ours."""
    step_time = Affine(fixed=0.0279, prefill=9.77e-5, row=2e-4)
    with _order(order) as config:
        return simulate(load, Deployment((pool(step_time, kv, max_seqs=4, token_budget=8192, **config),)))
