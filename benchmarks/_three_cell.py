"""One cell of `three_ideas`: its requests replayed at an engine that runs, and how many were good.

A replay ends when no open request can be good any more: what comes later changes no figure, and a load far
above what a configuration serves would take minutes to drain. Prompts of a cell are its own, so that no cell
meets the cache of another.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from advisor.advice.current.metrics import fetch, samples_of
from advisor.logs.trace import BoolColumn, Trace
from advisor.simulation.outcome import Outcome
from advisor.simulation.slo import Slo
from advisor.validation import gates, metrics
from advisor.validation.client import Client, Exchange, body_of, open_client
from advisor.validation.endpoint import Endpoint, inspect
from advisor.validation.meanwhile import Meanwhile, look_at
from advisor.validation.prompts import PromptFactory
from advisor.validation.record import Record
from advisor.validation.replay import Counts, Due, Replay, replay
from benchmarks._three_results import CellRecord, PlanRecord
from benchmarks._three_traffic import Kind
from engine.errors import MachineError

TIMEOUT_S = 600.0  # of a request; it is the end of the replay that decides
IDLE_S = 20.0  # what an engine may take to drop the requests that a replay left behind
WARM_UP = 2  # requests before the first cell of an engine


@dataclass(frozen=True, slots=True)
class Cell:
    """What to send: a kind at a load, to one arm. `seconds` of the wall; `cores` that the instances run on.

    `tried`: how often it was measured before.
    """

    kind: Kind
    plan: PlanRecord
    arm: str
    factor: float
    seconds: float
    cores: int
    tried: int = 0

    @property
    def modelled_s(self) -> float:
        """Seconds on the clock of what the engine stands for."""
        return self.seconds / self.plan.time_scale

    @property
    def trace(self) -> Trace:
        """Its requests."""
        return self.kind.cell(self.plan.rate_rps(self.factor), self.modelled_s, self.plan.seed)

    @property
    def key(self) -> dict[str, Any]:
        """The fields of a CellRecord that say what was measured."""
        plan = self.plan
        return {
            "setup": plan.setup,
            "code": plan.code,
            "seed": plan.seed,
            "kind": plan.kind,
            "digest": plan.digest,
            "arm": self.arm,
            "factor": self.factor,
            "seconds": self.seconds,
        }

    @property
    def prompt_seed(self) -> int:
        """Of the prompts' content: another for each cell and try, since the engine remembers the others."""
        said = f"{self.plan.seed} {self.plan.kind} {self.arm} {self.factor} {self.seconds} {self.tried}"
        return int.from_bytes(hashlib.sha256(said.encode()).digest()[:4], "little")


def measure_cell(url: str, cell: Cell, predicted: Outcome) -> CellRecord:
    """Replay a cell. Raises MachineError where the engine does not answer, or keeps working for nobody."""
    return asyncio.run(_measured(url, cell, predicted))


def warm_up(url: str, cell: Cell) -> None:
    """A few requests that count for nothing; they share nothing with any cell."""
    asyncio.run(_warmed_up(url, cell))


class Watched(Client):
    """A client that knows its open exchanges, and whether one of them can still be good.

    `scale`: seconds of its clock that one of the targets takes.
    """

    def __init__(self, client: Client, slo: Slo, scale: float) -> None:
        self._client, self._slo, self._scale = client, slo, scale
        self._open: list[Exchange] = []

    async def perform(self, exchange: Exchange) -> None:
        """As the client does."""
        self._open.append(exchange)
        try:
            await self._client.perform(exchange)
        finally:
            self._open.remove(exchange)

    @property
    def hopeless(self) -> bool:
        """Whether some exchanges are open and every one has missed a target already."""
        now = time.monotonic_ns()
        return bool(self._open) and all(missed(one, now, self._slo, self._scale) for one in self._open)


def missed(exchange: Exchange, now_ns: int, slo: Slo, scale: float) -> bool:
    """Whether an open exchange misses a target, whatever comes from now on."""

    def longer(from_ns: int, to_ns: int, limit_s: float | None) -> bool:
        return limit_s is not None and (to_ns - from_ns) / 1e9 > limit_s * scale

    stamps = exchange.chunk_ns
    if longer(exchange.due_ns, stamps[0] if stamps else now_ns, slo.ttft_s):
        return True
    if not stamps:
        return False
    whole_s = None if slo.tpot_s is None else slo.tpot_s * max(1, exchange.want_out - 1)
    gaps = zip(stamps, [*stamps[1:], now_ns], strict=True)
    return longer(stamps[0], now_ns, whole_s) or any(longer(*gap, slo.tbt_s) for gap in gaps)


async def _measured(url: str, cell: Cell, predicted: Outcome) -> CellRecord:
    endpoint = await inspect(url)
    schedule = _schedule(cell, endpoint)
    scale = endpoint.time_scale
    async with open_client(url, timeout_s=TIMEOUT_S * scale) as client:
        before = await look_at(url, None)
        outcome = await _replayed(schedule, Watched(client, cell.kind.slo, scale))
        meanwhile = Meanwhile(before, await look_at(url, None))
    if outcome.end == "interrupted":
        await _idle(url)
    records = tuple(replace(one, time_scale=scale).undilated() for one in outcome.records)
    return _record(cell, endpoint, replace(outcome, records=records), meanwhile, predicted)


async def _replayed(schedule: list[Due], client: Watched) -> Replay:
    """The replay, ended early where the rest is lost. Raises MachineError where most requests fail."""
    running: asyncio.Task[Replay] | None = None

    def tick(counts: Counts) -> None:
        if running is not None and counts.sent == counts.scheduled and client.hopeless:
            running.cancel()

    running = asyncio.create_task(replay(schedule, client, tick=tick))
    outcome = await running
    if outcome.end == "aborted":
        failed = sorted({one.status for one in outcome.records} - {"ok", "unsent", "interrupted"})
        raise MachineError("most requests failed", why=", ".join(failed))
    return outcome


def _schedule(cell: Cell, endpoint: Endpoint) -> list[Due]:
    trace = cell.trace
    prompts = PromptFactory(endpoint.vocab_size, cell.prompt_seed).build(trace)
    return [
        Due(
            row,
            float(trace.arrival_s[row]) * endpoint.time_scale,
            body_of(endpoint.model, prompt.tolist(), int(trace.output_tokens[row])),
            len(prompt),
            int(trace.output_tokens[row]),
        )
        for row, prompt in enumerate(prompts)
    ]


def _record(
    cell: Cell, endpoint: Endpoint, outcome: Replay, meanwhile: Meanwhile, predicted: Outcome
) -> CellRecord:
    slo, plan = cell.kind.slo, cell.plan
    judged = cell.trace.arrival_s >= cell.kind.warm * cell.modelled_s
    records = tuple(record for record in outcome.records if judged[record.row])
    judged_s = (1 - cell.kind.warm) * cell.modelled_s
    score, latencies = metrics.score(records, slo, judged_s), metrics.latencies(records)
    found = gates.judge(records, latencies, slo, "complete")
    step_p50_s, lag_p99_s = meanwhile.clock()
    if endpoint.emulates is not None:
        found += (gates.clock_lag(step_p50_s, lag_p99_s),)
    good = int(predicted.kept(slo)[judged].sum())
    cpu = meanwhile.cpu(cell.cores)
    return CellRecord(
        **cell.key,
        warm_s=cell.kind.warm * cell.seconds,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        requests=len(records),
        good=score.good,
        good_rate=score.good / judged_s / plan.devices,
        predicted_good=good,
        predicted_rate=good / judged_s / plan.devices,
        ttft_p90_s=None if latencies.ttft is None else latencies.ttft.p90,
        predicted_ttft_p90_s=_p90(predicted.ttft_s[judged]),
        tpot_p90_s=None if latencies.tpot is None else latencies.tpot.p90,
        predicted_tpot_p90_s=_p90(predicted.tpot_s[judged]),
        hit_rate=_hit_rate(records),
        predicted_hit_rate=_predicted_hit_rate(predicted, judged),
        misses=score.misses,
        red=tuple(gate.name for gate in found if gate.colour == "red" and _tells(gate)),
        client_share=cpu.client_share,
        router_share=cpu.router_share,
        wall_s=cpu.wall_s,
        step_p50_s=step_p50_s,
        lag_p99_s=lag_p99_s,
        incidents=meanwhile.incidents(),
    )


def _tells(gate: gates.Gate) -> bool:
    """Whether a red gate says anything; where all are misses, no stream is complete to be looked at."""
    return gate.name == "clock_lag" or (gate.name != "completeness" and gate.value is not None)


def _hit_rate(records: tuple[Record, ...]) -> float | None:
    """Cached prompt tokens over all, of the requests that completed; None where none did."""
    known = [(one.n_cached or 0, one.want_in) for one in records if one.status == "ok"]
    return sum(cached for cached, _ in known) / sum(tokens for _, tokens in known) if known else None


def _predicted_hit_rate(predicted: Outcome, judged: BoolColumn) -> float | None:
    """As of the records: of those that are judged and were served."""
    of = judged & predicted.served
    prompt = int(predicted.prompt_tokens[of].sum())
    return int(predicted.cached_tokens[of].sum()) / prompt if prompt else None


def _p90(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.percentile(known, 90)) if len(known) else None


async def _warmed_up(url: str, cell: Cell) -> None:
    endpoint = await inspect(url)
    factory = PromptFactory(endpoint.vocab_size, cell.prompt_seed)
    async with open_client(url, timeout_s=TIMEOUT_S) as client:
        for number in range(WARM_UP):
            body = body_of(endpoint.model, factory.unique(64, 2**62 + number).tolist(), 4)
            exchange = Exchange(-1, body, time.monotonic_ns(), 64, 4)
            await client.perform(exchange)
            if exchange.status != "ok":
                raise MachineError(
                    "the engine does not serve", why=f"a small request ended as {exchange.status}"
                )


async def _idle(url: str) -> None:
    """Wait until the requests that were left behind are gone."""
    until_s = time.monotonic() + IDLE_S
    while time.monotonic() < until_s:
        page = await fetch(url.rstrip("/") + "/metrics", 5.0, None)
        open_ones = [
            float(value)
            for name, _, value in samples_of(page)
            if name in ("advise_requests_queued", "advise_requests_running")
        ]
        if open_ones and not any(open_ones):
            return
        await asyncio.sleep(0.2)
    raise MachineError("the engine still works", why=f"requests were left {IDLE_S:g} s ago and are not gone")
