"""A model whose KV says what it is made of, so that reading a wrong block is noticed at the moment of reading.

The KV of position p is a hash chained over (namespace, tokens 0..p). Attention compares every position it
reads with the chain of that request's own tokens: stale, ghost, poisoned and reused blocks all differ.
All rows read before any row writes: a page that the same step writes is not readable yet.
The next token is a function of the whole prefix, so outputs prove what was read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from engine.request import Request, SamplingParams
from engine.step import PREVIOUS, Step, StepResult, StepRow

VOCAB = 50


def chain(namespace: str, tokens: list[int]) -> list[int]:
    """The KV of each position: a hash of the namespace and all tokens up to it."""
    links, link = [], hash(tuple(namespace.encode()))
    for token in tokens:
        link = hash((link, token))
        links.append(link)
    return links


def next_token(link: int, index: int, sampling: SamplingParams, eos: frozenset[int]) -> int:
    """The token after a prefix; never end-of-sequence where the request forbids it."""
    token = link % VOCAB
    while token in eos and (sampling.ignore_eos or index < sampling.min_tokens):
        token = (token + 1) % VOCAB
    return token


def expected_output(request: Request, eos: frozenset[int] = frozenset()) -> list[int]:
    """What the echo model answers, computed without any engine."""
    tokens = list(request.prompt)
    for index in range(request.sampling.max_tokens):
        tokens.append(next_token(chain(request.namespace, tokens)[-1], index, request.sampling, eos))
        if tokens[-1] in eos:
            break
    return tokens[len(request.prompt) :]


@dataclass(frozen=True)
class EchoHandle:
    """A finished step."""

    step_result: StepResult

    def result(self) -> StepResult:
        return self.step_result


class EchoExecutor:
    """Implements `Executor`; `computed` counts query tokens per request, `prompt_computed` those of prompts."""

    def __init__(self, num_blocks: int, block_size: int, eos: frozenset[int] = frozenset()) -> None:
        self.computed: Counter[str] = Counter()
        self.steps: list[Step] = []
        self._block_size = block_size
        self._eos = eos
        self._kv: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self._tokens: dict[str, list[int]] = {}
        self._namespaces: dict[str, str] = {}

    def expect(self, request: Request) -> None:
        """Tell the model what `request` should contain."""
        self._tokens[request.id] = list(request.prompt)
        self._namespaces[request.id] = request.namespace

    def submit(self, step: Step) -> EchoHandle:
        self.steps.append(step)
        links = [chain(self._namespaces[row.request_id], self._tokens[row.request_id]) for row in step.rows]
        for row, expected in zip(step.rows, links, strict=True):
            self._attend(row, expected)
        written: set[tuple[int, int]] = set()
        for row, expected in zip(step.rows, links, strict=True):
            self._store(row, expected, written)
        return EchoHandle(StepResult(step.id, tuple(map(self._sample, step.rows, links))))

    def _slot(self, row: StepRow, position: int) -> tuple[int, int]:
        block = row.blocks[position // self._block_size]
        assert block != 0, "the trash block is nobody's"
        return block, position % self._block_size

    def _attend(self, row: StepRow, expected: list[int]) -> None:
        for position in range(row.start):
            block, offset = self._slot(row, position)
            assert self._kv[block][offset] == expected[position], (
                f"{row.request_id} reads a wrong KV at position {position} in block {block}"
            )

    def _store(self, row: StepRow, expected: list[int], written: set[tuple[int, int]]) -> None:
        end = row.start + len(row.tokens)
        if row.tokens == (PREVIOUS,):
            assert end == len(self._tokens[row.request_id]), "the step before has not sampled this token"
        else:
            known = self._tokens[row.request_id][row.start : end]
            assert list(row.tokens) == known, "the step has wrong tokens"
        for position in range(row.start, end):
            slot = self._slot(row, position)
            assert slot not in written, f"two rows write block {slot[0]}"
            written.add(slot)
            self._kv[slot[0]][slot[1]] = expected[position]
        self.computed[row.request_id] += len(row.tokens)

    def _sample(self, row: StepRow, expected: list[int]) -> int | None:
        if not row.sample:
            return None
        tokens = self._tokens[row.request_id]
        assert row.start + len(row.tokens) == len(tokens), "sampled in the middle of the sequence"
        token = next_token(expected[-1], row.output_index, row.sampling, self._eos)
        tokens.append(token)
        return token
