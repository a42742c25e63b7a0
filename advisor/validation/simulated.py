"""A replayed window as the simulator has it: the same requests, and what became of them as records.

Records of a simulation are like measured ones, so that the same functions make figures of both. No prompt of a
replay goes on from what the engine generated before: the log's replies are replayed in length alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from advisor.logs.trace import FloatColumn
from advisor.simulation.deployment import Deployment
from advisor.simulation.from_trace import load_of
from advisor.simulation.outcome import Outcome
from advisor.simulation.simulate import simulate
from advisor.validation.record import Record
from advisor.validation.window import Window


def simulated(
    window: Window, records: Sequence[Record], deployment: Deployment, *, causal: bool = False
) -> list[Record]:
    """What the simulator makes of the judged requests of a window, its warm-up in front.

    `records` are those requests as they were replayed, one each, in order: rows, lengths and classes are taken
    from them, no time. `causal`: a turn waits for the end of the one before it.
    """
    begin_s = float(window.due_s[0])
    trace = replace(window.trace, arrival_s=window.due_s - begin_s)
    load = load_of(trace, deployment.pools[0].config.block_size, replies=False)
    load = replace(load, parent=window.parent)
    outcome = simulate(load, deployment, turns="held" if causal else "open")
    judged = np.flatnonzero(window.judged).tolist()
    return [
        _record(outcome, row, begin_s, float(window.due_s[row]), record)
        for row, record in zip(judged, records, strict=True)
    ]


def _record(outcome: Outcome, row: int, begin_s: float, due_s: float, replayed: Record) -> Record:
    sent_s = begin_s + float(outcome.arrival_s[row])
    record = Record(
        row=replayed.row,
        t_sched=due_s,
        held_s=max(0.0, sent_s - due_s),
        want_in=replayed.want_in,
        want_out=replayed.want_out,
        status="http_429",  # the queue was full, or it can never run
        t_send=sent_s,
        session=replayed.session,
        turn=replayed.turn,
        slo_class=replayed.slo_class,
    )
    if not outcome.served[row]:
        return record
    stamps = sent_s + _tokens_s(outcome, row)
    return replace(
        record,
        status="ok",
        t_chunk=tuple(stamps.tolist()),
        t_done=float(stamps[-1]),
        n_in=replayed.want_in,
        n_cached=int(outcome.cached_tokens[row]),
        n_out=len(stamps),
        n_out_source="token_ids",
    )


def _tokens_s(outcome: Outcome, row: int) -> FloatColumn:
    """When its tokens came, seconds after its send: the first, the last and the largest gap as simulated."""
    first_s, last_s = float(outcome.ttft_s[row]), float(outcome.e2e_s[row])
    gaps = int(outcome.output_tokens[row]) - 1
    if gaps < 1:
        return np.array([first_s])
    largest_s = float(outcome.max_gap_s[row]) if gaps > 1 else last_s - first_s
    rest_s = (last_s - first_s - largest_s) / max(gaps - 1, 1)
    return first_s + np.concatenate(([0.0], largest_s + rest_s * np.arange(gaps)))
