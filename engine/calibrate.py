"""Measures step times: `python -m engine.calibrate --model FOLDER --out FILE.jsonl`.

Runs designed steps straight on the executor, no server and no scheduler, and writes them in the step-log
format: a header line, then {"step", "seconds", "prefill": [[new, context], ...], "decode_rows",
"decode_context"}.
The design is passed through again and again until the time is over, each pass in a new order with new
contexts, so that drift of the machine biases nothing and the model that is fitted has steps to be tested on.
A step's time ends with its tokens on the host, so that on a GPU it is the device's and not the launch's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec

from engine import __version__
from engine.devices import cuda_gpus
from engine.errors import AdviseError, InputError
from engine.executors.torch import TorchExecutor
from engine.request import SamplingParams
from engine.shape import ModelShape
from engine.step import Step, StepRow
from engine.step_time.model import StepShape


@dataclass(frozen=True, slots=True)
class Grid:
    """What steps a design is made of.

    `chunks`: query tokens of a prefill row; `batches`: decode rows; `contexts`: mean context of a row, tokens;
    `mixed`: (chunk, decode rows) of one step; `pool_tokens`: KV tokens of the calibration's own pool, to which
    contexts of large batches are cut.
    """

    chunks: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    mixed: tuple[tuple[int, int], ...]
    pool_tokens: int


CPU_GRID = Grid(
    chunks=(16, 64, 128, 256, 512),
    batches=(1, 2, 4, 8, 16, 32),
    contexts=(32, 256, 1024),
    mixed=((64, 4), (128, 8), (256, 8), (256, 24)),
    pool_tokens=16_384,
)
GPU_GRID = Grid(
    chunks=(16, 64, 128, 256, 512, 1024, 2048, 4096),
    batches=(1, 2, 4, 8, 16, 32, 64, 128),
    contexts=(32, 256, 1024),
    mixed=((64, 4), (256, 8), (512, 32), (512, 96), (2048, 16)),
    pool_tokens=65_536,
)


def design(shape: ModelShape, random: Random, grid: Grid = CPU_GRID) -> list[StepShape]:
    """One pass: prefills, decodes and mixed steps in random order, contexts uniform around their means."""

    def context(mean: int, new: int, rows: int) -> int:
        room = min(shape.max_len, grid.pool_tokens // (rows + 1)) - new
        return min(random.randint(1, 2 * mean), room)

    def decodes(rows: int, mean: int) -> tuple[int, int]:
        return rows, sum(context(mean, 1, rows) for _ in range(rows))

    chunks = [chunk for chunk in grid.chunks if 2 * chunk <= shape.max_len]
    steps = [StepShape(prefill=((chunk, 0),)) for chunk in chunks]
    steps += [
        StepShape(prefill=((chunk, context(random.choice(grid.contexts), chunk, 1)),)) for chunk in chunks
    ]
    steps += [StepShape((), *decodes(rows, mean)) for mean in grid.contexts for rows in grid.batches]
    for chunk, rows in grid.mixed:
        if chunk in chunks:
            mean = random.choice(grid.contexts)
            steps.append(StepShape(((chunk, context(mean, chunk, rows)),), *decodes(rows, mean)))
    random.shuffle(steps)
    return steps


def build_step(number: int, shape: StepShape, block_size: int, vocab: int, random: Random) -> Step:
    """A Step of this shape: random tokens, decode contexts about equal, blocks as a pool gives them in time.

    That is in no order: an engine reads blocks that lie behind each other faster than it will those it serves.
    """
    rows: list[StepRow] = []
    count = shape.decode_rows
    parts = [(1, (shape.decode_context + row) // count, False) for row in range(count)]
    parts += [(new, context, True) for new, context in shape.prefill]
    needed = [-(-(new + context) // block_size) for new, context, _ in parts]
    free = list(range(1, sum(needed) + 1))
    random.shuffle(free)
    for (new, context, prefill), size in zip(parts, needed, strict=True):
        blocks = tuple(free.pop() for _ in range(size))
        tokens = tuple(random.choices(range(vocab), k=new))
        rows.append(StepRow(str(len(rows)), tokens, context, blocks, True, prefill, SamplingParams()))
    return Step(number, tuple(rows))


def measure(
    executor: TorchExecutor, *, block_size: int, seconds: float, seed: int, grid: Grid = CPU_GRID
) -> Iterator[tuple[StepShape, float]]:
    """Shapes and their measured seconds, for about `seconds` and at least two passes.

    A step with a number of query tokens not seen before runs once unmeasured: kernels are made ready for each.
    """
    random = Random(seed)
    end = time.perf_counter() + seconds
    ready: set[int] = set()
    number = 0
    for turn in range(sys.maxsize):
        for shape in design(executor.shape, random, grid):
            if turn >= 2 and time.perf_counter() >= end:
                return
            number += 1
            step = build_step(number, shape, block_size, executor.shape.vocab, random)
            if step.query_tokens not in ready:
                ready.add(step.query_tokens)
                executor.submit(step).result()
            started = time.perf_counter()
            executor.submit(step).result()
            yield shape, time.perf_counter() - started


def calibrate(
    folder: Path,
    out: Path,
    *,
    dtype: str,
    threads: int,
    seconds: float,
    block_size: int,
    seed: int,
    tp: int = 1,
    device: str = "cpu",
    dummy: bool = False,
) -> None:
    """Measure `folder`'s model on this machine and write the step log `out`.

    `device` "auto" is this machine's GPUs, else its cores. On cores the `tp` ranks share `threads`. Raises
    InputError where they cannot do so equally.
    """
    gpus = cuda_gpus() if device != "cpu" else ()
    grid = GPU_GRID if gpus else CPU_GRID
    if not gpus and threads % tp:
        raise InputError(
            f"{threads} threads cannot be shared equally by {tp} ranks", hint="advise calibrate --tp 1"
        )
    # One partly filled block a row, and the trash block.
    num_blocks = grid.pool_tokens // block_size + max(grid.batches) + 2
    with (
        TorchExecutor(
            folder,
            dtype=dtype,
            threads=1 if gpus else threads // tp,
            device="cuda" if gpus else "cpu",
            tp=tp,
            pin=True,
            num_blocks=num_blocks,
            block_size=block_size,
            max_seqs=max(grid.batches),
            dummy=dummy,
        ) as executor,
        out.open("wb") as file,
    ):
        header = {
            "engine": "advise",
            "version": __version__,
            "model": folder.resolve().name,
            "dtype": executor.dtype,
            "device": gpus[0].name if gpus else "cpu",
            "threads": tp if gpus else threads,
            "tp": tp,
            "block_size": block_size,
        }
        file.write(msgspec.json.encode(header) + b"\n")
        steps = measure(executor, block_size=block_size, seconds=seconds, seed=seed, grid=grid)
        for number, (shape, took) in enumerate(steps, start=1):
            line = {"step": number, "seconds": took, **shape._asdict()}
            file.write(msgspec.json.encode(line) + b"\n")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m engine.calibrate", description="measure step times")
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--out", type=Path, required=True, help="step log to write, JSON lines")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16, float16 or float32")
    parser.add_argument(
        "--device", choices=("auto", "cpu"), default="auto", help="auto: GPUs where there are any"
    )
    parser.add_argument("--load", choices=("auto", "dummy"), default="auto", help="dummy: random weights")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks: GPUs, or shares of --threads")
    parser.add_argument("--threads", type=int, default=1, help="cores to use, where there is no GPU")
    parser.add_argument("--seconds", type=float, default=10.0, help="time to measure for")
    parser.add_argument("--block-size", type=int, default=16, help="tokens of one KV block")
    parser.add_argument("--seed", type=int, default=0, help="seed of the design")
    options = vars(parser.parse_args(arguments))
    options["dummy"] = options.pop("load") == "dummy"
    try:
        calibrate(options.pop("model"), options.pop("out"), **options)
    except AdviseError as error:
        reason = f": {error.why}" if error.why else ""
        sys.stderr.write(f"{error.message}{reason}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
