"""Logs by their real producers: each sends the same chats to this engine; its log is read as the client saw it.

Opt-in (`make test-producers`), because it installs the producers into environments of their own.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.embedded import embedded_folder
from helpers.server import advise_launch

from advisor.deploy.run import Run
from advisor.logs.read import read
from advisor.logs.trace import Trace
from engine.config import EngineConfig, PoolConfig, ServerConfig
from engine.fetch import EMBEDDED_NAME
from engine.text import Tokenizer

pytestmark = pytest.mark.producers

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = Path(__file__).resolve().parent / "scripts"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    embedded_folder()
    folder = tmp_path_factory.mktemp("engine")
    pool = PoolConfig(token_budget=256, kv_tokens=8192, block_size=16)
    with advise_launch(folder, EngineConfig(pools=(pool,), server=ServerConfig(port=0)), folder / "log") as run:
        yield run


def program(environment: str, name: str) -> str:
    path = ROOT / environment / "bin" / name
    if not path.exists():
        pytest.skip(f"needs {environment}: make test-producers")
    return str(path)


def run_script(engine: Run, folder: Path, script: str, *arguments: str) -> list[dict[str, int]]:
    """What the clients saw, call by call."""
    argv = [program(".venv-producers", "python"), str(SCRIPTS / script), engine.url, EMBEDDED_NAME, str(folder)]
    subprocess.run([*argv, *arguments], check=True, timeout=300, capture_output=True)
    answers: list[dict[str, int]] = json.loads((folder / "answers.json").read_text())
    assert len(answers) == 6
    return answers


def read_as(path: Path, name: str) -> Trace:
    trace = read([path], tokenizer=Tokenizer.load(embedded_folder()))
    assert trace.info is not None
    assert trace.info.format == name
    assert np.isfinite(trace.arrival_s).all()
    assert trace.first_epoch_s is not None
    assert trace.model is not None
    assert trace.model.names == (EMBEDDED_NAME,)
    return trace


def check(trace: Trace, answers: list[dict[str, int]], *, cached: bool, text: bool) -> None:
    assert trace.prompt_tokens.tolist() == [answer["prompt_tokens"] for answer in answers]
    assert trace.output_tokens.tolist() == [answer["output_tokens"] for answer in answers]
    if cached:
        assert trace.cached_tokens is not None
        assert trace.cached_tokens.tolist() == [answer["cached_tokens"] for answer in answers]
    assert (trace.blocks is not None) == text
    if trace.blocks is not None:
        # The system prompt of about a hundred tokens is shared by all six.
        assert (np.diff(trace.blocks.starts) >= 6).all()
        assert len(set(trace.blocks.ids[trace.blocks.starts[:-1]].tolist())) == 1
    assert trace.e2e_s is not None
    assert (trace.e2e_s > 0).all()


def test_the_openai_client_and_this_engine(engine: Run, tmp_path: Path) -> None:
    answers = run_script(engine, tmp_path, "openai_client.py")
    assert answers[1]["cached_tokens"] >= 96
    check(read_as(tmp_path / "requests.jsonl", "openai"), answers, cached=True, text=True)


@pytest.mark.parametrize(("file", "name"), [("payload", "litellm-payload"), ("spend", "litellm-spend")])
def test_litellm(engine: Run, tmp_path: Path, file: str, name: str) -> None:
    answers = run_script(engine, tmp_path, "litellm_callbacks.py")
    trace = read_as(tmp_path / f"{file}.jsonl", name)
    # The spend table holds no prompts unless the proxy is told to store them.
    check(trace, answers, cached=True, text=file == "payload")
    assert ("store_prompts_in_spend_logs" in str(trace.unknown)) == (file == "spend")


def test_opentelemetry_genai(engine: Run, tmp_path: Path) -> None:
    answers = run_script(engine, tmp_path, "otel_spans.py", "genai")
    check(read_as(tmp_path / "spans.jsonl", "otlp"), answers, cached=False, text=False)


def test_openinference(engine: Run, tmp_path: Path) -> None:
    answers = run_script(engine, tmp_path, "otel_spans.py", "openinference")
    check(read_as(tmp_path / "spans.jsonl", "otlp"), answers, cached=True, text=True)


def test_langsmith(engine: Run, tmp_path: Path) -> None:
    answers = run_script(engine, tmp_path, "langsmith_runs.py")
    check(read_as(tmp_path / "runs.jsonl", "langsmith"), answers, cached=True, text=True)


def test_aiperf(engine: Run, tmp_path: Path) -> None:
    argv = [
        program(".venv-readers/aiperf", "aiperf"), "profile", "--url", engine.url, "--model", EMBEDDED_NAME,
        "--endpoint-type", "chat", "--streaming", "--request-count", "6", "--concurrency", "1",
        "--synthetic-input-tokens-mean", "100", "--output-tokens-mean", "8",
        "--tokenizer", str(embedded_folder()), "--artifact-dir", str(tmp_path), "--ui", "none",
    ]  # fmt: skip
    subprocess.run(argv, check=True, timeout=300, capture_output=True)
    trace = read([tmp_path / "profile_export.jsonl"])
    assert trace.info is not None
    assert trace.info.format == "aiperf"
    theirs: dict[str, Any] = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert len(trace) == 6
    assert trace.ttft_s is not None
    assert trace.e2e_s is not None
    for ours, name, scale in (
        (trace.prompt_tokens, "input_sequence_length", 1.0),
        (trace.output_tokens, "output_sequence_length", 1.0),
        (trace.ttft_s, "time_to_first_token", 1e-3),
        (trace.e2e_s, "request_latency", 1e-3),
    ):
        assert ours.mean() == pytest.approx(theirs[name]["avg"] * scale, rel=1e-3)
