"""With `overlap` a second step of the same decodes is made before the tokens of the first are known."""

from __future__ import annotations

from collections import deque
from random import Random

from helpers.core_driver import Driver, request
from helpers.echo import EchoHandle, expected_output

from engine.config import PoolConfig
from engine.request import Request, SamplingParams
from engine.step import PREVIOUS, Step

BLOCK = 4


def driver(*, blocks: int = 100, eos: frozenset[int] = frozenset(), seed: int = 0, **pool: int) -> Driver:
    return Driver(PoolConfig(block_size=BLOCK, **pool), num_blocks=blocks, eos=eos, seed=seed, overlap=True)


def decoding(here: Driver, *requests: Request) -> Step:
    """The first step of pure decodes of `requests`, in flight."""
    here.add(*requests)
    while True:
        step = here.begin()
        assert step is not None
        if not any(row.prefill for row in step.rows):
            return step
        here.finish(step)


def test_the_step_ahead_is_the_same_decodes_one_position_further() -> None:
    here = driver()
    first = decoding(here, request("a", range(9), 8), request("b", range(3), 8))
    ahead = here.begin()
    assert ahead is not None
    assert [(row.request_id, row.start, row.output_index) for row in ahead.rows] == [
        (row.request_id, row.start + 1, row.output_index + 1) for row in first.rows
    ]
    assert all(row.tokens == (PREVIOUS,) and row.sample for row in ahead.rows)
    assert here.begin() is None, "two are in flight"
    assert ahead.id == first.id + 1


def test_without_overlap_one_step_is_in_flight() -> None:
    here = Driver(PoolConfig(block_size=BLOCK))
    decoding(here, request("a", range(9), 8))
    assert here.begin() is None


def test_no_step_is_made_ahead_of_a_prompt() -> None:
    here = driver(token_budget=8)
    here.add(request("a", range(20), 8))
    here.begin()
    assert here.begin() is None


def test_an_end_by_length_is_foreseen() -> None:
    here = driver()
    step = decoding(here, request("a", range(5), 2), request("b", range(5), 9))
    assert here.begin() is None, "a ends with the step in flight"
    here.finish(step)
    alone = here.begin()
    assert alone is not None
    assert [row.request_id for row in alone.rows] == ["b"]
    assert here.begin() is not None


def test_whoever_can_be_admitted_is_not_kept_waiting_by_a_step_made_ahead() -> None:
    here = driver()
    step = decoding(here, request("a", range(5), 9))
    here.add(request("b", range(5), 9))
    assert here.begin() is None
    here.finish(step)
    mixed = here.begin()
    assert mixed is not None
    assert [row.request_id for row in mixed.rows] == ["a", "b"]


def test_a_step_ahead_never_preempts() -> None:
    # Two prompts of 3 fill a block each, and a block is left for one of them when both reach position 4.
    here = driver(blocks=4)
    step = decoding(here, request("a", range(3), 4), request("b", range(3, 6), 4))
    assert {row.start for row in step.rows} == {3}
    assert here.begin() is None
    assert here.core.stats().preemptions == 0


def test_after_an_end_of_sequence_the_row_ahead_gives_no_token_and_holds_the_blocks() -> None:
    alone = request("a", range(9), 30)
    tokens = expected_output(alone)
    eos = next(token for index, token in enumerate(tokens) if index > 2 and token not in tokens[:index])
    here = driver(eos=frozenset({eos}))
    here.add(alone)
    flights: deque[tuple[Step, EchoHandle]] = deque()
    while here.core.has_work:
        while (step := here.begin()) is not None:
            flights.append((step, here.echo.submit(step)))
        done, handle = flights.popleft()
        here.record(here.core.complete(done.id, handle.result(), 0.0))
        if here.last["a"].finish_reason == "stop" and flights:
            assert here.core.stats().blocks_used > 0, "the step ahead still writes there"
    assert here.outputs["a"] == tokens[: tokens.index(eos) + 1]
    assert here.core.stats().blocks_used == 0


def test_random_loads_give_the_tokens_of_the_model_alone() -> None:
    """Ends of sequence, aborts, failures and preemptions, with two steps in flight in small pools."""
    ahead = stopped_behind = preemptions = failures = 0
    for seed in range(60):
        random = Random(seed)
        here = driver(
            blocks=random.choice([16, 24, 80]),
            eos=frozenset({7, 33}) if seed % 3 else frozenset(),
            seed=seed,
            token_budget=random.choice([8, 32]),
            max_seqs=random.choice([2, 6]),
        )
        documents = [[random.randrange(50) for _ in range(24)] for _ in range(3)]
        todo = {
            name: request(name, random.choice(documents)[: random.randrange(1, 24)], random.randrange(1, 25))
            for name in map(str, range(20))
        }
        waiting, cut = list(todo.values()), set()
        flights: deque[tuple[Step, EchoHandle]] = deque()
        while waiting or here.core.has_work:
            if waiting and random.random() < 0.2:
                here.add(waiting.pop())
            if random.random() < 0.03 and here.outputs:
                name = random.choice(list(here.outputs))
                here.abort(name)
                cut.add(name)
            step = here.begin()
            if step is not None:
                ahead += bool(flights)
                flights.append((step, here.echo.submit(step)))
            if flights and (step is None or len(flights) == 2 or random.random() < 0.3):
                done, handle = flights.popleft()
                here.now += 1
                if random.random() < 0.01:
                    # What a driver does: everything behind a failed step fails with it.
                    for failed in (done, *(later for later, _ in flights)):
                        here.record(here.core.fail(failed.id, here.now))
                        cut |= {row.request_id for row in failed.rows}
                    flights.clear()
                    failures += 1
                    continue
                here.record(here.core.complete(done.id, handle.result(), here.now))
                rows = [row for later, _ in flights for row in later.rows]
                stopped_behind += sum(here.last[row.request_id].finish_reason == "stop" for row in rows)
        for name, one in todo.items():
            expected = expected_output(one, frozenset({7, 33}) if seed % 3 else frozenset())
            whole = here.outputs[name] == expected
            assert whole or (name in cut and here.outputs[name] == expected[: len(here.outputs[name])])
        assert here.core.stats().blocks_used == 0
        preemptions += here.core.stats().preemptions
    assert min(ahead, stopped_behind, preemptions, failures) > 10


def test_a_pulled_request_joins_when_no_step_of_its_group_is_in_flight() -> None:
    here = driver()
    first = decoding(here, request("a", range(5), 20))
    second = here.begin()
    assert second is not None
    pulled = request("b", range(20, 29), 9)
    assert here.core.reserve(pulled, here.now) == 0
    here.core.start_decode("b", 3, here.now)
    here.finish(first)
    assert here.begin() is None, "b waits, so nothing more is made ahead"
    here.finish(second)
    both = here.begin()
    assert both is not None
    assert [(row.request_id, row.start) for row in both.rows] == [("a", second.rows[0].start + 1), ("b", 9)]


def test_kept_blocks_that_a_step_ahead_writes_to_are_not_given_away() -> None:
    alone = request("a", range(9), 30)
    tokens = expected_output(alone)
    here = driver(eos=frozenset({tokens[2]}))
    kept = Request("a", tuple(range(9)), SamplingParams(max_tokens=30), keep_kv=True)
    step = decoding(here, kept)
    while True:
        ahead = here.begin()
        here.finish(step)
        if here.last["a"].finish_reason == "stop":
            break
        assert ahead is not None
        step = ahead
    assert ahead is not None
    here.core.release_kv("a", 0.0)
    assert here.core.stats().blocks_used > 0
    here.core.complete(ahead.id, here.echo.submit(ahead).result(), 0.0)
    assert here.core.stats().blocks_used == 0
