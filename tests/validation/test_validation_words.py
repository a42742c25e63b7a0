"""Prompts as words: exact lengths by the tokenizers' own count, the same words for the same block."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import re
import string
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from helpers.embedded import embedded_folder
from helpers.replay_traces import block_trace
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from advisor.validation.prompts import PromptFactory
from advisor.validation.words import COMMON, Sample, Wording, groups, measured, with_overhead, words_of
from engine.errors import InputError
from engine.text import Tokenizer

SIZE = 16
Count = Callable[[str], int]
TEMPLATE = "<|user|>\n{}\n<|assistant|>\n"


def corpus() -> list[str]:
    """English of this repository: enough words for a small vocabulary."""
    root = Path(__file__).resolve().parents[2]
    return [
        file.read_text(encoding="utf-8") for file in [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    ]


def pieces(most: int) -> list[tuple[str, float]]:
    """A unigram model's vocabulary: letters, and words with their log share; its trainer takes a minute."""
    words = Counter(re.findall(r"[a-z]+", " ".join(corpus()).lower()))
    letters = [(letter, -10.0) for letter in ["\u2581", *string.printable]]
    total = words.total()
    return letters + [("\u2581" + word, math.log(count / total)) for word, count in words.most_common(most)]


def trained(folder: Path, kind: str) -> Path:
    """A tokenizer of one family, made here."""
    if kind == "unigram":  # as SentencePiece: T5, Llama 1
        special = [("<unk>", 0.0), ("<s>", 0.0)]
        backend = tokenizers.Tokenizer(models.Unigram([*special, *pieces(3000)], unk_id=0))
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    else:  # as BERT
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - a token
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        special = ["[UNK]", "[CLS]", "[SEP]"]
        backend.train_from_iterator(
            corpus(), trainers.WordPieceTrainer(vocab_size=4000, special_tokens=special)
        )
        backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module", params=["byte-level", "unigram", "wordpiece"])
def tokenizer_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's, which is byte-level BPE, and one trained here of each other family."""
    if request.param == "byte-level":
        return embedded_folder()
    return trained(tmp_path_factory.mktemp("tokenizer") / request.param, request.param)


@pytest.fixture(scope="module")
def wording(tokenizer_folder: Path) -> Wording:
    """The words of that tokenizer."""
    return words_of(Tokenizer.load(tokenizer_folder))


def counter(folder: Path, template: str) -> Count:
    """How an endpoint with this tokenizer counts a prompt, template and all: by the library alone."""
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: len(backend.encode(template.format(text)).ids)


def plan(rows: int, seed: int = 3) -> tuple[list[int], list[np.ndarray]]:
    """Prompts of 40 to 200 tokens with shared blocks: their lengths, and their planned ids."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(40, 200, rows).tolist()
    own = [[*range(100 * i, 100 * i + n // SIZE)] for i, n in enumerate(lengths, 1)]
    shared = [
        ([0, 1, 2] * (i % 2) + blocks)[: n // SIZE]
        for i, (n, blocks) in enumerate(zip(lengths, own, strict=True))
    ]
    trace = block_trace(list(zip(lengths, shared, strict=True)), SIZE)
    return lengths, PromptFactory(32_000, seed).build(trace)


def test_a_thousand_chat_prompts_have_their_lengths(tokenizer_folder: Path, wording: Wording) -> None:
    """A11: at least 99.5 % within 2 tokens, counted by the endpoint's tokenizer over the whole chat."""
    count = counter(tokenizer_folder, TEMPLATE)
    # What the endpoint adds, found as forms.py does: a probe, less what its words are.
    wording = with_overhead(wording, count(wording.of(wording.words[:64])) - 64)
    assert wording.overhead > 4  # else the template is not there
    lengths, prompts = plan(1000)
    off = np.array([count(text) for text in wording.write(prompts)]) - lengths
    assert np.mean(np.abs(off) <= 2) >= 0.995
    assert np.mean(off == 0) >= 0.9  # and most of them exact


def test_a_thousand_id_prompts_are_exact_and_ordinary(tokenizer_folder: Path) -> None:
    tokenizer = Tokenizer.load(tokenizer_folder)
    lengths, _ = plan(1000)
    prompts = PromptFactory(tokenizer.vocab_size, 3).build(block_trace([(n, []) for n in lengths], SIZE))
    assert [len(prompt) for prompt in prompts] == lengths
    used = np.unique(np.concatenate(prompts))
    assert used.max() < tokenizer.vocab_size
    assert not set(used.tolist()) & tokenizer.special_ids


def test_text_without_a_template_is_exact(tokenizer_folder: Path, wording: Wording) -> None:
    count = counter(tokenizer_folder, "{}")
    lengths, prompts = plan(200)
    assert [count(text) for text in wording.write(prompts)] == lengths


def test_what_is_shared_stays_shared_and_nothing_else_is() -> None:
    wording = Wording(COMMON, overhead=5, lead="")
    rows = [(64, [7, 8, 9]), (80, [7, 8, 9, 1]), (64, [7, 9, 8]), (64, [])]
    texts = [text.split() for text in wording.write(PromptFactory(32_000, 3).build(block_trace(rows, SIZE)))]
    assert [len(text) for text in texts] == [59, 75, 59, 59]
    assert texts[0][:48] == texts[1][:48]
    assert texts[0][48:] != texts[1][48:59]
    assert texts[0][:16] == texts[2][:16]
    assert texts[0][16:32] == texts[2][32:48]
    assert texts[0][:8] != texts[3][:8]


def test_the_cache_sees_the_template_then_the_words() -> None:
    prompts = PromptFactory(32_000, 3).build(block_trace([(64, [7, 8])], SIZE))
    seen = Wording(COMMON, overhead=10).as_seen(prompts)[0]
    assert len(seen) == 64
    assert (seen[10:] == prompts[0][:54]).all()


def test_a_prompt_shorter_than_the_template_keeps_a_word() -> None:
    prompts = PromptFactory(32_000, 3).build(block_trace([(8, [])], SIZE))
    assert len(Wording(COMMON, overhead=30, lead="").write(prompts)[0].split()) == 1


class Merging:
    """A tokenizer that makes one token of equal neighbours, as no list of words can foresee."""

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[len(word) for word, _ in itertools.groupby(text.split())] for text in texts]


def test_what_merges_is_mended_at_the_end_of_the_prompt() -> None:
    prompts = PromptFactory(32_000, 3).build(block_trace([(100, [7, i]) for i in range(20)], SIZE))
    merging = Wording(COMMON[:12], tokenizer=Merging(), overhead=1)  # type: ignore[arg-type]
    texts = merging.write(prompts)
    assert [len(merging.tokenizer.encode(text)) for text in texts] == [100] * 20  # type: ignore[union-attr]
    assert len({tuple(text.split()[: 1 + 16]) for text in texts}) == 1  # the shared block is as it was


DIGEST = """
import hashlib, sys
from pathlib import Path
from helpers.replay_traces import block_trace
from advisor.validation.prompts import PromptFactory
from advisor.validation.words import words_of
from engine.text import Tokenizer
rows = [(40 + i, [7, i]) for i in range(50)]
wording = words_of(Tokenizer.load(Path(sys.argv[1])))
texts = wording.write(PromptFactory(32_000, 3).build(block_trace(rows, 16)))
print(hashlib.sha256("|".join(texts).encode()).hexdigest())
"""


def test_texts_are_the_same_in_every_process(tmp_path: Path) -> None:
    folder = trained(tmp_path / "wordpiece", "wordpiece")

    def digest(hash_seed: str) -> str:
        paths = os.pathsep.join(
            [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]
        )
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths}
        argv = [sys.executable, "-c", DIGEST, str(folder)]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout

    assert digest("0") == digest("1") != hashlib.sha256(b"").hexdigest()


def test_a_tokenizer_without_words_is_refused(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator([], trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet))
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="too few words"):
        words_of(Tokenizer.load(tmp_path))


def test_without_a_tokenizer_words_are_what_was_measured() -> None:
    """Of three groups one costs a token more for every word; the endpoint adds 11 to each prompt."""
    parts = groups(COMMON)
    assert sorted(word for part in parts for word in part) == sorted(COMMON)
    sizes = [len(part) for part in parts]
    exact = [Sample(part, 11 + n, 11 + 2 * n) for part, n in zip(parts[:2], sizes, strict=False)]
    double = Sample(parts[2], 11 + 2 * sizes[2], 11 + 4 * sizes[2])
    wording = measured([*exact, double])
    assert (wording.overhead, wording.per_word) == (11, 1.0)
    assert set(wording.words) == {*parts[0], *parts[1]}
    doubled = measured([double])
    assert (doubled.overhead, doubled.per_word, doubled.words) == (11, 2.0, parts[2])
    prompts = PromptFactory(32_000, 3).build(block_trace([(111, [])], SIZE))
    assert len(doubled.write(prompts)[0].split()) == 1 + 50  # the lead; 111 = 11 + 2 x 50
