"""What a step of known composition took, read off the records of a calibration from outside.

A lone prompt's time to its first token is one step and the way there and back. Between two tokens of a stream
lies one step of everything that ran beside it, and no way: it is as long for both. Pure functions of records,
whose times are on the clock that the endpoint stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from advisor.validation.outside_design import chunks
from advisor.validation.record import COMPLETE, Record
from engine.step_time.model import StepShape

# Seconds and decode steps that one row is the mean of: a stamp is late by what the client did meanwhile (ours).
_BLOCK_S, _BLOCK_STEPS = 0.1, (2, 8)
_MOST_OF_TTFT = 0.9  # of the shortest time to a first token: the way is never more (ours)


class Row(NamedTuple):
    """A step and the seconds it took."""

    shape: StepShape
    seconds: float


def complete(records: Sequence[Record]) -> bool:
    """Whether every request was served."""
    return bool(records) and all(one.status in COMPLETE and one.t_chunk for one in records)


def lone_row(record: Record) -> Row:
    """A prompt that was alone: its whole time from the send to the first token."""
    return Row(StepShape((_prompt(record),)), record.t_chunk[0] - _sent_s(record))


def decode_rows(streams: Sequence[Record]) -> list[Row]:
    """Means over a few steps each, from where all streams decode to where the first of them ends."""
    begin_s, end_s = together(streams)
    last = max(streams, key=lambda one: one.t_chunk[0])
    stamps = [stamp for stamp in last.t_chunk if begin_s <= stamp <= end_s][1:]
    if len(stamps) < 2 or stamps[-1] <= stamps[0]:
        return []
    gap_s = (stamps[-1] - stamps[0]) / (len(stamps) - 1)
    block = min(max(round(_BLOCK_S / gap_s), _BLOCK_STEPS[0]), _BLOCK_STEPS[1])
    rows = []
    for start in range(0, len(stamps) - block, block):
        first, middle, end = (stamps[start + step] for step in (0, block // 2, block))
        steps = block * tokens_per_chunk(streams)
        rows.append(Row(_decodes(streams, middle), (end - first) / steps))
    return rows


def mixed_rows(streams: Sequence[Record], beside: Sequence[Record], budget: int | None) -> list[Row]:
    """The steps that computed the prompts beside streams, of those that came while all streams decoded."""
    begin_s, end_s = together(streams)
    stamps = streams[0].t_chunk
    rows: list[Row] = []
    for one in beside:
        if not (begin_s <= _sent_s(one) and one.t_chunk[0] <= end_s):
            continue
        new, context = _prompt(one)
        parts = chunks(new, context, budget, len(streams))
        end = _nearest(stamps, one.t_chunk[0])
        first = end - len(parts)
        if first < 0 or stamps[first] < _sent_s(one):
            continue  # not in so many steps as was thought
        for number, part in enumerate(parts):
            rows_then, context_then = _decodes(streams, stamps[first + number])[1:]
            took = stamps[first + number + 1] - stamps[first + number]
            rows.append(Row(StepShape((part,), rows_then, context_then), took))
    return rows


def excess_s(streams: Sequence[Record], beside: Record) -> list[float]:
    """How much longer than a plain decode each step was from a prompt's send to its first token, seconds."""
    stamps = np.array(streams[0].t_chunk)
    gaps = np.diff(stamps)
    end = _nearest(streams[0].t_chunk, beside.t_chunk[0])
    plain = gaps[stamps[1:] <= _sent_s(beside)]
    if len(plain) == 0 or end == 0:
        return []
    first = int(np.searchsorted(stamps, _sent_s(beside)))
    return [float(gap - np.median(plain)) for gap in gaps[first:end]]


def together(streams: Sequence[Record]) -> tuple[float, float]:
    """From when to when all streams decode, seconds."""
    return max(one.t_chunk[0] for one in streams), min(one.t_chunk[-1] for one in streams)


def tokens_per_chunk(streams: Sequence[Record]) -> float:
    """Output tokens of a chunk, mean; at least 1."""
    tokens = sum(one.n_out or len(one.t_chunk) for one in streams)
    return max(1.0, tokens / sum(len(one.t_chunk) for one in streams))


def overhead_s(
    lone: Sequence[Row], rows: Sequence[Row], round_trip_s: float, seconds: Callable[[StepShape], float]
) -> float:
    """What a first token takes beside its step, seconds: the network, HTTP, the loops of client and server.

    The shortest prompt was sent alone and beside a single stream, whose gap then is the same step and one
    decode more, without the way; what that decode adds is known well enough from a first fit, `seconds`. Where
    the pair was not measured it is the round trip of a request that computes nothing, which it is at least.
    """
    shortest = min(one.shape.tokens for one in lone)
    alone = [one.seconds for one in lone if one.shape.tokens == shortest]
    beside = [
        took - (seconds(shape) - seconds(StepShape(shape.prefill)))
        for shape, took in rows
        if shape.decode_rows == 1 and sum(new for new, _ in shape.prefill) == shortest
    ]
    if not beside:
        return round_trip_s
    way_s = max(median(alone) - median(beside), round_trip_s)
    return min(way_s, _MOST_OF_TTFT * min(one.seconds for one in lone))


def _sent_s(record: Record) -> float:
    return record.t_due if record.t_send is None else record.t_send


def _prompt(record: Record) -> tuple[int, int]:
    """(new, context) of a prompt: as the server counted it, without what it had in its cache."""
    tokens = record.n_in or record.want_in
    cached = min(record.n_cached or 0, tokens - 1)
    return tokens - cached, cached


def _decodes(streams: Sequence[Record], at_s: float) -> StepShape:
    """The pure decode step that begins when the tokens stamped up to `at_s` are out."""
    contexts = [
        sum(_prompt(one)) + round(sum(stamp <= at_s for stamp in one.t_chunk) * tokens_per_chunk([one])) - 1
        for one in streams
    ]
    return StepShape((), len(streams), sum(contexts))


def _nearest(stamps: Sequence[float], at_s: float) -> int:
    return int(np.argmin(np.abs(np.array(stamps) - at_s)))
