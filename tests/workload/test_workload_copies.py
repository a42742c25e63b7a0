"""Copies against the public Weka conversations, and told from people who ask the same thing again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.workload_traces import azure, make_labels, make_trace, mooncake

from advisor.logs.trace import Labels, Trace
from advisor.workload.copies import conversation_groups, find_copies
from advisor.workload.measure import measure
from advisor.workload.sharing import content_known


def copies(trace: Trace, *, fine_clock: bool = True) -> list[int] | None:
    """Rows that are copies."""
    found = find_copies(trace, content_known(trace), fine_clock)
    return None if found is None else np.flatnonzero(found).tolist()


@pytest.fixture(scope="module")
def table(shared: Path) -> pd.DataFrame:
    """All requests of the 710 Weka conversations, each from its own zero."""
    requests = pd.read_csv(shared / "traces/weka-claude-code/all_requests_derived.csv.gz")
    return requests.sort_values("t_s", kind="stable")


@pytest.fixture(scope="module")
def weka(table: pd.DataFrame) -> Trace:
    codes, names = pd.factorize(table.trace_id)
    return Trace(
        arrival_s=table.t_s.to_numpy(np.float64),
        prompt_tokens=table.in_tokens.to_numpy(np.int64),
        output_tokens=table.out_tokens.to_numpy(np.int64),
        session=Labels(tuple(names), codes.astype(np.int64)),
    )


def test_weka_23_of_710_conversations_are_copies_in_5_groups(weka: Trace) -> None:
    # reference/logs.md A3.10.
    groups = conversation_groups(weka)
    assert len(groups) == 710
    sizes = np.bincount(groups[groups >= 0])
    assert sizes[sizes > 1].sum() == 23
    assert (sizes > 1).sum() == 5
    assert sizes.max() == 12


def test_weka_copies_without_arrivals_show_by_think_and_api_times(table: pd.DataFrame, weka: Trace) -> None:
    """As the files themselves are read: every conversation counts from a zero of its own."""
    timeless = replace(
        weka,
        arrival_s=np.full(len(weka), np.nan),
        think_s=table.think_time_s.to_numpy(np.float64),
        e2e_s=table.api_time_s.to_numpy(np.float64),
    )
    groups = conversation_groups(timeless)
    sizes = np.bincount(groups[groups >= 0])
    assert (sizes[sizes > 1].sum(), (sizes > 1).sum(), sizes.max()) == (23, 5, 12)
    untimed = replace(timeless, think_s=None, e2e_s=None)
    assert np.all(conversation_groups(untimed) == -1)


def test_weka_requests_of_the_copies_are_counted(table: pd.DataFrame, weka: Trace) -> None:
    told: set[tuple[tuple[float, ...], ...]] = set()
    copied = 0
    for _, requests in table.groupby("trace_id"):
        story = tuple(requests[["t_s", "in_tokens", "out_tokens"]].itertuples(index=False, name=None))
        copied += len(story) * (story in told)
        told.add(story)
    assert copied > 0
    assert len(copies(weka) or ()) == copied


def test_public_traces_without_copies_have_next_to_none(shared: Path) -> None:
    # No two requests of Azure have one time. In Mooncake's 3 s ticks, two have one content and both lengths.
    assert copies(azure(shared, "code")) == []
    assert copies(azure(shared, "conv")) == []
    duplicates = measure(mooncake(shared)).sharing.duplicates
    assert duplicates is not None
    assert (duplicates.requests, duplicates.share) == (1, 1 / 12_031)


def test_a_file_read_twice_is_copies_and_nothing_else(shared: Path) -> None:
    once = mooncake(shared).take(np.arange(500))
    twice = once.take(np.sort(np.tile(np.arange(500), 2)))
    duplicates = measure(twice).sharing.duplicates
    sharing = measure(once).sharing
    assert duplicates is not None
    assert (duplicates.requests, duplicates.share) == (500, 0.5)
    assert duplicates.hit_rate_tokens == sharing.hit_rate_tokens
    assert measure(twice).sharing.hit_rate_tokens == pytest.approx((1 + (sharing.hit_rate_tokens or 0)) / 2)


SAME = {"arrivals": [5.0, 5.0], "blocks": [[0, 1], [0, 1]], "size": 50}


@pytest.mark.parametrize(
    "changes",
    [
        {"arrivals": [5.0, 5.001]},  # asked again, or retried
        {"blocks": [[0, 1], [0, 2]]},
        {"sessions": ["a", "b"]},
        {"client": make_labels(["a", "b"])},
        {"e2e_s": np.array([1.0, 1.1])},
    ],
)
def test_what_differs_in_anything_is_no_copy(changes: dict[str, object]) -> None:
    assert copies(make_trace([100, 100], [7, 7], **SAME)) == [1]
    assert copies(make_trace([100, 100], [7, 7], **(SAME | changes))) == []
    assert copies(make_trace([100, 100], [7, 8], **SAME)) == []
    assert copies(make_trace([100, 99], [7, 7], **SAME)) == []


def test_equal_lengths_without_content_need_a_fine_clock() -> None:
    # Azure code with stamps of one second has 69 pairs of equal lengths within a second.
    trace = make_trace([100, 100], [7, 7], arrivals=[5.0, 5.0])
    assert copies(trace, fine_clock=True) == [1]
    assert copies(trace, fine_clock=False) is None


def test_coarse_azure_code_is_not_judged(shared: Path) -> None:
    trace = azure(shared, "code")
    floored = make_trace(trace.prompt_tokens, trace.output_tokens, arrivals=np.floor(trace.arrival_s))
    workload = measure(floored)
    assert workload.sharing.duplicates is None
    (entry,) = [entry for entry in workload.unknown if entry.path == "sharing.duplicates"]
    assert "coarse clock" in entry.why


def conversations(*turns: list[tuple[float, int, int]]) -> Trace:
    """(arrival, prompt, output) of the turns of each conversation, named by its place."""
    rows = sorted((*turn, str(name)) for name, session in enumerate(turns) for turn in session)
    arrivals, prompts, outputs, names = zip(*rows, strict=True)
    return make_trace(prompts, outputs, arrivals=arrivals, sessions=names)


TALK = [(0.0, 100, 7), (10.5, 140, 9), (33.0, 300, 80)]


def test_a_conversation_under_two_names_is_a_copy() -> None:
    later = [(at + 1000.25, prompt, output) for at, prompt, output in TALK]
    assert copies(conversations(TALK, later)) == [3, 4, 5]
    assert copies(conversations(TALK, later, later)) == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "other",
    [
        TALK[:2],  # its start only: 46 Weka conversations share their first three requests with another
        [*TALK, (40.0, 400, 5)],
        [(0.0, 100, 7), (10.5, 140, 9), (34.0, 300, 80)],
        [(0.0, 100, 7), (10.5, 140, 9), (33.0, 300, 81)],
    ],
)
def test_what_only_begins_alike_is_no_copy(other: list[tuple[float, int, int]]) -> None:
    later = [(at + 1000, prompt, output) for at, prompt, output in other]
    assert copies(conversations(TALK, later)) == []


def test_short_answers_of_one_length_do_not_tell_conversations_apart() -> None:
    talk = [(0.0, 100, 7), (10.0, 140, 7), (20.0, 300, 7)]
    later = [(at + 1000, prompt, output) for at, prompt, output in talk]
    assert copies(conversations(talk, later)) == []


@pytest.mark.parametrize("prompts", [[100, 100], [-1, -1]])
def test_without_times_or_lengths_nothing_is_judged(prompts: list[int]) -> None:
    assert copies(make_trace(prompts, [7, 7], arrivals=[np.nan] * 2, blocks=[[0], [0]], size=100)) is None
    assert copies(make_trace([-1, -1], [-1, -1], arrivals=[5.0, 5.0])) is None
