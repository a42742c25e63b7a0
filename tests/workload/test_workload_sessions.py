"""Sessions: inferred ones against the true ids of public and generated traffic, and small cases by hand."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.logs import PieceEncoder
from helpers.workload_traces import chain, make_blocks, make_labels, make_trace, mooncake
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.logs.read import read
from advisor.logs.trace import Blocks, IntColumn, Trace
from advisor.samples import ChatService, write_sample
from advisor.workload.measure import measure
from advisor.workload.sessions import find_turns, measure_sessions, think_time


def infer_sessions(trace: Trace) -> Trace:
    """The Trace with sessions from growing prefixes, whatever labels it has."""
    return find_turns(replace(trace, session=None, parent=None)).trace


def bare(trace: Trace) -> Trace:
    """The Trace as a log without session ids gives it."""
    return replace(trace, session=None, parent=None, think_s=None)


def pairs(codes: IntColumn) -> int:
    """Pairs of requests in one session."""
    counts = np.unique(codes, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def precision_and_recall(true: IntColumn, found: IntColumn) -> tuple[float, float]:
    """Of pairs of requests that are in one session: how many of those found are true, and the reverse."""
    both = pairs(true.astype(np.int64) * (int(found.max()) + 1) + found)
    return both / pairs(found), both / pairs(true)


def pairwise_f1(true: IntColumn, found: IntColumn) -> float:
    precision, recall = precision_and_recall(true, found)
    return 2 * precision * recall / (precision + recall)


def inferred(paths: Sequence[Sequence[int]], size: int = 4, **columns) -> list[int]:
    """The session of each request, -1 for none, in a trace of these contents; all blocks full."""
    prompts = columns.pop("prompts", [size * len(path) for path in paths])
    trace = infer_sessions(make_trace(prompts, blocks=chain(paths), size=size, **columns))
    return [-1] * len(paths) if trace.session is None else trace.session.codes.tolist()


def test_agents_of_the_public_trace_are_told_apart(shared: Path) -> None:
    # 20 sessions of about 20 turns. Losing the first turn of k sessions costs a recall of k / 20 x 0.1: 0.99
    # lets four of them go, and no two sessions be merged.
    labelled = read([shared / "traces/lmcache-agent/miniswe"], tokenizer=PieceEncoder())
    found = infer_sessions(bare(labelled))
    assert labelled.session is not None
    assert found.session is not None
    assert len(found) == 402
    assert pairwise_f1(labelled.session.codes, found.session.codes) >= 0.99
    assert measure_sessions(find_turns(labelled)).turns.mean == pytest.approx(402 / 20)


def test_chats_behind_one_long_system_prompt_are_told_apart(tmp_path: Path) -> None:
    # Every chat starts with the same 800 words; documents are sessions of one request.
    write_sample(tmp_path / "log.jsonl", ChatService())
    labelled = read([tmp_path / "log.jsonl"], tokenizer=PieceEncoder())
    found = infer_sessions(bare(labelled))
    assert labelled.session is not None
    assert found.session is not None
    assert pairwise_f1(labelled.session.codes, found.session.codes) >= 0.99
    assert len(found.session.names) == pytest.approx(len(labelled.session.names), rel=0.01)


def weka(shared: Path, conversations: int) -> tuple[Trace, IntColumn, IntColumn]:
    """Conversations of Claude Code as one log, with the conversation and the agent of every request.

    Upstream ids are local to a conversation. Here the leading blocks of system prompt and tools are made equal,
    as an engine would see them.
    """
    rows: list[tuple[float, int, tuple[int, ...], list[int], int]] = []
    ids: dict[tuple[int, int], int] = {}

    def walk(requests: list, start_s: float, agent: tuple[int, ...], common: int) -> None:
        for number, request in enumerate(requests):
            if "requests" in request:
                walk(request["requests"], start_s + request["t"], (*agent, number), common)
                continue
            path = [
                ids.setdefault((-1 if place < common and block == place + 1 else agent[0], block), len(ids))
                for place, block in enumerate(request["hash_ids"])
            ]
            rows.append((start_s + request["t"], agent[0], agent, path, request["in"]))

    for number, file in enumerate(sorted((shared / "traces/weka-claude-code").glob("trace_*"))[:conversations]):
        content = json.loads(gzip.decompress(file.read_bytes()))
        walk(
            content["requests"],
            1000.0 * number,
            (number,),
            (content["tool_tokens"] + content["system_tokens"]) // 64,
        )
    rows.sort(key=lambda row: row[0])
    blocks = make_blocks([row[3] for row in rows], 64)
    trace = make_trace([row[4] for row in rows], arrivals=[row[0] for row in rows])
    agents = {agent: code for code, agent in enumerate(dict.fromkeys(row[2] for row in rows))}
    return (
        replace(trace, blocks=replace(blocks, rounding="floor")),
        np.array([row[1] for row in rows]),
        np.array([agents[row[2]] for row in rows]),
    )


def test_coding_agents_are_never_merged_and_seldom_cut(shared: Path) -> None:
    # all_requests_derived.csv: 97.1 % of the requests of a conversation share all but at most one block of the
    # one before; the others start again from the system prompt (context resets), which no prefix can bridge.
    with gzip.open(shared / "traces/weka-claude-code/all_requests_derived.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["depth"] == "0" and row["n_blocks"]]
    before: dict[str, int] = {}
    kept = []
    for row in rows:
        if row["trace_id"] in before:
            kept.append(int(row["prefix_blocks_of_previous_request"]) >= before[row["trace_id"]] - 1)
        before[row["trace_id"]] = int(row["n_blocks"])
    assert np.mean(kept) == pytest.approx(0.971, abs=0.001)

    trace, conversation, agent = weka(shared, 12)
    found = infer_sessions(trace)
    assert found.session is not None
    precision, _ = precision_and_recall(conversation, found.session.codes)
    assert precision == 1.0
    turns = len(trace) - len(np.unique(agent))
    assert np.sum(found.parent >= 0) / turns >= 0.96


def test_a_block_that_everybody_has_links_nobody(shared: Path) -> None:
    # traces/README.md: every request of the trace starts with block 0.
    trace = mooncake(shared)
    found = find_turns(trace)
    measured = measure_sessions(found)
    assert measured is not None
    assert measured.basis == "inferred from growing prefixes"
    assert measured.turns.max < 0.01 * len(trace)
    rows = np.flatnonzero(found.trace.parent >= 0)
    assert np.all(trace.prompt_tokens[found.trace.parent[rows]] < trace.prompt_tokens[rows])
    sharing = measure(trace).sharing
    assert sharing.within_session + sharing.across_session == pytest.approx(sharing.hit_rate_tokens)
    assert sharing.across_session > 0.11 * sharing.hit_rate_tokens  # block 0 alone: 12,030 of 105,710 hits


def test_turns_grow() -> None:
    assert inferred([[1, 2], [1, 2, 3], [5], [1, 2, 3, 4, 6], [5, 6]]) == [0, 0, 1, 0, 1]


def test_the_last_block_of_a_turn_may_change() -> None:
    assert inferred([[1, 2, 3], [1, 2, 9, 4], [1, 2, 9, 8, 5]]) == [0, 0, 0]
    assert inferred([[1, 2, 3, 4], [1, 2, 9, 8, 5]]) == [-1, -1]


def test_a_turn_may_end_in_the_block_of_the_turn_before() -> None:
    # Blocks of 4 tokens, partial ones with ids of their own: 9 and 11 tokens share two full blocks.
    assert inferred([[1, 2, 3], [1, 2, 4], [7]], prompts=[9, 11, 2]) == [0, 0, 1]
    assert inferred([[1, 2, 3], [1, 2, 4], [7]], prompts=[11, 9, 2]) == [-1, -1, -1]


def test_a_system_prompt_with_short_questions_links_nobody() -> None:
    # Six people ask less than a block behind the same two blocks; then two of them go on.
    questions = [[1, 2, 10 + person] for person in range(6)]
    prompts = [9, 11, 10, 11, 9, 10]
    assert inferred(questions, prompts=prompts) == [-1] * 6
    more = [[1, 2, 20, 21], [1, 2, 30, 31], [1, 2, 20, 21, 22]]
    assert inferred([*questions, *more], prompts=[*prompts, 16, 16, 20]) == [0, 1, 2, 3, 4, 5, 6, 7, 6]


def test_first_turns_of_two_people_stay_apart() -> None:
    # A prompt that is the system prompt alone, and two different ones behind it.
    assert inferred([[1], [1, 2], [1, 3], [1, 2, 4]]) == [0, 1, 2, 1]


def test_a_conversation_may_branch_behind_its_second_turn() -> None:
    trunk = [[1, 2], [1, 2, 3]]
    branches = [[1, 2, 3, 10 + agent] for agent in range(3)]
    assert inferred([*trunk, *branches, [9]]) == [0, 0, 0, 0, 0, 1]
    crowd = [[1, 2, 3, 10 + agent] for agent in range(9)]
    assert inferred([*trunk, *crowd]) == [0, 0, *range(1, 10)]


def test_an_edited_end_stays_in_the_conversation_once_it_is_known() -> None:
    first, second = list(range(20)), list(range(40))
    edited = [*range(37), 90, 91, 92, 93, 94]  # 37 of 40 blocks are kept: more than nine tenths
    assert inferred([first, second, edited]) == [0, 0, 0]
    assert inferred([second, edited]) == [-1, -1]
    assert inferred([first, second, [*range(17), *range(90, 120)]]) == [0, 0, 1]


def test_a_retry_belongs_to_the_turn_before() -> None:
    trace = infer_sessions(make_trace([4, 8, 8, 12], blocks=chain([[1], [1, 2], [1, 2], [1, 2, 3]]), size=4))
    assert trace.parent.tolist() == [-1, 0, 0, 2]


def test_a_conversation_is_of_one_client() -> None:
    paths = [[1, 2], [1, 2, 3]]
    assert inferred(paths, client=make_labels(["a", "b"])) == [-1, -1]
    assert inferred(paths, client=make_labels(["a", "a"])) == [0, 0]


def test_unknown_content_is_in_no_session() -> None:
    blocks = Blocks(4, np.array([0, 1, 0, 1, 2]), np.array([0, 2, 2, 5]), known=np.array([True, False, True]))
    trace = infer_sessions(replace(make_trace([8, 8, 12]), blocks=blocks))
    assert trace.session.codes.tolist() == [0, -1, 0]


def test_without_blocks_or_growth_nothing_is_inferred() -> None:
    for trace in (make_trace([1, 2]), make_trace([4, 4], blocks=chain([[1], [2]]), size=4)):
        assert infer_sessions(trace).session is None
        workload = measure(trace)
        assert workload.sessions is None
        (why,) = [entry.why for entry in workload.unknown if entry.path == "sessions"]
        assert "session label" in why


@st.composite
def conversations(draw: st.DrawFn) -> Trace:
    step = st.integers(0, 2)
    drawn = draw(st.lists(st.tuples(st.lists(step, min_size=1, max_size=6), st.integers(0, 3)), max_size=25))
    prompts = [4 * len(path) - cut for path, cut in drawn]
    clients = draw(st.lists(st.sampled_from(["a", "b", ""]), min_size=len(drawn), max_size=len(drawn)))
    return make_trace(prompts, blocks=chain([path for path, _ in drawn]), size=4, client=make_labels(clients))


@settings(max_examples=300, deadline=None)
@given(conversations())
def test_every_link_is_a_growing_prefix(trace: Trace) -> None:
    found = infer_sessions(trace)
    if found.session is None:
        return
    assert found.parent is not None
    for row, before in enumerate(found.parent.tolist()):
        if before < 0:
            continue
        full = int(trace.prompt_tokens[before]) // 4
        path, earlier = trace.blocks.row(row).tolist(), trace.blocks.row(before).tolist()
        needed = max(1, min(full - 1, int(np.ceil(0.9 * full))))
        assert before < row
        assert trace.prompt_tokens[before] < trace.prompt_tokens[row]
        assert trace.client.codes[before] == trace.client.codes[row]
        assert path[:needed] == earlier[:needed]
        assert full >= 1
        assert found.session.codes[row] == found.session.codes[before]
    starts = found.session.codes[found.parent < 0].tolist()
    assert len(set(starts)) == len(starts)  # every other request starts a session of its own


def test_think_time_runs_from_the_end_of_the_turn_before() -> None:
    trace = make_trace(
        [1] * 5,
        arrivals=[0, 10, 20, 24, 900],
        sessions=["a", "b", "a", "a", "a"],
        e2e_s=np.array([5.0, 1.0, 6.0, 2.0, 1.0]),
    )
    found = find_turns(trace)
    assert found.trace.parent.tolist() == [-1, -1, 0, 2, 3]
    assert found.trace.think_s[2:].tolist() == [15.0, -2.0, 874.0]
    measured = measure_sessions(found)
    assert measured.basis == "session ids of the log"
    assert measured.think_s.basis == "from the end of the turn before"
    assert (measured.think_s.p50, measured.think_s.over_300_s) == ((15.0 + 874.0) / 2, 0.5)
    assert measured.overlapping_share == pytest.approx(1 / 3)
    assert (measured.sessions, measured.turns.mean, measured.turns.max) == (2, 2.5, 4)
    assert measured.multi_turn_share == pytest.approx(0.8)


def test_without_durations_think_time_runs_from_arrivals_and_says_so() -> None:
    trace = make_trace([1] * 3, arrivals=[0, 10, 25], sessions=["a", "a", "a"])
    assert measure_sessions(find_turns(trace)).think_s.p50 == 12.5
    assert "no request durations" in measure_sessions(find_turns(trace)).think_s.basis
    partly = replace(trace, e2e_s=np.array([4.0, np.nan, 1.0]))
    assert find_turns(partly).trace.think_s[1:].tolist() == [6.0, 15.0]
    assert "not logged" in measure_sessions(find_turns(partly)).think_s.basis


def test_logged_think_times_stand(shared: Path) -> None:
    trace = make_trace(
        [1] * 3, sessions=["a"] * 3, think_s=np.array([np.nan, 7.0, 9.0]), parent=np.array([-1, 0, 1])
    )
    measured = measure_sessions(find_turns(trace))
    assert (measured.think_s.basis, measured.think_s.p50) == ("as logged", 8.0)
    # expected_stats.json, weka: 49,218 think times; reference: 6.8 % exceed 300 s.
    with gzip.open(shared / "traces/weka-claude-code/all_requests_derived.csv.gz", "rt") as file:
        logged = np.array([float(row["think_time_s"] or "nan") for row in csv.DictReader(file)])
    published = think_time(logged[np.isfinite(logged)], "as logged")
    assert (published.p50, published.p90) == (10.0, 162.0)
    assert published.p99 == pytest.approx(3013.81, abs=0.005)
    assert published.over_300_s == pytest.approx(0.068, abs=0.0005)


def test_requests_without_a_session_are_counted_apart() -> None:
    measured = measure_sessions(find_turns(make_trace([1] * 4, sessions=["a", "", "a", ""])))
    assert (measured.request_share, measured.sessions, measured.multi_turn_share) == (0.5, 1, 1.0)


def test_new_tokens_are_behind_what_the_turn_before_had() -> None:
    # Turns of 8, 19 and 20 tokens in blocks of 4: 11 and 4 new ones; the first turn counts for nothing.
    paths = chain([[1, 2], [1, 2, 3, 4, 5], [1, 2, 3, 4, 6]])
    trace = make_trace([8, 19, 20], blocks=paths, size=4, sessions=["a"] * 3)
    assert measure_sessions(find_turns(trace)).new_tokens.p50 == 7.5
    assert measure_sessions(find_turns(make_trace([8, 19], sessions=["a"] * 2))).new_tokens is None


def test_measuring_twice_or_from_labels_gives_the_same(shared: Path) -> None:
    trace = mooncake(shared)
    once = infer_sessions(trace)
    again = measure_sessions(find_turns(once))
    assert again.basis == "session ids of the log"
    assert again.turns == measure_sessions(find_turns(trace)).turns
