"""The executor: order, errors, serving dtypes, and what a step reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.greedy import decode_alone
from helpers.tiny_model import write_tiny_model

from engine.executors.torch import TorchExecutor, probe_dtype
from engine.request import SamplingParams
from engine.step import PREVIOUS, Step, StepRow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def executor(folder: Path) -> Iterator[TorchExecutor]:
    with TorchExecutor(folder, dtype="float64", threads=1, num_blocks=32, block_size=16) as opened:
        yield opened


def prefill(tokens: tuple[int, ...], block: int, *, sample: bool, start: int = 0) -> StepRow:
    return StepRow("r", tokens, start, (block,), sample, True, SamplingParams())


def test_rows_that_do_not_sample_report_none(executor: TorchExecutor) -> None:
    rows = tuple(prefill((5, 6, n), n, sample=n % 2 == 0) for n in range(1, 6))
    result = executor.submit(Step(3, rows)).result()
    assert result.step_id == 3
    assert [token is not None for token in result.tokens] == [row.sample for row in rows]
    nothing = executor.submit(Step(4, (prefill((5,), 1, sample=False),))).result()
    assert nothing.tokens == (None,)


def test_steps_run_in_the_order_submitted(executor: TorchExecutor) -> None:
    """Two chunks submitted without waiting give what one chunk gives."""
    whole = executor.submit(Step(1, (prefill((9, 8, 7, 6), 1, sample=True),))).result()
    executor.submit(Step(2, (prefill((9, 8), 2, sample=False),)))
    second = executor.submit(Step(3, (prefill((7, 6), 2, sample=True, start=2),)))
    assert second.result().tokens == whole.tokens


def test_a_step_may_build_on_one_that_is_in_flight(executor: TorchExecutor) -> None:
    """Decodes submitted before their tokens are known, as the core makes them with `overlap`."""

    def decode(name: str, block: int, token: int, start: int) -> StepRow:
        return StepRow(name, (token,), start, (block,), True, False, SamplingParams())

    def started(name: str, block: int) -> StepRow:
        return StepRow(name, (9, 8, block), 0, (block,), True, True, SamplingParams())

    first = executor.submit(Step(1, (started("a", 1), started("b", 2)))).result().tokens
    expected = [first]
    for start in (3, 4):
        rows = [
            decode(name, block, token or 0, start)
            for name, block, token in zip("ab", (1, 2), expected[-1], strict=True)
        ]
        expected.append(executor.submit(Step(start, tuple(rows))).result().tokens)
    flights = [executor.submit(Step(1, (started("a", 1), started("b", 2))))]
    for start in (3, 4):
        # In another order: a token belongs to a request, not to a place.
        rows = [decode(name, block, PREVIOUS, start) for name, block in (("b", 2), ("a", 1))]
        flights.append(executor.submit(Step(start, tuple(rows))))
    assert [flight.result().tokens for flight in flights] == [first, *(tokens[::-1] for tokens in expected[1:])]
    unknown = executor.submit(Step(5, (decode("c", 3, PREVIOUS, 1),)))
    with pytest.raises(ValueError, match="no token of c"):
        unknown.result()


def test_a_failed_step_raises_and_the_next_one_runs(executor: TorchExecutor) -> None:
    good = Step(1, (prefill((5, 6), 1, sample=True),))
    expected = executor.submit(good).result()
    bad = executor.submit(Step(2, (prefill((5, 99_999), 1, sample=True),)))
    with pytest.raises(IndexError):
        bad.result()
    assert executor.submit(good).result() == expected


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16", "float32"])
def test_serving_dtypes_start_as_float64_does(folder: Path, executor: TorchExecutor, dtype: str) -> None:
    """Half precision drifts apart later; the first token of this prompt is far ahead of the second."""
    with TorchExecutor(folder, dtype=dtype, threads=1, num_blocks=8, block_size=16) as other:
        prompt = list(range(40, 70))
        assert decode_alone(other, prompt, 1) == decode_alone(executor, prompt, 1)
        assert other.dtype in ("bfloat16", "float32", dtype)


def test_threads_are_the_worker_threads_alone(folder: Path) -> None:
    before = torch.get_num_threads()
    with TorchExecutor(folder, dtype="float32", threads=before + 1, num_blocks=4, block_size=16):
        pass
    assert torch.get_num_threads() == before


def test_the_probe_names_a_dtype_that_can_be_loaded() -> None:
    assert probe_dtype() in ("bfloat16", "float32")
