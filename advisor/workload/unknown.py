"""Why a number of the Workload is null, and how to get it: one entry a null, so that none is silent.

What the reader already said about a path stands; the rest is explained here. Never invents a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from advisor.logs.trace import Trace
from advisor.workload.model import UnknownField, Workload

Reason = tuple[str, str]  # why, how to get it

NO_TIMES = ("the log has no arrival times", "log the arrival time of every request")
FEW_ARRIVALS = ("it has too few arrivals", "analyze a longer log")
ONE_STAMP = ("all requests have the same arrival time", "log arrival times on a finer clock")
NO_TICK = ("the clock is finer than the gaps between requests", "not needed")
EVEN_GAPS = ("all gaps between arrivals are equal", "not needed: arrivals at a fixed rate have no gamma shape")
NO_BLOCKS = (
    "the log has neither prompt text nor block hashes",
    "log prompts (they are hashed while reading and not kept) or block hashes in `hash_ids`",
)
NO_PROMPTS = ("all prompts are empty", "log the prompt tokens of every request")
NO_FULL_BLOCK = ("no prompt fills a block", "use a smaller --block-size")
NO_TEXT = ("1-token pages need the prompt text", "analyze a log with prompts; they are not kept")
NO_SESSIONS = ("requests have no session label", "name the field with --map session=FIELD")
NO_REUSE = ("no block is used twice, but for those that every request shares", "analyze a longer log")
CHAINED = ("a chained block id also names what comes before the block", "not measured yet")
NO_OUTPUTS = ("the log has no output lengths", "log the output tokens of every request")
NO_MODEL = ("the log does not name the model", "name the field with --map model=FIELD")

LISTS = ("sharing.capacity_curve", "classes")  # empty means unknown; other lists may well be empty
IN_LOG = {"model": "log.models", "span_s": "log.span_s"}  # what the JSON contract has in its `log` object


def explain_nulls(workload: Workload, trace: Trace) -> tuple[UnknownField, ...]:
    """An entry for every null and unknown list of the Workload, after the reader's entries for anything else.

    The reader's reason wins; one for a whole object (`sharing`) stands for every null in it.
    """
    told = {entry.path: (entry.why, entry.how_to_get) for entry in trace.unknown}
    reasons: dict[str, Reason] = {}
    for path in _nulls(workload.model_dump(exclude={"unknown"}), ""):
        place = IN_LOG.get(path, path)
        whole = place.partition(".")[0]
        reasons[place] = told.get(place) or told.get(whole) or _reason(path, workload, trace)
    objects = {path.partition(".")[0] for path in reasons}
    reasons = {path: reason for path, reason in told.items() if path not in objects} | reasons
    return tuple(UnknownField(path=path, why=why, how_to_get=how) for path, (why, how) in reasons.items())


def _nulls(value: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, item in value.items():
        path = prefix + name
        if item is None or (path in LISTS and not item):
            yield path
        elif isinstance(item, dict):
            yield from _nulls(item, path + ".")


def _reason(path: str, workload: Workload, trace: Trace) -> Reason:
    group, _, name = path.partition(".")
    if group in ("arrivals", "span_s"):
        return _arrivals_reason(name, workload, trace)
    if group in ("sharing", "uncached_prompt"):
        return _sharing_reason(name, trace)
    return NO_MODEL if group == "model" else NO_OUTPUTS


def _arrivals_reason(name: str, workload: Workload, trace: Trace) -> Reason:
    kind, _, window = name.partition(".")
    tick_s = workload.arrivals.tick_s
    if workload.span_s is None:
        return NO_TIMES
    if np.isfinite(trace.arrival_s).sum() < 2:
        return FEW_ARRIVALS
    if workload.span_s == 0:
        return ONE_STAMP
    if window:
        needed = int(window) * (2 if kind == "dispersion" else 1)
        return f"arrivals span {workload.span_s:.3g} s", f"analyze a log of at least {needed} s"
    if kind == "on_off_share" and tick_s is not None:
        return f"a clock tick of {tick_s:.3g} s hides gaps under 10 ms", "log arrival times in milliseconds"
    if kind == "tick_s":
        return NO_TICK
    return EVEN_GAPS if kind == "gamma_shape" and len(trace) > 3 else FEW_ARRIVALS


def _sharing_reason(name: str, trace: Trace) -> Reason:
    if not trace.prompt_tokens.any():
        return NO_PROMPTS
    if name == "hit_rate_optimal":
        return NO_TEXT
    if trace.blocks is None:
        return NO_BLOCKS
    if name in ("within_session", "across_session"):
        return NO_SESSIONS
    if name == "any_position_share":
        return CHAINED
    if len(trace.blocks.ids) == 0:
        return NO_FULL_BLOCK
    return NO_REUSE if np.isfinite(trace.arrival_s).any() else NO_TIMES
