"""Drift since a plan: whether the traffic has moved so far from the plan's log that it is time to plan again.

Rule 12 of docs/rules.md, hour by hour. An hour moves where it leaves what the plan's own log had in an hour, so
that day and night are no drift. Both logs are measured alike: with an unlimited cache that is no older than the
plan's log. Judges; never plans.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from advisor.advice.analysis import Analysis
from advisor.advice.attained import FEWEST_JUDGED, hourly_attainment
from advisor.advice.rules.risks import DRIFT, REPLAN
from advisor.logs.trace import FloatColumn, Trace
from advisor.workload.arrivals import dispersion, window_counts
from advisor.workload.drift import HOUR_S, Requests, hit_tokens_from_cold, joined, requests_of
from advisor.workload.isolation import isolate
from advisor.workload.model import Report, TrafficWindow
from engine.errors import InputError

NOISE = 3.0  # standard errors of an hour's mean that a move must exceed (ours)
SMALLEST_HIT = 0.03  # least move of the hit rate: less saves nothing (ADV103)
NOISE_WINDOW_S = 60.0  # windows of counts, for the noise of an hour's rate
PLAN_FILE = "plan.json"


class Move(Report):
    """One value: its mean in the plan's log, and in the hour of this log that is farthest from it.

    `low` and `high` are the least and most that the plan's log had in an hour; `over`: beyond them by more than
    the tolerance, and by more than noise. For `attainment`, `was` is the target, and `now` the better one of
    the worst two hours in a row.
    """

    name: str
    was: float
    now: float
    change: float | None  # now / was - 1; null where that was 0
    over: bool
    from_s: float  # start of the hour, seconds after the first arrival
    low: float | None = None
    high: float | None = None


class PlanDrift(Report):
    """The result of a comparison. `hours` is how many full hours were judged; 0: the log as a whole."""

    replan: bool
    tolerance: float
    hours: int
    moves: tuple[Move, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Value:
    """A mean of one window, and its standard error."""

    mean: float
    error: float


@dataclass(frozen=True, slots=True)
class _Hour:
    """The values of one window of the new log, by name."""

    from_s: float
    values: dict[str, _Value]


def compare_to(path: Path, trace: Trace) -> PlanDrift:
    """Compare a Trace of one model with the plan in a folder or file. Raises InputError."""
    return compare(load_analysis(path), trace)


def load_analysis(path: Path) -> Analysis:
    """The Analysis in plan.json, in a folder that holds one, or as `--json` prints it. Raises InputError."""
    file = path / PLAN_FILE if path.is_dir() else path
    try:
        content = json.loads(file.read_bytes())
        return Analysis.model_validate(
            {name: value for name, value in content.items() if name not in ("digest", "trace_sha256")}
        )
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a plan.json of this version"
        raise InputError(
            "cannot read the plan to compare with", where=str(file), why=why, hint="--compare-to advise-out"
        ) from None


def compare(plan: Analysis, now: Trace) -> PlanDrift:
    """Compare a Trace of one model with the log that a plan was made from.

    Raises InputError where the plan is of another model, or one of the logs has no times.
    """
    notes: list[str] = []
    _check_model(plan, now, notes)
    if plan.plan is not None and plan.plan.target.isolation != "none":
        now = isolate(now, plan.plan.target.isolation)
    hits = _hits(plan, now, notes)
    requests = requests_of(now, hits)
    span_s = float(requests.since_s.max(initial=0.0))
    if plan.arrivals.rate_rps is None or not span_s:
        raise InputError("drift needs arrival times in both logs", hint="leave --compare-to out")
    whole = span_s < HOUR_S
    if whole:
        notes.append(f"the log spans {span_s:.0f} s, less than an hour: it is judged as a whole")
    hours = [_Hour(0.0, _values(requests, span_s))] if whole else list(_hours(requests))
    moves = [*_moves(plan, hours, span_s if whole else None), *_attainment(plan, now, notes)]
    return PlanDrift(
        replan=any(move.over for move in moves),
        tolerance=DRIFT,
        hours=0 if whole else len(hours),
        moves=tuple(moves),
        notes=tuple(notes),
    )


def _check_model(plan: Analysis, now: Trace, notes: list[str]) -> None:
    """Another model has other traffic. The one that the plan deploys may be logged under its own name."""
    planned = plan.log.models[0].name if plan.log.models else None
    served = None if plan.plan is None else plan.plan.target.model
    seen = () if now.model is None else np.unique(now.model.codes[now.model.codes >= 0]).tolist()
    names = [] if now.model is None else [now.model.names[code] for code in seen]
    if planned is None or not names:
        notes.append("one of the logs does not name its model: both are taken to be of one")
    elif not set(names) <= {planned, served}:
        raise InputError(
            f"the plan is of another model: {planned}, and the log of {', '.join(names)}",
            hint=f"--where model={planned}, or plan anew without --compare-to",
        )


def _hits(plan: Analysis, now: Trace, notes: list[str]) -> FloatColumn | None:
    """Prompt tokens of each request that hit in a cache no older than the plan's log; None: not comparable."""
    size = None if now.blocks is None else now.blocks.size
    if plan.sharing.hit_rate_tokens is None or size is None:
        notes.append("one of the logs does not show prefix sharing: whole prompts are compared")
        return None
    if plan.sharing.block_size != size:
        before = plan.sharing.block_size
        notes.append(
            f"whole prompts are compared: blocks were of {before} tokens and are of {size} (--block-size)"
        )
        return None
    return hit_tokens_from_cold(now, plan.log.span_s)


def _hours(requests: Requests) -> Iterator[_Hour]:
    """The full hours of the new log. Requests are in order of arrival."""
    number = int(requests.since_s[-1] // HOUR_S)
    edges = np.searchsorted(requests.since_s, np.arange(number + 1) * HOUR_S)
    for hour, (start, end) in enumerate(itertools.pairwise(edges.tolist())):
        yield _Hour(hour * HOUR_S, _values(requests.take(np.arange(start, end)), HOUR_S))


def _values(requests: Requests, width_s: float) -> dict[str, _Value]:
    """The values of one window by name; those that nothing is known of are left out."""
    count = len(requests.since_s)
    counts = window_counts(requests.since_s, NOISE_WINDOW_S)
    spread = max(1.0, dispersion(counts) or 1.0)
    values = {"rate_rps": _Value(count / width_s, float(np.sqrt(spread * count)) / width_s)}
    for name, column in (("prompt_mean", requests.prompt), ("output_mean", requests.output)):
        if len(known := column[np.isfinite(column)]):
            values[name] = _Value(float(known.mean()), _error(known))
    shown = np.isfinite(requests.hits) & (requests.prompt > 0)
    prompt, hits = requests.prompt[shown], requests.hits[shown]
    if len(prompt):
        hit = float(hits.sum() / prompt.sum())
        values["hit_rate_tokens"] = _Value(hit, _error(hits - hit * prompt) / float(prompt.mean()))
        uncached = values.pop("prompt_mean").mean * (1 - hit)
        values["uncached_mean"] = _Value(uncached, _error(prompt - hits))
    return values


def _error(values: FloatColumn) -> float:
    """Standard error of the mean."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.inf


def _moves(plan: Analysis, hours: Sequence[_Hour], whole_s: float | None) -> Iterator[Move]:
    """One for each value that both logs have. `whole_s`: the span of a log that is judged as a whole."""
    mean, before = _planned(plan, whole_s)
    names = ["uncached_mean", "prompt_mean", "output_mean", "rate_rps", "hit_rate_tokens"]
    if any("uncached_mean" in hour.values for hour in hours):
        names.remove("prompt_mean")
    for name in names:
        was = mean.get(name)
        seen = [(hour.from_s, hour.values[name]) for hour in hours if name in hour.values]
        if was is None or not seen:
            continue
        had = [was, *(value for values in before if (value := values.get(name)) is not None)]
        yield max((_move(name, was, had, value, from_s) for from_s, value in seen), key=_distance)


def _move(name: str, was: float, had: Sequence[float], now: _Value, from_s: float) -> Move:
    low, high = min(had), max(had)
    beyond = max(now.mean - high, low - now.mean)
    allowed = DRIFT * (high if now.mean > high else low)
    least = SMALLEST_HIT if name == "hit_rate_tokens" else 0.0
    return Move(
        name=name,
        was=was,
        now=now.mean,
        change=now.mean / was - 1 if was else None,
        over=beyond > max(allowed, least, NOISE * now.error),
        from_s=from_s,
        low=low,
        high=high,
    )


def _distance(move: Move) -> tuple[bool, float, float]:
    """How far a move is: over or not, beyond what the plan's log had, from its mean."""
    low, high = move.low or 0.0, move.high or 0.0
    beyond = max(0.0, move.now - high, low - move.now)
    return move.over, beyond / (high if move.now > high else low or 1.0), abs(move.now - move.was)


def _planned(
    plan: Analysis, whole_s: float | None
) -> tuple[dict[str, float | None], list[dict[str, float | None]]]:
    """What the plan's log had: means, and hours; for a new log of less than an hour also its first part.

    A plan made for a multiple of its log's rate (`--rate 2x`) expects that multiple.
    """
    faster = 1.0
    for finding in plan.findings:
        rate = finding.evidence.get("rate_rps")
        if finding.code == REPLAN.code and isinstance(rate, float) and plan.arrivals.rate_rps:
            faster = rate / plan.arrivals.rate_rps
    prompt, output = plan.lengths.prompt, plan.lengths.output
    mean = TrafficWindow(
        start_s=0.0,
        requests=0,
        rate_rps=plan.arrivals.rate_rps or 0.0,
        prompt_mean=None if prompt is None else prompt.mean,
        output_mean=None if output is None else output.mean,
        hit_rate_tokens=plan.sharing.hit_rate_tokens,
    )
    parts = []
    if plan.drift is not None:
        width, windows = plan.drift.window_s, plan.drift.windows
        hour = max(1, round(HOUR_S / width))
        parts = [joined(windows[i : i + hour], width) for i in range(0, len(windows) - hour + 1, hour)]
        if whole_s is not None:
            parts.append(joined(windows[: max(1, int(whole_s // width))], width))
    return _named(mean, faster), [_named(part, faster) for part in parts]


def _named(window: TrafficWindow, faster: float) -> dict[str, float | None]:
    hit, prompt = window.hit_rate_tokens, window.prompt_mean
    return {
        "rate_rps": window.rate_rps * faster,
        "prompt_mean": prompt,
        "output_mean": window.output_mean,
        "hit_rate_tokens": hit,
        "uncached_mean": None if hit is None or prompt is None else prompt * (1 - hit),
    }


def _attainment(plan: Analysis, now: Trace, notes: list[str]) -> Iterator[Move]:
    """Rule 12 on the latencies of the log: below the target in two full hours in a row."""
    if plan.plan is None:
        return
    slo = plan.plan.target.slo
    hours = hourly_attainment(slo, now)
    pairs = [
        (max(first, second), hour)
        for hour, (first, second) in enumerate(itertools.pairwise(hours))
        if first is not None and second is not None
    ]
    if not pairs:
        notes.append(
            f"attainment is not judged: it takes latency targets and two full hours in a row with "
            f"{FEWEST_JUDGED} requests whose latencies are logged"
        )
        return
    share, start = min(pairs)
    yield Move(
        name="attainment",
        was=slo.attainment,
        now=share,
        change=share / slo.attainment - 1,
        over=share < slo.attainment,
        from_s=start * HOUR_S,
    )
