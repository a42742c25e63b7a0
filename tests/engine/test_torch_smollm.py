"""The embedded model in float32: the tokens of transformers, alone and through the engine core.

A difference counts only where the top two logits are more than `greedy.TIE` apart; excused ones are printed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

import pytest
import torch
import transformers
from helpers.embedded import embedded_folder
from helpers.greedy import Reference, decode_alone, decode_through_core, reference_greedy, reference_model

from engine.config import PoolConfig
from engine.executors.torch import TorchExecutor
from engine.request import SamplingParams
from engine.text import Tokenizer

BLOCK = 16
LENGTHS = [1, 2, 5, 15, 16, 17, 31, 33, 48, 64, 65, 100, 127, 128, 200, 257, 300, 400, 512, 700]
PROSE = (
    "the a old river city house number seven and between because engineer asked why light falls slowly in "
    "winter while trains carry letters from one small town to another , then returns . However nobody knew"
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return embedded_folder()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> transformers.PreTrainedModel:
    return reference_model(folder, torch.float32)


@pytest.fixture(scope="module")
def executor(folder: Path) -> Iterator[TorchExecutor]:
    threads = torch.get_num_threads()
    with TorchExecutor(folder, dtype="float32", threads=threads, num_blocks=400, block_size=BLOCK) as opened:
        yield opened


def prompt(tokenizer: Tokenizer, length: int) -> list[int]:
    """`length` tokens of made-up prose."""
    random = Random(length)
    return tokenizer.encode(" ".join(random.choices(PROSE.split(), k=length)))[:length]


def test_the_capital_of_france(executor: TorchExecutor, tokenizer: Tokenizer) -> None:
    tokens = decode_alone(executor, tokenizer.encode("The capital of France is"), 2)
    assert tokenizer.decode(tokens).startswith(" Paris")


@pytest.mark.parametrize("length", [1, 17, 100])
def test_matches_transformers(
    executor: TorchExecutor, model: transformers.PreTrainedModel, tokenizer: Tokenizer, length: int
) -> None:
    ids = prompt(tokenizer, length)
    reference_greedy(model, ids, 16).excuses(decode_alone(executor, ids, 16))


@pytest.mark.slow
def test_twenty_prompts_match_transformers(
    executor: TorchExecutor,
    model: transformers.PreTrainedModel,
    tokenizer: Tokenizer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    excused = 0
    for length in LENGTHS:
        ids = prompt(tokenizer, length)
        excused += reference_greedy(model, ids, 64).excuses(decode_alone(executor, ids, 64))
    with capsys.disabled():
        sys.stdout.write(f"\n{len(LENGTHS)} prompts of 64 tokens: {excused} excused as ties\n")
    assert excused <= 2


@pytest.mark.slow
def test_scheduling_never_changes_the_tokens(
    executor: TorchExecutor,
    model: transformers.PreTrainedModel,
    tokenizer: Tokenizer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    system = prompt(tokenizer, 40)
    prompts = [system + prompt(tokenizer, length) for length in (1, 8, 25, 90)]
    prompts += [prompt(tokenizer, length) for length in (5, 16, 130, 200)]
    # Admitted when one of the first eight is done, so that even a step that holds all prompts leads to hits.
    prompts += [system + prompt(tokenizer, length) for length in (3, 12)]
    references: list[Reference] = [reference_greedy(model, ids, 40) for ids in prompts]
    excused = 0
    # One request alone never runs out of blocks; eight in 16 blocks do.
    arms = list(product([False, True], [16, 64, 512, 4096], [(1, 400), (8, 400), (8, 17)]))
    for prefix_cache, token_budget, (at_once, num_blocks) in arms:
        outputs, stats = decode_through_core(
            executor,
            prompts,
            [SamplingParams(max_tokens=40, ignore_eos=True)] * len(prompts),
            pool=PoolConfig(token_budget=token_budget, prefix_cache=prefix_cache, block_size=BLOCK),
            num_blocks=num_blocks,
            at_once=at_once,
        )
        excused += sum(map(Reference.excuses, references, outputs))
        assert (stats.prefix_hit_tokens > 0) == prefix_cache
        assert (stats.preemptions > 0) == (num_blocks == 17)
    with capsys.disabled():
        sys.stdout.write(f"\n{len(arms)} arms of {len(prompts)} prompts: {excused} excused as ties\n")
    assert excused <= len(arms)
