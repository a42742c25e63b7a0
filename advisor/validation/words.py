"""Prompts as text, for endpoints that take no token ids: of an exact length, with the same prefix structure.

A planned prompt is a row of token ids (prompts.py: the same block, the same ids, in every process). Each id
becomes a word, always the same one, and every word is one token of the target's tokenizer wherever it stands;
so equal prefixes stay equal and lengths stay what was planned. Where the tokenizer is at hand the whole text is
encoded once, compared with the plan and mended at its end. What the endpoint puts around a prompt, a chat
template above all, is measured by probes (forms.py) and taken off the end too, behind everything shared.
Nothing here is from a log: the words are a list, their order is noise.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.errors import InputError

if TYPE_CHECKING:
    from engine.text import Tokenizer

Tokens = npt.NDArray[np.uint32]

# Short and frequent, so that most tokenizers have each of them, with a space before it, as one token.
_COMMON = """
about after again all also always and any are around as at away back be because been before being best
better big both but by call came can case change children city close come could country day did different
do does down each early end even every face fact family far few find first follow food for form found four
free from full game gave get give given go good got great group had half hand hard has have he head hear
help her here high him his home hope hour house how human if important in into is it just keep kind know
land large last later law learn left less let level life light like line list little live local long look
made main make man many may me mean members men might money more most move much music must my name need
never new next night no not now number of off office often old on once one only open or order other our
out over own
"""
COMMON = tuple(_COMMON.split())
_GROUPS = 3  # of COMMON, each measured by itself
_WORD = re.compile(rb"^ ?([a-z]{2,9})$")
_MOST_CANDIDATES, _MOST_WORDS, _FEWEST_WORDS = 12_000, 4096, 64
LEAD = "text "
_MENDINGS = 4
_BATCH = 256  # texts encoded at once


@dataclass(frozen=True, slots=True)
class Wording:
    """How planned ids become text. `overhead` tokens are in every prompt: the endpoint's own, and the lead."""

    words: tuple[str, ...]
    # What stands at the very beginning, behind a template's newline or behind nothing, is tokenized otherwise
    # than behind a space: so it is always the same. Shorter than a block, it makes nothing shared.
    lead: str = LEAD
    tokenizer: Tokenizer | None = field(default=None, repr=False)
    overhead: int = 1
    per_word: float = 1.0  # tokens; only without a tokenizer can it be anything but 1

    def write(self, prompts: Sequence[Tokens]) -> list[str]:
        """A text for each prompt: with the overhead it has as many tokens as ids; at least one word."""
        texts: list[str] = []
        for start in range(0, len(prompts), _BATCH):
            texts += self._write(prompts[start : start + _BATCH])
        return texts

    def as_seen(self, prompts: Sequence[Tokens]) -> list[Tokens]:
        """The prompts as the endpoint's cache sees them, up to a renaming: its own tokens, then the words.

        Where a word is not one token, positions are those of words.
        """
        head = np.zeros(self.overhead, dtype=np.uint32)
        return [np.concatenate((head, prompt[: self._count(prompt)])) for prompt in prompts]

    def of(self, words: Sequence[str]) -> str:
        """A text of these words."""
        return self.lead + " ".join(words)

    def _count(self, prompt: Tokens) -> int:
        """Words of a prompt."""
        return max(1, round((len(prompt) - self.overhead) / self.per_word))

    def _write(self, prompts: Sequence[Tokens]) -> list[str]:
        counts = [self._count(prompt) for prompt in prompts]
        rows = [self._words(prompt, count) for prompt, count in zip(prompts, counts, strict=True)]
        texts = [self.of(row) for row in rows]
        if self.tokenizer is None:
            return texts
        fixed = _fixed(self)
        wrong = list(range(len(texts)))
        for _ in range(_MENDINGS):
            encoded = self.tokenizer.encode_batch([texts[i] for i in wrong])
            off = {i: counts[i] - len(ids) + fixed for i, ids in zip(wrong, encoded, strict=True)}
            wrong = [i for i in wrong if off[i]]
            if not wrong:
                break
            for i in wrong:
                rows[i] = self._words(prompts[i], max(1, len(rows[i]) + off[i]))
                texts[i] = self.of(rows[i])
        return texts

    def _words(self, prompt: Tokens, count: int) -> list[str]:
        """The first `count` words of a prompt; beyond its end, as a mended one may go, they begin again."""
        return [self.words[int(number) % len(self.words)] for number in np.resize(prompt, count)]


def words_of(tokenizer: Tokenizer) -> Wording:
    """The words of a tokenizer that are one token each wherever they stand. Raises InputError for too few."""

    def counts(texts: list[str]) -> list[int]:
        return [len(ids) for ids in tokenizer.encode_batch(texts)]

    found = [_WORD.match(tokenizer.token_bytes(number)) for number in range(tokenizer.vocab_size)]
    candidates = list(dict.fromkeys(match[1].decode() for match in found if match))[:_MOST_CANDIDATES]
    once, thrice = counts(candidates), counts([" ".join([word] * 3) for word in candidates])
    words = [word for word, first, three in zip(candidates, once, thrice, strict=True) if three - first == 2]
    if len(words) < _FEWEST_WORDS:
        raise InputError(
            f"the tokenizer {tokenizer.name} has too few words to write prompts with",
            why=f"{len(words)} of its tokens are whole words, {_FEWEST_WORDS} are needed",
            hint="leave out --tokenizer: lengths are then measured",
        )
    wording = Wording(tuple(words[:_MOST_WORDS]), tokenizer=tokenizer)
    return replace(wording, overhead=_fixed(wording))


def _fixed(wording: Wording) -> int:
    """Tokens of a text that are not of its words, by the tokenizer at hand: of the lead, BOS and the like."""
    assert wording.tokenizer is not None  # noqa: S101 - callers have one
    return len(wording.tokenizer.encode(wording.of(wording.words[:2]))) - 2


def shuffled(words: Sequence[str], seed: int, label: int) -> list[str]:
    """The words in an order of their own for each label: probes that share no beginning."""
    order = list(words)
    random.Random(f"{seed}/{label}").shuffle(order)
    return order


@dataclass(frozen=True, slots=True)
class Sample:
    """Prompt tokens that an endpoint counted for a group of words once, and twice in one text."""

    words: tuple[str, ...]
    once: int
    twice: int

    @property
    def per_word(self) -> float:
        """Tokens of a word."""
        return (self.twice - self.once) / len(self.words)

    @property
    def overhead(self) -> int:
        """Tokens that are not of a word."""
        return 2 * self.once - self.twice


def groups(words: Sequence[str]) -> list[tuple[str, ...]]:
    """The words in groups to be measured."""
    return [tuple(words[start::_GROUPS]) for start in range(_GROUPS)]


def measured(samples: Sequence[Sample]) -> Wording:
    """A wording without a tokenizer: the groups whose words are one token each, else all at their mean rate."""
    exact = [one for one in samples if one.twice - one.once == len(one.words)]
    used = exact or list(samples)
    words = tuple(word for one in used for word in one.words)
    per_word = 1.0 if exact else sum(one.per_word * len(one.words) for one in used) / len(words)
    overhead = max(0, round(float(np.median([one.overhead for one in used]))))
    return Wording(words, overhead=overhead, per_word=per_word)


def with_overhead(wording: Wording, overhead: int) -> Wording:
    """The wording, where the endpoint adds so many tokens."""
    return replace(wording, overhead=max(0, overhead))
