"""`sample_step`: logprobs are transformers' log-softmax, of those rows that ask, through the core."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.tiny_model import write_tiny_model

from engine.config import PoolConfig
from engine.core import EngineCore, TokenEvent
from engine.executors.torch import TorchExecutor
from engine.request import Request, SamplingParams
from engine.sampling import sample_step
from engine.step import Step, StepRow

transformers = pytest.importorskip("transformers")

PROMPT = tuple((7 * n * n + 3) % 256 for n in range(21))
EOS = frozenset({2})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "llama")


def run(folder: Path, requests: list[Request], budget: int) -> dict[str, list[TokenEvent]]:
    """The events of each request. A small budget cuts prompts into chunks, whose rows have no token."""
    core = EngineCore(PoolConfig(block_size=4, token_budget=budget), num_blocks=200, max_len=512)
    events: dict[str, list[TokenEvent]] = {request.id: [] for request in requests}
    with TorchExecutor(folder, dtype="float64", threads=1, num_blocks=200, block_size=4) as executor:
        for request in requests:
            core.add(request, 0.0)
        while core.has_work:
            step = core.next_step(0.0)
            assert step is not None
            for event in core.complete(step.id, executor.submit(step).result(), 0.0):
                events[event.request_id].append(event)
    return events


@pytest.mark.parametrize("budget", [8, 512])
def test_logprobs_are_the_log_softmax_of_raw_logits(folder: Path, budget: int) -> None:
    """Whatever temperature, top-k and min_tokens do to the draw."""
    sampled = SamplingParams(max_tokens=12, temperature=1.5, top_k=5, seed=3, min_tokens=12, logprobs=4)
    requests = [
        Request("none", PROMPT[1:], SamplingParams(max_tokens=12)),
        Request("five", PROMPT, SamplingParams(max_tokens=12, logprobs=5, ignore_eos=True)),
        Request("drawn", PROMPT[2:], sampled),
        Request("zero", PROMPT[3:], SamplingParams(max_tokens=12, logprobs=0, ignore_eos=True)),
    ]
    events = run(folder, requests, budget)
    # It turns positions in float32, whatever the dtype.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    for request in requests:
        tokens = [event.token for event in events[request.id] if event.token is not None]
        with torch.inference_mode():
            logits = model(torch.tensor([[*request.prompt, *tokens]])).logits[0, len(request.prompt) - 1 : -1]
        expected = logits.log_softmax(dim=-1)
        for event, row in zip(events[request.id], expected, strict=True):
            asked = request.sampling.logprobs
            if asked is None:
                assert event.logprobs is None
                continue
            assert event.logprobs is not None
            assert event.logprobs.logprob == pytest.approx(float(row[event.token]), abs=1e-5)
            best = row.topk(asked)
            assert [token for token, _ in event.logprobs.top] == best.indices.tolist()
            assert [value for _, value in event.logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def row(request_id: str, sampling: SamplingParams, *, sample: bool = True) -> StepRow:
    return StepRow(request_id, (0,), 8, (1,), sample, not sample, sampling)


def test_tokens_and_logprobs_stand_at_the_rows_that_sample() -> None:
    logits = torch.tensor([[0.0, 1.0], [3.0, 0.0]], dtype=torch.bfloat16)
    asks = SamplingParams(logprobs=1)
    rows = (row("a", asks, sample=False), row("b", asks), row("c", SamplingParams()))
    result = sample_step(logits, Step(5, rows), EOS)
    assert (result.step_id, result.tokens) == (5, (None, 1, 0))
    assert result.logprobs is not None
    first, second, third = result.logprobs
    assert (first, third) == (None, None)
    assert second is not None
    # log(e / (1 + e)), in float32 although the logits are bfloat16
    assert second.logprob == pytest.approx(-0.3132617, abs=1e-6)
    assert second.top == ((1, second.logprob),)


def test_where_nobody_asks_there_are_none() -> None:
    assert sample_step(torch.zeros(1, 4), Step(1, (row("a", SamplingParams()),)), EOS).logprobs is None


def test_a_step_that_samples_nothing_has_no_tokens() -> None:
    asks = SamplingParams(logprobs=1)
    result = sample_step(torch.zeros(0, 4), Step(1, (row("a", asks, sample=False),)), EOS)
    assert (result.tokens, result.logprobs) == ((None,), None)


def test_more_logprobs_than_the_vocabulary_are_all_of_it() -> None:
    result = sample_step(torch.zeros(1, 4), Step(1, (row("a", SamplingParams(logprobs=20)),)), EOS)
    assert result.logprobs is not None
    assert result.logprobs[0] is not None
    assert len(result.logprobs[0].top) == 4
