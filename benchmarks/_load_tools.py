"""AIPerf and GuideLLM as programs: the command of each for a load, and the figures of what it wrote.

Each runs in an environment of its own below `.venv-readers`, on the same arrivals and lengths as our replay.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.logs.trace import Trace
from advisor.validation.prompts import PromptFactory
from engine.errors import InvalidMeasurementError, MachineError

VENVS = Path(__file__).resolve().parent.parent / ".venv-readers"
TIMEOUT_S = 1200.0
# GuideLLM starts up to ten processes, which would take the cores that the engine computes on.
ONE_WORKER = {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}


@dataclass(frozen=True, slots=True)
class Site:
    """The engine that is measured. `folder`: of its model, with the tokenizer that AIPerf and GuideLLM want."""

    url: str
    model: str
    folder: Path
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What a tool reported of one run: medians in seconds by its own names, and what it counted, tokens."""

    medians_s: dict[str, float]
    completed: int
    failed: int
    prompt_tokens: float
    output_tokens: float


def command_of(tool: str) -> Path:
    """The tool's command. Raises MachineError where it is not installed."""
    path = VENVS / tool / "bin" / tool
    if not path.exists():
        raise MachineError(f"{tool} is not installed", where=str(path), hint="make test-tools")
    return path


def version_of(tool: str) -> str:
    """As the tool says it."""
    return _run([str(command_of(tool)), "--version"], VENVS).split()[-1]


def aiperf(site: Site, trace: Trace, seed: int, folder: Path) -> Figures:
    """The very bodies and arrivals that our replay would send, as a schedule of payloads."""
    prompts = PromptFactory(site.vocab_size, seed).build(trace)
    rows = [
        {"timestamp": 1e3 * at, "payload": _payload(site, prompt.tolist(), output)}
        for at, prompt, output in zip(
            trace.arrival_s.tolist(), prompts, trace.output_tokens.tolist(), strict=True
        )
    ]
    schedule, out = _lines(folder / "aiperf.jsonl", rows), folder / f"aiperf-{seed}"
    options = {
        "-m": site.model, "-u": site.url, "--endpoint-type": "completions", "--tokenizer": site.folder,
        "--custom-dataset-type": "mooncake_trace", "--input-file": schedule, "--ui-type": "none",
        "--output-artifact-dir": out, "--workers-max": 1, "--record-processors": 1,
    }  # fmt: skip
    flags = (
        "--streaming",
        "--fixed-schedule",
        "--use-server-token-count",
        "--no-gpu-telemetry",
        "--no-server-metrics",
    )
    argv = [str(command_of("aiperf")), "profile", *flags]
    _run([*argv, *(str(part) for pair in options.items() for part in pair)], folder)
    found = json.loads((out / "profile_export_aiperf.json").read_text())
    return Figures(
        medians_s={
            "TTFT": found["time_to_first_token"]["p50"] / 1e3,
            "ITL": found["inter_token_latency"]["p50"] / 1e3,
        },
        completed=int(found["request_count"]["avg"]),
        failed=int((found.get("error_request_count") or {"avg": 0})["avg"]),
        prompt_tokens=found["usage_prompt_tokens"]["avg"],
        output_tokens=found["output_sequence_length"]["avg"],
    )


def guidellm(site: Site, trace: Trace, seed: int, folder: Path) -> Figures:
    """The same arrivals and lengths; it makes up the text, since it sends no token ids."""
    rows = [
        {"timestamp": 1e3 * at, "input_length": prompt, "output_length": output, "hash_ids": [row]}
        for row, (at, prompt, output) in enumerate(
            zip(
                trace.arrival_s.tolist(),
                trace.prompt_tokens.tolist(),
                trace.output_tokens.tolist(),
                strict=True,
            )
        )
    ]
    schedule, out = _lines(folder / "guidellm.jsonl", rows), folder / f"guidellm-{seed}.json"
    body = {"ignore_eos": True, "min_tokens": int(trace.output_tokens[0]), "temperature": 0}
    options: dict[str, Any] = {
        "--backend": {
            "kind": "openai_http",
            "target": site.url,
            "request_format": "/v1/completions",
            "extras": {"body": body},
        },
        "--profile": {"kind": "replay", "schedule_turn": "timestamp"},
        "--tokenizer": {"kind": "huggingface_auto", "model": str(site.folder)},
        "--data": {
            "kind": "mooncake",
            "source": {"kind": "json_file", "path": str(schedule)},
            "time_scale": 1e-3,
        },
        "--output": {"kind": "json", "path": str(out)},
    }
    argv = [str(command_of("guidellm")), "run", "--disable-console"]
    _run([*argv, *(part for name, value in options.items() for part in (name, json.dumps(value)))], folder)
    (run,) = json.loads(out.read_text())["benchmarks"]
    metrics, totals = run["metrics"], run["metrics"]["request_totals"]

    def median(name: str) -> float:
        return float(metrics[name]["successful"]["median"])

    return Figures(
        medians_s={
            "TTFT": median("time_to_first_token_ms") / 1e3,
            "ITL": median("inter_token_latency_ms") / 1e3,
            "TPOT": median("time_per_output_token_ms") / 1e3,
        },
        completed=totals["successful"],
        failed=totals["errored"] + totals["incomplete"],
        prompt_tokens=metrics["prompt_token_count"]["successful"]["mean"],
        output_tokens=metrics["output_token_count"]["successful"]["mean"],
    )


def _payload(site: Site, prompt: list[int], output_tokens: int) -> dict[str, Any]:
    return {
        "model": site.model, "prompt": prompt, "max_tokens": output_tokens, "min_tokens": output_tokens,
        "ignore_eos": True, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip


def _lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _run(argv: list[str], folder: Path) -> str:
    """Run to the end; gives what it printed. Raises InvalidMeasurementError with the end of its talk."""
    done = subprocess.run(
        argv,
        cwd=folder,
        env=os.environ | ONE_WORKER,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        talk = (done.stdout + done.stderr)[-1500:]
        raise InvalidMeasurementError(f"{Path(argv[0]).name} failed", why=talk)
    return done.stdout
