"""The plans that are rehearsed: their traffic, the folder that a user would have of them, their simulation.

What is simulated is read off the very emulation that is launched. No clock, and no randomness but by seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from advisor.advice.plan import Candidate, Plan
from advisor.advice.search.hardware import Hardware, hardware_of
from advisor.advice.search.layout import Layout, layouts, pool_of
from advisor.advice.situation import draw
from advisor.advice.steps import choose_step_times
from advisor.advice.target import Target
from advisor.deploy.files import ENGINE, PLAN
from advisor.deploy.launch import Launchable, find
from advisor.logs.trace import Blocks, Trace, rank_by_first
from advisor.simulation.deployment import Deployment, Pool, Transport
from advisor.simulation.from_trace import load_of
from advisor.simulation.outcome import Outcome
from advisor.simulation.simulate import simulate
from advisor.simulation.slo import Slo
from advisor.workload.measure import measure
from engine.config import EngineConfig, PoolConfig, RouterConfig
from engine.config_file import config_text
from engine.emulation import Emulation
from engine.shape import ModelShape

BLOCK = 16
# A client, a loop and a socket move an arrival by a millisecond or two, which no simulation can know.
DRAWS, MOVED_S = 12, 0.002  # simulations of a load; at most so much of the wall clock
BURSTS, BURSTING = 8, 0.25  # of a trace: how many bursts, and how much of the time they take


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths, tokens: `median`, at most `most`."""

    median: int
    most: int
    sigma: float = 0.5

    def draw(self, count: int, rng: np.random.Generator) -> Any:
        """So many of them, at least two tokens each. int64 [count]"""
        return rng.lognormal(math.log(self.median), self.sigma, count).clip(2, self.most).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests in bursts, a `share` of which begin with one of `documents` texts of `document` tokens.

    In a burst `burst` times as many come as between two. No request goes on from another one's answer: in a
    replay an answer has not the tokens that the next prompt would show.
    """

    prompt: Lengths  # behind the document
    output: Lengths
    documents: int = 1
    document: int = 0
    share: float = 0.0
    burst: float = 1.5

    def trace(self, requests: int, rate_rps: float, seed: int, moved: int) -> Trace:
        """So many requests at a mean rate. `moved`: another one has arrivals up to a mean gap later."""
        rng = np.random.default_rng(seed)
        arrival = np.sort(self._arrivals(requests, rng) + np.random.default_rng((seed, moved)).random(requests))
        own, output = self.prompt.draw(requests, rng), self.output.draw(requests, rng)
        about = np.where(rng.random(requests) < self.share, rng.integers(self.documents, size=requests), -1)
        shared = np.where(about >= 0, self.document // BLOCK * BLOCK, 0)
        return Trace(
            arrival_s=(arrival - arrival[0]) / rate_rps,
            prompt_tokens=own + shared,
            output_tokens=output,
            blocks=_blocks(own + shared, about, shared // BLOCK, self.documents),
        )

    def _arrivals(self, requests: int, rng: np.random.Generator) -> Any:
        """A Poisson process thinned between bursts; its mean gap is one."""
        every, peak = requests / BURSTS, self.burst / (1 + BURSTING * (self.burst - 1))
        times: list[float] = []
        now = 0.0
        while len(times) < requests:
            now += rng.exponential(1 / peak)
            if now % every < BURSTING * every or rng.random() < 1 / self.burst:
                times.append(now)
        return np.array(times)


def _blocks(prompt: Any, about: Any, shared: Any, documents: int) -> Blocks:
    """Of each prompt, `shared` blocks of the document that it is `about`, then its own."""
    counts = -(-prompt // BLOCK)
    starts = np.concatenate(([0], np.cumsum(counts)))
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
    inside = place < np.repeat(shared, counts)
    most = int(shared.max(initial=0)) or 1
    fresh = documents * most + np.arange(starts[-1])
    ids = np.where(inside, np.repeat(about, counts) * most + place, fresh)
    return Blocks(BLOCK, rank_by_first(ids)[1], starts)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """One plan: a layout by the name that a plan would give it, and how it was edited before its launch.

    `rates`: requests/s, below and above all that is looked for. `wanted`: attainment to be simulated at the
    rates that are rehearsed. In a fleet that is close to full, moving every arrival by a millisecond may change
    who shares an instance with whom, and by that a simulation's own attainment by ten points. The targets here
    are such that these rates leave room, and the figures do not depend on such accidents.
    """

    name: str
    target: Target
    traffic: Traffic
    layout: str
    rates: tuple[float, float]
    requests: int
    time_scale: float
    wanted: tuple[float, ...] = (0.94, 0.85, 0.78)
    edit: Callable[[Layout, Hardware], Layout] = lambda layout, _: layout
    max_queued: int = 256

    def trace(self, rate_rps: float, moved: int = 0) -> Trace:
        """Its traffic at a rate."""
        return self.traffic.trace(self.requests, rate_rps, 0, moved)

    def write(self, folder: Path) -> Launchable:
        """The files of the plan, as `advise launch` reads them."""
        every = measure(self.trace(sum(self.rates) / 2))
        situation = draw(every, self.target, {})
        hardware = hardware_of(situation, {})
        named = {one.name: one for one in layouts(hardware, situation.gpus, reuse=True)}
        layout = self.edit(named[self.layout], hardware)
        plan = _plan(self.target, layout, situation.shape)
        config = plan.engine_config()
        server = config.server.model_copy(update={"max_queued": self.max_queued})
        (folder / ENGINE).write_text(config_text(config.model_copy(update={"server": server})))
        (folder / PLAN).write_text(json.dumps({"plan": plan.model_dump(mode="json")}))
        return find(folder)


def _plan(target: Target, layout: Layout, shape: ModelShape) -> Plan:
    chosen = Candidate(name=layout.name, pools=layout.pools, router=layout.router, gpus=layout.gpus)
    use = choose_step_times(target, shape, layout.pools[0].tp, {}).use
    return Plan(
        target=target,
        step_time=use,
        candidates=(chosen,),
        chosen=layout.name,
        verdict="change",
        runs_on={"advise": "yes"},
    )


def simulated(trace: Trace, config: EngineConfig, emulation: Emulation) -> Outcome:
    """What the simulator makes of a trace on a deployment, with the numbers of its emulation."""
    return simulate(load_of(trace, config.pools[0].block_size), deployment(config, emulation))


def expected(
    trace: Trace, config: EngineConfig, emulation: Emulation, slo: Slo
) -> tuple[tuple[float, float, float], tuple[float, float]]:
    """What is to be expected of a replay: attainment, P90 TTFT, P90 TPOT; and how far it is down to chance.

    The mean of simulations of the same requests, each a little later than the log has it. Close to full, a
    fleet forgets nothing: who meets whom on an instance turns on a millisecond. Second: the standard deviation
    of attainment, and that of P90 TTFT over its mean.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        arrival_s = trace.arrival_s + rng.uniform(0, MOVED_S / emulation.time_scale, len(trace))
        order = np.argsort(arrival_s, kind="stable")
        moved = replace(trace.take(order), arrival_s=arrival_s[order] - arrival_s.min())
        outcome = simulated(moved, config, emulation)
        ttft, tpot = (float(np.nanpercentile(one, 90)) for one in (outcome.ttft_s, outcome.tpot_s))
        found.append((outcome.attainment(slo), ttft, tpot))
    attainment, ttft_s, tpot_s = np.mean(found, axis=0).tolist()
    by_chance = np.std(found, axis=0, ddof=1)
    return (attainment, ttft_s, tpot_s), (float(by_chance[0]), float(by_chance[1] / ttft_s))


def deployment(config: EngineConfig, emulation: Emulation) -> Deployment:
    """What is simulated for an emulated fleet."""
    pools = tuple(
        Pool(pool.model_copy(update={"kv_tokens": pool.kv_tokens or one.kv_tokens}), one.step_time)
        for pool, one in zip(config.pools, emulation.pools, strict=True)
    )
    link, transport = emulation.link, None
    if link is not None:
        transport = Transport(link.bytes_per_s, emulation.kv_bytes_per_token, link.latency_s)
    return Deployment(
        pools=pools,
        router=config.router,
        transport=transport,
        max_len=emulation.max_len,
        max_queued=config.server.max_queued,
    )


def _mixed(layout: Layout, hardware: Hardware) -> Layout:
    """A pair less of a split, and a colocated instance in its place; short prompts stay on the decode side."""
    prefill, decode = layout.pools
    alone: PoolConfig = pool_of(hardware, "colocated", 1, (1, 1), 512)
    pools = (prefill, decode.model_copy(update={"count": decode.count - 1}), alone)
    return replace(layout, pools=pools, router=RouterConfig(policy="prefix_affinity", bypass=True))


def _target(gpu: str, gpus: int, ttft_s: float, tpot_s: float) -> Target:
    return Target(model="llama-3.1-8b", gpu=gpu, gpus=gpus, slo=Slo(ttft_s=ttft_s, tpot_s=tpot_s))


REHEARSED = (
    Rehearsed(
        "replicas",
        _target("h100-sxm", 8, ttft_s=0.16, tpot_s=0.05),
        Traffic(Lengths(800, 4000), Lengths(50, 160), documents=128, document=1200, share=0.8),
        "8 x TP 1, chunked 512, by prefix",
        rates=(30, 140),
        requests=1000,
        time_scale=4,
        wanted=(0.94, 0.88, 0.85),
    ),
    Rehearsed(
        "prefixes",
        _target("a100-sxm-80g", 4, ttft_s=0.25, tpot_s=0.08),
        Traffic(Lengths(500, 3000), Lengths(40, 120), documents=30, document=1500, share=0.8),
        "4 x TP 1, chunked 512",
        rates=(8, 40),
        requests=700,
        time_scale=2,
        wanted=(0.94, 0.87, 0.83),
    ),
    Rehearsed(
        "split",
        _target("h100-sxm", 4, ttft_s=0.25, tpot_s=0.022),
        Traffic(Lengths(1500, 4000), Lengths(40, 120)),
        "3 prefill x TP 1 + 1 decode x TP 1",
        rates=(25, 70),
        requests=800,
        time_scale=4,
        max_queued=16,
    ),
    Rehearsed(
        "mixed",
        _target("h100-sxm", 4, ttft_s=0.1, tpot_s=0.04),
        Traffic(Lengths(600, 4000), Lengths(40, 120), documents=48, document=1500, share=0.6),
        "2 prefill x TP 1 + 2 decode x TP 1",
        rates=(15, 70),
        requests=800,
        time_scale=4,
        wanted=(0.94, 0.85, 0.79),
        edit=_mixed,
    ),
)
