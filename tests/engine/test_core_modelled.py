"""The modelled executor: virtual time from the step-time model, tokens that no schedule changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from helpers.core_driver import request

from engine.config import PoolConfig
from engine.core import EngineCore
from engine.executors.modelled import ModelledExecutor
from engine.step_time.model import StepShape


@dataclass
class Recorded:
    """A step costs 1 s; remembers the shapes it was asked for."""

    shapes: list[StepShape] = field(default_factory=list)
    source: Literal["published"] = "published"
    error_p90: float | None = None

    def seconds(self, shape: StepShape) -> float:
        self.shapes.append(shape)
        return 1.0


def serve(budget: int) -> tuple[dict[str, list[int | None]], float, list[StepShape]]:
    """Outputs, virtual seconds and step shapes of two requests."""
    core = EngineCore(PoolConfig(token_budget=budget, block_size=4), num_blocks=50, max_len=100)
    model = Recorded()
    executor = ModelledExecutor(model, vocab=100)
    for name in ("a", "b"):
        core.add(request(name, range(6), output=3), 0.0)
    outputs: dict[str, list[int | None]] = {"a": [], "b": []}
    now = 0.0
    while (step := core.next_step(now)) is not None:
        handle = executor.submit(step)
        now += handle.seconds
        for event in core.complete(step.id, handle.result(), now):
            outputs[event.request_id].append(event.token)
    return outputs, now, model.shapes


def test_steps_are_priced_by_their_shape() -> None:
    """Budget 8 by hand: 6 + 2 prompt tokens; a decode after 6 positions beside 4 more; and so on."""
    _, now, shapes = serve(budget=8)
    assert now == 4.0
    assert shapes == [
        StepShape(prefill=((6, 0), (2, 0))),
        StepShape(prefill=((4, 2),), decode_rows=1, decode_context=6),
        StepShape((), 2, 13),
        StepShape((), 1, 7),
    ]


def test_tokens_depend_on_request_and_position_only() -> None:
    outputs, *_ = serve(budget=8)
    assert outputs == serve(budget=3)[0] == serve(budget=64)[0]
    assert outputs["a"] != outputs["b"]
    assert len(set(outputs["a"])) > 1
