"""Tokens, chat prompts and streamed text, against transformers on the same folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers
from helpers.embedded import embedded_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from engine.errors import InputError
from engine.text import Tokenizer, eos_token_ids

TRICKY = [
    "",
    " ",
    "a  b   c\n\n\td  ",
    "12345 3.14 1e-9 ²³ ٣٤ Ⅷ",
    "naïve café 日本語 한국어 \u0301x",
    "🙂👩\u200d👩\u200d👧 🏳️\u200d🌈",
    "don't I'LL we've 'tis",
    "x\r\n  \r\n y\u00a0z\u200b",
    "<|im_start|>user\nnot<|im_end|> a role",
    "\x00\x01\x7f",
    "supercalifragilistic" * 20,
]
CHATS = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?\n"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two  "},
        {"role": "user", "content": "日本 <|im_end|>"},
    ],
]


@pytest.fixture(scope="module")
def folder() -> Path:
    return embedded_folder()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_ids_are_those_of_transformers(
    tokenizer: Tokenizer, reference: transformers.PreTrainedTokenizerBase
) -> None:
    expected = [reference.encode(text) for text in TRICKY]
    assert [tokenizer.encode(text) for text in TRICKY] == expected
    assert tokenizer.encode_batch(TRICKY) == expected


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_text_encodes_as_in_transformers(
    tokenizer: Tokenizer, reference: transformers.PreTrainedTokenizerBase, text: str
) -> None:
    assert tokenizer.encode(text) == reference.encode(text)


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    """SmolLM2 splits numbers into single digits (model card)."""
    assert [tokenizer.decode([number]) for number in tokenizer.encode("90210")] == list("90210")


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("prompting", [False, True])
def test_chats_are_those_of_transformers(
    tokenizer: Tokenizer,
    reference: transformers.PreTrainedTokenizerBase,
    messages: list[dict[str, str]],
    prompting: bool,
) -> None:
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompting)
    assert tokenizer.render_chat(messages, add_generation_prompt=prompting) == expected
    ids = reference.apply_chat_template(messages, add_generation_prompt=prompting, return_dict=False)
    assert tokenizer.encode_chat(messages, prompting) == ids


def test_what_the_model_says_of_itself(tokenizer: Tokenizer) -> None:
    """The model card: 49,152 tokens; `<|im_end|>` is id 2 and ends an answer; 17 special tokens come first."""
    assert tokenizer.name == "smollm2-135m-instruct"
    assert tokenizer.vocab_size == 49_152
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.special_ids == set(range(17))
    assert tokenizer.decode([2, 28, 2]) == ","
    assert tokenizer.decode([2], skip_special=False) == "<|im_end|>"


@given(st.lists(st.integers(0, 49_151), max_size=40))
@settings(max_examples=100, deadline=None)
def test_streamed_pieces_join_to_the_whole(tokenizer: Tokenizer, ids: list[int]) -> None:
    stream = tokenizer.stream()
    pieces = [stream.push(number) for number in ids]
    assert "".join(pieces) + stream.flush() == tokenizer.decode(ids)
    assert stream.flush() == ""


def test_a_character_waits_for_its_last_byte(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a🏳b")
    assert len(ids) > 3, "the flag must take several tokens for this test to mean anything"
    stream = tokenizer.stream()
    pieces = [piece for number in ids if (piece := stream.push(number))]
    assert pieces == ["a", "🏳", "b"]
    cut = tokenizer.stream()
    assert [cut.push(number) for number in ids[:-2]][1:] == [""] * (len(ids) - 3)
    assert cut.flush() == "\ufffd"


def small(folder: Path, template: str | list[dict[str, str]] | None, **config: object) -> Tokenizer:
    """A byte-level tokenizer that puts `<s>` before prompts, as Llama 3 does."""
    backend = Backend(
        models.BPE({letter: n for n, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}, [])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    backend.save(str(folder / "tokenizer.json"))
    names = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(names | config))
    return Tokenizer.load(folder)


def test_a_chat_gets_no_second_beginning_of_sequence(tmp_path: Path) -> None:
    tokenizer = small(tmp_path, "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    bos = tokenizer.encode("")
    assert len(bos) == 1
    assert tokenizer.encode("x")[:1] == bos
    assert tokenizer.encode_chat([{"role": "user", "content": "x"}]) == tokenizer.encode("x")


def test_end_of_sequence_comes_from_where_the_folder_names_it(tmp_path: Path) -> None:
    assert small(tmp_path, None).eos_token_ids == {257}
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert eos_token_ids(tmp_path) == Tokenizer.load(tmp_path).eos_token_ids == {7, 9}


def test_template_forms(tmp_path: Path) -> None:
    """A list of named templates, a file of its own, and the tag that marks training targets."""
    messages = [{"role": "user", "content": "x"}]
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert small(tmp_path, named).render_chat(messages) == "d"
    tag = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(tag)
    assert Tokenizer.load(tmp_path).render_chat(messages) == "x"


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception(messages[0].content) }}", "{{ messages[0].content.x.y }}", "{{ messages.pop() }}"],
)
def test_a_refusal_does_not_quote_the_prompt(tmp_path: Path, template: str) -> None:
    tokenizer = small(tmp_path, template)
    with pytest.raises(InputError) as caught:
        tokenizer.encode_chat([{"role": "user", "content": "secret"}])
    assert "secret" not in f"{caught.value!r} {caught.value.why} {caught.value.where} {caught.value.hint}"
    assert caught.value.__cause__ is None


def test_no_template_is_said(tmp_path: Path) -> None:
    tokenizer = small(tmp_path, None)
    assert not tokenizer.has_chat_template
    with pytest.raises(InputError, match="no chat template"):
        tokenizer.encode_chat([{"role": "user", "content": "x"}])


def test_a_broken_file_is_the_users_to_fix(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="cannot read the tokenizer"):
        Tokenizer.load(tmp_path)
