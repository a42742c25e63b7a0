"""Faults of a launched fleet during a replay: what is done, when, and what it costs.

Two sorts. A fault of the engine (`slow-steps`, `slow-link`, transfers that fail) is given to it at its start
and lasts. A strike (`decode-kill`, `prefill-kill`, `pause`) is a signal to one of its processes in the middle
of the window's requests; then /health is asked until the fleet is whole again:

    waiting -> struck -> [continued, after a pause] -> whole | given up (degraded, or nobody came back)

Only an engine that the same command has launched is struck, never one that was there: whoever calls has its
process ids. A process that was stopped is continued whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import numpy as np
from pydantic import Field

from advisor.advice.plan import Loss
from advisor.simulation.slo import Slo
from advisor.units import parse_seconds
from advisor.validation.client import authorization
from advisor.validation.metrics import miss
from advisor.validation.record import COMPLETE, OPEN, Record
from advisor.validation.window import Window
from advisor.workload.model import Report
from engine.config import EngineConfig
from engine.errors import InputError, MachineError
from engine.faults import CORRUPT, FAIL, SLOW_LINK, SLOW_STEPS, check_fault

DECODE_KILL, PREFILL_KILL, PAUSE = "decode-kill", "prefill-kill", "pause"
PAUSE_S = 3.0  # validation.md R5
SLOWER = 10.0  # what `slow-link` alone means (ours)
PATIENCE_S = 60.0  # after a strike; an engine that is not whole by then is said to be so
_LINK = (SLOW_LINK, FAIL, CORRUPT)  # of a copy of KV, which only a split makes
_POLL_S = 0.02
_TIMEOUT = aiohttp.ClientTimeout(total=30)
_WORDS = {
    DECODE_KILL: "",
    PREFILL_KILL: "",
    PAUSE: f"[:SECONDS], {PAUSE_S:g} without",
    SLOW_LINK: f"[:TIMES], {SLOWER:g} without",
    SLOW_STEPS: ":TIMES",
    FAIL: ":SHARE",
    CORRUPT: ":SHARE",
}


class FaultReport(Report):
    """One fault and its cost. Times are seconds after the start of the run."""

    kind: str = Field(description="decode-kill, prefill-kill, pause, slow-link, slow-steps")
    target: str = Field(description="the process or link it befell")
    at_s: float | None = Field(description="when; null: all through")
    back_s: float | None = Field(
        description="when the fleet was whole again; null: not before the end, or always was"
    )
    requests: int = Field(description="requests in flight then, or due until it was back")
    attainment: float | None = Field(description="of these")
    attainment_without: float | None = Field(description="of all the others of the run")
    lost: int = Field(description="of all requests: without a complete answer")
    predicted_attainment: float | None = Field(
        description="of these by the plan's simulated loss; null: not simulated"
    )
    said: str | None = Field(
        None,
        description="what is wrong with the fleet after the run: degraded, or who is not back; null: whole",
    )


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """What `--fault` asks for. `role`: of the instance that is struck; None: a fault of the engine's own."""

    kind: str
    role: str | None = None
    pause_s: float = 0.0
    engine_fault: str | None = None  # what the engine is to be launched with

    @property
    def kills(self) -> bool:
        """Whether the struck process is gone."""
        return self.kind in (DECODE_KILL, PREFILL_KILL)


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """What was done to whom; times of the run's clock, nanoseconds. `back_ns` None: never whole again."""

    target: str
    at_ns: int | None = None
    back_ns: int | None = None
    said: str | None = None


def parse_fault(text: str, config: EngineConfig) -> FaultSpec:
    """The fault that `text` asks of a fleet of `config`: `decode-kill`, `pause:5s`, `slow-link:10`.

    Raises InputError for one that is none, or that has no target in this layout.
    """
    kind, _, value = text.partition(":")
    roles = {pool.role for pool in config.pools}
    if kind not in _WORDS or (value and not _WORDS[kind]):
        known = "; ".join(f"{name}{words}" for name, words in _WORDS.items())
        raise InputError(f"no such fault: {text}", why=known, hint="advise validate --fault decode-kill")
    if kind == PREFILL_KILL and "prefill" not in roles:
        raise _untargeted(kind, "no instance of this plan only prefills: it is not split")
    if kind in _LINK and len(roles) == 1:
        raise _untargeted(kind, "no KV moves between the instances of this plan: it is not split")
    if kind in (PREFILL_KILL, DECODE_KILL, PAUSE):
        role = "prefill" if kind == PREFILL_KILL else "decode" if "decode" in roles else "colocated"
        return FaultSpec(kind, role, pause_s=_pause_s(value) if kind == PAUSE else 0.0)
    fault = text if value else f"{kind}:{SLOWER:g}" if kind == SLOW_LINK else text
    check_fault(fault)
    return FaultSpec(kind, engine_fault=fault)


def _untargeted(kind: str, why: str) -> InputError:
    return InputError(
        f"{kind} has no target", where="--fault", why=why, hint="advise validate --fault decode-kill"
    )


def _pause_s(value: str) -> float:
    seconds = parse_seconds(value, "pause") if value else PAUSE_S
    if not 0 < seconds <= PATIENCE_S:
        raise InputError(
            f"a pause of {value} is not between 0 and {PATIENCE_S:g} s", hint="advise validate --fault pause:3s"
        )
    return seconds


def middle_s(window: Window, time_scale: float = 1.0) -> float:
    """When half of the window's requests have come: seconds after the first send, on the endpoint's clock."""
    due_s = window.due_s[window.judged]
    return (float(due_s[len(due_s) // 2]) + window.lead_s) * time_scale


async def inject(
    spec: FaultSpec,
    url: str,
    pids: Mapping[str, int],
    at_s: float,
    *,
    clock: Callable[[], int] = time.monotonic_ns,
    api_key: str | None = None,
    patience_s: float = PATIENCE_S,
) -> FaultSeen:
    """Strike after `at_s` seconds, and see until the fleet is whole; a fault of the engine's own needs nothing.

    Run it as a task beside the replay. `pids`: of the launched engine's processes, by name: no other is struck.
    Raises MachineError where the fleet has none of the role up, or does not tell.
    """
    if spec.role is None:
        return FaultSeen("every copy of KV" if spec.kind in _LINK else "every instance")
    await asyncio.sleep(at_s)
    async with aiohttp.ClientSession(url, headers=authorization(api_key), timeout=_TIMEOUT) as session:
        name, pid = _target(spec, await _health(session), pids)
        at_ns = clock()
        if spec.kills:
            os.kill(pid, signal.SIGKILL)
        else:
            await _pause(pid, spec.pause_s)
        back_ns: int | None = None
        said: str | None = "it did not say how it is"
        deadline_ns = clock() + int(patience_s * 1e9)
        while back_ns is None and clock() < deadline_ns:
            with contextlib.suppress(MachineError):
                health = await _health(session)
                said = _wrong(health, None if not spec.kills else pid)
                if said is None:
                    back_ns = clock()
                elif any(one["state"] == "lost" for one in health["instances"]):
                    break
            await asyncio.sleep(_POLL_S)
    return FaultSeen(name, at_ns, back_ns, said)


async def _pause(pid: int, seconds: float) -> None:
    """Stop a process for a while; whatever happens, it is continued."""
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        with contextlib.suppress(
            ProcessLookupError
        ):  # stopped for too long, it was taken for dead and replaced
            os.kill(pid, signal.SIGCONT)


def _target(spec: FaultSpec, health: Mapping[str, Any], pids: Mapping[str, int]) -> tuple[str, int]:
    """The first instance of the role that is up: the one that a plan's simulated loss loses, too."""
    for one in health["instances"]:
        if one["role"] == spec.role and one["state"] == "up" and one["pid"] and one["name"] in pids:
            return one["name"], int(one["pid"])
    raise MachineError(f"no {spec.role} instance was up to be struck", hint="advise launch")


def _wrong(health: Mapping[str, Any], killed: int | None) -> str | None:
    """What is not as it was; None where all instances are up, and none is the process that was killed."""
    missing = [
        f"{one['name']} is {'down' if one['state'] == 'up' else one['state']}"
        for one in health["instances"]
        if one["state"] != "up" or one["pid"] == killed
    ]
    if health["degraded"]:
        missing.append("degraded")
    return ", ".join(missing) or None


async def _health(session: aiohttp.ClientSession) -> dict[str, Any]:
    """What the bundled engine says of its instances. Raises MachineError where it does not."""
    try:
        async with session.get("/health") as response:
            health = msgspec.json.decode(await response.read())
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
        raise MachineError("the engine does not tell how it is", why=str(error), hint="advise launch") from None
    if not isinstance(health, dict) or not isinstance(health.get("instances"), list):
        raise MachineError("the engine does not tell of its instances", hint="advise launch")
    return health


def report(
    spec: FaultSpec,
    seen: FaultSeen,
    records: Sequence[Record],
    slo: Slo,
    loss: Loss | None = None,
    *,
    start_ns: int = 0,
    time_scale: float = 1.0,
    targets: Mapping[str, Slo] | None = None,
) -> FaultReport:
    """What the fault cost the requests that it hit, beside the others, and what the plan's loss said of it.

    Hit is what was due before the fleet was whole again and had not ended when the fault came; of a fault
    that lasts, everything. `records` are on the clock of what was emulated, `start_ns` is its zero on the
    endpoint's. `targets`: of classes that have their own.
    """
    at_s = None if seen.at_ns is None else (seen.at_ns - start_ns) / 1e9 / time_scale
    back_s = None if seen.back_ns is None else (seen.back_ns - start_ns) / 1e9 / time_scale
    own = targets or {}
    good = np.array([miss(one, own.get(one.slo_class or "", slo)) is None for one in records], dtype=np.bool_)
    hit = np.array([at_s is None or _hit(one, at_s, back_s) for one in records], dtype=np.bool_)
    same = loss is not None and spec.kind == DECODE_KILL and loss.role == spec.role
    return FaultReport(
        kind=spec.kind,
        target=seen.target,
        at_s=at_s,
        back_s=back_s,
        requests=int(hit.sum()),
        attainment=float(good[hit].mean()) if hit.any() else None,
        attainment_without=float(good[~hit].mean()) if not hit.all() else None,
        lost=sum(one.status not in (*COMPLETE, *OPEN) for one in records),
        predicted_attainment=loss.attainment if loss is not None and same else None,
        said=seen.said,
    )


def _hit(record: Record, at_s: float, back_s: float | None) -> bool:
    over = record.t_done if record.t_done is not None else math.inf
    return over > at_s and record.t_due < (math.inf if back_s is None else back_s)


class Strike:
    """One fault of one run, to be run beside its replay; afterwards it has `seen` what it did, and reports."""

    def __init__(
        self,
        spec: FaultSpec,
        url: str,
        pids: Mapping[str, int],
        *,
        loss: Loss | None = None,
        api_key: str | None = None,
    ) -> None:
        self.spec = spec
        self.seen: FaultSeen | None = None
        self._url, self._pids, self._loss, self._api_key = url, pids, loss, api_key

    async def __call__(self, window: Window, time_scale: float) -> None:
        """Strike in the middle of the window's requests."""
        at_s = middle_s(window, time_scale)
        self.seen = await inject(self.spec, self._url, self._pids, at_s, api_key=self._api_key)

    def report(
        self,
        records: Sequence[Record],
        slo: Slo,
        *,
        start_ns: int,
        time_scale: float,
        targets: Mapping[str, Slo] | None = None,
    ) -> FaultReport | None:
        """As `report`; None where the run ended before the fault came."""
        if self.seen is None:
            return None
        return report(
            self.spec,
            self.seen,
            records,
            slo,
            self._loss,
            start_ns=start_ns,
            time_scale=time_scale,
            targets=targets,
        )
