"""Faults on purpose, to prove that a measurement notices them. Only `--fault` turns one on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from engine.errors import InputError
from engine.step import Executor, Handle, Step, StepResult

SLOW_STEPS, SLOW_LINK, LINK_RATE = "slow-steps", "slow-link", "link-rate"
FAIL, CORRUPT = "transfer-fail", "transfer-corrupt"
_FROM_TO = {
    SLOW_STEPS: (1.0, 100.0),
    SLOW_LINK: (1.0, 1000.0),
    LINK_RATE: (1e3, 1e12),
    FAIL: (0.0, 1.0),
    CORRUPT: (0.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class _SlowHandle:
    inner: Handle
    started: float
    factor: float

    def result(self) -> StepResult:
        result = self.inner.result()
        time.sleep((self.factor - 1) * (time.monotonic() - self.started))
        return result


class SlowSteps:
    """An Executor whose every step takes `factor` times as long as the wrapped one's."""

    def __init__(self, inner: Executor, factor: float) -> None:
        self._inner, self._factor = inner, factor

    def submit(self, step: Step) -> Handle:
        """Start `step`; its result comes late."""
        started = time.monotonic()
        return _SlowHandle(self._inner.submit(step), started, self._factor)


class TransferFaults:
    """Faults of the link that KV is pulled over, for `engine.transfer.puller.Puller`; several threads may ask.

    `fail` and `corrupt` are shares of the pulls, drawn from `seed`. `counts` says what was drawn.
    A link with `bytes_per_s` carries no more than that, one that is `slower` takes so many times as long.
    """

    def __init__(
        self,
        *,
        fail: float = 0.0,
        corrupt: float = 0.0,
        bytes_per_s: float | None = None,
        slower: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self.slower = slower
        self.counts: Counter[Literal["fail", "corrupt"]] = Counter()
        self._fail, self._corrupt = fail, corrupt
        self._random = Random(seed)
        self._lock = threading.Lock()

    def draw(self) -> Literal["fail", "corrupt"] | None:
        """What is to happen to the next pull: fail halfway, or arrive with a byte changed."""
        with self._lock:
            fails, corrupts = self._random.random() < self._fail, self._random.random() < self._corrupt
            if not fails and not corrupts:
                return None
            fault: Literal["fail", "corrupt"] = "fail" if fails else "corrupt"
            self.counts[fault] += 1
            return fault


def check_fault(fault: str | None) -> None:
    """Raises InputError where there is no such fault."""
    _parsed(fault)


def slow_factor(fault: str | None) -> float:
    """By how much `--fault` makes every step slower: `slow-steps:FACTOR`; 1 without that fault."""
    kind, value = _parsed(fault)
    return value if kind == SLOW_STEPS else 1.0


def link_factor(fault: str | None) -> float:
    """How many times as long a copy of KV takes by `--fault slow-link:FACTOR`; 1 without that fault."""
    kind, value = _parsed(fault)
    return value if kind == SLOW_LINK else 1.0


def transfer_faults(fault: str | None, *, seed: int) -> TransferFaults | None:
    """What `--fault` does to pulls: `slow-link:FACTOR`, `link-rate:BYTES_PER_S`, `transfer-fail:SHARE` or
    `transfer-corrupt:SHARE`. None without such a fault.
    """
    kind, value = _parsed(fault)
    if kind == FAIL:
        return TransferFaults(fail=value, seed=seed)
    if kind == CORRUPT:
        return TransferFaults(corrupt=value, seed=seed)
    if kind == SLOW_LINK:
        return TransferFaults(slower=value)
    return TransferFaults(bytes_per_s=value) if kind == LINK_RATE else None


class _Fault(NamedTuple):
    kind: str | None
    value: float


def _parsed(fault: str | None) -> _Fault:
    if fault is None:
        return _Fault(None, 0.0)
    kind, _, text = fault.partition(":")
    least, most = _FROM_TO.get(kind, (1.0, 0.0))
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InputError(
            f"no such fault: {fault}",
            why="; ".join(f"{one}: {least:g} to {most:g}" for one, (least, most) in _FROM_TO.items()),
            hint="--fault slow-steps:3",
        )
    return _Fault(kind, value)
