"""The four kinds of traffic of `three_ideas`, generated: who shares what, how long, and what counts as good.

Arrivals are Poisson, lengths uniform, each column from a stream of its own: more requests of the same seed
begin with the fewer ones, and another rate is the same requests faster. Lengths of the CPU's kinds suit a model
of 135M parameters on one core a device; those of the emulated kinds keep few enough requests in flight for two
cores to send and stream them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from advisor.logs.trace import Blocks, IntColumn, Trace, rank_by_first
from advisor.simulation.slo import Slo

BLOCK = 16
WARM = 1 / 3  # of a cell on the emulated setup (ours)
WARM_CACHES = 1 / 2  # of one on two cores with shared prefixes: each instance first has to see each (ours)
SetupName = Literal["cpu", "emulated"]
Range = tuple[int, int]  # tokens, both ends included


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of one sort: their share, own prompt tokens and outputs, behind one of `prefixes` shared ones.

    `prefix_tokens`: of each shared prefix, whole blocks.
    """

    share: float
    prompt: Range
    output: Range
    prefixes: int = 0
    prefix_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """Traffic of one kind, its targets, and the wall seconds in which requests of one cell are sent.

    `warm`: share of these whose requests are not judged. Every cell begins with empty caches and no queue, and
    modelled seconds are few.
    """

    name: str
    groups: tuple[Group, ...]
    slo: Slo
    cell_s: float
    warm: float = 0.0

    @property
    def words(self) -> str:
        """The traffic in a line."""
        return "; ".join(_group_words(group) for group in self.groups)

    @property
    def targets(self) -> str:
        """The targets in a few words."""
        named = (("TTFT", self.slo.ttft_s), ("TPOT", self.slo.tpot_s), ("largest gap", self.slo.tbt_s))
        return ", ".join(f"{name} {1e3 * value:g} ms" for name, value in named if value is not None)

    @property
    def output_mean(self) -> float:
        """Mean output, tokens."""
        return sum(group.share * sum(group.output) / 2 for group in self.groups)

    @property
    def digest(self) -> str:
        """Names everything that decides which requests are sent and which are good."""
        said = (self.groups, self.slo.model_dump())
        return hashlib.sha256(repr(said).encode()).hexdigest()[:12]

    def trace(self, requests: int, rate_rps: float, seed: int) -> Trace:
        """The first so many requests, at this rate; the clock begins before the first arrival."""
        which = np.searchsorted(np.cumsum([group.share for group in self.groups]), _draws(seed, 0, requests))
        which = np.minimum(which, len(self.groups) - 1)
        gaps = -np.log1p(-_draws(seed, 1, requests)) / rate_rps
        own = _lengths([group.prompt for group in self.groups], which, _draws(seed, 2, requests))
        output = _lengths([group.output for group in self.groups], which, _draws(seed, 3, requests))
        blocks, prefix = _blocks(self.groups, which, own, _draws(seed, 4, requests))
        return Trace(arrival_s=np.cumsum(gaps), prompt_tokens=prefix + own, output_tokens=output, blocks=blocks)

    def cell(self, rate_rps: float, seconds: float, seed: int) -> Trace:
        """The requests that arrive in so many seconds; one at least."""
        expected = rate_rps * seconds
        trace = self.trace(int(expected + 8 * expected**0.5 + 8), rate_rps, seed)
        return trace.take(np.arange(max(1, int(np.searchsorted(trace.arrival_s, seconds)))))


def kinds(setup: SetupName) -> tuple[Kind, ...]:
    """The kinds of a setup, in the order of its table."""
    return CPU_KINDS if setup == "cpu" else EMULATED_KINDS


CPU_KINDS = (
    Kind(
        "shared prefix",
        (Group(1.0, (32, 96), (8, 24), prefixes=4, prefix_tokens=192),),
        Slo(ttft_s=2.0, tpot_s=0.15),
        30.0,
        WARM_CACHES,
    ),
    Kind("long outputs", (Group(1.0, (16, 48), (48, 96)),), Slo(ttft_s=2.0, tpot_s=0.1), 20.0),
    Kind(
        "long prompts beside streams",
        (Group(0.15, (600, 900), (4, 8)), Group(0.85, (16, 48), (32, 64))),
        Slo(ttft_s=3.0, tbt_s=0.4),
        16.0,
    ),
    Kind("strict targets", (Group(1.0, (64, 192), (16, 32)),), Slo(ttft_s=0.6, tpot_s=0.08), 16.0),
)
# Targets: those of the presets rag, reasoning, chat-strict (profiles/slos.yaml); a largest gap of two whole
# steps of 512 tokens.
EMULATED_KINDS = (
    Kind(
        "shared prefix",
        (Group(1.0, (512, 1536), (16, 48), prefixes=8, prefix_tokens=2048),),
        Slo(ttft_s=1.2, tpot_s=0.06),
        16.0,
        WARM,
    ),
    Kind("long outputs", (Group(1.0, (64, 192), (96, 160)),), Slo(ttft_s=2.0, tpot_s=0.015), 24.0, WARM),
    Kind(
        "long prompts beside streams",
        (Group(0.2, (4096, 8192), (4, 12)), Group(0.8, (64, 192), (32, 64))),
        Slo(ttft_s=2.0, tbt_s=0.06),
        16.0,
        WARM,
    ),
    Kind("strict targets", (Group(1.0, (512, 1536), (32, 64)),), Slo(ttft_s=0.2, tpot_s=0.03), 20.0, WARM),
)


def _group_words(group: Group) -> str:
    share = "" if group.share == 1.0 else f"{group.share:.0%}: "
    shared = f"one of {group.prefixes} prefixes of {group.prefix_tokens:,} + " if group.prefixes else ""
    prompt, output = (f"{low:,}-{high:,}" for low, high in (group.prompt, group.output))
    return f"{share}prompts of {shared}{prompt} tokens, outputs of {output}"


def _draws(seed: int, column: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng((seed, column)).random(count)


def _lengths(
    ranges: Sequence[Range], which: IntColumn, draws: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> IntColumn:
    low, high = (np.array([one[end] for one in ranges])[which] for end in (0, 1))
    lengths: IntColumn = low + (draws * (high - low + 1)).astype(np.int64)
    return lengths


def _blocks(
    groups: Sequence[Group],
    which: IntColumn,
    own: IntColumn,
    draws: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> tuple[Blocks, IntColumn]:
    """All full blocks of every prompt, ids in order of first appearance, and the tokens of its prefix."""
    prefixes = np.array([group.prefixes for group in groups])
    first = np.concatenate(([0], np.cumsum(prefixes)))[which]  # number of its group's first prefix
    tokens = np.array([group.prefix_tokens for group in groups])[which]
    chosen = first + (draws * prefixes[which]).astype(np.int64)
    widest = max(group.prefix_tokens for group in groups) // BLOCK
    fresh = int(prefixes.sum()) * widest
    rows: list[IntColumn] = []
    for prefix, shared, alone in zip(chosen.tolist(), (tokens // BLOCK).tolist(), own.tolist(), strict=True):
        count = alone // BLOCK
        rows.append(np.concatenate((prefix * widest + np.arange(shared), fresh + np.arange(count))))
        fresh += count
    ids = np.concatenate(rows)
    starts = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
    return Blocks(BLOCK, rank_by_first(ids)[1], starts, rounding="floor"), tokens
