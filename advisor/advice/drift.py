"""Drift since a plan: whether the traffic has moved so far from the plan's log that it is time to plan again.

Rule 12 of docs/rules.md, window by window. A window moves where it leaves what the plan's own log had in
windows of that width, so that day and night are no drift. Both logs are measured alike: with an unlimited cache
that is no older than the plan's log, and hits of a window beside those of windows whose cache was about as old.
Judges; never plans.
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
from advisor.workload.drift import HOUR_S, Requests, hit_tokens_from_cold, joined, requests_of, step_noise
from advisor.workload.isolation import isolate
from advisor.workload.model import Report, TrafficWindow
from engine.errors import InputError

JUDGED_S = (600.0, 900.0, 1200.0, 1800.0, HOUR_S)  # widths of windows; ours, an hour at most
FEWEST_IN_WINDOW = 500  # requests at the plan's rate, for a width below an hour (ours)
NOISE = 3.0  # standard errors that a move must exceed, beyond all that the plan's log had (ours)
GROUPS = 20  # stretches of a window's requests, to see whether neighbours are alike (ours)
SMALLEST_HIT = 0.03  # least move of the hit rate: less saves nothing (ADV103)
NOISE_WINDOW_S = 60.0  # windows of counts, for the noise of a window's rate
PLAN_FILE = "plan.json"
_OF_CACHE = ("uncached_mean", "hit_rate_tokens")  # values that depend on how long the cache has filled


class Move(Report):
    """One value: its mean in the plan's log, and in the window of this log that is farthest from it.

    `low` and `high` are the least and most that the plan's log had in a window; `over`: beyond them by more
    than the tolerance, and by more than noise. `since_s`: start of the first window that was, None where none.
    For `attainment`, `was` is the target, and `now` the better one of the worst two hours in a row.
    """

    name: str
    was: float
    now: float
    change: float | None  # now / was - 1; null where that was 0
    over: bool
    from_s: float  # start of the window, seconds after the first arrival
    low: float | None = None
    high: float | None = None
    since_s: float | None = None  # seconds after the first arrival


class PlanDrift(Report):
    """The result of a comparison. `windows` full ones of `window_s` were judged; 0: the log as a whole."""

    replan: bool
    tolerance: float
    windows: int
    window_s: float
    first_epoch_s: float | None  # wall clock of the first arrival, seconds since 1970 UTC; null: not logged
    moves: tuple[Move, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Value:
    """A mean of one window, and its standard error; of a rate that at one request a second."""

    mean: float
    error: float


@dataclass(frozen=True, slots=True)
class _Window:
    """The values of a window of the new log, by name. `age`: how many windows its cache is old."""

    from_s: float
    values: dict[str, _Value]
    age: int = 0


@dataclass(frozen=True, slots=True)
class _Past:
    """What the plan's log had, by name: means, windows of the judged width in order, their noise.

    `noise`: how much a value differs from one window to the next, as a standard deviation.
    """

    means: dict[str, float | None]
    windows: list[dict[str, float | None]]
    noise: dict[str, float]

    def like(self, name: str, age: int) -> list[float]:
        """The value in windows that one of this age compares with.

        Of what depends on the cache, those whose cache was at least as old: it only fills. Half of them are old
        enough for any.
        """
        first = min(age, len(self.windows) // 2) if name in _OF_CACHE else 0
        return [value for one in self.windows[first:] if (value := one.get(name)) is not None]


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
    width_s, number = _width(plan)
    # A cache no older than the plan's, and never new in the middle of a window.
    hits = _hits(plan, now, notes, cold_every_s=number * width_s or plan.log.span_s)
    requests = requests_of(now, hits)
    span_s = float(requests.since_s.max(initial=0.0))
    if plan.arrivals.rate_rps is None or not span_s:
        raise InputError("drift needs arrival times in both logs", hint="leave --compare-to out")
    whole = span_s < width_s
    if whole:
        notes.append(
            f"the log spans {span_s:.0f} s, less than a window of {width_s:.0f} s: it is judged as a whole"
        )
        windows = [_Window(0.0, _values(requests, span_s))]
    else:
        windows = list(_windows(requests, width_s, number))
    past = _past(plan, width_s, span_s if whole else None)
    moves = [*_moves(past, windows), *_attainment(plan, now, notes)]
    return PlanDrift(
        replan=any(move.over for move in moves),
        tolerance=DRIFT,
        windows=0 if whole else len(windows),
        window_s=width_s,
        first_epoch_s=now.first_epoch_s,
        moves=tuple(moves),
        notes=tuple(notes),
    )


def _width(plan: Analysis) -> tuple[float, int]:
    """The width of the windows to judge, seconds, and how many full ones the plan's log had.

    The shortest in which the plan's log had enough requests and whose own changes it shows; else an hour.
    """
    if plan.drift is None:
        return HOUR_S, 0
    rate_rps, known_s = plan.arrivals.rate_rps or 0.0, plan.drift.window_s
    width_s = next((w for w in JUDGED_S if w * rate_rps >= FEWEST_IN_WINDOW and w % known_s == 0), HOUR_S)
    return width_s, len(plan.drift.windows) // round(width_s / known_s)


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


def _hits(plan: Analysis, now: Trace, notes: list[str], *, cold_every_s: float | None) -> FloatColumn | None:
    """Prompt tokens of each request that hit in a cache that starts empty so often; None: not comparable."""
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
    return hit_tokens_from_cold(now, cold_every_s)


def _windows(requests: Requests, width_s: float, number: int) -> Iterator[_Window]:
    """The full windows of the new log, whose cache starts empty every `number`. Requests are in order."""
    count = int(requests.since_s[-1] // width_s)
    edges = np.searchsorted(requests.since_s, np.arange(count + 1) * width_s)
    for index, (start, end) in enumerate(itertools.pairwise(edges.tolist())):
        values = _values(requests.take(np.arange(start, end)), width_s)
        yield _Window(index * width_s, values, index % number if number else index)


def _values(requests: Requests, width_s: float) -> dict[str, _Value]:
    """The values of one window by name; those that nothing is known of are left out."""
    count = len(requests.since_s)
    counts = window_counts(requests.since_s, NOISE_WINDOW_S)
    spread = max(1.0, dispersion(counts) or 1.0)
    values = {"rate_rps": _Value(count / width_s, float(np.sqrt(spread / width_s)))}
    for name, column in (("prompt_mean", requests.prompt), ("output_mean", requests.output)):
        if len(known := column[np.isfinite(column)]):
            values[name] = _Value(float(known.mean()), _error(known))
    shown = np.isfinite(requests.hits) & (requests.prompt > 0)
    prompt, hits = requests.prompt[shown], requests.hits[shown]
    if len(prompt):
        hit = float(hits.sum() / prompt.sum())
        values["hit_rate_tokens"] = _Value(hit, _error(hits - hit * prompt) / float(prompt.mean()))
        values["uncached_mean"] = _Value(values["prompt_mean"].mean * (1 - hit), _error(prompt - hits))
    return values


def _error(values: FloatColumn) -> float:
    """Standard error of the mean: of values that are alike in neighbours, too, as turns of a session are.

    The larger of two: of independent values, and of the sums of `GROUPS` stretches in order of arrival.
    """
    count = len(values)
    if count < 2:
        return np.inf
    alone = float(values.var(ddof=1)) / count
    groups = min(GROUPS, count)
    sums = np.add.reduceat(values - values.mean(), np.arange(groups) * count // groups)
    return float(np.sqrt(max(alone, groups / (groups - 1) * float((sums**2).sum()) / count**2)))


def _moves(past: _Past, windows: Sequence[_Window]) -> Iterator[Move]:
    """One for each value that both logs have."""
    names = ["uncached_mean", "prompt_mean", "output_mean", "rate_rps", "hit_rate_tokens"]
    if any("uncached_mean" in window.values for window in windows):
        names.remove("prompt_mean")
    for name in names:
        was = past.means.get(name)
        seen = [window for window in windows if name in window.values]
        if was is None or not seen:
            continue
        found = [_move(name, was, past, window) for window in seen]
        first = min((move.from_s for move in found if move.over), default=None)
        yield max(found, key=_distance).model_copy(update={"since_s": first})


def _move(name: str, was: float, past: _Past, window: _Window) -> Move:
    """What one window makes of a value."""
    now, alike = window.values[name], past.like(name, window.age)
    had = alike if alike and name in _OF_CACHE else [was, *alike]
    low, high = min(had), max(had)
    beyond = max(now.mean - high, low - now.mean)
    allowed = DRIFT * (high if now.mean > high else low)
    least = SMALLEST_HIT if name == "hit_rate_tokens" else 0.0
    error, noise = now.error, past.noise.get(name, 0.0)
    if name == "rate_rps":
        # At the plan's rate, of which the question is whether it still holds: counts spread with their mean.
        level = high if now.mean > high else low
        error, noise = error * float(np.sqrt(level)), noise * float(np.sqrt(level / was))
    error = max(error, noise)
    error *= float(np.sqrt(1 + 1 / max(1, len(alike))))  # of a new value beside so many: both are uncertain
    return Move(
        name=name,
        was=was,
        now=now.mean,
        change=now.mean / was - 1 if was else None,
        over=beyond > max(allowed, least, NOISE * error),
        from_s=window.from_s,
        low=low,
        high=high,
    )


def _distance(move: Move) -> tuple[bool, float, float]:
    """How far a move is: over or not, beyond what the plan's log had, from its mean."""
    low, high = move.low or 0.0, move.high or 0.0
    beyond = max(0.0, move.now - high, low - move.now)
    return move.over, beyond / (high if move.now > high else low or 1.0), abs(move.now - move.was)


def _past(plan: Analysis, width_s: float, whole_s: float | None) -> _Past:
    """What the plan's log had. A new log of `whole_s`, less than a window, has its first part to compare with,
    too.

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
    means = _named(mean, faster)
    if plan.drift is None:
        return _Past(means, [], {})
    known_s, windows = plan.drift.window_s, plan.drift.windows
    each = max(1, round(width_s / known_s))
    parts = [joined(windows[i : i + each], known_s) for i in range(0, len(windows) - each + 1, each)]
    sliding = [_named(joined(windows[i : i + each], known_s), faster) for i in range(len(windows) - each + 1)]
    noise = {name: step_noise(known, each) for name in means if (known := _column(sliding, name))}
    if whole_s is not None:
        parts.append(joined(windows[: max(1, int(whole_s // known_s))], known_s))
    return _Past(means, [_named(part, faster) for part in parts], noise)


def _column(windows: Sequence[dict[str, float | None]], name: str) -> list[float]:
    """The values of windows, where all have one; empty where some have none."""
    values = [value for one in windows if (value := one[name]) is not None]
    return values if len(values) == len(windows) else []


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
    first = next((hour for kept, hour in pairs if kept < slo.attainment), None)
    yield Move(
        name="attainment",
        was=slo.attainment,
        now=share,
        change=share / slo.attainment - 1,
        over=share < slo.attainment,
        from_s=start * HOUR_S,
        since_s=None if first is None else first * HOUR_S,
    )
