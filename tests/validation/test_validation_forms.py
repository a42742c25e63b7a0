"""The form of request: the best one an endpoint takes, and a sentence for everything that is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from helpers.fake_server import Program, serving
from helpers.server import fake_engine
from tokenizers import decoders, models, pre_tokenizers

from advisor.validation.endpoint import inspect
from advisor.validation.form import Form
from advisor.validation.forms import agree
from advisor.validation.prompts import PromptFactory
from engine.errors import MachineError

FAST = {"ttft_s": 0.001, "tpot_s": 0.0001}
EVERYTHING = {"min_tokens": 7, "ignore_eos": True, "return_token_ids": True, "temperature": 0}


def form_for(tokenizer: str | None = None, key: str | None = None, **program: object) -> Form:
    async def settle() -> Form:
        async with serving(Program(**FAST, **program)) as url:
            endpoint = await inspect(url, api_key=program.get("api_key"))
            return await agree(endpoint, seed=5, tokenizer=tokenizer, api_key=key)

    return asyncio.run(settle())


def body(form: Form, length: int = 100) -> dict:
    prompt = PromptFactory(32_000, 1).unique(length, 1)
    return json.loads(form.body(form.write([prompt])[0], 7))


def says(form: Form, *parts: str) -> None:
    """Exactly these losses, in any order, each told by a part of its sentence."""
    assert len(form.fell_back) == len(parts), form.fell_back
    for part in parts:
        assert sum(part in sentence for sentence in form.fell_back) == 1, (part, form.fell_back)


def test_a_server_that_takes_everything_gets_ids() -> None:
    form = form_for(chat=True)
    says(form)
    assert (form.name, form.path) == ("token ids", "/v1/completions")
    sent = body(form)
    assert len(sent["prompt"]) == 100
    assert sent["max_tokens"] == 7
    assert EVERYTHING.items() <= sent.items()
    assert sent["stream_options"] == {"include_usage": True}
    assert (form.reports_usage, form.reports_cached, form.returns_ids, form.forces_length) == (True,) * 4


def test_the_bundled_engine_loses_nothing() -> None:
    with fake_engine() as running:
        form = asyncio.run(agree(asyncio.run(inspect(running.url)), seed=5))
    says(form)
    assert (form.name, form.forces_length, form.tokens_per_chunk) == ("token ids", True, 1.0)


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize(
    "refused",
    [["return_token_ids"], ["min_tokens", "ignore_eos"], ["return_token_ids", "min_tokens", "ignore_eos"]],
)
def test_only_what_is_refused_is_left_out(refused: list[str], names: bool) -> None:
    """As TensorRT-LLM and hosted APIs: 400 to fields that they do not know, with or without naming them."""
    form = form_for(refuses=refused, names_refused=names)
    sent = body(form)
    assert form.name == "token ids"
    assert not set(refused) & set(sent)
    assert set(EVERYTHING) - set(refused) <= set(sent)
    sentence = {"return_token_ids": "ids of answers", "min_tokens": "min_tokens", "ignore_eos": "ignore_eos"}
    says(form, *(sentence[name] for name in refused))


def test_a_refusal_that_repeats_the_request_names_nothing() -> None:
    form = form_for(refuses=["min_tokens"], echoes=True)
    says(form, "min_tokens")


def test_usage_that_is_refused_is_missed() -> None:
    form = form_for(refuses=["stream_options"])
    says(form, "stream_options", "no cached tokens")
    assert "stream_options" not in body(form)
    assert not form.reports_usage


def test_models_that_think_want_another_name_for_the_limit() -> None:
    form = form_for(no_completions=True, chat=True, refuses=["max_tokens", "temperature"])
    sent = body(form)
    assert sent["max_completion_tokens"] == 7
    assert not {"max_tokens", "temperature"} & set(sent)


def test_without_ids_prompts_are_text_of_the_same_length() -> None:
    form = form_for(no_ids=True)
    assert (form.name, form.path) == ("text", "/v1/completions")
    says(form, "no token ids", "1 tokens a word")
    assert len(body(form)["prompt"].split()) == 100


def test_chat_only_leaves_room_for_its_template() -> None:
    form = form_for(no_completions=True, chat=True, template_tokens=23)
    assert (form.name, form.path) == ("chat", "/v1/chat/completions")
    says(form, "chat only", "1 tokens a word", "24 tokens of a prompt")  # the template's, and the lead
    (message,) = body(form)["messages"]
    assert message["role"] == "user"
    assert len(message["content"].split()) == 100 - 23
    prompt = PromptFactory(32_000, 1).unique(100, 1)
    seen = form.as_seen([prompt])[0]
    assert len(seen) == 100
    assert (seen[24:] == prompt[:76]).all()


def test_words_that_cost_more_are_left_out_or_measured() -> None:
    """A group with a word that is two tokens is not used; where every group has some, their mean rate is."""
    form = form_for(no_ids=True, long_word=8)
    assert form.wording is not None
    assert form.wording.per_word == 1.0
    assert max(map(len, form.wording.words)) <= 8
    assert len(form.wording.words) > 100
    doubled = form_for(no_ids=True, long_word=0)
    assert doubled.wording is not None
    assert doubled.wording.per_word == 2.0
    # The fake counts two tokens for each word, the lead too: 100 = 2 + 2 x 49.
    assert len(body(doubled)["prompt"].split()) == 1 + 49


def word_level(folder: Path) -> str:
    """A tokenizer that counts as the fake server does: a word, a token."""
    vocabulary = {"[UNK]": 0, "text": 1} | {
        "".join(letters): i for i, letters in enumerate(product("abc", repeat=5), 2)
    }
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106 - a token
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    return str(folder)


def test_the_tokenizer_at_hand_chooses_the_words(tmp_path: Path) -> None:
    form = form_for(tokenizer=word_level(tmp_path), no_completions=True, chat=True, template_tokens=23)
    says(form, "chat only", "24 tokens of a prompt")
    assert form.wording is not None
    assert len(form.wording.words) == 3**5 + 1
    assert len(body(form)["messages"][0]["content"].split()) == 100 - 23


def test_another_models_tokenizer_is_found_out(tmp_path: Path) -> None:
    """Its words are two tokens each at the endpoint, so they are not used."""
    form = form_for(tokenizer=word_level(tmp_path), no_ids=True, long_word=4)
    says(form, "no token ids", "not the endpoint's tokenizer", "tokens a word")


def test_usage_that_does_not_grow_is_not_believed() -> None:
    """As servers that leave cached tokens out of it: ids would count as another number of tokens too."""
    form = form_for(counts=3)
    assert form.name == "text"
    says(form, "no token ids", "does not count all tokens")
    assert len(body(form)["prompt"].split()) == 100


def test_prompts_may_be_written_one_by_one_or_together() -> None:
    form = form_for(no_ids=True)
    prompts: Sequence[np.ndarray] = [PromptFactory(32_000, 1).unique(50, label) for label in range(3)]
    together = [form.body(prompt, 7) for prompt in form.write(prompts)]
    assert together == [form.body(prompt, 7) for prompt in prompts]


def test_a_forced_length_that_is_ignored_is_seen() -> None:
    """As Ollama, which takes any field and has no minimum: an answer that would end by itself does."""
    form = form_for(no_completions=True, chat=True, forces_length=False)
    assert form.forces_length is False
    assert any("ended by itself" in sentence for sentence in form.fell_back)


@pytest.mark.parametrize(("cached", "reports", "when_none"), [("always", True, True), ("hits", True, False)])
def test_cached_tokens_are_found_where_they_are_only_told_on_a_hit(
    cached: str, reports: bool, when_none: bool
) -> None:
    """vLLM leaves the field out where nothing was cached, flag or not."""
    form = form_for(cached=cached)
    says(form)
    assert (form.reports_cached, form.cached_when_none) == (reports, when_none)


def test_cached_tokens_that_are_never_told_are_missed() -> None:
    form = form_for(cached="never")
    says(form, "no cached tokens")
    assert form.reports_cached is False


def test_ids_that_are_ignored_are_missed() -> None:
    form = form_for(ids=False)
    says(form, "no ids of answers")
    assert not form.returns_ids


def test_tokens_per_chunk_are_counted() -> None:
    assert form_for(tokens_per_chunk=4).tokens_per_chunk == 4.0


def test_no_form_at_all_is_an_error_with_each_refusal() -> None:
    with pytest.raises(MachineError, match="takes no form") as caught:
        form_for(refuse=True)
    assert "token ids: 400, no; text: 400, no; chat: 404" in (caught.value.why or "")
    with pytest.raises(MachineError) as caught:
        form_for(streams=False)
    assert "not a stream" in (caught.value.why or "")


def test_a_wrong_key_is_not_taken_for_a_refused_form() -> None:
    assert form_for(api_key="right", key="right").name == "token ids"
    with pytest.raises(MachineError, match="refuses the API key") as caught:
        form_for(api_key="right", key="wrong")
    assert "wrong" not in str(caught.value.why) + str(caught.value.hint)
