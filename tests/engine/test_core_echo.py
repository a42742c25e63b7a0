"""Differential tests with the echo model: whatever the configuration, outputs are those of the model alone."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from helpers.core_driver import Driver, request
from helpers.echo import expected_output

from engine.config import PoolConfig
from engine.request import Request

BLOCK = 4


def shared_prefix_requests(seed: int, n: int = 12) -> list[Request]:
    """Prompts that share prefixes of varied length with each other, one of them from another namespace."""
    random = Random(seed)
    documents = [[random.randrange(50) for _ in range(40)] for _ in range(3)]
    made = []
    for i in range(n):
        prompt = random.choice(documents)[: random.randrange(1, 41)]
        tail = [random.randrange(50) for _ in range(random.randrange(0, 9))]
        made.append(
            request(f"r{i}", prompt + tail, random.randrange(1, 20), namespace=random.choice(["", "b"]))
        )
    return made


@pytest.mark.parametrize("batching", ["chunked", "prefill_first"])
@pytest.mark.parametrize("queue_policy", ["fcfs", "prefix_first"])
def test_outputs_do_not_depend_on_the_configuration(batching: str, queue_policy: str) -> None:
    grid = product([True, False], [1, 7, 16, 512], [1000, 20], [0, 1])
    preemptions = 0
    for prefix_cache, budget, num_blocks, order in grid:
        pool = PoolConfig(
            batching=batching,
            queue_policy=queue_policy,
            prefix_cache=prefix_cache,
            token_budget=budget,
            block_size=BLOCK,
            max_seqs=8,
        )
        driver = Driver(pool, num_blocks=num_blocks, seed=order)
        requests = shared_prefix_requests(seed=5)
        driver.run(*(reversed(requests) if order else requests))
        for one in requests:
            assert driver.outputs[one.id] == expected_output(one), (prefix_cache, budget, num_blocks, order)
        stats = driver.core.stats()
        assert (stats.prefix_hit_tokens > 0) == prefix_cache
        preemptions += stats.preemptions
    assert preemptions > 10, "the small pool is meant to force preemptions"


def common_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_computed_prompt_tokens_are_prompt_minus_expected_hit() -> None:
    """One at a time, with room for all. The oracle knows no tree: the longest prefix shared with what any
    earlier request computed (all but its last output), in full pages, short of the whole prompt."""
    driver = Driver(PoolConfig(token_budget=16, block_size=BLOCK), num_blocks=5000)
    earlier: list[tuple[str, list[int]]] = []
    hits = 0
    for one in shared_prefix_requests(seed=8, n=60):
        driver.run(one)
        known = [tokens for scope, tokens in earlier if scope == one.namespace]
        prompt = list(one.prompt)
        shared = max(
            (common_prefix(prompt, tokens[: len(tokens) // BLOCK * BLOCK]) for tokens in known), default=0
        )
        hit = min(shared, len(prompt) - 1) // BLOCK * BLOCK
        computed_prompt = driver.echo.computed[one.id] - (len(driver.outputs[one.id]) - 1)
        assert (driver.last[one.id].cached_tokens, computed_prompt) == (hit, len(prompt) - hit)
        earlier.append((one.namespace, prompt + driver.outputs[one.id][:-1]))
        hits += hit
    stats = driver.core.stats()
    assert stats.prefix_hit_tokens == hits > 300


BUDGET = 16


@pytest.mark.parametrize(
    "length", sorted({1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, BUDGET - 1, BUDGET, BUDGET + 1, 2 * BUDGET})
)
def test_boundary_lengths_cold_and_hot(length: int) -> None:
    """nano-vllm#66, #217: off by one at block and chunk edges; nano-vllm#144, vllm#11186: full hit on an exact
    multiple of the block leaves no token to compute."""
    driver = Driver(PoolConfig(token_budget=BUDGET, block_size=BLOCK))
    for name, prompt in [("cold", range(length)), ("again", range(length)), ("longer", range(length + 1))]:
        one = request(name, prompt, output=BLOCK + 1)
        driver.run(one)
        assert driver.outputs[name] == expected_output(one)
    assert driver.last["cold"].cached_tokens == 0
    assert driver.last["again"].cached_tokens == (length - 1) // BLOCK * BLOCK
    assert driver.last["longer"].cached_tokens == length // BLOCK * BLOCK


def test_generated_tokens_are_matched_by_the_next_turn() -> None:
    driver = Driver(PoolConfig(block_size=BLOCK))
    driver.run(request("turn1", range(6), output=11))
    history = [*range(6), *driver.outputs["turn1"]]
    driver.run(request("turn2", [*history, 1, 2, 3]))
    # 17 tokens of which the last was never computed: 16 = 4 full pages.
    assert driver.last["turn2"].cached_tokens == 16
