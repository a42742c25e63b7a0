"""Tiny float64 models: the greedy tokens of transformers, whatever the scheduler does with the requests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

import pytest
import torch
from helpers.greedy import Reference, decode_alone, decode_through_core, reference_greedy, reference_model
from helpers.tiny_model import FAMILIES, LLAMA, write_tiny_model

from engine.config import PoolConfig
from engine.executors.torch import TorchExecutor
from engine.request import SamplingParams

BLOCK = 16
OUTPUT = 48
POOL_BLOCKS = 256
FEW_BLOCKS = 25  # the longest request needs 22; eight at once need far more


def tiny_executor(folder: Path, tp: int = 1) -> TorchExecutor:
    return TorchExecutor(folder, dtype="float64", tp=tp, num_blocks=POOL_BLOCKS, block_size=BLOCK)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def executor(folder: Path) -> Iterator[TorchExecutor]:
    with tiny_executor(folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[TorchExecutor]:
    """The same model on two ranks, which are processes: started once."""
    with tiny_executor(folder, tp=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Lengths around the block boundary, whole-prompt hits and shared prefixes among them."""
    random = Random(3)
    system = [random.randrange(3, 256) for _ in range(3 * BLOCK)]
    tails = [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 100]
    shared = [system + [random.randrange(3, 256) for _ in range(n)] for n in tails]
    alone = [[random.randrange(3, 256) for _ in range(n)] for n in (1, BLOCK, BLOCK + 1, 290)]
    return [*shared, *alone, system, list(shared[3])]


@pytest.fixture(scope="module")
def references(folder: Path, prompts: list[list[int]]) -> list[Reference]:
    model = reference_model(folder, torch.float64)
    return [reference_greedy(model, prompt, OUTPUT) for prompt in prompts]


QUICK = ("llama 3", "mistral", "qwen2", "qwen3", "opt")  # logits of the others: test_model_families.py


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in FAMILIES]
)
def test_families_match_transformers(family: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, FAMILIES[family], seed=5)
    model, random = reference_model(folder, torch.float64), Random(1)
    with tiny_executor(folder) as executor:
        for length in (1, BLOCK, BLOCK + 1, 333):
            prompt = [random.randrange(3, 256) for _ in range(length)]
            assert decode_alone(executor, prompt, 24) == reference_greedy(model, prompt, 24).tokens


MATRIX = [
    # Two ranks take ten times as long a step here: by default only where batches, chunks and preemptions mix.
    pytest.param(*arm, tp, marks=[pytest.mark.slow] if tp == 2 and arm[1:3] != (64, 8) else [])
    for arm in product([False, True], [16, 64, 512, 4096], [1, 8], [False, True])
    for tp in (1, 2)
]


@pytest.mark.parametrize(("prefix_cache", "token_budget", "at_once", "few_blocks", "tp"), MATRIX)
def test_scheduling_never_changes_the_tokens(
    executor: TorchExecutor,
    pair: TorchExecutor,
    prompts: list[list[int]],
    references: list[Reference],
    prefix_cache: bool,
    token_budget: int,
    at_once: int,
    few_blocks: bool,
    tp: int,
) -> None:
    pool = PoolConfig(token_budget=token_budget, prefix_cache=prefix_cache, block_size=BLOCK)
    outputs, stats = decode_through_core(
        executor if tp == 1 else pair,
        prompts,
        [SamplingParams(max_tokens=OUTPUT)] * len(prompts),
        pool=pool,
        num_blocks=FEW_BLOCKS if few_blocks else POOL_BLOCKS,
        at_once=at_once,
    )
    assert outputs == [reference.tokens for reference in references]
    # The arms must be what they claim to be.
    assert (stats.prefix_hit_tokens > 0) == prefix_cache
    if at_once == 8:
        assert (stats.preemptions > 0) == few_blocks


@pytest.mark.parametrize("batching", ["chunked", "prefill_first"])
def test_sampled_tokens_do_not_depend_on_scheduling_either(
    executor: TorchExecutor, prompts: list[list[int]], batching: str
) -> None:
    sampling = [
        SamplingParams(max_tokens=OUTPUT, temperature=0.9, top_k=40, top_p=0.95, seed=seed)
        for seed in range(len(prompts))
    ]

    def outputs(pool: PoolConfig, num_blocks: int, at_once: int) -> list[list[int]]:
        return decode_through_core(
            executor, prompts, sampling, pool=pool, num_blocks=num_blocks, at_once=at_once
        )[0]

    alone = outputs(PoolConfig(prefix_cache=False), POOL_BLOCKS, 1)
    crowded = PoolConfig.model_validate({"token_budget": 32, "batching": batching})
    assert outputs(crowded, FEW_BLOCKS, 8) == alone
    assert alone != [decode_alone(executor, prompt, OUTPUT) for prompt in prompts]


def test_end_of_sequence_waits_for_min_tokens(
    tmp_path: Path, prompts: list[list[int]], references: list[Reference]
) -> None:
    """With the model's own third token as end-of-sequence, greedy must go around it until `min_tokens`."""
    prompt, expected = prompts[9], references[9].tokens
    eos = expected[2]
    assert eos not in expected[:2]

    def tokens(min_tokens: int) -> list[int]:
        ((output,), _) = decode_through_core(
            executor,
            [prompt],
            [SamplingParams(max_tokens=OUTPUT, min_tokens=min_tokens)],
            pool=PoolConfig(),
            num_blocks=POOL_BLOCKS,
            at_once=1,
            eos_token_ids=frozenset({eos}),
        )
        return output

    with tiny_executor(write_tiny_model(tmp_path, LLAMA | {"eos_token_id": eos})) as executor:
        assert tokens(min_tokens=0) == expected[:3]
        longer = tokens(min_tokens=5)
    assert longer[:2] == expected[:2]
    assert eos not in longer[:5]
    assert len(longer) > 5
