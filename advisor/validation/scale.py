"""The same traffic at another rate: what `--rate` and a search do to a window.

`sessions`: whole sessions are left out, or copied with a shift in time and content of their own, by the very
draws of the simulation, so that think times, bursts and reuse stay what they are and a prediction is of the
same requests. `time`: all times are divided; turns follow faster and reuse comes sooner.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from advisor.logs.trace import Blocks, IntColumn
from advisor.simulation.load import Load
from advisor.simulation.scaling import draw
from advisor.validation.window import Window

Scale = Literal["sessions", "time"]


def scale_window(window: Window, factor: float, how: Scale, seed: int) -> Window:
    """The window, warm-up and all, at `factor` times its rate, to within a session. Same seed, same draws."""
    if factor == 1:
        return window
    if how == "time":
        return replace(
            window,
            due_s=window.due_s / factor,
            length_s=window.length_s / factor,
            scaled=(*window.scaled, f"all times divided by {factor:g}"),
        )
    drawn = draw(_load(window), factor, seed)
    trace = window.trace.take(drawn.rows)
    blocks = None if trace.blocks is None else _fresh(trace.blocks, window, drawn.copies)
    begin_s = window.trace.arrival_s[0] - window.due_s[0]
    return replace(
        window,
        trace=replace(trace, arrival_s=begin_s + drawn.load.arrival_s, blocks=blocks),
        rows=window.rows[drawn.rows],
        due_s=drawn.load.arrival_s,
        session=drawn.load.session,
        parent=drawn.load.parent,
        copies=drawn.copies,
        scaled=(
            *window.scaled,
            f"whole sessions {'left out' if factor < 1 else 'copied'}: {factor:.3g} times the rate",
        ),
    )


def _load(window: Window) -> Load:
    """What the simulation has to know of the window to draw from it; what requests share is not in it."""
    return Load(
        arrival_s=window.due_s,
        prompt_tokens=window.trace.prompt_tokens,
        output_tokens=window.trace.output_tokens,
        runs=((),) * len(window),
        block_size=1,
        session=window.session,
        parent=window.parent,
        think_s=np.full(len(window), np.nan),
    )


def _fresh(blocks: Blocks, window: Window, copies: IntColumn) -> Blocks:
    """The blocks with ids of a copy's own where only one session has them; what sessions share stays shared."""
    original = window.trace.blocks
    if original is None or not len(original.ids):
        return blocks
    beyond = int(original.ids.max()) + 1
    alone = np.zeros(beyond, dtype=np.bool_)
    session = np.repeat(window.session, np.diff(original.starts))
    pairs = np.unique(np.stack((original.ids, session)), axis=1)[0]  # one entry for each session that has an id
    ids, sessions = np.unique(pairs, return_counts=True)
    alone[ids] = sessions == 1
    copy = np.repeat(copies, np.diff(blocks.starts))
    return replace(blocks, ids=np.where(alone[blocks.ids], blocks.ids + copy * beyond, blocks.ids))
