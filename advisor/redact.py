"""Redact: from a log to a trace file without names or text, and what that does to the advice.

Owns the order (read, coarsen, put into the form asked for, write, compare) and the words about it. The trace is
in our own form, as `analyze` reads it back, or with a block size in the one that other tools take.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from advisor.advice.analysis import Analysis
from advisor.advice.plan import Plan
from advisor.analyze import AnalyzeOptions, LazyTokenizer, analyze, reading
from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.redact import save_standard, standard_form
from advisor.logs.save import save
from advisor.logs.share_safe import dropped, share_safe
from advisor.logs.source import Progress
from advisor.logs.trace import Trace
from advisor.workload.runs import find_runs
from engine.errors import InputError

# label, where it stands in the analysis, format
_FIGURES = (
    ("requests", "log.requests", ",.0f"),
    ("prompt tokens, mean", "lengths.prompt.mean", ",.1f"),
    ("output tokens, mean", "lengths.output.mean", ",.1f"),
    ("requests/s", "arrivals.rate_rps", ".4g"),
    ("dispersion at 1 s", "arrivals.dispersion.1", ".3g"),
    ("dispersion at 10 s", "arrivals.dispersion.10", ".3g"),
    ("dispersion at 60 s", "arrivals.dispersion.60", ".3g"),
    ("prompt tokens reused", "sharing.hit_rate_tokens", ".1%"),
    ("  in the same session", "sharing.within_session", ".1%"),
    ("  from other sessions", "sharing.across_session", ".1%"),
)


@dataclass(frozen=True, slots=True)
class RedactOptions:
    """How to redact. `block_size` asks for the form for other tools, in blocks of so many tokens."""

    out: Path
    analyze: AnalyzeOptions = field(default_factory=AnalyzeOptions)
    block_size: int | None = None
    share_safe: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """One figure or decision before and after; `changed` is False for figures, which may move a little."""

    name: str
    before: str
    after: str
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Redacted:
    """What was written. `effects` is empty unless the advice was compared."""

    out: Path
    requests: int
    left_out: dict[str, int]
    notes: tuple[str, ...]
    effects: tuple[Effect, ...]


def redact(paths: Sequence[str | Path], options: RedactOptions, progress: Progress | None = None) -> Redacted:
    """Write the redacted trace of a log, readable by its owner only.

    Raises InputError where the log cannot be read or has no form that other tools take, MachineError where a
    tokenizer is missing.
    """
    wanted = replace(reading(options.analyze), block_size=_text_blocks(options))
    tokenizer = LazyTokenizer(options.analyze.tokenizer)
    original = read(paths, options=wanted, tokenizer=tokenizer, progress=progress)
    if len(original) == 0 and (options.share_safe or options.block_size is not None):
        raise InputError("the log gives sums and no requests", hint=f"advise redact LOG -o {options.out}")
    notes = []
    trace = original
    if options.share_safe:
        trace = share_safe(original)
        notes += [f"dropped: {', '.join(names)}"] if (names := dropped(original)) else []
    left_out: dict[str, int] = {}
    if options.block_size is None:
        save(trace, options.out)
        if trace.model is not None and not options.share_safe:
            notes.append("names of models are kept; --share-safe makes them ordinals")
    else:
        trace, left_out = _one_model(trace)
        standard = standard_form(trace, options.block_size)
        left_out |= standard.left_out
        save_standard(standard.trace, options.out)
        notes += _about_blocks(trace, standard.trace)
        trace = standard.trace
    effects = tuple(_compare(original, options)) if options.share_safe else ()
    return Redacted(options.out, len(trace), left_out, tuple(notes), effects)


def describe(redacted: Redacted) -> list[str]:
    """What a person should know, line by line."""
    lines = [f"{redacted.out}: {redacted.requests:,} requests without text, readable by you only (0600)"]
    lines += [f"left out: {count:,} x {reason}" for reason, count in redacted.left_out.items()]
    lines += redacted.notes
    if redacted.effects:
        width = max(len(effect.name) for effect in redacted.effects)
        before = max(len(effect.before) for effect in redacted.effects) + 3
        lines += ["", f"{'effect on the advice':<{width}}   {'log':<{before}}redacted"]
        lines += [
            f"{effect.name:<{width}}   {effect.before:<{before}}{effect.after}{'   changed' * effect.changed}"
            for effect in redacted.effects
        ]
        changes = sum(effect.changed for effect in redacted.effects)
        lines.append(f"advice that changed: {changes}" if changes else "the advice is the same")
    return [*lines, "", f"next: advise analyze {redacted.out}"]


def _text_blocks(options: RedactOptions) -> int:
    """Tokens of a block while reading text: as usual where such blocks add up to those asked for."""
    usual = options.analyze.read.block_size
    wanted = options.block_size
    if wanted is not None and wanted < 1:
        raise InputError("--block-size must be at least 1", hint="--block-size 512")
    return usual if wanted is None or wanted % usual == 0 else wanted


def _one_model(trace: Trace) -> tuple[Trace, dict[str, int]]:
    """The requests of the model with the most, as `analyze` takes them: other tools replay to one model."""
    if trace.model is None:
        return trace, {}
    codes, counts = np.unique(trace.model.codes, return_counts=True)
    if len(codes) == 1:
        return trace, {}
    largest = codes[np.argmax(counts)]
    rows = np.flatnonzero(trace.model.codes == largest)
    reason = "another model than the largest (--where model=NAME chooses)"
    return trace.take(rows), {reason: len(trace) - len(rows)}


def _about_blocks(trace: Trace, standard: Trace) -> list[str]:
    """What the larger blocks do to the sharing."""
    if trace.blocks is None or standard.blocks is None:
        return [
            "the log does not show which prompts share a prefix, so there are no hash_ids; see "
            "docs/collecting-logs.md"
        ]
    before = f"in blocks of {trace.blocks.size} tokens {_reuse(trace):.1%}"
    after = f"in blocks of {standard.blocks.size} {_reuse(standard):.1%}"
    return [f"prompt tokens in full blocks seen before: {before}, {after}"]


def _reuse(trace: Trace) -> float:
    """Share of prompt tokens in full blocks that an earlier request had; requests with known content only."""
    if trace.blocks is None:
        return 0.0
    if trace.blocks.known is not None:
        trace = trace.take(np.flatnonzero(trace.blocks.known))
    blocks, prompts = trace.blocks, trace.prompt_tokens
    if blocks is None or not len(blocks.ids) or prompts.sum() <= 0:
        return 0.0
    runs = find_runs(blocks, prompts)
    full = runs.tokens // blocks.size * blocks.size
    return float(full[runs.seen].sum() / prompts.sum())


def _compare(original: Trace, options: RedactOptions) -> Iterator[Effect]:
    """The figures and the advice from the log, and from the file that was written."""
    quiet = replace(options.analyze, read=ReadOptions(seed=options.analyze.read.seed), simulate=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        save(original, path)
        before, _ = analyze([path], quiet)
    if before.plan is not None and quiet.target.model is None:
        # The redacted trace does not name the model; the target is the same all the same.
        model = before.plan.target.model_path or before.plan.target.model
        quiet = replace(quiet, target=replace(quiet.target, model=model))
    after, _ = analyze([options.out], quiet)
    for name, place, form in _FIGURES:
        values = _figure(before, place), _figure(after, place)
        if values != (None, None):
            one, other = ("unknown" if value is None else format(value, form) for value in values)
            yield Effect(name, one, other)
    yield from _findings(before, after)
    yield from _plans(before.plan, after.plan)


def _figure(analysis: Analysis, place: str) -> float | None:
    """A number of the analysis by its dotted path; None where it is unknown."""
    value: object = analysis
    for name in place.split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return float(value) if isinstance(value, int | float) else None


def _findings(before: Analysis, after: Analysis) -> Iterator[Effect]:
    """Findings whose verdict is not the same, and how many are."""
    verdicts = [
        {finding.code: finding.verdict for finding in analysis.findings} for analysis in (before, after)
    ]
    codes = sorted(verdicts[0].keys() | verdicts[1].keys())
    same = sum(verdicts[0].get(code) == verdicts[1].get(code) for code in codes)
    yield Effect("findings alike", str(same), f"of {len(codes)}")
    for code in codes:
        one, other = (verdict.get(code, "absent") for verdict in verdicts)
        if one != other:
            yield Effect(code, one, other, changed=True)


def _plans(before: Plan | None, after: Plan | None) -> Iterator[Effect]:
    if before is None and after is None:
        return
    one, other = _recommendation(before), _recommendation(after)
    yield Effect("plan", one, other, changed=one != other)
    if before is not None and after is not None and before.choice is not None and after.choice is not None:
        goodputs = before.choice.goodput_rps_per_gpu, after.choice.goodput_rps_per_gpu
        low, high = ("unknown" if goodput is None else f"{goodput.low:.3g}" for goodput in goodputs)
        yield Effect("good requests/s a GPU", low, high)


def _recommendation(plan: Plan | None) -> str:
    if plan is None:
        return "none"
    if plan.choice is None:
        return plan.verdict
    pools = " + ".join(
        f"{pool.count} x {pool.role}, {pool.batching} {pool.token_budget}" for pool in plan.choice.pools
    )
    return f"{plan.verdict}: {pools}"
