"""Fleets: a layout in any number of the same proportions, and the fewest that are enough.

Never simulates: it asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from advisor.advice.search.layout import Layout

MOST_GPUS = 512


def smallest(layout: Layout) -> Layout:
    """The smallest fleet of whole instances with the proportions of a layout."""
    common = math.gcd(*(pool.count for pool in layout.pools))
    pools = tuple(pool.model_copy(update={"count": pool.count // common}) for pool in layout.pools)
    return Layout(layout.name, pools, layout.router)


def multiplied(layout: Layout, times: int) -> Layout:
    """The layout with so many times the instances in each pool, and a router that can tell them apart."""
    pools = tuple(pool.model_copy(update={"count": times * pool.count}) for pool in layout.pools)
    policy = "least_loaded" if layout.router.policy == "round_robin" else layout.router.policy
    return Layout(layout.name, pools, layout.router.model_copy(update={"policy": policy}))


def fewest_gpus(layout: Layout, enough: Callable[[Layout], bool], guess: int = 1) -> int | None:
    """GPUs of the smallest fleet that is `enough`, if all larger ones are; None where `MOST_GPUS` are not.

    Looks around `guess`, in fleets of the smallest size, first.
    """
    unit = smallest(layout)
    most = max(1, MOST_GPUS // unit.gpus)
    low, high, step, at = 0, most + 1, 1, min(max(1, guess), most)
    while high - low > 1:
        if enough(multiplied(unit, at)):
            high, at = at, at - step
        else:
            low, at = at, at + step
        step *= 2
        if not low < at < high:
            at = (low + high) // 2
    return high * unit.gpus if high <= most else None
