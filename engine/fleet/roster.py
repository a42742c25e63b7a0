"""Who is in the fleet: instances, their state and load, and where new requests may start.

up -> draining -> down -> up; a restart counts up the epoch. Knows nothing of requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from engine.config import PoolConfig
from engine.errors import InputError

if TYPE_CHECKING:
    from engine.fleet.journey import Journey

State = Literal["up", "draining", "down"]

FOREIGN = -1
"""The index of a source that is an instance of another fleet: see `Roster.foreign`."""


class Instance:
    """One engine core. `epoch` counts its starts; `requests` and `tokens` are its load as the fleet sees it.

    `requests` wait, run, or are on their way to it; `tokens` are the uncached prompt tokens that it has not
    computed. `queue` holds requests whose KV waits to be pulled here, in order; of these `asking` is the one
    that waits for the answer to a Reserve, and `full` says that the last answer was no.
    """

    __slots__ = (
        "asking",
        "bit",
        "epoch",
        "full",
        "heard",
        "index",
        "pool",
        "queue",
        "requests",
        "state",
        "tokens",
    )

    def __init__(self, index: int, pool: PoolConfig) -> None:
        self.index = index
        self.bit = 0 if index == FOREIGN else 1 << index
        self.pool = pool
        self.state: State = "up"
        self.epoch = 1
        self.heard = 0  # how many instances of the fleet had died when it last said something
        self.requests = 0
        self.tokens = 0
        self.queue: deque[Journey] = deque()
        self.asking: Journey | None = None
        self.full = False


class Roster:
    """All instances, in the order of the pools, and the lists that routing chooses from.

    `foreign` stands for every instance of another fleet that keeps KV for this one. It is none of `instances`:
    its load, state and restarts are not known here, and it is chosen for nothing.
    """

    def __init__(self, pools: Sequence[PoolConfig], *, colocate_alone: bool) -> None:
        roles = {pool.role for pool in pools}
        if not pools or (("prefill" in roles) != ("decode" in roles) and len(roles) > 1):
            raise InputError(
                "a fleet needs colocated instances, prefill and decode instances, or those of one role",
                where="pools",
                hint="add the missing role to pools in engine.yaml",
            )
        if len({pool.block_size for pool in pools}) > 1:
            raise InputError("pools of one fleet differ in block_size", where="pools", hint="give all the same")
        members = [pool for pool in pools for _ in range(pool.count)]
        self.instances = tuple(Instance(index, pool) for index, pool in enumerate(members))
        self.foreign = Instance(FOREIGN, PoolConfig(role="prefill", block_size=pools[0].block_size))
        self.split = {"prefill", "decode"} <= roles  # a lone side is whole: another router pairs it
        self._colocate_alone = colocate_alone
        self.refresh()

    def refresh(self) -> None:
        """Work the lists out again, after any change of state.

        `starts` are the instances where a request may start: colocated ones, and in a split prefill instances,
        which need a decode instance up. Left alone, either side serves colocated, if configured so.
        """
        up: dict[str, list[Instance]] = {"colocated": [], "prefill": [], "decode": []}
        for instance in self.instances:
            if instance.state == "up":
                up[instance.pool.role].append(instance)
        self.prefill, self.decode = up["prefill"], up["decode"]
        self.paired = bool(self.prefill and self.decode)
        if self.paired:
            self.starts = up["colocated"] + self.prefill
        elif not self.split:
            self.starts = [one for one in self.instances if one.state == "up"]
        else:
            self.starts = up["colocated"] + (self.prefill + self.decode if self._colocate_alone else [])
        self.starts.sort(key=lambda instance: instance.index)

    @property
    def degraded(self) -> bool:
        """A split with one side, or both, gone."""
        return self.split and not self.paired

    @property
    def stranded(self) -> bool:
        """One side of a split is alone, and may not serve."""
        return self.split and not self.starts and bool(self.prefill or self.decode)
