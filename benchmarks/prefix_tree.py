"""What the prefix cache costs where there is nothing to reuse: its share of the steps' wall time.

    python -m benchmarks.prefix_tree [--steps 10000] [--sample 200] [--mean-ms 20] [--model PATH]

Requests with random prompts, so that every look-up fails, every page is published for nobody and, once the pool
is full, every new block is an evicted one. First a sample of steps of the real model (TorchExecutor), then as
many steps as asked for at the step times fitted to that sample (EmulatedExecutor, which sleeps). The step's
wall time is from `next_step` to the end of `complete`; what a server adds would only make the share smaller.

Target: at most 0.5 %. SGLang (section 6.3) counts 0.2 s of 74.3 s for its radix tree in the same case, 0.3 %.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from engine.config import PoolConfig
from engine.core import EngineCore
from engine.kv.cache import KVCache
from engine.kv.prefix import PrefixTree
from engine.request import Request, SamplingParams
from engine.step import Executor
from engine.step_time.fit import MIN_STEPS, fit
from engine.step_time.model import StepShape

BLOCK = 16
PROMPTS, OUTPUTS = (32, 512), (16, 160)
TARGET = 0.005
SAMPLE_S = 120.0
# What belongs to the prefix cache: a call of the cache takes in those of the tree that it makes.
TIMED = {
    "match": ("cache", "match"),
    "hold": ("cache", "_hold"),
    "publish": ("cache", "publish"),
    "release": ("cache", "release"),
    "give back": ("cache", "_give_back"),
    "evict": ("tree", "evict"),
}

Clock = Callable[[], float]


@dataclass
class Spent:
    """Seconds and calls by kind; a call within another counts as part of that one alone."""

    clock: Clock
    seconds: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    inside: bool = False

    def timed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, its time noted under `kind`."""

        def wrapped(*args: Any, **named: Any) -> Any:
            if self.inside:
                return function(*args, **named)
            self.inside = True
            started = self.clock()
            try:
                return function(*args, **named)
            finally:
                self.seconds[kind] += self.clock() - started  # type: ignore[assignment]
                self.calls[kind] += 1
                self.inside = False

        return wrapped


@contextmanager
def timed_cache(spent: Spent) -> Iterator[None]:
    """Within this, what every core's prefix cache does is noted in `spent`."""
    owners = {"cache": KVCache, "tree": PrefixTree}
    before = [(owners[owner], name, getattr(owners[owner], name)) for owner, name in TIMED.values()]
    try:
        for (kind, _), (owner, name, function) in zip(TIMED.items(), before, strict=True):
            setattr(owner, name, spent.timed(kind, function))
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


@dataclass
class Run:
    """What a number of steps took, seconds, and what the cache did in it."""

    spent: Spent
    wall_s: float
    steps: int
    shapes: list[StepShape]
    seconds: list[float]  # of each step in the executor
    hit_tokens: int

    @property
    def share(self) -> float:
        """Of the steps' wall time, in the prefix cache."""
        return sum(self.spent.seconds.values()) / self.wall_s


def requests(seed: int, vocab: int) -> Iterator[Request]:
    """Requests that share nothing, without end."""
    random, number = Random(seed), 0
    while True:
        prompt = tuple(random.randrange(vocab) for _ in range(random.randrange(*PROMPTS)))
        sampling = SamplingParams(max_tokens=random.randrange(*OUTPUTS), ignore_eos=True)
        yield Request(f"r{number}", prompt, sampling)
        number += 1


def run(
    executor: Executor,
    *,
    steps: int,
    at_once: int,
    num_blocks: int,
    vocab: int,
    clock: Clock = time.perf_counter,
    most_s: float = math.inf,
    seed: int = 0,
) -> Run:
    """So many steps with always `at_once` open requests; where they take over `most_s`, fewer: `MIN_STEPS`."""
    pool = PoolConfig(block_size=BLOCK, max_seqs=at_once)
    with timed_cache(spent := Spent(clock)):
        core = EngineCore(pool, num_blocks=num_blocks, max_len=PROMPTS[1] + OUTPUTS[1])
        source, open_requests = requests(seed, vocab), 0
        done = Run(spent, 0.0, 0, [], [], 0)
        while done.steps < steps and (done.wall_s < most_s or done.steps < MIN_STEPS):
            while open_requests < at_once:
                core.add(next(source), clock())
                open_requests += 1
            started = clock()
            step = core.next_step(started)
            if step is None:
                raise RuntimeError("requests are open, but no step was made")
            handed = clock()
            result = executor.submit(step).result()
            came = clock()
            events = core.complete(step.id, result, came)
            done.wall_s += clock() - started
            done.seconds.append(came - handed)
            done.shapes.append(StepShape.of(step))
            done.steps += 1
            open_requests -= sum(event.finish_reason is not None for event in events)
        done.hit_tokens = core.stats().prefix_hit_tokens
    return done


def report(name: str, done: Run) -> None:
    """Print one run."""
    spent = done.spent
    each_ms = done.wall_s / done.steps * 1e3
    print(f"{name}: {done.steps} steps, {each_ms:.2f} ms each, {done.hit_tokens} tokens hit")
    for kind in TIMED:
        calls = spent.calls[kind]
        if calls:
            each, share = spent.seconds[kind] / calls * 1e6, spent.seconds[kind] / done.wall_s
            print(f"  {kind:10}{calls:9} calls{each:8.1f} us each{share:9.3%}")
    print(f"  {'together':10}{sum(spent.calls.values()):9} calls{'':16}{done.share:9.3%}")


def main() -> None:
    """Measure and print the share; exit 1 above the target."""
    import torch

    from engine.executors.emulated import EmulatedExecutor
    from engine.executors.torch import TorchExecutor
    from engine.fetch import model_folder
    from engine.host import usable_cores
    from engine.step_time.scaled import ScaledStepTime

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--sample", type=int, default=200, help="steps of the real model")
    parser.add_argument("--requests-at-once", type=int, default=8)
    parser.add_argument("--mean-ms", type=float, default=20.0, help="longest mean of an emulated step")
    parser.add_argument("--model", help="folder, GGUF file or hub name; default: the embedded model")
    options = parser.parse_args()
    at_once = options.requests_at_once
    folder = model_folder(options.model, fetch=True, progress=print)
    # Room for those at once and half as many again: the pool is full soon, then every block is an evicted one.
    num_blocks = at_once * (PROMPTS[1] + OUTPUTS[1]) // BLOCK * 3 // 2
    sizes = {"at_once": at_once, "num_blocks": num_blocks}
    with TorchExecutor(
        folder, dtype="auto", threads=usable_cores(), num_blocks=num_blocks, block_size=BLOCK
    ) as executor:
        vocab = executor.shape.vocab
        real = run(executor, steps=options.sample, most_s=SAMPLE_S, vocab=vocab, **sizes)
        report(f"{folder.name}, {executor.dtype}, {torch.get_num_threads()} threads", real)
    times = fit(real.shapes, real.seconds)
    mean_s = sum(map(times.seconds, real.shapes)) / len(real.shapes)
    factor = min(1.0, options.mean_ms / 1e3 / mean_s)
    shorter = ScaledStepTime(times, factor, factor)
    print(f"fitted mean {mean_s * 1e3:.1f} ms a step, emulated {mean_s * factor * 1e3:.1f} ms")
    kv = np.zeros((2, num_blocks, BLOCK), np.uint32)
    emulated = EmulatedExecutor(shorter, kv, sleep=time.sleep, clock=time.monotonic, vocab=vocab)
    done = run(emulated, steps=options.steps, vocab=vocab, seed=1, **sizes)
    report("at these times", done)
    tree_us = sum(done.spent.seconds.values()) / done.steps * 1e6
    print(f"{tree_us:.0f} us a step: {TARGET:.1%} of a step of {tree_us / TARGET / 1e3:.1f} ms")
    print(f"share of the steps' wall time: {done.share:.3%} (target {TARGET:.1%}; SGLang's own tree 0.3%)")
    raise SystemExit(done.share > TARGET)


if __name__ == "__main__":
    main()
