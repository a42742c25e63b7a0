"""Several launches of one service as one configuration: equal pools add up, sides of a split stand apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from advisor.advice.current.model import TITLES, Current, Said
from advisor.advice.current.router import Front
from engine.config import PoolConfig
from engine.errors import InputError


def merge(parts: Sequence[Current], front: Front | None) -> Current:
    """One configuration of all `parts`. Raises InputError where they are different stacks or models."""
    first = parts[0]
    stacks = sorted({part.stack for part in parts})
    if len(stacks) > 1:
        names = " and ".join(TITLES[stack] for stack in stacks)
        raise InputError(
            f"{names} are started here", why="a plan compares with one stack", hint="give one of them"
        )
    models = sorted({part.model for part in parts if part.model is not None})
    if len(models) > 1:
        raise InputError(
            "several models are started here",
            why=", ".join(m[:80] for m in models[:5]),
            hint="give one of them",
        )
    pools = _pools([pool for part in parts for pool in part.pools])
    notes = [note for part in parts for note in part.notes]
    read = [said for part in parts for said in part.read]
    router = first.router
    if front is not None:
        pools, router = _counted(pools, front), front.router
        if front.policy is not None:
            read.append(Said("router", front.policy, "--policy"))
        notes += [front.note] if front.note else []
    notes += _differences(parts, pools)
    return replace(
        first,
        model=models[0] if models else None,
        pools=tuple(pools),
        router=router,
        other={name: value for part in reversed(parts) for name, value in part.other.items()},
        read=tuple(dict.fromkeys(read)),
        assumed=tuple(dict.fromkeys(a for part in parts for a in part.assumed)),
        ignored=tuple(dict.fromkeys(f for part in parts for f in part.ignored)),
        unknown=tuple(dict.fromkeys(u for part in parts for u in part.unknown)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _pools(pools: Sequence[PoolConfig]) -> list[PoolConfig]:
    """Pools that differ in their count alone become one."""
    counts: dict[PoolConfig, int] = {}
    for pool in pools:
        alike = pool.model_copy(update={"count": 1})
        counts[alike] = counts.get(alike, 0) + pool.count
    return [pool.model_copy(update={"count": count}) for pool, count in counts.items()]


def _counted(pools: Sequence[PoolConfig], front: Front) -> list[PoolConfig]:
    """With the instances that the router names, where it names a role of which there is one pool."""
    roles = [pool.role for pool in pools]
    return [
        pool.model_copy(update={"count": max(pool.count, front.counts[pool.role])})
        if pool.role in front.counts and roles.count(pool.role) == 1
        else pool
        for pool in pools
    ]


def _differences(parts: Sequence[Current], pools: Sequence[PoolConfig]) -> list[str]:
    notes = []
    roles = {pool.role for pool in pools}
    if roles in ({"prefill"}, {"decode"}):
        missing = "decode" if roles == {"prefill"} else "prefill"
        notes.append(f"only one side of a split is given: the {missing} side is missing")
    compared = ("dtype", "kv_dtype", "max_len", "memory_fraction")
    differing = [name for name in compared if len({getattr(part, name) for part in parts}) > 1]
    if differing:
        notes.append(f"the launches differ in {', '.join(differing)}: the first one's is shown")
    if roles >= {"prefill", "decode"} and len({pool.block_size for pool in pools}) > 1:
        notes.append("both sides of a split need the same block size")
    return notes
