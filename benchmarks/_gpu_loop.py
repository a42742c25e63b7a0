"""calibrate, analyze, launch, validate through the command line, with random weights of one model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from benchmarks.gpu import TINY, Setup

ROOT = Path(__file__).resolve().parent.parent
ADVISE = [sys.executable, "-c", "from advisor.cli import main; main()"]
READY_S = 300.0
# Steps of milliseconds: the plan's search simulates until a device is full, which takes long for a faster one.
SMALL = TINY | {
    "num_hidden_layers": 6,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "vocab_size": 16_384,
}


def run_loop(setup: Setup) -> bool:
    """Print the plan's prediction and the measurement; whether every command did its part."""
    folder, out, log = setup.scratch / "model", setup.scratch / "out", setup.scratch / "log.jsonl"
    folder.mkdir()
    # The prompts of a replay are token ids, so the model needs no tokenizer.
    (folder / "config.json").write_text(json.dumps(SMALL if setup.toy else setup.config))
    log.write_text("".join(traffic(setup)))
    steps, load = setup.scratch / "steps.jsonl", ["--load", "dummy"]
    measure = ["--model", str(folder), "--out", str(steps), "--seconds", "0" if setup.toy else "20"]
    run(setup, [sys.executable, "-m", "engine.calibrate", *measure, *load, *(["--device", "cpu"] * setup.toy)])
    run(setup, [*ADVISE, "calibrate", "--from-log", str(steps)])
    # Of one core or GPU, as the calibration is.
    target = ["--here", "--gpus", "1", *(["--gpu", "cpu"] if setup.toy else [])]
    run(setup, [*ADVISE, "analyze", str(log), *target, "--model", str(folder), "--out", str(out)], allow=(0, 1))
    with launched(setup, out, load):
        run(setup, [*ADVISE, "validate", str(out), "--window", "all"], allow=(0, 1, 4))
    return show(out)


def traffic(setup: Setup) -> Iterator[str]:
    """A trace in Mooncake's form: Poisson arrivals, half of each prompt shared."""
    random, at_ms = Random(setup.seed), 0.0
    requests, rate, prompt, output = (30, 10.0, 96, 8) if setup.toy else (300, 4.0, 1536, 128)
    for number in range(requests):
        at_ms += random.expovariate(rate) * 1e3
        blocks = [0, number + 1] if setup.toy else [0, 1, number + 2]
        line = {"timestamp": round(at_ms), "input_length": prompt, "output_length": output, "hash_ids": blocks}
        yield json.dumps(line) + "\n"


def environment(setup: Setup) -> dict[str, str]:
    """Ours with a user cache of its own, without the interpreter's flag."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return env | {"XDG_CACHE_HOME": str(setup.scratch / "cache"), "PYTHONPATH": str(ROOT)}


def run(setup: Setup, argv: list[str], *, allow: tuple[int, ...] = (0,)) -> None:
    """Run one command and show what it prints. Raises RuntimeError for other exit codes than those allowed."""
    done = subprocess.run(argv, env=environment(setup), capture_output=True, text=True, check=False)
    print(done.stdout, end="", flush=True)
    if done.returncode not in allow:
        raise RuntimeError(f"{' '.join(argv[-6:])}: exit code {done.returncode}\n{done.stderr}")


@contextmanager
def launched(setup: Setup, out: Path, load: list[str]) -> Iterator[None]:
    """`advise launch` in the background, from ready to drained."""
    argv = [*ADVISE, "launch", str(out), "--port", "0", *load]
    with subprocess.Popen(argv, env=environment(setup), stdout=subprocess.PIPE, text=True) as process:
        try:
            end = time.monotonic() + READY_S
            while not (out / "run.json").exists():
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("advise launch did not get ready")
                time.sleep(0.1)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            print(process.communicate()[0], end="")


def show(out: Path) -> bool:
    """Predicted and measured side by side; False where nothing was measured."""
    plan = json.loads((out / "plan.json").read_text())["plan"]
    result = json.loads((out / "result.json").read_text())
    [choice] = [one for one in plan["candidates"] if one["name"] == plan["chosen"]]
    latencies = result["latencies"]
    print(f"{'':14}{'predicted':>12}{'measured':>12}   (step times {plan['step_time']['source']})")
    rows = (
        ("attainment", choice["attainment"], result["score"]["attainment"]),
        ("TTFT p90 s", choice["ttft_p90_s"], (latencies["ttft"] or {}).get("p90")),
        ("TPOT p90 s", choice["tpot_p90_s"], (latencies["tpot"] or {}).get("p90")),
        ("TBT p99 s", choice["tbt_p99_s"], (latencies["tbt"] or {}).get("p99")),
    )
    for name, predicted, measured in rows:
        cells = "".join(f"{'-' if value is None else f'{value:.4f}':>12}" for value in (predicted, measured))
        print(f"{name:14}{cells}")
    return result["score"]["requests"] > 0 and latencies["ttft"] is not None
