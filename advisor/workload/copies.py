"""Copies: requests that the log holds twice, which would count as reuse that nobody had.

Two kinds are told from people who ask the same thing again. One record logged twice (overlapping files, an
export that was retried) has the same arrival time to the last digit, session, client, lengths, content and
latencies; a repeated question or a retry arrives later. One conversation stored under two names has the same
lengths at the same times after its start, from the first turn to the last; its content is not compared, as
block ids of two conversations often cannot be. In the public Weka set 23 of 710 conversations are copies of
each other, in 5 groups; in the public Mooncake trace 22 requests equal an earlier one in content and lengths,
and one of them in its time, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from advisor.logs.trace import BoolColumn, IntColumn, Labels, Trace

TOLD_APART = 3  # different output lengths that a conversation must have to be told from another (ours)
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: multiplying by it mixes the bits
Hash = npt.NDArray[np.uint64]


def find_copies(trace: Trace, content: BoolColumn, fine_clock: bool) -> BoolColumn | None:
    """The requests that copy an earlier one. [requests]

    None where no request can be judged. That takes arrival times and lengths, with known content or a clock
    that is finer than the gaps (`fine_clock`); or sessions with times and several output lengths.
    """
    timed = np.isfinite(trace.arrival_s) & (trace.prompt_tokens >= 0)
    records = np.flatnonzero(timed & (content | fine_clock))
    groups = conversation_groups(trace)
    if len(records) == 0 and not np.any(groups >= 0):
        return None
    copies = np.zeros(len(trace), dtype=np.bool_)
    copies[records[_repeats([column[records] for column in _record(trace)])]] = True
    if trace.session is not None:
        first = np.unique(groups, return_index=True)[1]
        copied = np.append(groups >= 0, False)  # the last: code -1, no session
        copied[first] = False
        copies |= copied[trace.session.codes]
    return copies


def conversation_groups(trace: Trace) -> IntColumn:
    """For each session a number that equal conversations share; -1 where it cannot be judged. [sessions]

    Where the log has no arrivals, think times and durations stand for them: without any time, a copy cannot be
    told from a conversation that was played again.
    """
    if trace.session is None:
        return np.zeros(0, dtype=np.int64)
    sessions = len(trace.session.names)
    rows = np.flatnonzero(trace.session.codes >= 0)
    rows = rows[np.argsort(trace.session.codes[rows], kind="stable")]
    code = trace.session.codes[rows]
    first = np.searchsorted(code, code)
    turn = np.arange(len(rows)) - first
    times = [trace.arrival_s[rows] - trace.arrival_s[rows[first]]]
    times += [column[rows] for column in (trace.think_s, trace.e2e_s) if column is not None]
    timed = np.any(np.isfinite(times), axis=0)
    in_ms = [np.rint(np.nan_to_num(seconds, nan=-1.0) * 1e3).astype(np.int64) for seconds in times]
    whole = np.zeros(sessions, dtype=np.uint64)
    np.add.at(whole, code, _hash([turn, trace.prompt_tokens[rows], trace.output_tokens[rows], *in_ms]))
    judged = _different_outputs(code, trace.output_tokens[rows], sessions) >= TOLD_APART
    judged &= np.bincount(code[timed], minlength=sessions) >= TOLD_APART
    groups = np.full(sessions, -1)
    groups[judged] = np.unique(whole[judged], return_inverse=True)[1]
    return groups


def _different_outputs(code: IntColumn, output: IntColumn, sessions: int) -> IntColumn:
    """How many known output lengths each session has. [sessions]"""
    known = output >= 0
    width = int(output.max(initial=0)) + 1
    pairs = np.sort(code[known].astype(np.int64) * width + output[known])
    distinct = pairs[np.append(pairs[1:] != pairs[:-1], True)] if len(pairs) else pairs
    return np.bincount(distinct // width, minlength=sessions)


def _record(trace: Trace) -> list[IntColumn]:
    """The columns that two records of one request have in common, as integers."""
    columns: list[Any] = [trace.arrival_s, trace.prompt_tokens, trace.output_tokens, _last_block(trace)]
    labels: Iterable[Labels | None] = (trace.session, trace.client)
    columns += [label.codes for label in labels if label is not None]
    columns += [seconds for seconds in (trace.ttft_s, trace.e2e_s) if seconds is not None]
    return [
        column.view(np.int64) if column.dtype == np.float64 else column.astype(np.int64) for column in columns
    ]


def _last_block(trace: Trace) -> IntColumn:
    """The last block's id, which stands for all blocks before it; -1 for none. [requests]"""
    last = np.full(len(trace), -1, dtype=np.int64)
    if trace.blocks is not None:
        some = np.flatnonzero(trace.blocks.starts[1:] > trace.blocks.starts[:-1])
        last[some] = trace.blocks.ids[trace.blocks.starts[some + 1] - 1]
    return last


def _repeats(columns: list[IntColumn]) -> IntColumn:
    """Rows that equal an earlier row in every column, in no order."""
    hashes = _hash(columns)
    ascending = np.sort(hashes)
    if not np.any(ascending[1:] == ascending[:-1]):  # mostly, and some times as fast as the order that it is
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(hashes, kind="stable")
    same = np.ones(max(0, len(order) - 1), dtype=np.bool_)
    for column in columns:
        same &= column[order[1:]] == column[order[:-1]]
    return order[1:][same]


def _hash(columns: list[IntColumn]) -> Hash:
    """64 bits that stand for a row of all columns."""
    mixed: Hash = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.int64).view(np.uint64)) * _ODD
        mixed ^= mixed >> np.uint64(32)
    return mixed
