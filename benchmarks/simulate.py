"""How fast a simulation is: requests a second on one core, how that grows with load, and its memory.

The Azure conversation trace (19,366 requests, 26 million tokens) on one colocated instance, chunked:
Llama-3.1-8B on one H100 by the roofline. CPU seconds of this process, the best of some runs. Beside it what
peers are known to do, which are not run. Memory is sampled while requests end, so that what it grows by is not
the columns of load and result, which are there from the start.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from advisor.advice import profiles
from advisor.advice.steps import gpu_roofline
from advisor.logs.read import read
from advisor.logs.trace import IntColumn
from advisor.simulation.deployment import Deployment, Pool
from advisor.simulation.from_trace import load_of
from advisor.simulation.goodput import Patient
from advisor.simulation.load import Load
from advisor.simulation.outcome import Outcome
from advisor.simulation.simulate import Watch, simulate
from engine.config import PoolConfig

ROOT = Path(__file__).resolve().parent.parent
TRACE = ROOT.parent / "shared/traces/azure-llm-2023/AzureLLMInferenceTrace_conv.csv"
BLOCK, KV_TOKENS = 16, 400_000  # of an H100: (80 GB x 0.9 - 16 GB of weights) / 131,072 bytes
TARGET = 10_000  # requests/s
PEERS = (("Vidur", "about 410, on such a machine"), ("AISimulate", "2,000 to 2,650, as measured"))


def generated(requests: int = 19_366, seed: int = 0) -> Load:
    """Lengths and rate as published for the trace: prompts 1,155 / 1,020, outputs 211 / 129 (mean / median)."""
    rng = np.random.default_rng(seed)

    def lengths(mean: float, median: float) -> IntColumn:
        sigma = np.sqrt(2 * np.log(mean / median))
        return np.maximum(1, rng.lognormal(np.log(median), sigma, requests)).astype(np.int64)

    alone, nothing = np.arange(requests), np.full(requests, np.nan)
    arrival_s = np.cumsum(rng.exponential(1 / 5.53, requests))
    prompt, output = lengths(1154.7, 1020), lengths(211, 129)
    return Load(arrival_s, prompt, output, ((),) * requests, BLOCK, alone, np.full(requests, -1), nothing)


def deployment(budget: int, *, kv_tokens: int = KV_TOKENS, max_seqs: int = 128) -> Deployment:
    """One instance."""
    step_time = gpu_roofline(profiles.model("llama-3.1-8b").shape, "h100-sxm", "vllm")
    config = PoolConfig(token_budget=budget, max_seqs=max_seqs, kv_tokens=kv_tokens, block_size=BLOCK)
    return Deployment((Pool(config, step_time),))


def best(run: Callable[[], Outcome], times: int) -> tuple[float, Outcome]:
    """CPU seconds of the fastest run, and its outcome."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        outcome = run()
        seconds.append(time.process_time() - start)
    return min(seconds), outcome


def report(name: str, load: Load, served_by: Deployment, times: int) -> float:
    """Print a line; returns requests/s."""
    seconds, outcome = best(lambda: simulate(load, served_by), times)
    print(
        f"  {name:40} {len(load) / seconds:8,.0f} requests/s   mean TTFT {np.nanmean(outcome.ttft_s):8.3f} s"
        f"   {outcome.preemptions:6,} preemptions"
    )
    return len(load) / seconds


def repeated(load: Load, times: int) -> Load:
    """The same traffic so many times, one after the other."""
    span = load.span_s + load.span_s / max(1, len(load) - 1)
    return replace(
        load,
        arrival_s=np.concatenate([load.arrival_s + span * i for i in range(times)]),
        prompt_tokens=np.tile(load.prompt_tokens, times),
        output_tokens=np.tile(load.output_tokens, times),
        runs=load.runs * times,
        session=np.arange(len(load) * times),
        parent=np.full(len(load) * times, -1),
        think_s=np.full(len(load) * times, np.nan),
    )


class Memory(Patient):
    """Samples what is allocated while requests end."""

    __slots__ = ("_ends", "samples")

    def __init__(self) -> None:
        self._ends = 0
        self.samples: list[int] = []

    def ended(self, *, ttft_s: float, tpot_s: float, max_gap_s: float) -> bool:  # noqa: ARG002 - as a Watch is called
        """A request was served."""
        self._ends += 1
        if self._ends % 500 == 0:
            self.samples.append(tracemalloc.get_traced_memory()[0])
        return False


def memory(load: Load, served_by: Deployment) -> None:
    """Print what one, two and four times the load hold at most, beyond what they held at the first sample."""
    for times in (1, 2, 4):
        more, watch = repeated(load, times), Memory()
        tracemalloc.start()
        checked: Watch = watch
        simulate(more, served_by, watch=checked)
        tracemalloc.stop()
        grown = (max(watch.samples) - watch.samples[0]) / 1e6
        first = watch.samples[0] / 1e6
        print(f"  {len(more):8,} requests: {first:6.1f} MB after the first 500, at most {grown:5.1f} MB more")


def main() -> None:
    """Speed at several loads, the peers, and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path, default=TRACE)
    parser.add_argument("--runs", type=int, default=3, help="the best counts")
    parser.add_argument("--requests", type=int, help="only the first so many")
    options = parser.parse_args()
    found = options.trace.is_file()
    load = load_of(read([options.trace]), BLOCK) if found else generated()
    load = load.take(np.arange(min(len(load), options.requests or len(load))))
    print(
        f"{options.trace.name if found else 'generated, no trace found'}: {len(load):,} requests, one instance"
    )
    speed = report("budget 2048, vLLM's for a server", load, deployment(2048), options.runs)
    report("budget 512, as in Sarathi-Serve", load, deployment(512), options.runs)
    at_once = replace(load, arrival_s=np.zeros(len(load)))
    report("overloaded: all there at once", at_once, deployment(2048), 1)
    fast, little = replace(load, arrival_s=load.arrival_s / 4), deployment(2048, kv_tokens=30_000, max_seqs=512)
    report("four times as fast, 30,000 tokens of KV", fast, little, 1)
    report("  the first half of it", fast.take(np.arange(len(load) // 2)), little, 1)
    for name, known in PEERS:
        installed = importlib.util.find_spec(name.lower()) is not None
        print(f"  {name:40} {known} ({'installed' if installed else 'not installed here'})")
    print(f"  {speed / TARGET:.2f} of the target of {TARGET:,} on a quiet core")
    memory(load, deployment(2048))


if __name__ == "__main__":
    main()
