"""`advise launch` with the embedded model: the official client, and what the prefix cache saves, exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from helpers.embedded import embedded_folder
from helpers.server import advise_launch, client, eventually, metrics, step_lines

from advisor.deploy.run import Run
from engine.config import EngineConfig, PoolConfig, ServerConfig
from engine.fetch import EMBEDDED_NAME

BLOCK = 16


@dataclass(frozen=True)
class Real:
    run: Run
    api: openai.OpenAI
    step_log: Path
    model: str = EMBEDDED_NAME


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    embedded_folder()
    folder = tmp_path_factory.mktemp("advise-out")
    log = folder / "steps.jsonl"
    # A budget that is no multiple of the block: chunks must not change what is hit.
    pool = PoolConfig(token_budget=50, kv_tokens=8192, block_size=BLOCK)
    config = EngineConfig(pools=(pool,), server=ServerConfig(port=0))
    with (
        advise_launch(folder, config, log) as run,
        openai.OpenAI(base_url=f"{run.url}/v1", api_key="unused", max_retries=0) as api,
    ):
        yield Real(run, api, log)


def test_a_completion_goes_on_with_paris(real: Real) -> None:
    answer = real.api.completions.create(
        model=real.model, prompt="The capital of France is", max_tokens=4, temperature=0
    )
    assert answer.choices[0].text.startswith(" Paris")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 4)


def test_a_streamed_completion_gives_the_same_text(real: Real) -> None:
    asked = {"model": real.model, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0.0}
    whole = real.api.completions.create(**asked)
    stream = real.api.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12


def test_a_chat_streamed_and_not(real: Real) -> None:
    messages = [{"role": "user", "content": "What is two plus two? Answer briefly."}]
    asked = {"model": real.model, "messages": messages, "max_completion_tokens": 16, "temperature": 0.0}
    whole = real.api.chat.completions.create(**asked)
    chunks = list(real.api.chat.completions.create(**asked, stream=True))
    assert whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_seed_repeats_and_another_differs(real: Real) -> None:
    def text(seed: int) -> str:
        answer = real.api.completions.create(
            model=real.model, prompt="My favourite animal is", max_tokens=16, temperature=1.0, seed=seed
        )
        return answer.choices[0].text

    assert text(1) == text(1) != text(2)


def test_the_first_choice_says_what_its_seed_says_alone_and_others_differ(real: Real) -> None:
    def texts(n: int, prompt: list[str]) -> list[str]:
        answer = real.api.completions.create(
            model=real.model, prompt=prompt, max_tokens=12, temperature=1.0, seed=5, n=n
        )
        return [choice.text for choice in answer.choices]

    animal, colour = "My favourite animal is", "My favourite colour is"
    alone = texts(1, [animal]) + texts(1, [colour])
    together = texts(3, [animal, colour])
    assert [together[0], together[3]] == alone
    assert len(set(together)) == 6
    assert together == texts(3, [animal, colour])


def test_a_stop_string_and_logprobs_of_the_text_before_it(real: Real) -> None:
    answer = real.api.completions.create(
        model=real.model, prompt="The capital of France is", max_tokens=20, temperature=0, stop="is", logprobs=2
    )
    (choice,) = answer.choices
    assert choice.text.startswith(" Paris"[:4])
    assert "is" not in choice.text
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens).startswith(choice.text)
    for token, own, top in zip(
        choice.logprobs.tokens,
        choice.logprobs.token_logprobs or [],
        choice.logprobs.top_logprobs or [],
        strict=True,
    ):
        assert max(top.values()) == top[token] == own  # greedy takes the likeliest


def test_errors_come_as_the_clients_exceptions(real: Real) -> None:
    with pytest.raises(openai.BadRequestError, match="8192 tokens"):
        real.api.completions.create(model=real.model, prompt=[5] * 9000)
    with pytest.raises(openai.NotFoundError):
        real.api.completions.create(model="another", prompt="x")


def test_models_lists_the_served_model(real: Real) -> None:
    assert [model.id for model in real.api.models.list()] == [real.model]


# (prompt as runs of (token id, length), tokens of it that are cached by then). The prompts are sent one after
# the other, so the hit is known: the full blocks that it shares with an earlier one, never its last token.
A, B, C = (1001, 100), (1002, 60), (1003, 60)
SHARED = [
    ([A], 0),
    ([A], 96),  # 100 tokens: six full blocks
    ([A, B], 96),  # the 4 tokens after them begin a block that differs
    ([A, C], 96),
    ([A, B], 144),  # 160 tokens are ten full blocks; the last token is computed always, so nine
    ([A, B, C], 160),
    ([C], 0),  # the same tokens at another place are no prefix
    ([(1001, 15)], 0),  # less than a block
    ([(1001, 16)], 0),  # its last token is computed
    ([(1001, 17)], 16),
]


def test_query_tokens_computed_are_the_prompt_less_the_expected_hit_exactly(real: Real) -> None:
    expected: dict[str, int] = {}
    for runs, hit in SHARED:
        prompt = [token for token, length in runs for _ in range(length)]
        answer = real.api.completions.create(
            model=real.model, prompt=prompt, max_tokens=2, temperature=0, extra_body={"ignore_eos": True}
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == hit
        expected[answer.id] = len(prompt) - hit + 1  # one decode makes the second token
    assert _computed(real, set(expected)) == expected


def _computed(real: Real, ids: set[str]) -> dict[str, int]:
    """Query tokens run through the model, by request, from the step log."""
    computed: Counter[str] = Counter()
    for step in _all_steps(real):
        for request_id, new, _context in step["rows"]:
            if request_id in ids:
                computed[request_id] += new
    return dict(computed)


def _all_steps(real: Real) -> list[dict[str, Any]]:
    """The step log, once the engine has written all that it counted."""
    with client(real.run) as http:
        eventually(
            lambda: len(step_lines(real.step_log)[1]) == metrics(http)["advise_step_seconds_count"],
            "the step log is complete",
        )
    return step_lines(real.step_log)[1]


def test_the_step_log_says_what_ran_and_within_the_budget(real: Real) -> None:
    real.api.completions.create(model=real.model, prompt=[7] * 120, max_tokens=3, temperature=0)
    steps, (header, _) = _all_steps(real), step_lines(real.step_log)
    assert header["engine"] == "advise"
    assert (header["model"], header["block_size"], header["threads"]) == (real.model, BLOCK, 1)
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    for step in steps:
        new = sum(new for new, _ in step["prefill"]) + step["decode_rows"]
        assert new == sum(new for _, new, _ in step["rows"]) <= 50
        assert step["seconds"] > 0
