"""Layouts: the configurations that a search compares, and how to list those that fit a number of GPUs.

A layout is pools and a router, complete and runnable. Lists everything that is sensible by the rules; what is
hopeless falls out by `bounds`, what is worse by simulation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from advisor.advice.search.hardware import Hardware
from advisor.advice.sizing import STAGED_BUDGET, parallel, sizes
from engine.config import PoolConfig, RouterConfig
from engine.errors import MachineError

BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # neighbours by `REFINE` follow
REFINE = 128
CPU_BUDGETS = (16, 32, 64, 128, 256, 512)  # ours: a step of 512 tokens takes about a second on a few cores
PREFILL_BUDGET = 2048  # of a prefill instance: prompt throughput peaks there (Splitwise)
MOST_SEQS = 256  # of each step in flight; ours: what current engines default to
MORE_KV = 1.5  # KV a GPU that twice the stages must bring: they do where weights fill half of the memory (ours)
Router = Literal["round_robin", "least_loaded", "prefix_affinity"]
Size = tuple[int, int]  # of an instance: TP, PP


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

    @property
    def staged(self) -> bool:
        """Whether an instance has pipeline stages."""
        return any(pool.pp > 1 for pool in self.pools)


def layouts(hardware: Hardware, gpus: int, *, reuse: bool) -> list[Layout]:
    """Every sensible layout on `gpus` devices, none of which leaves devices idle that would hold an instance.

    `reuse`: prompts share prefixes, so that each is listed with routing by prefix too.
    """
    cores = [(size, 1) for size in hardware.copies if size <= gpus]
    every = cores if hardware.on_cpu else instances(hardware, gpus)
    smallest = min((tp * pp for tp, pp in every), default=1)
    found = [
        colocated(hardware, gpus // (tp * pp), tp, budget, _router(gpus // (tp * pp)), pp=pp)
        for tp, pp in every
        if gpus % (tp * pp) < smallest
        for budget in (CPU_BUDGETS if hardware.on_cpu else budgets(pp))
        if hardware.fits(tp, budget, pp)
    ]
    found += [split(hardware, x, y) for x, y in _splits(hardware, every, gpus, smallest)]
    return found + [one for layout in found if reuse and (one := by_prefix(layout))]


def instances(hardware: Hardware, gpus: int) -> list[Size]:
    """The instances worth a look on so many GPUs: every TP that holds the model, and stages where they pay.

    Stages read the weights as often as so many instances of the same TP do, for as many requests, and make no
    token faster: they leave more memory to KV (DistServe, section 3: replication scales as inter-op does). So a
    pipeline is listed where an instance of its TP with half the stages has none, or less a GPU by `MORE_KV`.
    """
    found: list[Size] = []
    per_gpu: dict[Size, float] = {}  # KV tokens
    for tp, pp in sizes(gpus):
        fitting = [budget for budget in budgets(pp) if hardware.fits(tp, budget, pp)]
        if fitting:
            per_gpu[tp, pp] = hardware.kv_tokens(tp, fitting[0], pp) / (tp * pp)
            if per_gpu[tp, pp] > MORE_KV * per_gpu.get((tp, pp // 2), 0.0):
                found.append((tp, pp))
    return found


def budgets(pp: int) -> tuple[int, ...]:
    """Token budgets that are looked at on a GPU."""
    return BUDGETS if pp == 1 else (*(budget for budget in BUDGETS if budget < STAGED_BUDGET), STAGED_BUDGET)


def colocated(
    hardware: Hardware,
    count: int,
    tp: int,
    budget: int,
    router: Router,
    *,
    pp: int = 1,
) -> Layout:
    """`count` instances of size `tp` that serve both phases."""
    pool = pool_of(hardware, "colocated", count, (tp, pp), budget)
    where = f"{count} x {_sized(hardware, (tp, pp))}"
    if hardware.on_cpu and count == 1:
        where = _sized(hardware, (tp, pp))
    return Layout(f"{where}, chunked {budget}", (pool,), RouterConfig(policy=router))


def split(hardware: Hardware, prefill: tuple[int, Size], decode: tuple[int, Size]) -> Layout:
    """Prefill and decode pools of so many instances."""
    (x, of_prefill), (y, of_decode) = prefill, decode
    pools = (
        pool_of(hardware, "prefill", x, of_prefill, _phase_budget(hardware, of_prefill)),
        pool_of(hardware, "decode", y, of_decode, _phase_budget(hardware, of_decode)),
    )
    name = f"{x} prefill x {_sized(hardware, of_prefill)} + {y} decode x {_sized(hardware, of_decode)}"
    return Layout(name, pools, RouterConfig(policy=_router(max(x, y))))


def pool_of(
    hardware: Hardware,
    role: Literal["colocated", "prefill", "decode"],
    count: int,
    size: Size,
    budget: int,
) -> PoolConfig:
    """A pool with the KV cache that its memory allows; cores of an instance are threads of one rank."""
    tp, pp = size
    return PoolConfig(
        role=role,
        count=count,
        tp=1 if hardware.on_cpu else tp,
        pp=pp,
        devices_per_instance=tp * pp,
        token_budget=budget,
        max_seqs=MOST_SEQS * pp,
        block_size=hardware.block_size,
        kv_tokens=hardware.kv_tokens(tp, budget, pp),
    )


def default_layout(hardware: Hardware, gpus: int) -> Layout:
    """The bundled engine's defaults: as many instances as fit, of the fewest GPUs that hold the model.

    An instance has pipeline stages only where no TP holds it.
    """
    usual = PoolConfig()
    if hardware.on_cpu:
        layout = colocated(hardware, 1, gpus, usual.token_budget, "round_robin")
    else:
        budget = usual.token_budget
        size = next(((tp, pp) for tp, pp in sizes(gpus) if hardware.fits(tp, budget, pp)), None)
        if size is None:
            raise MachineError("the model does not fit", hint="advise analyze LOG --gpus N, with a larger N")
        tp, pp = size
        layout = colocated(hardware, gpus // (tp * pp), tp, budget, "round_robin", pp=pp)
    (pool,) = layout.pools
    pool = pool.model_copy(update={"max_seqs": usual.max_seqs})
    return Layout("defaults", (pool,), layout.router)


def variants(layout: Layout, hardware: Hardware, *, reuse: bool) -> Iterator[Layout]:
    """The layout with one setting changed: budget, most sequences, queue order, bypass."""
    main = layout.pools[-1]
    if not layout.split:
        most = math.inf if main.pp == 1 else STAGED_BUDGET
        for budget in (main.token_budget - REFINE, main.token_budget + REFINE):
            if REFINE <= budget <= most and not hardware.on_cpu and hardware.fits(main.tp, budget, main.pp):
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
    change = {"token_budget": budget, "kv_tokens": hardware.kv_tokens(pool.tp, budget, pool.pp)}
    name = layout.name.replace(f"chunked {pool.token_budget}", f"chunked {budget}")
    return Layout(name, (pool.model_copy(update=change),), layout.router)


def _changed(layout: Layout, how: str, **change: object) -> Layout:
    pools = tuple(pool.model_copy(update=change) for pool in layout.pools)
    return Layout(f"{layout.name}, {how}", pools, layout.router)


def _router(instances: int) -> Router:
    return "round_robin" if instances == 1 else "least_loaded"


def _phase_budget(hardware: Hardware, size: Size) -> int:
    if hardware.on_cpu:
        return CPU_BUDGETS[-1]
    return PREFILL_BUDGET if size[1] == 1 else STAGED_BUDGET


def _sized(hardware: Hardware, size: Size) -> str:
    """The size of an instance in words."""
    return f"{size[0]} core{'s' * (size[0] > 1)}" if hardware.on_cpu else parallel(*size)


def _splits(
    hardware: Hardware, every: Iterable[Size], gpus: int, smallest: int
) -> Iterable[tuple[tuple[int, Size], tuple[int, Size]]]:
    """Instances of prefill and decode, and their sizes, that leave fewer than `smallest` GPUs idle."""
    fitting = [(tp, pp) for tp, pp in every if hardware.fits(tp, _phase_budget(hardware, (tp, pp)), pp)]
    for prefill, decode in itertools.product(fitting, repeat=2):
        of_prefill, of_decode = math.prod(prefill), math.prod(decode)
        for x in range(1, (gpus - of_decode) // of_prefill + 1):
            y = (gpus - x * of_prefill) // of_decode
            if gpus - x * of_prefill - y * of_decode < smallest:
                yield (x, prefill), (y, decode)
