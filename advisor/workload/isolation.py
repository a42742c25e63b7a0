"""Isolation: the same requests where prefixes are shared only within a client or a session.

What a cache salt per tenant does to an engine, this does to a Trace: equal blocks of two tenants get different
ids. Everything measured afterwards, and every prompt built from the trace, is isolated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from advisor.logs.trace import Blocks, IntColumn, Labels, Trace, Unknown, rank_by_first
from advisor.workload.runs import find_runs
from engine.errors import InputError

LOST = ("hit_rate_optimal", "cached_share", "unexplained_share")  # of the log as it was, without isolation


def isolate(trace: Trace, by: Literal["client", "session"]) -> Trace:
    """Block ids of their own for every client or session; a row without the label shares with nobody.

    The optimal hit rate at 1-token pages is not known under isolation, nor what would have been cached:
    `novel_tokens` and `cached_tokens` go. Raises InputError where the log does not have the label.
    """
    labels = trace.client if by == "client" else trace.session
    if labels is None:
        raise InputError(
            f"the log names no {by}s to isolate",
            hint=f"--map {by}=FIELD, or --isolate none",
        )
    why = f"prefixes are shared within a {by} only"
    gone = [Unknown(f"sharing.{name}", why, "--isolate none") for name in LOST]
    blocks = None if trace.blocks is None else _isolated(trace.blocks, labels, trace.prompt_tokens)
    return replace(
        trace,
        blocks=blocks,
        novel_tokens=None,
        cached_tokens=None,
        totals=None if trace.totals is None else replace(trace.totals, cached_tokens=None, cached_share=None),
        unknown=(*trace.unknown, *gone),
    )


def _isolated(blocks: Blocks, owner: Labels, prompt_tokens: IntColumn) -> Blocks:
    """The ids of a run, a stretch of blocks that is always used whole, once for every owner that uses it."""
    runs = find_runs(blocks, prompt_tokens)
    alone = -1 - np.arange(len(owner.codes))  # unlike every code and each other
    tenant = np.where(owner.codes >= 0, owner.codes, alone)[runs.row]
    nodes = int(runs.node.max(initial=0)) + 1
    _, ordinals = rank_by_first(tenant * nodes + runs.node)
    length = np.zeros(int(ordinals.max(initial=-1)) + 1, dtype=np.int64)
    length[ordinals] = runs.blocks
    first_id = np.cumsum(length) - length
    heads = np.repeat(first_id[ordinals] - (np.cumsum(runs.blocks) - runs.blocks), runs.blocks)
    return replace(blocks, ids=heads + np.arange(len(blocks.ids)))
