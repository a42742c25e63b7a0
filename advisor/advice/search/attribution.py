"""Attribution: what each of the three ideas is worth on this traffic, alone and together, under one setup.

The experiment that none of the papers ran. Nothing is prefill-first batching without a cache; each idea is then
added with the settings that the search found for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.advice.search.judge import Judged
from advisor.advice.search.layout import Layout

BASELINE_BUDGET = 8192  # of a prefill-first step: prompts that are batched together (vLLM before V1)


def rows(best_colocated: Layout, best_split: Layout | None) -> list[tuple[str, Layout]]:
    """The table: a name, and the layout that has just these ideas."""
    found = [
        ("nothing", _plain(best_colocated, cache=False)),
        ("cache", _plain(best_colocated, cache=True)),
        ("budget", _with_cache(best_colocated, cache=False)),
    ]
    if best_split is not None:
        found.append(("split", _with_cache(best_split, cache=False)))
    found.append(("cache + budget", _with_cache(best_colocated, cache=True)))
    if best_split is not None:
        found.append(("cache + split", _with_cache(best_split, cache=True)))
    return [(name, Layout(name, layout.pools, layout.router)) for name, layout in found]


def best_of_kind(judged: Sequence[Judged], *, split: bool) -> Judged | None:
    """The best colocated or split layout among those judged; None without one."""
    fitting = [one for one in judged if one.layout.split == split]
    return max(fitting, key=lambda one: one.per_gpu, default=None)


def _plain(layout: Layout, *, cache: bool) -> Layout:
    """Whole prompts before any decode, as the papers' baselines."""
    plain = _with_cache(layout, cache=cache)
    pools = tuple(
        pool.model_copy(update={"batching": "prefill_first", "token_budget": BASELINE_BUDGET})
        for pool in plain.pools
    )
    return Layout(plain.name, pools, plain.router)


def _with_cache(layout: Layout, *, cache: bool) -> Layout:
    """With or without prefix caching, and what only makes sense with it."""
    change: dict[str, object] = {"prefix_cache": cache}
    router = layout.router
    if not cache:
        change["queue_policy"] = "fcfs"
        policy = "least_loaded" if router.policy == "prefix_affinity" else router.policy
        router = router.model_copy(update={"policy": policy, "bypass": False})
    pools = tuple(pool.model_copy(update=change) for pool in layout.pools)
    return Layout(layout.name, pools, router)
