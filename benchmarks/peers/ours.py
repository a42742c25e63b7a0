"""Our engine: the core and its executor, driven as the server drives them; see `benchmarks.peers`.

It also knows its own limits: a line {"limits": true} is answered with what the machine and the model's matrices
could do, and what whole steps take, all measured in turns.
"""

from __future__ import annotations

import sys
import time

started = time.perf_counter()

from collections.abc import Callable  # noqa: E402 (imports count as time to ready)
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from random import Random  # noqa: E402
from statistics import median  # noqa: E402

import msgspec  # noqa: E402
import torch  # noqa: E402

from engine.calibrate import build_step  # noqa: E402
from engine.config import PoolConfig  # noqa: E402
from engine.core import EngineCore  # noqa: E402
from engine.executors.torch import TorchExecutor  # noqa: E402
from engine.model.decoder import Decoder  # noqa: E402
from engine.request import Request, SamplingParams  # noqa: E402
from engine.step_time.model import StepShape  # noqa: E402

BLOCK = 16
POOL_TOKENS = 32_768
BUDGET = 512
MAX_LEN = 2048
BATCHES = (1, 8, 32)
TURNS = 7
READ_BYTES = 512 * 2**20  # far larger than any L3


def serve(executor: TorchExecutor, numbers: Random, *, streams: int, prompt: int, output: int) -> float:
    """Seconds in which `streams` requests that arrive together are answered."""
    pool = PoolConfig(token_budget=BUDGET, max_seqs=64, block_size=BLOCK, prefix_cache=False)
    core = EngineCore(pool, num_blocks=POOL_TOKENS // BLOCK, max_len=MAX_LEN)
    vocab, sampling = executor.shape.vocab, SamplingParams(max_tokens=output, ignore_eos=True)
    prompts = [tuple(numbers.randrange(3, vocab) for _ in range(prompt)) for _ in range(streams)]
    begun, produced = time.perf_counter(), 0
    for number, tokens in enumerate(prompts):
        core.add(Request(str(number), tokens, sampling), 0.0)
    while core.has_work:
        step = core.next_step(0.0)
        assert step is not None
        events = core.complete(step.id, executor.submit(step).result(), 0.0)
        produced += sum(event.token is not None for event in events)
    assert produced == streams * output
    return time.perf_counter() - begun


def limits(executor: TorchExecutor, model: Decoder) -> dict[str, float]:
    """Milliseconds: reading the weights once at this machine's bandwidth, the matrices alone, whole steps.

    To be called on the executor's own thread: another one would bring threads that spin beside its.
    """
    touched = torch.ones(READ_BYTES // 4)
    numbers = Random(0)
    shapes = {f"decode {rows}": StepShape((), rows, 64 * rows) for rows in BATCHES}
    shapes["prefill 512"] = StepShape(prefill=((512, 0),))
    measured: dict[str, Callable[[], object]] = {"read": touched.sum}
    for name, shape in shapes.items():
        step = build_step(1, shape, BLOCK, executor.shape.vocab, numbers)
        measured[f"matrices of {name}"] = _products(model, shape.tokens, max(1, shape.decode_rows))
        measured[name] = partial(executor._run, step)
    times: dict[str, list[float]] = {name: [] for name in measured}
    for turn in range(TURNS + 1):
        for name, run in measured.items():
            begun = time.perf_counter()
            run()
            if turn:  # the first is to warm up
                times[name].append((time.perf_counter() - begun) * 1e3)
    found = {name: median(taken) for name, taken in times.items()}
    found["bandwidth"] = READ_BYTES / found["read"] * 1e3  # bytes a second
    found["weights"] = model.weight_bytes / found["bandwidth"] * 1e3
    return found


def _products(model: Decoder, tokens: int, sampled: int) -> Callable[[], object]:
    """All matrix products of a step, the vocabulary's for its sampled tokens, and nothing else."""
    shape, dtype = model.shape, model.norm.dtype
    hidden, heads, ffn = (
        torch.randn(tokens, size).to(dtype) for size in (shape.hidden, shape.heads * shape.head_dim, shape.ffn)
    )

    @torch.inference_mode()
    def run() -> None:
        for layer in model.layers:
            layer.qkv(hidden)
            layer.out(heads)
            layer.gated(hidden)
            layer.down(ffn)
        model.vocabulary.logits(hidden[-sampled:])

    return run


def main() -> None:
    """Serve rows until stdin ends."""
    folder, dtype, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    numbers = Random(0)

    def say(line: dict[str, float]) -> None:
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
        sys.stdout.flush()

    with TorchExecutor(
        folder, dtype=dtype, threads=threads, num_blocks=POOL_TOKENS // BLOCK, block_size=BLOCK, pin=True
    ) as executor:
        serve(executor, numbers, streams=1, prompt=16, output=4)
        say({"ready": time.perf_counter() - started})
        for line in sys.stdin:
            row = msgspec.json.decode(line)
            if row.pop("limits", False):
                model = executor._runner.model
                assert isinstance(model, Decoder)
                say(executor._worker.submit(partial(limits, executor, model)).result())
            else:
                say({"seconds": serve(executor, numbers, **row)})


if __name__ == "__main__":
    main()
