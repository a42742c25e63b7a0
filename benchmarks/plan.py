"""How long a plan by simulation takes and what it finds, beside random search and a peer's replay.

    python -m benchmarks.plan [--processes N] [mooncake] [generated] [azure]

Prints for each log the seconds until the chosen plan with its attribution, those of all that follows (flip
points, mean trap, GPUs needed, random search at equal cost), and the simulated requests of each part. Then, for
the Azure code log at 4 requests/s, the P90 TTFT of 1, 2, 4 and 8 GPUs beside those of a peer's replay on H200.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from advisor.advice.control import default_control
from advisor.advice.search.hardware import hardware_of
from advisor.advice.search.judge import Goal, Job, at_rate
from advisor.advice.search.layout import Layout, colocated
from advisor.advice.simulated import Simulated, SimulationOptions, simulate_plan
from advisor.advice.situation import draw
from advisor.advice.target import Target
from advisor.logs.trace import Trace
from advisor.simulation.from_trace import load_of
from advisor.simulation.slo import Slo
from advisor.workload.arrivals import spread_trace
from advisor.workload.measure import measure

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
sys.path.insert(0, str(ROOT / "tests"))

from helpers.planted import azure_code_at, documents  # noqa: E402 - the logs of the tests
from helpers.workload_traces import mooncake  # noqa: E402

BLOCK = 16
AZURE_REQUESTS, AZURE_RPS = 2000, 4.0
PEER_TTFT_P90_S = {1: 45.5, 2: 9.3, 4: 2.1, 8: 0.5}  # Qwen3-32B-FP8 on H200, first 2,000 requests at 4/s


@dataclass
class Clock:
    """Simulated requests and the last second of each part of a plan."""

    began: float = field(default_factory=time.perf_counter)
    requests: Counter[str] = field(default_factory=Counter)
    until_s: dict[str, float] = field(default_factory=dict)

    def __call__(self, what: str, requests: int) -> None:
        self.requests[what] += requests
        self.until_s[what] = time.perf_counter() - self.began


def main() -> None:
    """Print the figures of the logs that are named, of all without a name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="*", default=[], help="mooncake, generated, azure")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    wanted = options.logs or ["mooncake", "generated", "azure"]
    slo = Slo(ttft_s=10, tpot_s=0.1)  # of Mooncake's own order: 30 s and 0.1 to 0.3 s between tokens
    if "mooncake" in wanted:
        report("Mooncake conversation", mooncake(SHARED), slo, options.processes)
    if "generated" in wanted:
        report("generated", documents(10_000, 8.0, shared=True), Slo(ttft_s=2, tpot_s=0.06), options.processes)
    if "azure" in wanted:
        beside_peer()


def report(name: str, trace: Trace, slo: Slo, processes: int) -> None:
    """One log on 8 H100, Qwen3-32B in 8 bits."""
    target = Target(model="qwen3-32b", dtype="fp8", gpu="h100-sxm", gpus=8, stack="vllm", slo=slo)
    situation = draw(measure(trace), target, {})
    load = load_of(spread_trace(trace)[0], BLOCK)
    control = default_control(target, hardware_of(situation, {}), situation.gpus)
    before, clock = _cpu_s(), Clock()
    now = None if control is None else control.layout
    options = SimulationOptions(control=now, processes=processes, progress=clock)
    plan = simulate_plan(situation, load, {}, options)
    whole_s = time.perf_counter() - clock.began
    chosen_s = max(
        clock.until_s.get(part, 0.0) for part in ("searching", "attribution", "checking", "turns that wait")
    )
    print(f"{name}: {len(load):,} requests, {load.span_s:,.0f} s, {processes} processes")
    print(f"  chosen plan and attribution {chosen_s:.1f} s, all that follows {whole_s - chosen_s:.1f} s,")
    print(f"  processor time of all {_cpu_s() - before:.1f} s")
    for part, requests in clock.requests.items():
        print(f"  {requests:9,} simulated requests {part}")
    _answer(plan)


def _answer(plan: Simulated) -> None:
    decision = plan.decision
    for one in plan.found.finalists:
        print(f"  {one.per_gpu:8.4f} requests/s per GPU: {one.layout.name}")
    for row, judged in plan.attribution:
        print(f"  {judged.per_gpu:8.4f} {row}")
    print(f"  {decision.verdict}: {decision.chosen and decision.chosen.layout.name} ({decision.why})")
    best, rival = plan.found.best, plan.random
    if best is not None and rival is not None:
        print(f"  random search at equal count: {rival.per_gpu / best.per_gpu - 1:+.1%} ({rival.layout.name})")
    print(f"  mean trap {plan.mean_trap}, {len(plan.flips)} flip points, GPUs needed {plan.gpus_needed}")


def beside_peer() -> None:
    """P90 TTFT by the number of GPUs, with the defaults of vLLM, beside the peer's replay."""
    trace = azure_code_at(SHARED, AZURE_REQUESTS, AZURE_RPS)
    load = load_of(spread_trace(trace)[0], BLOCK)
    print(f"Azure code, {len(load):,} requests at {AZURE_RPS:g}/s, Qwen3-32B fp8: P90 TTFT, s")
    print("  GPUs  peer, H200   " + "   ".join(f"{gpu:>10}" for gpu in ("h100-sxm", "h200-sxm")))
    for gpus, peer in PEER_TTFT_P90_S.items():
        found = [_ttft_p90_s(gpu, gpus, trace) for gpu in ("h100-sxm", "h200-sxm")]
        print(f"  {gpus:4} {peer:11.1f}   " + "   ".join(f"{value:10.2f}" for value in found))


def _ttft_p90_s(gpu: str, gpus: int, trace: Trace) -> float:
    slo = Slo(ttft_s=0.5, tpot_s=0.06)
    target = Target(model="qwen3-32b", dtype="fp8", gpu=gpu, gpus=gpus, stack="vllm", slo=slo)
    situation = draw(measure(trace), target, {})
    hardware, load = hardware_of(situation, {}), load_of(spread_trace(trace)[0], BLOCK)
    layout: Layout = colocated(hardware, gpus, 1, 8192, "least_loaded")
    job = Job(layout, hardware, 0, AZURE_RPS, 0.1)
    return at_rate(job, load, Goal(slo), len(load) / load.span_s).ttft_p90_s or float("nan")


def _cpu_s() -> float:
    """Processor seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
