"""A Trace that may be shown to strangers: coarse lengths and times, rare names merged, the rest dropped.

Owns the coarsening of `advise redact --share-safe`:

- prompt and output lengths: to the nearest multiple of 16 tokens, at least 16; a length of 0 stays 0;
- arrivals: to 100 ms;
- models, routes and clients: ordinals. Names with fewer than 5 requests become one name, `other`; while that
  has fewer than 5, the rarest remaining name joins it;
- sessions: ordinals. Sessions with fewer than 5 requests are joined, in order of first arrival, to groups of
  at least 5, and what is left over joins the last group (microaggregation: Domingo-Ferrer and Mateo-Sanz,
  IEEE TKDE 2002);
- everything else that the log measured is dropped: statuses, cached tokens, latencies, think times, wall-clock.

Prefix blocks keep their sharing, which is what the trace is for: who repeats whose prefix can still be seen.
It never writes a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from advisor.logs.trace import IntColumn, Labels, Trace

LENGTH_TOKENS = 16
TIME_S = 0.1
FEWEST = 5  # requests behind any label
DROPPED = ("status", "cached_tokens", "novel_tokens", "ttft_s", "e2e_s", "think_s", "totals")


def share_safe(trace: Trace) -> Trace:
    """The coarsened Trace."""
    prompts = _coarse(trace.prompt_tokens)
    blocks = None if trace.blocks is None else trace.blocks.fit(prompts)
    steps = np.rint((trace.arrival_s - np.fmin.reduce(trace.arrival_s)) / TIME_S)
    return replace(
        trace,
        arrival_s=steps * TIME_S,
        prompt_tokens=prompts,
        output_tokens=_coarse(trace.output_tokens),
        blocks=blocks,
        model=_without_rare(trace.model, "model"),
        route=_without_rare(trace.route, "route"),
        client=_without_rare(trace.client, "client"),
        session=_grouped(trace.session),
        first_epoch_s=None,
        novel_tokens=None,
        parent=None,
        think_s=None,
        status=None,
        cached_tokens=None,
        ttft_s=None,
        e2e_s=None,
        totals=None,
    )


def dropped(trace: Trace) -> tuple[str, ...]:
    """Which columns of a Trace `share_safe` drops."""
    return tuple(name for name in DROPPED if getattr(trace, name) is not None)


def _coarse(lengths: IntColumn) -> IntColumn:
    """To the nearest multiple, ties up; unknown (-1) and 0 stay."""
    nearest = (lengths + LENGTH_TOKENS // 2) // LENGTH_TOKENS * LENGTH_TOKENS
    return np.where(lengths > 0, np.maximum(nearest, LENGTH_TOKENS), lengths)


def _without_rare(labels: Labels | None, kind: str) -> Labels | None:
    """Ordinal names; all that are too rare to show are one."""
    if labels is None:
        return None
    counts = _counts(labels)
    by_count = np.argsort(counts, kind="stable")
    rare = int((counts < FEWEST).sum())
    while 0 < rare < len(counts) and counts[by_count[:rare]].sum() < FEWEST:
        rare += 1
    groups = [[code] for code in sorted(by_count[rare:].tolist())]
    names = [f"{kind}-{place}" for place in range(len(groups))]
    if counts[by_count[:rare]].sum() >= FEWEST:
        groups.append(by_count[:rare].tolist())
        names.append("other")
    return _relabelled(labels, groups, names)


def _grouped(labels: Labels | None) -> Labels | None:
    """Ordinal names; sessions that are too short to show stand together with the next ones."""
    if labels is None:
        return None
    counts = _counts(labels).tolist()
    groups: list[list[int]] = []
    short: list[int] = []
    for code, count in enumerate(counts):  # in order of first arrival
        if count >= FEWEST:
            groups.append([code])
            continue
        short.append(code)
        if sum(counts[code] for code in short) >= FEWEST:
            groups.append(short)
            short = []
    if short and groups:
        groups[-1] += short
    return _relabelled(labels, groups, [f"session-{place}" for place in range(len(groups))])


def _counts(labels: Labels) -> IntColumn:
    return np.bincount(labels.codes[labels.codes >= 0], minlength=len(labels.names))


def _relabelled(labels: Labels, groups: Sequence[Sequence[int]], names: Sequence[str]) -> Labels | None:
    """Every group of codes under one name, codes in no group under none; None without groups."""
    if not groups:
        return None
    code_of = np.full(len(labels.names) + 1, -1, dtype=np.int64)  # the last is for rows without a label
    for place, group in enumerate(groups):
        code_of[list(group)] = place
    return Labels(tuple(names), code_of[labels.codes])
