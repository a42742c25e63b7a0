"""Decode graphs without a GPU: a graph that records a call and replays it by making it again.

Everything but the recording is the real thing: which graph a step runs in, what its padding reads and writes,
that nothing is moved or made for the real batch. Once over torch's attention, once over the Triton kernels
under the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from helpers.interpreter import interpreted
from helpers.tiny_model import LLAMA, write_tiny_model

from engine.attention.torch import TorchAttention, TorchMeta
from engine.config import PoolConfig
from engine.executors.graphs import DecodeGraphs
from engine.executors.runner import DeviceParts
from engine.executors.torch import TorchExecutor
from engine.executors.warm_up import decode_sizes, trash_row
from engine.model.base import Model
from engine.model.load import load_model
from engine.model.ops import TorchOps
from engine.request import SamplingParams
from engine.sampling import TorchChoice
from engine.step import Step, StepRow

BLOCK = 16
BLOCKS = 40
CPU = torch.device("cpu")


@dataclass
class MovableMeta:
    """Stands for buffers that a graph reads: what is in them changes, the object does not."""

    rows: int
    plan: TorchMeta


class RefillableAttention(TorchAttention):
    """TorchAttention with the two methods that a backend needs for graphs."""

    def capture_meta(self, rows: int) -> MovableMeta:
        return MovableMeta(rows, super().plan((trash_row(),) * rows))

    def refill(self, meta: MovableMeta, rows: Sequence[StepRow]) -> None:
        meta.plan = super().plan((*rows, *(trash_row(),) * (meta.rows - len(rows))))

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, meta: Any) -> torch.Tensor:
        return super().attend(layer, q, k, v, meta.plan if isinstance(meta, MovableMeta) else meta)


class Watched:
    """A model that notes the size of every forward, and that a size's inputs never change their place."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.sizes: list[int] = []
        self._places: dict[int, list[int]] = {}

    def forward(self, *inputs: Any) -> torch.Tensor | None:
        size = len(inputs[0])
        self.sizes.append(size)
        assert self._places.setdefault(size, places(inputs)) == places(inputs), "a graph's input moved"
        return self._model.forward(*inputs)


def places(value: Any) -> list[int]:
    """Addresses of the tensors in `value`."""
    if isinstance(value, torch.Tensor):
        return [value.data_ptr()]
    if isinstance(value, tuple):
        return [place for item in value for place in places(item)]
    if is_dataclass(value) and not isinstance(value, MovableMeta):
        return [place for field in fields(value) for place in places(getattr(value, field.name))]
    return []


class Replayed:
    """A graph that replays by calling."""

    def __init__(self, body: Callable[[], None]) -> None:
        body()  # as recording does
        self.replay = body


def decode_rows(count: int, lengths: Random) -> tuple[StepRow, ...]:
    """Rows in blocks of their own, from 1 on, at random positions of the first two blocks."""
    rows = []
    for number in range(count):
        blocks = (2 * number + 1, 2 * number + 2)
        token, start = lengths.randrange(3, 256), lengths.randrange(2 * BLOCK)
        rows.append(StepRow(str(number), (token,), start, blocks, True, False, SamplingParams()))
    return tuple(rows)


def written(rows: Sequence[StepRow]) -> set[int]:
    """Slots that a step may write: each row's own, those behind it in its block, and the trash block."""
    slots = set(range(BLOCK))
    for row in rows:
        block = row.blocks[row.start // BLOCK] * BLOCK
        slots |= set(range(block + row.start % BLOCK, block + BLOCK))
    return slots


def check_replays(model: Model, attention: Any, batches: Sequence[int], tolerance: float) -> list[int]:
    """Replays decode steps and compares each with the same step without a graph; sizes of the forwards."""
    watched = Watched(model)
    generator = torch.Generator().manual_seed(1)
    content = torch.randn(attention.pool.shape, generator=generator).to(attention.pool.dtype)
    attention.pool.copy_(content)
    graphs = DecodeGraphs(
        watched,
        attention,
        max_seqs=max(batches),
        device=CPU,
        record=Replayed,  # type: ignore[arg-type]
    )
    assert torch.equal(attention.pool[:, :, 1:], content[:, :, 1:])  # made while others may hold every block
    watched.sizes.clear()
    for number, batch in enumerate(batches):
        rows = decode_rows(batch, Random(number))
        step = Step(number, rows)
        assert graphs.covers(step)
        attention.pool.copy_(content)
        logits = graphs.run(step)
        after = attention.pool.clone()
        attention.pool.copy_(content)
        ids, positions = (
            torch.tensor([row.tokens[0] for row in rows]),
            torch.tensor([row.start for row in rows]),
        )
        expected = model.forward(ids, positions, torch.arange(batch), attention, attention.plan(rows))
        assert logits is not None
        assert expected is not None
        torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)
        kept = [slot for slot in range(BLOCKS * BLOCK) if slot not in written(rows)]
        assert torch.equal(after.flatten(2, 3)[:, :, kept], content.flatten(2, 3)[:, :, kept])
    return watched.sizes


def test_sizes_are_few_and_never_more_than_may_run() -> None:
    assert decode_sizes(64) == (1, 2, 4, 8, 16, 32, 48, 64)
    assert decode_sizes(40) == (1, 2, 4, 8, 16, 32, 40)
    assert decode_sizes(3) == (1, 2, 3)
    assert decode_sizes(1) == (1,)


def test_padding_rows_never_touch_a_real_slot(tmp_path: Path) -> None:
    """Bugs 33 and 34: vllm#43810, flashinfer#2883; TRT-LLM#16072."""
    with torch.inference_mode():
        model = load_model(write_tiny_model(tmp_path), torch.float64)
        attention = RefillableAttention(model.shape, num_blocks=BLOCKS, block_size=BLOCK, dtype=torch.float64)
        batches = (1, 2, 3, 5, 8, 9, 17, 16, 1)
        sizes = check_replays(model, attention, batches, 1e-12)
    assert sizes == [1, 2, 4, 8, 8, 16, 17, 16, 1]


@interpreted
def test_the_kernels_replay_as_they_run(tmp_path: Path) -> None:
    from engine.attention.triton import TritonAttention
    from engine.kernels.ops import TritonOps

    small = LLAMA | {
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    with torch.inference_mode():
        folder = write_tiny_model(tmp_path, small | {"intermediate_size": 32, "max_position_embeddings": 64})
        model = load_model(folder, torch.float32, ops=TritonOps())
        attention = TritonAttention(
            model.shape, num_blocks=BLOCKS, block_size=BLOCK, dtype=torch.float32, device="cpu"
        )
        assert check_replays(model, attention, (3, 1, 4, 2), 1e-5) == [4, 1, 4, 2]


def test_graphs_are_captured_largest_first(tmp_path: Path) -> None:
    """So that all smaller ones fit into the memory of the first."""
    captured: list[int] = []

    def record(body: Callable[[], None]) -> Replayed:
        watched.sizes.clear()
        graph = Replayed(body)
        captured.extend(watched.sizes)
        return graph

    with torch.inference_mode():
        model = load_model(write_tiny_model(tmp_path), torch.float64)
        watched = Watched(model)
        attention = RefillableAttention(model.shape, num_blocks=BLOCKS, block_size=BLOCK, dtype=torch.float64)
        DecodeGraphs(watched, attention, max_seqs=20, device=CPU, record=record)  # type: ignore[arg-type]
    assert captured == [20, 16, 8, 4, 2, 1]


@pytest.mark.parametrize(
    ("covered", "rows"),
    [
        (True, (trash_row(),)),
        (True, (trash_row(),) * 4),
        (False, (trash_row(),) * 5),
        (False, (trash_row(), trash_row(3, prefill=True))),
        (False, (StepRow("a", (1,), 0, (0,), False, True, SamplingParams()),)),
    ],
    ids=["one", "as many as may run", "too many", "mixed", "a row that does not sample"],
)
def test_only_pure_decodes_are_replayed(tmp_path: Path, covered: bool, rows: tuple[StepRow, ...]) -> None:
    with torch.inference_mode():
        model = load_model(write_tiny_model(tmp_path), torch.float64)
        attention = RefillableAttention(model.shape, num_blocks=8, block_size=BLOCK, dtype=torch.float64)
        graphs = DecodeGraphs(model, attention, max_seqs=4, device=CPU, record=Replayed)
    assert graphs.covers(Step(1, rows)) is covered


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_an_executor_with_graphs_gives_the_tokens_of_one_without(tmp_path: Path, cuda_graphs: bool) -> None:
    from helpers.greedy import decode_through_core

    replays: list[Replayed] = []

    class Counted(Replayed):
        def __init__(self, body: Callable[[], None]) -> None:
            super().__init__(body)
            self.replay = lambda: (replays.append(self), body())[1]

    folder = write_tiny_model(tmp_path)
    prompts = [[Random(n).randrange(3, 256) for _ in range(5 + 9 * n)] for n in range(6)]
    sampling = [SamplingParams(max_tokens=12)] * len(prompts)
    open_executor = partial(TorchExecutor, folder, dtype="float64", num_blocks=BLOCKS, block_size=BLOCK)
    outputs = []
    for parts in (None, DeviceParts(TorchOps(), RefillableAttention, TorchChoice(), Counted)):
        with open_executor(max_seqs=5, cuda_graphs=cuda_graphs, parts=parts) as executor:
            pool = PoolConfig(token_budget=32, max_seqs=5)
            outputs.append(
                decode_through_core(executor, prompts, sampling, pool=pool, num_blocks=BLOCKS, at_once=6)
            )
    assert outputs[0][0] == outputs[1][0]
    assert bool(replays) is cuda_graphs
