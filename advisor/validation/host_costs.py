"""What serving costs a host beside its steps: router and client measured on an emulated engine, and a copy.

Instances that sleep leave the cores to router and client, so that all the CPU time these take is what they take
of an instance's cores elsewhere. Two replays that differ in the lengths of the outputs tell a request's part
from a token's.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.advice.host import HostCosts
from advisor.deploy.local import start_engine
from advisor.validation.client import body_of, open_client
from advisor.validation.endpoint import inspect
from advisor.validation.meanwhile import Meanwhile, look_at
from advisor.validation.prompts import PromptFactory
from advisor.validation.replay import Due, replay
from engine.config import EngineConfig, PoolConfig
from engine.emulation import EmulatedPool, Emulation
from engine.errors import InvalidMeasurementError
from engine.step_time.calibrated import CalibratedStepTime, Coefficients

RATE_RPS, PROMPT = 20.0, 256  # of the replays (ours)
SHORT, LONG = (80, 2), (40, 64)  # requests, output tokens
STEP_S = 0.005
COPY_BYTES, COPIES = 2**24, 20
_KV_TOKENS, _MAX_LEN, _VOCAB = 2**18, 4096, 32_000


@dataclass(frozen=True, slots=True)
class Spent:
    """What a replay took."""

    requests: int
    tokens: int
    cpu_s: float


def measure_host_costs(program: Sequence[str] = ()) -> HostCosts:
    """Measure them here; takes about ten seconds. `program` replaces the bundled server in tests.

    Raises MachineError where the engine does not start, InvalidMeasurementError where it tells too little.
    """
    pool = PoolConfig(token_budget=2048, max_seqs=256, prefix_cache=False, kv_tokens=_KV_TOKENS)
    step_time = CalibratedStepTime(Coefficients(STEP_S, 0.0, 0.0, 0.0, 0.0, 0.0))
    emulation = Emulation(
        gpu="none",
        pools=(EmulatedPool(role="colocated", step_time=step_time, kv_tokens=_KV_TOKENS),),
        kv_bytes_per_token=1.0,
        max_len=_MAX_LEN,
        vocab=_VOCAB,
    )
    config = EngineConfig(pools=(pool,))
    with start_engine(config, port=0, emulation=emulation, program=program) as engine:
        few, many = (asyncio.run(_spend(engine.url, *kind)) for kind in (SHORT, LONG))
    request_s, token_s = solved(few, many)
    return HostCosts(request_s=request_s, token_s=token_s, copy_bytes_per_s=copy_bytes_per_s(), measured=True)


def solved(few: Spent, many: Spent) -> tuple[float, float]:
    """CPU seconds of a request and of a token, from two replays; never below 0."""
    matrix = np.array([[one.requests, one.tokens] for one in (few, many)], dtype=float)
    request_s, token_s = np.linalg.solve(matrix, [few.cpu_s, many.cpu_s])
    return max(0.0, float(request_s)), max(0.0, float(token_s))


def copy_bytes_per_s() -> float:
    """How fast KV goes from one process's memory to another's: a copy, and a checksum at either end."""
    source = np.random.default_rng(0).bytes(COPY_BYTES)
    target = bytearray(COPY_BYTES)
    best = float("inf")
    for _ in range(COPIES):
        started = time.perf_counter()
        zlib.crc32(source)
        target[:] = source
        zlib.crc32(target)
        best = min(best, time.perf_counter() - started)
    return COPY_BYTES / best


async def _spend(url: str, requests: int, output: int) -> Spent:
    """Replay so many requests at a steady rate and add up the CPU time of client and router."""
    endpoint = await inspect(url)
    factory = PromptFactory(endpoint.vocab_size, seed=output)
    schedule = [
        Due(
            i, i / RATE_RPS, body_of(endpoint.model, factory.unique(PROMPT, i).tolist(), output), PROMPT, output
        )
        for i in range(requests)
    ]
    async with open_client(url) as client:
        before = await look_at(url, None)
        outcome = await replay(schedule, client, tick=lambda _: None)
        after = await look_at(url, None)
    cpu = Meanwhile(before, after).cpu(None)
    if cpu.router_s is None or any(record.status != "ok" for record in outcome.records):
        why = "the engine did not serve every request, or does not tell its CPU time"
        raise InvalidMeasurementError(
            "the cost of serving could not be measured",
            why=why,
            hint="advise calibrate, with nothing else on this machine",
        )
    return Spent(requests, requests * output, cpu.client_s + cpu.router_s)
