"""Why a number of the Workload is null, and how to get it: one entry a null, so that none is silent.

What the reader already said about a path stands; the rest is explained here. Never invents a value. Which
findings each takes away stands in `turns_off`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from advisor.logs.trace import Trace
from advisor.workload.model import UnknownField, Workload
from advisor.workload.sharing import content_known
from advisor.workload.turns_off import findings_off

Reason = tuple[str, str]  # why, how to get it
GUIDE = "docs/collecting-logs.md"

SUMS = ("the log holds sums, not requests", "analyze a log that has one entry a request")
SUM_ONLY = ("the log has only their sum", "log the tokens of every request")
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
NO_PROMPT_LENGTHS = ("the log has no prompt lengths", "log the prompt tokens of every request")
NO_CACHED = ("the log has no cached tokens", "log the cached prompt tokens of every request")
SOME_CONTENT = (
    "requests whose content is not in the log could explain any cached tokens",
    "log the prompts or block hashes of every request",
)
NO_COPIES = (
    "equal lengths on a coarse clock do not make a copy",
    "log prompts, block hashes or sessions, or arrival times in milliseconds",
)
NO_CLIENTS = ("requests have no client label", "name the field with --map client=FIELD")
NO_FULL_BLOCK = ("no prompt fills a block", "use a smaller --block-size")
NO_TEXT = ("1-token pages need the prompt text", "analyze a log with prompts; they are not kept")
NO_SESSIONS = ("requests have no session label", "name the field with --map session=FIELD")
NO_BLOCKS_TO_INFER = (
    "requests have no session label, and without prompt text or block hashes none can be inferred",
    "name the field with --map session=FIELD",
)
NOTHING_GROWS = (
    "requests have no session label, and no prompt continues an earlier one",
    "name the field with --map session=FIELD",
)
NO_TURNS = ("no session has a second turn", "analyze a longer log")
ALL_OVERLAP = ("every turn starts before the turn before has ended", "not needed: nobody waits between turns")
NO_ACTIVE_CLIENT = ("no client sends 10 requests within 10 minutes", "analyze a longer log")
LESS_THAN_A_DAY = ("the log spans less than a day", "analyze a log of at least a day")
IDLE_HOUR = ("the quietest hour of the day has no request: the ratio is infinite", "see drift.idle_share")
NO_REUSE = ("no block is used twice, but for those that every request shares", "analyze a longer log")
NO_LAYOUT = (
    "content behind the start of prompts is known where their text is, of at least two sessions",
    "analyze a file with prompts; they are not kept",
)
NO_OUTPUTS = ("the log has no output lengths", "log the output tokens of every request")
NO_TTFT = ("the log has no times to the first token", "log the time to the first token of every request")
NO_E2E = ("the log has no durations", "log the end or the duration of every request")
NO_TPOT = (
    "no request has both of its latencies and at least two output tokens",
    "log time to first token, duration and output tokens of every request",
)
NO_MODEL = ("the log does not name the model", "name the field with --map model=FIELD")

# Empty means unknown; other lists may well be empty.
LISTS = ("sharing.capacity_curve", "sharing.cache_life", "sharing.window_curve", "classes")
NOT_CONTENT = ("sharing.cached_share", "sharing.unexplained_share", "sharing.duplicates")
IN_LOG = {"model": "log.models", "span_s": "log.span_s"}  # what the JSON contract has in its `log` object


def explain_nulls(workload: Workload, trace: Trace) -> tuple[UnknownField, ...]:
    """An entry for every null and unknown list of the Workload, after the reader's entries for anything else.

    The reader's reason wins; one for a whole object (`sharing`) stands for every null in it that it is about.
    """
    inferred = workload.sessions is not None  # where the reader has none
    told = {
        entry.path: (entry.why, entry.how_to_get)
        for entry in trace.unknown
        if not (entry.path == "sessions" and inferred)
    }
    reasons: dict[str, Reason] = {}
    for path in _nulls(workload.model_dump(exclude={"unknown"}), ""):
        place = IN_LOG.get(path, path)
        about = [place] if place in NOT_CONTENT else [place, *_objects(place)]
        reasons[place] = next((told[p] for p in about if p in told), None) or _reason(path, workload, trace)
    if 0 < (workload.sharing.known_share or 0) < 1:
        reasons["sharing.known_share"] = told.get("sharing.known_share") or _partly_known(workload, trace)
    explained = {whole for path in reasons for whole in _objects(path)} | _known(workload)
    reasons = {path: reason for path, reason in told.items() if path not in explained} | reasons
    cached = workload.sharing.cached_share is not None
    return tuple(
        UnknownField(
            path=path,
            why=why,
            how_to_get=_with_guide(path, how),
            turns_off=findings_off(path, cached_share_known=cached),
        )
        for path, (why, how) in reasons.items()
    )


def _with_guide(path: str, how: str) -> str:
    """Whatever is missing about sharing, the guide says which setting of which product logs it."""
    return f"{how}; {GUIDE}" if path.startswith("sharing") and GUIDE not in how else how


def _known(workload: Workload) -> set[str]:
    """Paths of numbers that came to be known after all: a reader cannot tell what a tokenizer will count."""
    groups = workload.model_dump(include={"lengths", "latency"})
    return {f"{group}.{name}" for group, values in groups.items() for name in values if values[name]}


def _objects(path: str) -> Iterator[str]:
    """The objects that a path lies in, the nearest first."""
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _nulls(value: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, item in value.items():
        path = prefix + name
        if item is None or (path in LISTS and not item):
            yield path
        elif isinstance(item, dict):
            yield from _nulls(item, path + ".")


def _reason(path: str, workload: Workload, trace: Trace) -> Reason:
    group, _, name = path.partition(".")
    if group == "model":
        return NO_MODEL
    if len(trace) == 0:
        return SUMS
    if path in ("layout", "sharing.any_position_share"):
        return NO_LAYOUT
    if group in ("arrivals", "span_s"):
        return _arrivals_reason(name, workload, trace)
    if group in ("sharing", "uncached_prompt"):
        return _sharing_reason(name, trace)
    if group == "latency":
        return {"ttft_s": NO_TTFT, "e2e_s": NO_E2E}.get(name, NO_TPOT)
    if group == "sessions":
        return _sessions_reason(name, workload, trace)
    if group == "clients":
        return _clients_reason(name, trace)
    if group == "drift":
        return _drift_reason(name, workload, trace)
    if "." in name:  # a percentile beside a mean
        return SUM_ONLY
    return NO_PROMPT_LENGTHS if name == "prompt" or not np.any(trace.prompt_tokens >= 0) else NO_OUTPUTS


def _partly_known(workload: Workload, trace: Trace) -> Reason:
    share = 1 - (workload.sharing.known_share or 0.0)
    of = "requests" if np.any(trace.prompt_tokens < 0) else "prompt tokens"
    return f"the content of {share:.1%} of {of} is not in the log; hit rates are over the rest", SOME_CONTENT[1]


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
    content, timed = content_known(trace), bool(np.isfinite(trace.arrival_s).any())
    if name == "cached_share" or (name == "unexplained_share" and trace.cached_tokens is None):
        return NO_CACHED
    if not np.any(trace.prompt_tokens > 0):
        return NO_PROMPT_LENGTHS if np.any(trace.prompt_tokens < 0) else NO_PROMPTS
    if name == "duplicates":
        return NO_COPIES if timed else NO_TIMES
    if name == "hit_rate_optimal":
        return NO_TEXT
    if trace.blocks is None:
        return NO_BLOCKS
    if name in ("within_session", "across_session"):
        return NO_SESSIONS
    if name in ("within_client", "across_client"):
        return NO_CLIENTS
    if len(trace.blocks.ids) == 0:
        return NO_FULL_BLOCK
    if name == "unexplained_share":
        return NO_CACHED if content.all() else SOME_CONTENT
    return NO_REUSE if timed else NO_TIMES


def _sessions_reason(name: str, workload: Workload, trace: Trace) -> Reason:
    if workload.sessions is None:
        return NOTHING_GROWS if content_known(trace).any() else NO_BLOCKS_TO_INFER
    if workload.sessions.multi_turn_share == 0:
        return NO_TURNS
    if name == "new_tokens":
        return NO_BLOCKS if trace.blocks is None else SOME_CONTENT
    return ALL_OVERLAP if workload.sessions.overlapping_share is not None else NO_TIMES


def _clients_reason(name: str, trace: Trace) -> Reason:
    if not name:
        return NO_CLIENTS
    if name.endswith("token_share"):
        return NO_PROMPT_LENGTHS
    return NO_ACTIVE_CLIENT if np.isfinite(trace.arrival_s).any() else NO_TIMES


def _drift_reason(name: str, workload: Workload, trace: Trace) -> Reason:
    if name == "day_night_ratio":
        day = workload.span_s is not None and workload.span_s >= 86_400
        return IDLE_HOUR if day else LESS_THAN_A_DAY
    if workload.span_s is None or not np.isfinite(trace.arrival_s).any():
        return NO_TIMES
    needed = 24 * max(1.0, 10 * (workload.arrivals.tick_s or 0.0))
    return f"arrivals span {workload.span_s:.3g} s", f"analyze a log of at least {needed:.0f} s"
