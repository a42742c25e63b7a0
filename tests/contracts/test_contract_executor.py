"""What every Executor keeps to: torch on this CPU, modelled and emulated ones, and the echo of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.echo import EchoExecutor
from helpers.tiny_model import write_tiny_model

from engine.config import PoolConfig
from engine.core import EngineCore
from engine.executors.emulated import EmulatedExecutor
from engine.executors.modelled import ModelledExecutor
from engine.executors.torch import TorchExecutor
from engine.request import Request, SamplingParams
from engine.step import Executor, Step, StepResult
from engine.step_time.calibrated import CalibratedStepTime, Coefficients

NUM_BLOCKS, BLOCK_SIZE = 64, 16
STEP_TIME = CalibratedStepTime(Coefficients(1e-2, 0, 1e-3, 0, 1e-3, 0))
REQUESTS = [
    Request(f"r{i}", tuple(range(3, 3 + length)), SamplingParams(max_tokens=5, ignore_eos=True))
    for i, length in enumerate((1, 15, 16, 17, 40))
]


@contextmanager
def echo() -> Iterator[Executor]:
    executor = EchoExecutor(NUM_BLOCKS, BLOCK_SIZE)
    for request in REQUESTS:
        executor.expect(request)
    yield executor


@contextmanager
def modelled() -> Iterator[Executor]:
    yield ModelledExecutor(STEP_TIME)


@contextmanager
def emulated() -> Iterator[Executor]:
    kv = np.zeros((2, NUM_BLOCKS, BLOCK_SIZE), np.uint32)
    yield EmulatedExecutor(STEP_TIME, kv, sleep=lambda _: None, clock=lambda: 0.0)


@contextmanager
def torch(folder: Path) -> Iterator[Executor]:
    with TorchExecutor(
        folder, dtype="float64", threads=1, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE
    ) as executor:
        yield executor


@pytest.fixture(params=["echo", "modelled", "emulated", "torch"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], contextmanager[Executor]]:
    """Makes a new executor of one kind."""
    if request.param == "torch":
        return partial(torch, write_tiny_model(tmp_path / "tiny"))
    return {"echo": echo, "modelled": modelled, "emulated": emulated}[request.param]


def serve(executor: Executor, budget: int) -> tuple[dict[str, list[int]], list[tuple[Step, StepResult]]]:
    """Run all requests to their end; their outputs, and every step with its result."""
    core = EngineCore(PoolConfig(token_budget=budget), num_blocks=NUM_BLOCKS, max_len=256)
    outputs: dict[str, list[int]] = {request.id: [] for request in REQUESTS}
    for request in REQUESTS:
        core.add(request, 0.0)
    steps = []
    while (step := core.next_step(0.0)) is not None:
        result = executor.submit(step).result()
        steps.append((step, result))
        for event in core.complete(step.id, result, 0.0):
            if event.token is not None:
                outputs[event.request_id].append(event.token)
    return outputs, steps


def test_a_result_has_one_entry_a_row_and_a_token_exactly_where_one_is_sampled(make) -> None:
    with make() as executor:
        outputs, steps = serve(executor, budget=16)
    assert all(len(tokens) == 5 for tokens in outputs.values())
    for step, result in steps:
        assert result.step_id == step.id
        assert [token is not None for token in result.tokens] == [row.sample for row in step.rows]


def test_tokens_do_not_depend_on_the_budget(make) -> None:
    outputs = []
    for budget in (8, 512):
        with make() as executor:
            outputs.append(serve(executor, budget)[0])
    assert outputs[0] == outputs[1]
