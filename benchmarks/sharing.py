"""How fast sharing is measured: the one-pass stack distances beside an explicit LRU cache, on the same traces.

Prints block accesses per second of both, whether their hits are equal, and the time of the whole `measure`. The
cache is simulated for one size; the pass gives every size, so a curve of 32 takes the cache 32 times as long.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from advisor.logs.trace import Blocks, Trace
from advisor.workload.measure import measure
from advisor.workload.runs import find_runs
from advisor.workload.stack_distance import find_reuses

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from helpers.lru import simulate  # noqa: E402 - the oracle of the tests
from helpers.workload_traces import make_trace, mooncake  # noqa: E402

CAPACITY = 10_000  # blocks
SIZE = 512  # tokens per block


def generated(requests: int, seed: int = 0) -> Trace:
    """Traffic like Mooncake's: one shared first block, then sessions whose history grows.

    Every request goes on with one of the last 2,000 sessions; half of them begin a session first.
    """
    rng = np.random.default_rng(seed)
    histories: list[list[int]] = []
    paths, blocks = [], 1
    for _ in range(requests):
        if not histories or rng.random() < 0.5:
            histories.append([0])
        history = histories[int(rng.integers(max(0, len(histories) - 2000), len(histories)))]
        grown = 1 + int(rng.exponential(14))
        history.extend(range(blocks, blocks + grown))
        blocks += grown
        paths.append(list(history))
    return make_trace(
        [len(path) * SIZE - int(rng.integers(SIZE)) for path in paths],
        rng.integers(1, 700, requests).tolist(),
        arrivals=np.sort(rng.uniform(0, requests / 3.4, requests)).tolist(),
        blocks=paths,
        size=SIZE,
    )


def report(name: str, trace: Trace, blocks: Blocks, with_cache: bool) -> None:
    """Time both on one trace and print a line for each."""
    accesses = len(blocks.ids)
    start = time.perf_counter()
    runs = find_runs(blocks, trace.prompt_tokens)
    hits = find_reuses(runs).count_hits(np.array([CAPACITY]))[0]
    one_pass = time.perf_counter() - start
    print(f"{name}: {len(trace):,} requests, {accesses:,} block accesses, {len(runs):,} in runs")
    print(f"  one pass, every size   {one_pass:8.2f} s  {accesses / one_pass:12,.0f} accesses/s")
    if with_cache:
        start = time.perf_counter()
        simulated = simulate(trace, CAPACITY)
        cache = time.perf_counter() - start
        equal = "equal" if simulated == tuple(hits.astype(int).tolist()) else "DIFFERENT"
        print(f"  LRU cache, one size    {cache:8.2f} s  {accesses / cache:12,.0f} accesses/s  hits {equal}")
    start = time.perf_counter()
    measure(trace)
    print(f"  measure(), everything  {time.perf_counter() - start:8.2f} s")


def main() -> None:
    """The public Mooncake trace where it lies beside the checkout, and generated traffic of two sizes."""
    measure(generated(100))  # imports scikit-learn outside the timing
    traces = {"generated": generated(12_000), "generated, large": generated(140_000)}
    if (ROOT.parent / "shared").is_dir():
        traces = {"mooncake conversation": mooncake(ROOT.parent / "shared")} | traces
    for name, trace in traces.items():
        if trace.blocks is not None:
            report(name, trace, trace.blocks, with_cache=len(trace) < 100_000)


if __name__ == "__main__":
    main()
