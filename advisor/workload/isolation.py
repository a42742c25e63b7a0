"""Isolation: the same requests where prefixes are shared only within a client or a session.

What a cache salt per tenant does to an engine, this does to a Trace: equal blocks of two tenants get different
ids. Everything measured afterwards, and every prompt built from the trace, is isolated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from advisor.logs.trace import Trace, Unknown, rank_by_first
from engine.errors import InputError


def isolate(trace: Trace, by: Literal["client", "session"]) -> Trace:
    """Block ids of their own for every client or session; a row without the label shares with nobody.

    The optimal hit rate at 1-token pages is not known under isolation: `novel_tokens` goes. Raises InputError
    where the log does not have the label.
    """
    labels = trace.client if by == "client" else trace.session
    if labels is None:
        raise InputError(
            f"the log names no {by}s to isolate",
            hint=f"--map {by}=FIELD, or --isolate none",
        )
    if trace.blocks is None:
        return trace
    alone = -1 - np.arange(len(trace))  # unlike every code and each other
    tenant = np.where(labels.codes >= 0, labels.codes, alone)
    owner = np.repeat(tenant, np.diff(trace.blocks.starts))
    distinct, block = np.unique(trace.blocks.ids, return_inverse=True)
    _, ordinals = rank_by_first(owner * len(distinct) + block)
    gone = Unknown("sharing.hit_rate_optimal", f"prefixes are shared within a {by} only", "--isolate none")
    return replace(
        trace,
        blocks=replace(trace.blocks, ids=ordinals),
        novel_tokens=None,
        unknown=(*trace.unknown, gone),
    )
