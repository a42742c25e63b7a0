"""The KV and tokens of the emulated executor: the same whatever the schedule, wrong behind any wrong KV."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import pytest

from engine.config import PoolConfig
from engine.core import EngineCore
from engine.emulated_backend import hash_layout
from engine.executors.hashed import BASE, Halves, HashedKV
from engine.request import Request, SamplingParams
from engine.step import PREVIOUS, Step, StepResult, StepRow
from engine.transfer.pages import HostPages

BLOCK, BLOCKS, VOCAB = 8, 120, 50_000
NEVER = frozenset((2, 7, 49_999))


ALLOWED = [token for token in range(VOCAB) if token not in NEVER]


def expected(request: Request) -> list[int]:
    """The output of a request in plain integers, one token after the other."""
    tokens, output = list(request.prompt), list[int]()
    for _ in range(request.sampling.max_tokens):
        link = 0
        for token in tokens:
            link = (link * BASE + token + 1) % (1 << 64)
        output.append(ALLOWED[splitmix64(link) % len(ALLOWED)])
        tokens.append(output[-1])
    return output


def splitmix64(z: int) -> int:
    """The finaliser of Steele, Lea and Flood 2014, as Vigna's public splitmix64.c has it."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % (1 << 64)
    z = (z ^ z >> 27) * 0x94D049BB133111EB % (1 << 64)
    return z ^ z >> 31


def test_the_finaliser_of_this_file_is_splitmix64() -> None:
    """The first outputs of seed 1234567 that Rosetta Code publishes."""
    golden, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    outputs = [splitmix64((1234567 + (i + 1) * golden) & mask) for i in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def memory() -> Halves:
    return np.zeros((2, BLOCKS, BLOCK), np.uint32)


def random_requests(seed: int, number: int = 40) -> list[Request]:
    """Two thirds begin with a part of one of two documents; prompts of up to 150 tokens."""
    random = Random(seed)
    documents = [[random.randrange(VOCAB) for _ in range(90)] for _ in range(2)]
    made = []
    for i in range(number):
        shared = documents[i % 3][: random.randrange(90)] if i % 3 < 2 else []
        prompt = shared + [random.randrange(VOCAB) for _ in range(random.randrange(1, 60))]
        sampling = SamplingParams(max_tokens=random.randrange(1, 30))
        made.append(Request(f"r{i}", tuple(prompt), sampling))
    return made


@dataclass
class Side:
    """A core and its KV, one step after the other. `damage` is called before each step."""

    pool: dict[str, Any] = field(default_factory=dict)
    kv: Halves = field(default_factory=memory)
    damage: Callable[[Step], Step] = lambda step: step
    overlap: bool = False
    max_preemptions: int = 3
    blocks: int = BLOCKS

    def __post_init__(self) -> None:
        config = PoolConfig(block_size=BLOCK, **{"token_budget": 64, "max_seqs": 12} | self.pool)
        self.core = EngineCore(
            config,
            num_blocks=self.blocks,
            max_len=400,
            overlap=self.overlap,
            max_preemptions=self.max_preemptions,
            shuffle=Random(5),
        )
        self.model = HashedKV(self.kv, vocab=VOCAB, never=NEVER)
        self.outputs: dict[str, list[int]] = {}
        self.hits = self.ahead = 0
        self._flights: list[tuple[int, tuple[int | None, ...]]] = []

    def serve(self, requests: Iterable[Request], every: int = 2) -> dict[str, list[int]]:
        """Add a request every so many steps; run all to their end."""
        todo = list(requests)
        for number in range(100_000):
            if todo and number % every == 0:
                self.core.add(todo.pop(0), 0.0)
            if not self.step() and not todo:
                break
        return self.outputs

    def step(self) -> bool:
        """Submit what can be submitted, take the oldest result in; False where there was nothing to do."""
        while (step := self.core.next_step(0.0)) is not None:
            self.ahead += any(row.tokens == (PREVIOUS,) for row in step.rows)
            step = self.damage(step)
            self._flights.append((step.id, self.model.carry_out(step)))
        if not self._flights:
            return False
        step_id, tokens = self._flights.pop(0)
        for event in self.core.complete(step_id, StepResult(step_id, tokens), 0.0):
            if event.token is not None:
                self.outputs.setdefault(event.request_id, []).append(event.token)
            if event.index == 0:
                self.hits += event.cached_tokens
        return True


PLANS: dict[str, dict[str, Any]] = {
    "chunked": {},
    "one token at a time": {"pool": {"token_budget": 1, "max_seqs": 1}},
    "small budget": {"pool": {"token_budget": 7, "max_seqs": 5}},
    "whole prompts": {"pool": {"batching": "prefill_first", "token_budget": 2048}},
    "without cache": {"pool": {"prefix_cache": False}},
    "few blocks": {"blocks": 42},
    "ahead": {"overlap": True},
    "pipeline": {"pool": {"pp": 3}},
}


@pytest.mark.parametrize("name", PLANS)
def test_tokens_are_the_polynomial_hash_of_all_before_whatever_the_schedule(name: str) -> None:
    side = Side(**PLANS[name])
    requests = random_requests(1)
    outputs = side.serve(requests)
    assert outputs == {request.id: expected(request) for request in requests}
    if name == "without cache":
        assert side.hits == 0
    elif name != "one token at a time":
        assert side.hits > 300
    assert (side.core.stats().preemptions > 0) == (name == "few blocks")
    assert (side.ahead > 0) == (name == "ahead")


def test_tokens_are_below_the_vocabulary_spread_over_it_and_never_an_end_of_sequence() -> None:
    request = Request("r", (5,), SamplingParams(max_tokens=300))
    [output] = Side(pool={"max_seqs": 1}).serve([request]).values()
    assert not NEVER & set(output)
    assert 0 <= min(output) < 1_500
    assert 48_500 < max(output) < VOCAB
    assert len(set(output)) > 290


def test_of_two_tokens_one_forbidden_the_other_always_comes() -> None:
    model = HashedKV(memory(), vocab=2, never=frozenset((0,)))
    row = StepRow("r", (0, 1, 1), 0, (1,), True, True, SamplingParams())
    assert model.carry_out(Step(1, (row,))) == (1,)


def test_a_chunk_longer_than_any_before_is_hashed_right() -> None:
    request = Request("r", tuple(i * 7919 % VOCAB for i in range(700)), SamplingParams(max_tokens=3))
    core = EngineCore(PoolConfig(token_budget=2048, block_size=BLOCK), num_blocks=BLOCKS, max_len=800)
    model = HashedKV(memory(), vocab=VOCAB, never=NEVER)
    core.add(request, 0.0)
    step = core.next_step(0.0)
    assert step is not None
    assert model.carry_out(step) == (expected(request)[0],)


class TestDamage:
    """Each is put in once, in the middle of one request; its output is wrong from then on."""

    REQUEST = Request("r", tuple(range(100, 147)), SamplingParams(max_tokens=20))

    def outputs(self, damage: Callable[[Side, Step], Step], *requests: Request, **plan: Any) -> list[list[int]]:
        side = Side(**plan)
        side.damage = lambda step: damage(side, step)
        for request in requests or (self.REQUEST,):
            side.serve([request])
        return [side.outputs[request.id] for request in requests or (self.REQUEST,)]

    def differs_from(self, output: list[int], index: int) -> None:
        right = expected(self.REQUEST)
        assert output[:index] == right[:index]
        assert all(one != other for one, other in zip(output[index:], right[index:], strict=True))

    def at_output(self, index: int, change: Callable[[StepRow], StepRow]) -> Callable[[Side, Step], Step]:
        def damage(_: Side, step: Step) -> Step:
            [row] = step.rows
            if row.output_index == index and row.sample:
                return Step(step.id, (change(row),))
            return step

        return damage

    def test_nothing(self) -> None:
        [output] = self.outputs(lambda _, step: step)
        assert output == expected(self.REQUEST)

    def test_a_wrong_token_of_a_decode(self) -> None:
        [output] = self.outputs(self.at_output(6, lambda row: replace(row, tokens=(row.tokens[0] ^ 1,))))
        self.differs_from(output, 6)

    def test_two_tokens_of_the_prompt_in_the_wrong_order(self) -> None:
        [output] = self.outputs(
            self.at_output(0, lambda row: replace(row, tokens=(row.tokens[1], row.tokens[0], *row.tokens[2:])))
        )
        self.differs_from(output, 0)

    def test_a_decode_at_the_wrong_position(self) -> None:
        """A token doubled: the position before is read twice."""
        [output] = self.outputs(self.at_output(9, lambda row: replace(row, start=row.start - 1)))
        self.differs_from(output, 9)

    def test_the_block_of_somebody_else(self) -> None:
        """As its next block begins: the one before it is another."""
        at = 8 * BLOCK - 46  # the decode whose query token is the first of a block

        def change(row: StepRow) -> StepRow:
            assert row.start % BLOCK == 0
            return replace(row, blocks=(*row.blocks[:-2], row.blocks[0], row.blocks[-1]))

        [output] = self.outputs(self.at_output(at, change))
        self.differs_from(output, at)

    @pytest.mark.parametrize("half", [0, 1])
    @pytest.mark.parametrize("position", [0, 7, 8, 30, 46])
    def test_a_position_of_kv_changed_before_the_second_token(self, half: int, position: int) -> None:
        """As after a copy of KV: the first token came from elsewhere."""

        def damage(side: Side, step: Step) -> Step:
            [row] = step.rows
            if row.output_index == 1:
                side.kv[half, row.blocks[position // BLOCK], position % BLOCK] ^= 1 << 20
            return step

        [output] = self.outputs(damage)
        self.differs_from(output, 1)

    @pytest.mark.parametrize("position", [0, 13, 46])
    def test_a_position_lost_while_it_decodes_shows_at_its_last_token_at_the_latest(
        self, position: int
    ) -> None:
        def damage(side: Side, step: Step) -> Step:
            [row] = step.rows
            if row.output_index == 10:
                side.kv[:, row.blocks[position // BLOCK], position % BLOCK] = 0
            return step

        [output] = self.outputs(damage)
        assert output[-1] != expected(self.REQUEST)[-1]

    @pytest.mark.parametrize("position", [0, 21, 31])
    def test_a_cached_prefix_that_is_wrong(self, position: int) -> None:
        """The second request shares 4 pages with the first, of which one position has gone."""
        second = Request("second", (*self.REQUEST.prompt[:32], 1, 2, 3), SamplingParams(max_tokens=4))
        seen: list[int] = []

        def damage(side: Side, step: Step) -> Step:
            for row in step.rows:
                if row.request_id == "second" and not seen:
                    seen.append(row.start)
                    side.kv[:, row.blocks[position // BLOCK], position % BLOCK] += 1
            return step

        first, output = self.outputs(damage, self.REQUEST, second)
        assert seen == [32]
        assert first == expected(self.REQUEST)
        assert all(one != other for one, other in zip(output, expected(second), strict=True))

    def test_a_prefix_of_another_request(self) -> None:
        """A hit on pages that hold other tokens."""
        second = Request("second", tuple(range(200, 235)), SamplingParams(max_tokens=4))

        def damage(_: Side, step: Step) -> Step:
            rows = [
                replace(row, tokens=row.tokens[16:], start=16)
                if row.request_id == "second" and row.prefill
                else row
                for row in step.rows
            ]
            return Step(step.id, tuple(rows))

        side = Side()
        side.serve([self.REQUEST])
        side.damage = lambda step: damage(side, step)
        output = side.serve([second])["second"]
        assert all(one != other for one, other in zip(output, expected(second), strict=True))


class TestSplit:
    """The prefill half in one memory, the decode in another, and a copy of pages in between."""

    REQUEST = Request("r", tuple(range(300, 361)), SamplingParams(max_tokens=12))

    def run(self, *, stop: int | None = None, spoil: Callable[[list[int]], list[int]] = list) -> list[int]:
        """The output where positions up to `stop` were copied from the blocks that `spoil` gives."""
        pages = [HostPages.create(hash_layout(BLOCK), BLOCKS) for _ in range(2)]
        prefill, decode = (Side(kv=page.array(0).view(np.uint32)[0, ..., 0]) for page in pages)
        half = replace(self.REQUEST, sampling=SamplingParams(max_tokens=1), keep_kv=True)
        for request in random_requests(3, 6):
            decode.serve([request])  # something else is in the blocks
        [token] = prefill.serve([half])["r"]
        tokens = len(self.REQUEST.prompt)
        assert decode.core.reserve(self.REQUEST, 0.0) == 0
        theirs, ours = prefill.core.kept_blocks("r"), decode.core.reserved_blocks("r")
        for _ in pages[1].copy(pages[0], spoil(theirs), ours, 0, tokens if stop is None else stop):
            pass
        decode.core.start_decode("r", token, 0.0)
        decode.serve([])
        return [token, *decode.outputs["r"]]

    def test_the_tokens_are_those_without_a_split(self) -> None:
        assert self.run() == expected(self.REQUEST)

    @pytest.mark.parametrize(
        "how",
        [
            {"stop": 60},
            {"stop": 56},
            {"spoil": lambda blocks: [blocks[1], blocks[0], *blocks[2:]]},
            {"spoil": lambda blocks: [*blocks[:4], blocks[5], *blocks[5:]]},
        ],
        ids=["one position short", "a block short", "two blocks swapped", "a block twice"],
    )
    def test_a_wrong_copy_changes_every_token_behind_it(self, how: dict[str, Any]) -> None:
        output, right = self.run(**how), expected(self.REQUEST)
        assert output[0] == right[0]
        assert all(one != other for one, other in zip(output[1:], right[1:], strict=True))
