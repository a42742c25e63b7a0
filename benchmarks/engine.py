"""The engine beside Hugging Face transformers and the memory's limit, on the same weights and threads.

    python -m benchmarks.engine [--model PATH] [--dtype bfloat16] [--threads 1]

Decode is timed at a context of 256 tokens; the limit is the time to read the weights and the batch's KV
once. Each figure is the median of several steps, engine and transformers taking turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median

import torch
import transformers

from engine.calibrate import build_step
from engine.executors.torch import TorchExecutor, probe_dtype
from engine.fetch import model_folder
from engine.step_time.model import StepShape

CONTEXT = 256
BLOCK = 16
BATCHES = (1, 8, 32)
PROMPT = 512
RUNS = 3
STEPS = 8


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def read_bandwidth() -> float:
    """Bytes a second that the engine's threads read from memory, not from a cache."""
    numbers = torch.ones(128 * 1024 * 1024)
    return numbers.numel() * numbers.element_size() / min(seconds(numbers.sum) for _ in range(5))


class Peer:
    """transformers with its own KV cache."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0

    def generate(self, batch: int, prompt: int, tokens: int) -> tuple[float, list[float]]:
        """Seconds to the first token, and of each decode step after it."""
        ids = torch.randint(3, 1000, (batch, prompt))
        times = [time.perf_counter()]
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
            stopping_criteria=[lambda ids, _scores: _stamp(times, ids)],
        )
        gaps = [later - earlier for earlier, later in pairwise(times)]
        return gaps[0], gaps[1:]


def _stamp(times: list[float], ids: torch.Tensor) -> torch.Tensor:
    """Note the time of a token, and stop nothing."""
    times.append(time.perf_counter())
    return torch.zeros(len(ids), dtype=torch.bool)


def engine_step(executor: TorchExecutor, shape: StepShape) -> float:
    """Seconds of one step of this shape."""
    step = build_step(1, shape, BLOCK, executor.shape.vocab, Random(0))
    return seconds(lambda: executor.submit(step).result())


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="folder, GGUF file or hub name; default: the embedded model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = model_folder(options.model, fetch=True, progress=print)
    dtype = probe_dtype() if options.dtype == "auto" else options.dtype
    peer = Peer(folder, getattr(torch, dtype))
    blocks = max(BATCHES) * (CONTEXT // BLOCK + 1) + PROMPT // BLOCK + 2
    with TorchExecutor(
        folder, dtype=dtype, threads=options.threads, num_blocks=blocks, block_size=BLOCK
    ) as executor:
        print(f"{folder.name}, {dtype}, {options.threads} thread(s), torch {torch.__version__}")
        print(f"{'':24}{'engine':>10}{'transformers':>14}{'ratio':>8}{'limit':>10}")
        decode_table(executor, peer, read_bandwidth())
        prefill_row(executor, peer)


def decode_table(executor: TorchExecutor, peer: Peer, bandwidth: float) -> None:
    """Print milliseconds a decode step, a line a batch size."""
    element = 4 if executor.dtype == "float32" else 2
    for batch in BATCHES:
        shape = StepShape((), batch, batch * CONTEXT)
        engine_step(executor, shape)
        ours, theirs = [], []
        for _ in range(RUNS):
            theirs += peer.generate(batch, CONTEXT, STEPS + 1)[1]
            ours += [engine_step(executor, shape) for _ in range(STEPS)]
        sizes = executor.shape
        read = sizes.weight_bytes(element) + batch * CONTEXT * sizes.kv_bytes_per_token(element)
        limit = read / bandwidth * 1e3
        name = f"decode, batch {batch}, ms"
        ms, peer_ms = median(ours) * 1e3, median(theirs) * 1e3
        print(f"{name:24}{ms:10.1f}{peer_ms:14.1f}{peer_ms / ms:8.2f}{limit:10.1f}")


def prefill_row(executor: TorchExecutor, peer: Peer) -> None:
    """Print prompt tokens a second."""
    shape = StepShape(prefill=((PROMPT, 0),))
    engine_step(executor, shape)
    pairs = [(engine_step(executor, shape), peer.generate(1, PROMPT, 1)[0]) for _ in range(RUNS)]
    ours, theirs = (PROMPT / median(values) for values in zip(*pairs, strict=True))
    name = f"prefill {PROMPT}, tokens/s"
    print(f"{name:24}{ours:10.0f}{theirs:14.0f}{ours / theirs:8.2f}")


if __name__ == "__main__":
    main()
