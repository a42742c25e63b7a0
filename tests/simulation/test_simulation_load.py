"""A Load from a Trace: which pages hit, against prompts as token lists and against a dictionary of pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from helpers.workload_traces import azure, chain, make_trace, mooncake

from advisor.logs.trace import Labels, Trace
from advisor.simulation.from_trace import load_of, usable, with_assumed_hits
from advisor.simulation.load import Load
from advisor.simulation.simulate import Deployment, Pool, simulate
from advisor.validation.prompts import PromptFactory, expected_cached_tokens
from advisor.workload.sessions import find_turns
from engine.config import PoolConfig
from engine.kv.cache import BlockTable, KVCache
from engine.kv.identity import runs_of
from engine.request import Request, SamplingParams
from engine.step_time.calibrated import CalibratedStepTime, Coefficients


@dataclass
class Call:
    """A request as tokens."""

    session: str
    prompt: list[int]
    reply: list[int]


def trace_of(calls: Sequence[Call], size: int, rounding: str) -> Trace:
    """What a log with hashed blocks of `size` tokens shows of these calls."""
    if rounding == "ceil":
        pieces = [[tuple(c.prompt[i : i + size]) for i in range(0, len(c.prompt), size)] for c in calls]
    else:
        pieces = [
            [tuple(c.prompt[i : i + size]) for i in range(0, len(c.prompt) // size * size, size)] for c in calls
        ]
    names: dict[tuple[int, ...], int] = {}
    paths = chain([[names.setdefault(piece, len(names)) for piece in row] for row in pieces])
    trace = make_trace(
        [len(c.prompt) for c in calls],
        [len(c.reply) for c in calls],
        blocks=paths,
        size=size,
        sessions=[c.session for c in calls],
    )
    assert trace.blocks is not None
    return replace(trace, blocks=replace(trace.blocks, rounding=rounding))


def hits_by_tokens(calls: Sequence[Call], page: int) -> list[int]:
    """Hit tokens in an unlimited cache that compares tokens; each call ends before the next begins."""
    cached: set[tuple[int, ...]] = set()
    hits = []
    for call in calls:
        full = (len(call.prompt) - 1) // page
        hits.append(
            next((n for n in range(full) if tuple(call.prompt[: (n + 1) * page]) not in cached), full) * page
        )
        computed = (call.prompt + call.reply)[:-1]
        cached.update(tuple(computed[: (n + 1) * page]) for n in range(len(computed) // page))
    return hits


def hits_by_runs(load: Load) -> list[int]:
    """The same from the runs of a Load: of a run its longest stretch seen behind its parent is cached."""
    cached: dict[tuple[object, ...], int] = {}
    hits = []
    for prompt, runs in zip(load.prompt_tokens.tolist(), load.runs, strict=True):
        pages, path = 0, ()
        for run in runs:
            path = (*path, run.key)
            assert pages <= run.start
            if pages < run.start:
                break
            pages = min(cached.get(path, run.start), run.stop)
        path = ()
        for run in runs:
            path = (*path, run.key)
            cached[path] = max(cached.get(path, 0), run.stop)
        hits.append(min(pages, (prompt - 1) // load.block_size) * load.block_size)
    return hits


def well_formed(load: Load) -> bool:
    """Runs of a request without gaps from page 0 within what it computes; a key always begins at one page."""
    begins: dict[object, int] = {}
    for runs, prompt, output in zip(load.runs, load.prompt_tokens, load.output_tokens, strict=True):
        assert all(run.start < run.stop for run in runs)
        assert all(one.stop == other.start for one, other in pairwise(runs))
        assert not runs or runs[0].start == 0
        assert not runs or runs[-1].stop <= (prompt + output - 1) // load.block_size
        assert all(begins.setdefault(run.key, run.start) == run.start for run in runs)
    users = {key: sum(any(run.key == key for run in runs) for runs in load.runs) for key in begins}
    return all(count > 1 for count in users.values())


def conversations(random: Random, size: int, sessions: int) -> list[Call]:
    """Interleaved chats behind a few system prompts of whole blocks; some open with the very same prompt."""
    token = iter(range(10**9))

    def fresh(most: int) -> list[int]:
        return [next(token) for _ in range(random.randint(1, most))]

    systems = [[next(token) for _ in range(size * random.randint(1, 3))] for _ in range(2)]
    openings = [random.choice(systems) + fresh(3 * size) for _ in range(sessions)]
    chats = []
    for number in range(sessions):
        prompt, calls = random.choice(openings), []
        for _ in range(random.randint(1, 6)):
            calls.append(Call(f"s{number}", prompt, fresh(2 * size)))
            prompt = prompt + calls[-1].reply + fresh(2 * size)
        chats.append(calls)
    woven = []
    while chats:
        chat = random.choice(chats)
        woven.append(chat.pop(0))
        chats = [each for each in chats if each]
    return woven


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("size", "page", "rounding"),
    [(16, 16, "ceil"), (16, 16, "floor"), (16, 4, "ceil"), (4, 16, "ceil"), (12, 8, "ceil")],
)
def test_hits_are_those_of_the_tokens(seed: int, size: int, page: int, rounding: str):
    # Replies and unfinished blocks included. Chats part at the end of a block and a page, where block ids tell.
    calls = conversations(Random(seed), math.lcm(size, page), 12)
    load = load_of(trace_of(calls, size, rounding), page)
    assert well_formed(load)
    truth = hits_by_tokens(calls, page)
    assert sum(truth) > 0
    assert hits_by_runs(load) == truth


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("size", "page", "rounding"), [(16, 16, "ceil"), (16, 16, "floor"), (16, 4, "ceil"), (12, 8, "ceil")]
)
def test_without_replies_hits_are_those_of_replayed_prompts(seed: int, size: int, page: int, rounding: str):
    # The prompts that a replay sends, made of the log's block ids, in the reference cache of the validation.
    calls = conversations(Random(seed), math.lcm(size, page), 12)
    trace = trace_of(calls, size, rounding)
    load = load_of(trace, page, replies=False)
    assert well_formed(load)
    truth = expected_cached_tokens(PromptFactory(49152, seed).build(trace), page).tolist()
    assert 0 < sum(truth) < sum(hits_by_tokens(calls, page))
    assert hits_by_runs(load) == truth


def test_mooncake_without_replies_hits_as_replayed(shared: Path):
    trace = mooncake(shared).take(np.arange(400))
    truth = expected_cached_tokens(PromptFactory(49152, 0).build(trace), 16)
    assert hits_by_runs(load_of(trace, 16, replies=False)) == truth.tolist()
    assert load_of(trace, 16, replies=False).parent.tolist() == load_of(trace, 16).parent.tolist()


def hits_by_pages(trace: Trace, page: int) -> list[int]:
    """Hit tokens in an unlimited cache of pages named by the block of their last token, one page at a time."""
    assert trace.blocks is not None
    parents = find_turns(trace).trace.parent
    assert parents is not None
    size, ids = trace.blocks.size, [trace.blocks.row(row).tolist() for row in range(len(trace))]
    lengths, outputs = trace.prompt_tokens.tolist(), trace.output_tokens.tolist()
    following: dict[int, int] = {}
    for row, before in enumerate(parents.tolist()):
        if before >= 0 and before not in following:
            full = lengths[before] // size
            if (
                ids[row][:full] == ids[before][:full]
                and lengths[row] >= lengths[before] + 0.9 * outputs[before]
            ):
                following[before] = row
    same: dict[tuple[int, int], tuple[int, int]] = {}

    def name(row: int, number: int) -> tuple[int, int]:
        key = ids[row][((number + 1) * page - 1) // size], number
        while key in same:
            key = same[key]
        return key

    for before, row in following.items():
        for number in range(lengths[before] // size * size // page, lengths[before] // page):
            one, other = name(before, number), name(row, number)
            if one != other:
                same[one] = other
    cached: set[tuple[int, int]] = set()
    hits = []
    for row, length in enumerate(lengths):
        full = (length - 1) // page
        hits.append(next((n for n in range(full) if name(row, n) not in cached), full) * page)
        shown, stop = row, length // page
        while shown in following:
            shown = following[shown]
            stop = min((length + outputs[row] - 1) // page, lengths[shown] // page)
        cached.update(name(shown, number) for number in range(stop))
    return hits


@pytest.mark.parametrize("page", [512, 16, 48])
def test_mooncake_hits_are_those_of_its_pages(shared: Path, page: int):
    trace = mooncake(shared).take(np.arange(1000))
    load = load_of(trace, page)
    assert well_formed(load)
    assert sum(map(len, load.runs)) < 8 * len(load)
    assert hits_by_runs(load) == hits_by_pages(trace, page)


def hits_by_engine(load: Load) -> list[int]:
    """Hit tokens in the engine's own cache, with room for everything; each request ends before the next."""
    computed = load.prompt_tokens + load.output_tokens - 1
    cache = KVCache(int((computed // load.block_size + 1).sum()) + 1, load.block_size)
    hits = []
    for row, runs in enumerate(load.runs):
        request = Request(str(row), (), SamplingParams(), runs=runs)
        table = BlockTable("", runs_of(request, (), load.block_size))
        hits.append(cache.match(table, int(load.prompt_tokens[row])))
        assert cache.admit(table, int(computed[row]), spare=0)
        cache.release(table, int(computed[row]))
    cache.check_invariants([])
    return hits


def test_the_engine_hits_the_same(shared: Path):
    trace = mooncake(shared).take(np.arange(500))
    assert hits_by_engine(load_of(trace, 16)) == hits_by_pages(trace, 16)
    calls = conversations(Random(1), 16, 40)
    assert hits_by_engine(load_of(trace_of(calls, 16, "ceil"), 4)) == hits_by_tokens(calls, 4)


def test_mooncake_prompts_hit_as_published(shared: Path):
    # expected_stats.json: 0.373624 of prompt tokens, where no request goes on from another.
    trace = mooncake(shared)
    names = tuple(map(str, range(len(trace))))
    load = load_of(replace(trace, session=Labels(names, np.arange(len(trace)))), 16)
    rate = sum(hits_by_runs(load)) / int(load.prompt_tokens.sum())
    assert rate == pytest.approx(0.373624, abs=1e-4)


def test_a_reply_hits_as_far_as_it_was_computed():
    # 32 + 17 tokens: 48 are computed, 3 pages of 16. The next prompt shows them and 16 tokens of its own.
    calls = [Call("s", list(range(32)), list(range(32, 49))), Call("s", list(range(65)), [0])]
    load = load_of(trace_of(calls, 16, "floor"), 16)
    assert hits_by_runs(load) == [0, 48]
    calls[0].reply.pop()
    assert hits_by_runs(load_of(trace_of(calls, 16, "floor"), 16)) == [0, 32]


def test_a_reply_that_the_next_prompt_has_no_room_for_is_not_in_it():
    # 300 tokens of reasoning that the chat does not send back: 30 tokens of answer and question follow.
    calls = [Call("s", list(range(32)), list(range(1000, 1300))), Call("s", list(range(62)), [0])]
    assert hits_by_runs(load_of(trace_of(calls, 16, "floor"), 16)) == [0, 32]


def test_turns_of_one_session_that_do_not_grow_share_what_they_show():
    calls = [Call("s", [*range(16), *range(100, 132)], [*range(500, 540)]), Call("s", list(range(96)), [0])]
    assert hits_by_runs(load_of(trace_of(calls, 16, "floor"), 16)) == [0, 16]


def test_pages_of_one_request_alone_are_not_runs():
    calls = [Call("a", list(range(64)), [1]), Call("b", [*range(32), *range(100, 164)], [1])]
    load = load_of(trace_of(calls, 16, "floor"), 16)
    (one,), (other,) = load.runs
    assert one == other
    assert (one.start, one.stop) == (0, 2)


def test_requests_that_cannot_be_simulated_are_left_out():
    trace = make_trace(
        [10, -1, 0, 30, 8],
        [5, 5, 0, -1, 2],
        arrivals=[0.0, 1.0, 2.0, 3.0, np.nan],
        sessions=["a", "a", "a", "a", ""],
        e2e_s=np.array([0.5, 0.5, 0.5, 0.5, 0.5]),
    )
    load = load_of(trace, 16)
    assert usable(trace).tolist() == [True, False, True, False, False]
    assert load.prompt_tokens.tolist() == [10, 1]
    assert load.output_tokens.tolist() == [5, 1]
    assert load.runs == ((), ())
    assert load.parent.tolist() == [-1, -1]
    assert np.isnan(load.think_s).all()


def test_turns_keep_their_parents_and_think_times_only_from_ends():
    columns = {"arrivals": [0.0, 1.0, 10.0, 20.0], "sessions": ["a", "", "a", "a"]}
    trace = make_trace([10] * 4, [5] * 4, **columns, e2e_s=np.array([4.0, 1.0, np.nan, 1.0]))
    load = load_of(trace, 16)
    assert load.session.tolist() == [0, 1, 0, 0]
    assert load.parent.tolist() == [-1, -1, 0, 2]
    np.testing.assert_array_equal(load.think_s, [np.nan, np.nan, 6.0, np.nan])
    assert np.isnan(load_of(make_trace([10] * 4, [5] * 4, **columns), 16).think_s).all()


def test_a_log_without_content_shares_nothing(shared: Path):
    load = load_of(azure(shared, "code"), 16)
    assert len(load) == 8819
    assert not any(load.runs)
    assert load.session.tolist() == list(range(8819))


def test_assumed_hits_are_what_an_unlimited_cache_then_gives() -> None:
    """Where only the share of cached tokens is known, simulated hits come to it but for the first request."""
    n = 200
    load = Load(
        np.arange(n) * 10.0, np.full(n, 1600), np.full(n, 2), tuple(() for _ in range(n)), 16,
        np.arange(n), np.full(n, -1), np.full(n, np.nan),
    )  # fmt: skip
    pool = PoolConfig(kv_tokens=100_000, token_budget=2048)
    step_time = CalibratedStepTime(Coefficients(0.01, 0, 1e-5, 0, 0, 0))
    outcome = simulate(with_assumed_hits(load, 0.6), Deployment((Pool(pool, step_time),)))
    assert outcome.hit_rate_tokens == pytest.approx(0.6 * (n - 1) / n)
