"""What serves a simulated load: pools of instances, how requests and KV find their way, and what breaks when.

Plain data; `simulate` gives it its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from engine.config import PoolConfig, RouterConfig
from engine.step_time.model import StepTimeModel

UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class Pool:
    """Instances of one kind: their configuration (`kv_tokens` set) and how long their steps take."""

    config: PoolConfig
    step_time: StepTimeModel


class Transport(NamedTuple):
    """How KV moves between instances: see `Link`."""

    bytes_per_s: float
    kv_bytes_per_token: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """What serves a Load. Requests longer than `max_len` tokens are refused, and those beyond `max_queued`.

    `transport` moves KV where the deployment is split; None: in no time.
    """

    pools: tuple[Pool, ...]
    router: RouterConfig = field(default_factory=RouterConfig)
    transport: Transport | None = None
    max_len: int = UNLIMITED
    max_queued: int = UNLIMITED


class Fault(NamedTuple):
    """An instance, numbered in the order of the pools, dies with all its KV; it is back, empty, at `back_s`."""

    at_s: float
    instance: int
    back_s: float = inf
