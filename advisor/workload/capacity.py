"""The hit rate of every cache size: exact for most logs, spatially sampled for very large ones.

Sampling (SHARDS, FAST'15) keeps whole runs by a hash of their ordinal, so that distances shrink evenly and are
scaled back. Runs in heavy use are always kept: one shared system prompt, in or out, would move the whole curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from advisor.logs.trace import FloatColumn, IntColumn
from advisor.workload.model import CapacityPoint
from advisor.workload.runs import Runs
from advisor.workload.stack_distance import find_reuses

EXACT_USES = 5_000_000  # runs; at least as many block accesses
SAMPLED_USES = 1_000_000
HEAVY_SHARE = 1e-3  # of all uses: such a run is always in the sample
CURVE_POINTS = 32
GROUPS = 8  # disjoint samples behind the stated error
GROUP_T = 2.365  # 97.5 % quantile of Student's t with GROUPS - 1 degrees of freedom


def capacity_curve(
    runs: Runs, prompt_tokens: int, cache_tokens: Sequence[int], seed: int, exact_uses: int = EXACT_USES
) -> tuple[tuple[CapacityPoint, ...], float]:
    """Hit rates at `CURVE_POINTS` log-spaced cache sizes and at `cache_tokens`, and their 95 % half-width.

    `prompt_tokens` is the total of all prompts. Sizes are tokens, rounded down to whole blocks for the lookup.
    The half-width is 0 where the curve is exact, up to `exact_uses` uses of runs.
    """
    sizes = curve_sizes(runs, cache_tokens)
    blocks = np.array(sizes) // runs.size
    if len(runs) <= exact_uses:
        hits, error = find_reuses(runs).count_hits(blocks), np.zeros_like(blocks[:, None])
    else:
        hits, error = sample_hits(runs, blocks, SAMPLED_USES * exact_uses // EXACT_USES, seed)
    totals = np.array([runs.blocks.sum(), prompt_tokens])
    points = tuple(
        CapacityPoint(tokens=size, hit_rate_blocks=float(in_blocks), hit_rate_tokens=float(in_tokens))
        for size, (in_blocks, in_tokens) in zip(sizes, hits / totals, strict=True)
    )
    return points, float((error / totals).max())


def curve_sizes(runs: Runs, cache_tokens: Sequence[int]) -> tuple[int, ...]:
    """Cache sizes in tokens, ascending: log-spaced from one to all distinct blocks, and those asked for."""
    distinct = int(runs.blocks[~runs.seen].sum())
    spaced = np.rint(np.geomspace(runs.size, distinct * runs.size, CURVE_POINTS)).astype(np.int64)
    return tuple(sorted({*spaced.tolist(), *cache_tokens}))


def sample_hits(
    runs: Runs, capacities: IntColumn, sampled_uses: int, seed: int
) -> tuple[FloatColumn, FloatColumn]:
    """Estimated hits and their 95 % half-widths, each [capacities, 2], from about `sampled_uses` uses."""
    uses = runs.uses()
    heavy = (uses > HEAVY_SHARE * len(runs))[runs.node]
    rate = min(1.0, sampled_uses / max(1, int((~heavy).sum())))
    place = np.random.default_rng(seed).random(len(uses))[runs.node]  # a hash of the run's ordinal, 0 to 1
    estimate = _estimate(runs, capacities, heavy, place < rate)
    edges = np.linspace(0, rate, GROUPS + 1)
    groups = np.array([
        _estimate(runs, capacities, heavy, (low <= place) & (place < high))
        for low, high in pairwise(edges)
    ])  # fmt: skip
    # Around the estimate, not their own mean: what smaller samples are biased by shows, too.
    spread = np.sqrt(np.mean((groups - estimate) ** 2, axis=0))
    return estimate, GROUP_T * spread / np.sqrt(GROUPS)


def _estimate(
    runs: Runs, capacities: IntColumn, heavy: npt.NDArray[np.bool_], sampled: npt.NDArray[np.bool_]
) -> FloatColumn:
    """Hits [capacities, 2] from heavy runs, counted, and sampled ones, scaled to all that are not heavy.

    Distances scale by distinct blocks and hits by reused blocks and tokens, whose totals are known exactly.
    """
    light = sampled & ~heavy
    scale = np.where(light, _ratio(runs.blocks, ~heavy & ~runs.seen, light & ~runs.seen), 1.0)
    chosen = heavy | light
    sample, scale = runs.take(chosen), scale[chosen]
    reuses = find_reuses(sample, scale)
    # A request's own blocks nearer the root are always more recent: their number is known without sampling.
    known = sample.before - _scaled_before(sample, scale)
    reuses = replace(reuses, distance=reuses.distance + known[reuses.use])
    is_light = light[chosen][reuses.use]
    stands_for = [
        _ratio(column, ~heavy & runs.seen, light & runs.seen) for column in (runs.blocks, runs.tokens)
    ]
    counted = reuses.take(~is_light).count_hits(capacities)
    return counted + reuses.take(is_light).count_hits(capacities) * stands_for


def _scaled_before(runs: Runs, scale: FloatColumn) -> FloatColumn:
    """What the runs of the request in front of each use stand for, in blocks."""
    in_front = np.cumsum(runs.blocks * scale) - runs.blocks * scale
    return in_front - in_front[np.searchsorted(runs.row, runs.row)]


def _ratio(column: IntColumn, whole: npt.NDArray[np.bool_], part: npt.NDArray[np.bool_]) -> float:
    """The column's sum over `whole` divided by that over its subset `part`; 1 where that is empty."""
    return float(column[whole].sum()) / float(column[part].sum()) if column[part].any() else 1.0
