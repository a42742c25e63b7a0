"""Layouts: the configurations that a search compares, and how to list those that fit a number of GPUs.

A layout is pools and a router, complete and runnable. Lists everything that is sensible by the rules; what is
hopeless falls out by `bounds`, what is worse by simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from advisor.advice.search.hardware import Hardware
from engine.config import PoolConfig, RouterConfig

BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # neighbours by `REFINE` follow
REFINE = 128
CPU_BUDGETS = (16, 32, 64, 128, 256, 512)  # ours: a step of 512 tokens takes about a second on a few cores
PREFILL_BUDGET = 2048  # of a prefill instance: prompt throughput peaks there (Splitwise)
MOST_SEQS = 256  # ours: what current engines default to
DEGREES = (1, 2, 4, 8)
Router = Literal["round_robin", "least_loaded", "prefix_affinity"]


@dataclass(frozen=True, slots=True)
class Layout:
    """One configuration."""

    name: str
    pools: tuple[PoolConfig, ...]
    router: RouterConfig

    @property
    def gpus(self) -> int:
        """GPUs of all pools; on a CPU cores."""
        return sum(pool.count * max(pool.tp * pool.pp, pool.devices_per_instance) for pool in self.pools)

    @property
    def split(self) -> bool:
        """Whether prefill and decode have GPUs of their own."""
        return any(pool.role != "colocated" for pool in self.pools)


def layouts(hardware: Hardware, gpus: int, *, reuse: bool) -> list[Layout]:
    """Every sensible layout on `gpus` devices, none of which leaves devices idle that would hold an instance.

    `reuse`: prompts share prefixes, so that each is listed with routing by prefix too.
    """
    if hardware.on_cpu:
        return [
            colocated(hardware, 1, 1, budget, "round_robin", devices=gpus)
            for budget in CPU_BUDGETS
            if hardware.fits(1, budget)
        ]
    smallest = next((tp for tp in DEGREES if any(hardware.fits(tp, budget) for budget in BUDGETS)), 1)
    found = [
        colocated(hardware, gpus // tp, tp, budget, _router(gpus // tp))
        for tp in DEGREES
        if tp <= gpus and gpus % tp < smallest
        for budget in BUDGETS
        if hardware.fits(tp, budget)
    ]
    found += [split(hardware, x, y) for x, y in _splits(hardware, gpus, smallest)]
    return found + [one for layout in found if reuse and (one := by_prefix(layout))]


def colocated(
    hardware: Hardware, count: int, tp: int, budget: int, router: Router, *, devices: int | None = None
) -> Layout:
    """`count` instances that serve both phases."""
    pool = pool_of(hardware, "colocated", count, tp, budget, devices=devices)
    where = f"{count} x TP {tp}" if devices is None else f"{devices} cores"
    return Layout(f"{where}, chunked {budget}", (pool,), RouterConfig(policy=router))


def split(hardware: Hardware, prefill: tuple[int, int], decode: tuple[int, int]) -> Layout:
    """Prefill and decode pools of (instances, TP)."""
    (x, tp_p), (y, tp_d) = prefill, decode
    pools = (
        pool_of(hardware, "prefill", x, tp_p, PREFILL_BUDGET),
        pool_of(hardware, "decode", y, tp_d, PREFILL_BUDGET),
    )
    name = f"{x} prefill x TP {tp_p} + {y} decode x TP {tp_d}"
    return Layout(name, pools, RouterConfig(policy=_router(max(x, y))))


def pool_of(
    hardware: Hardware,
    role: Literal["colocated", "prefill", "decode"],
    count: int,
    tp: int,
    budget: int,
    *,
    devices: int | None = None,
) -> PoolConfig:
    """A pool with the KV cache that its memory allows."""
    return PoolConfig(
        role=role,
        count=count,
        tp=tp,
        devices_per_instance=tp if devices is None else devices,
        token_budget=budget,
        max_seqs=MOST_SEQS,
        block_size=hardware.block_size,
        kv_tokens=hardware.kv_tokens(tp, budget),
    )


def variants(layout: Layout, hardware: Hardware, *, reuse: bool) -> Iterator[Layout]:
    """The layout with one setting changed: budget, most sequences, queue order, bypass."""
    main = layout.pools[-1]
    if not layout.split:
        for budget in (main.token_budget - REFINE, main.token_budget + REFINE):
            if budget >= REFINE and not hardware.on_cpu and hardware.fits(main.tp, budget):
                yield _with_budget(layout, hardware, budget)
    for seqs in (main.max_seqs // 4, main.max_seqs // 2):
        yield _changed(layout, f"at most {seqs} at once", max_seqs=seqs)
    if reuse:
        yield _changed(layout, "longest prefix first", queue_policy="prefix_first")
    if layout.split:
        yield Layout(f"{layout.name}, bypass", layout.pools, layout.router.model_copy(update={"bypass": True}))


def by_prefix(layout: Layout) -> Layout | None:
    """The layout with requests routed to the instance that has most of their prompt; None for no choice.

    Rule 1a. Which of the two is better depends on load and cache size, so it is simulated.
    """
    if all(pool.count == 1 for pool in layout.pools) or routed_by_prefix(layout):
        return None
    router = layout.router.model_copy(update={"policy": "prefix_affinity"})
    return Layout(f"{layout.name}, by prefix", layout.pools, router)


def routed_by_prefix(layout: Layout) -> bool:
    """Whether requests go to the instance that has most of their prompt."""
    return layout.router.policy == "prefix_affinity"


def _with_budget(layout: Layout, hardware: Hardware, budget: int) -> Layout:
    (pool,) = layout.pools
    change = {"token_budget": budget, "kv_tokens": hardware.kv_tokens(pool.tp, budget)}
    name = layout.name.replace(f"chunked {pool.token_budget}", f"chunked {budget}")
    return Layout(name, (pool.model_copy(update=change),), layout.router)


def _changed(layout: Layout, how: str, **change: object) -> Layout:
    pools = tuple(pool.model_copy(update=change) for pool in layout.pools)
    return Layout(f"{layout.name}, {how}", pools, layout.router)


def _router(instances: int) -> Router:
    return "round_robin" if instances == 1 else "least_loaded"


def _splits(hardware: Hardware, gpus: int, smallest: int) -> Iterable[tuple[tuple[int, int], tuple[int, int]]]:
    """(instances, TP) of prefill and decode that leave fewer than `smallest` GPUs idle."""
    degrees = [tp for tp in DEGREES if tp < gpus and hardware.fits(tp, PREFILL_BUDGET)]
    for tp_p in degrees:
        for tp_d in degrees:
            for x in range(1, (gpus - tp_d) // tp_p + 1):
                y = (gpus - x * tp_p) // tp_d
                if gpus - x * tp_p - y * tp_d < smallest:
                    yield (x, tp_p), (y, tp_d)
