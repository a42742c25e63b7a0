"""SGLang's numbers through the simulator (arXiv 2312.07104; docs/papers.md), and caches of other papers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.papers import INSTANT, Order, cache_gain, chats, pool, queue_order, shared_documents
from helpers.simulating import BLOCK, make_load
from helpers.workload_traces import mooncake

from advisor.simulation.deployment import Deployment
from advisor.simulation.from_trace import load_of
from advisor.simulation.load import Load
from advisor.simulation.simulate import simulate
from engine import policy
from engine.request import Run

SHORT, LONG = (4, 8), (256, 512)


def mean_gain(output: tuple[int, int], order: Order) -> float:
    """Of 8 draws of the lengths: one draw moves the gain by some percent."""
    return float(np.mean([cache_gain(chats(20, output, seed), order) for seed in range(8)]))


def test_short_replies_gain_from_the_cache_and_long_ones_almost_nothing():
    # 20 conversations at once, as in the benchmark: gains with short replies, almost none with long ones.
    assert mean_gain(SHORT, "prefix_first") > 0.20
    assert -0.01 < mean_gain(LONG, "prefix_first") < 0.05


def test_first_come_first_served_gains_less_with_short_replies():
    # The cache holds less than all conversations, so the order decides what hits.
    assert 0 < mean_gain(SHORT, "fcfs") < mean_gain(SHORT, "prefix_first") < mean_gain(SHORT, "longest")


def random_tree(seed: int) -> Load:
    """At most 128 prompts, in any order, that are the leaves of a radix tree."""
    rng = np.random.default_rng(seed)
    leaves: list[tuple[int, tuple[Run, ...]]] = []

    def grow(path: tuple[Run, ...], node: tuple[int, ...]) -> None:
        start = path[-1].stop if path else 0
        path = (*path, Run(node, start, start + int(rng.integers(1, 7))))
        if len(node) == 4:
            leaves.append((path[-1].stop * BLOCK + int(rng.integers(1, BLOCK + 1)), path))
            return
        for branch in range(int(rng.integers(1, 5))):
            grow(path, (*node, branch))

    for root in range(3):
        grow((), (root,))
    order = rng.permutation(len(leaves))[: policy.FCFS_ABOVE_WAITING]
    chosen = [leaves[leaf] for leaf in order.tolist()]
    prompts, runs = [prompt for prompt, _ in chosen], [path for _, path in chosen]
    return make_load(np.zeros(len(chosen)), prompts, 1, runs=runs)


def optimal_hit_rate(load: Load) -> float:
    """1 - edges of the radix tree / prompt tokens (appendix); what follows the runs is each prompt's own."""
    edges = {run for runs in load.runs for run in runs}
    own = sum(int(p) - runs[-1].stop * BLOCK for p, runs in zip(load.prompt_tokens, load.runs, strict=True))
    tokens = own + BLOCK * sum(run.stop - run.start for run in edges)
    return 1 - tokens / int(load.prompt_tokens.sum())


def hit_rate(load: Load, kv: int, order: str) -> float:
    config = {"prefix_cache": True, "queue_policy": order, "max_seqs": 1, "token_budget": 1 << 20}
    found = simulate(load, Deployment((pool(INSTANT, kv, **config),))).hit_rate_tokens
    assert found is not None
    return found


def whole_pages(tokens: Iterable[int]) -> int:
    return -(-max(tokens) // BLOCK) * BLOCK


@pytest.mark.parametrize("seed", range(6))
def test_longest_prefix_order_reaches_the_optimal_hit_rate_offline(seed: int):
    # Theorem: depth first is optimal where the cache holds the longest request.
    load = random_tree(seed)
    kv = whole_pages(load.prompt_tokens.tolist())
    for capacity in (kv, 2 * kv):
        assert hit_rate(load, capacity, "prefix_first") == pytest.approx(optimal_hit_rate(load), abs=1e-12)
        assert hit_rate(load, capacity, "fcfs") < 0.8 * optimal_hit_rate(load)
    assert hit_rate(load, 1 << 20, "fcfs") == pytest.approx(optimal_hit_rate(load), abs=1e-12)


def test_alternating_prefixes_in_a_cache_for_one():
    # hit_opt = (n - 1) s / (n (s + u)) for each prefix: 20 requests a prefix, s = 992, u = 16.
    runs = [(Run(row % 2, 0, 62),) for row in range(40)]
    load = make_load(np.zeros(40), 1008, 1, runs=runs)
    assert hit_rate(load, 1008, "fcfs") == 0
    assert hit_rate(load, 1008, "prefix_first") == pytest.approx(19 * 992 / (20 * 1008))


def test_longest_prefix_order_pays_where_the_cache_is_too_small():
    # Qwen3-8B: hit 0.757 -> 0.934, P50 -62 %, P99 +64 %.
    load = shared_documents(300, 4.0)
    before, after = (queue_order(load, 24_000, order) for order in ("fcfs", "longest"))
    assert after.hit_rate_tokens > 1.1 * before.hit_rate_tokens
    assert np.median(after.e2e_s) < 0.8 * np.median(before.e2e_s)
    assert np.quantile(after.e2e_s, 0.99) > 1.05 * np.quantile(before.e2e_s, 0.99)


def test_longest_prefix_order_costs_the_tail_where_fcfs_hits_already():
    # Qwen3-0.6B: FCFS hits 0.992, then 0.968, P99 +13 %. Here all documents fit the cache.
    load = shared_documents(300, 6.0)
    before = queue_order(load, 80_000, "fcfs")
    aging, after = queue_order(load, 80_000, "prefix_first"), queue_order(load, 80_000, "longest")
    assert after.hit_rate_tokens <= before.hit_rate_tokens + 0.001
    p99 = [float(np.quantile(one.e2e_s, 0.99)) for one in (before, aging, after)]
    assert p99[2] > 1.13 * p99[0]
    assert p99[1] - p99[0] < (p99[2] - p99[0]) / 2  # what aging is for


@pytest.mark.parametrize(
    ("blocks", "expected"),
    # LRU of Mooncake's conversation trace, 512-token blocks: share of blocks that hit.
    [
        (10_000, 0.2116),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in ((1000, 0.045), (30_000, 0.326), (100_000, 0.364))
        ),
    ],
)
def test_the_cache_of_the_core_hits_what_an_lru_cache_hits(shared: Path, blocks: int, expected: float):
    load = load_of(mooncake(shared), 512)
    count = len(load)
    alone = replace(
        load,
        arrival_s=np.arange(count, dtype=np.float64),
        output_tokens=np.ones(count, dtype=np.int64),
        parent=np.full(count, -1),
        think_s=np.full(count, np.nan),
    )
    config = {"prefix_cache": True, "block_size": 512, "max_seqs": 1, "token_budget": 1 << 20}
    outcome = simulate(alone, Deployment((pool(INSTANT, blocks * 512, **config),)))
    hits = outcome.cached_tokens.sum() / 512
    # Unfinished last blocks take no room once a request ends: a little above.
    assert hits / np.ceil(load.prompt_tokens / 512).sum() == pytest.approx(expected, abs=0.005)
