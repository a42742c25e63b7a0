"""docs/collecting-logs.md: its commands parse, its code runs, and the examples bear out its claims."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from helpers.logs import WordEncoder
from starlette.applications import Starlette

from advisor.analyze import AnalyzeOptions, analyze
from advisor.cli import app
from advisor.logs.read import read
from advisor.logs.recorder import LiteLLMRecorder, Recorder
from advisor.logs.recorder.exchange import Counts, Exchange
from advisor.logs.recorder.writer import TraceWriter

TEXT = (Path(__file__).resolve().parent.parent.parent / "docs" / "collecting-logs.md").read_text()
SECTIONS = {
    part.partition("\n")[0]: part.partition("\n")[2] for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
}
WAYS = ("advise launch", "The recorder", "LiteLLM", "vLLM", "SGLang", "OpenTelemetry")
COMMANDS = [
    line.partition(" | ")[0]
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("advise ")
]


def test_it_is_a_page_or_so() -> None:
    assert len(TEXT.splitlines()) < 200


@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_its_setting_what_it_gives_and_a_check(way: str) -> None:
    text = SECTIONS[way]
    assert re.search(r"```(sh|yaml|python)\n", text)
    assert "**Known**" in text
    assert "**Exposes**" in text
    assert re.search(r"^advise analyze .* --no-plan --json \| jq ", text, re.MULTILINE)


def test_links_lead_somewhere() -> None:
    anchors = {name.lower().replace(" ", "-") for name in SECTIONS}
    links = re.findall(r"\]\(#([\w-]+)\)", TEXT)
    assert len(links) == len(WAYS)
    assert set(links) <= anchors


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str) -> None:
    """As the command line would, up to running them."""
    _, name, *arguments = shlex.split(command)
    group = typer.main.get_command(app)
    subcommand = group.commands[name]  # type: ignore[attr-defined]
    context = subcommand.make_context(name, arguments)
    assert context.params["log"]


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 8


def test_checks_ask_for_what_is_there(tmp_path: Path) -> None:
    """Every path that a check picks out of the JSON exists in it."""
    writer = TraceWriter(tmp_path / "trace.jsonl")
    for i in range(20):
        body = json.dumps({"model": "m", "prompt": "word " * 40 + str(i)}).encode()
        writer.put(Exchange("/v1/completions", i * 10**9, body, counts=Counts(41, 3), ttft_s=0.1, e2e_s=0.3))
    writer.close()
    analysis, _ = analyze([tmp_path / "trace.jsonl"], AnalyzeOptions(plan=False))
    document = analysis.model_dump(mode="json")
    paths = [path for line in re.findall(r"jq '(.*)'", TEXT) for path in line.split(", ")]
    assert len(paths) >= 10
    for path in paths:
        value: Any = document
        for key in path.removeprefix(".").split("."):
            value = value[key]


def test_the_code_runs(tmp_path: Path) -> None:
    first, second = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    service = Starlette()
    exec(compile(first, "docs/collecting-logs.md", "exec"), {"app": service})  # noqa: S102  (our own documentation)
    assert service.user_middleware[0].cls is Recorder
    names: dict[str, Any] = {}
    exec(compile(second, "docs/collecting-logs.md", "exec"), names)  # noqa: S102
    assert isinstance(names["recorder"], LiteLLMRecorder)


@pytest.mark.parametrize(
    ("example", "known", "unknown"),
    [
        ("litellm_spendlogs.jsonl", ("blocks", "output", "ttft_s", "e2e_s", "client", "arrival"), ()),
        ("vllm_0.11.0_info.log", ("blocks", "arrival"), ("ttft_s", "e2e_s", "client", "session")),
        ("vllm_0.11.2_info.log", ("arrival",), ("blocks", "prompt", "ttft_s", "client")),
        ("sglang_export_metrics.log", ("blocks", "prompt", "output", "cached_tokens", "e2e_s"), ("client",)),
        (
            "otlp_genai_current.jsonl",
            ("blocks", "prompt", "output", "ttft_s", "e2e_s", "session", "arrival"),
            (),
        ),
        ("otlp_genai_legacy_vllm.jsonl", ("prompt", "output", "ttft_s", "e2e_s", "arrival"), ("blocks",)),
    ],
)
def test_what_becomes_known(
    shared: Path, example: str, known: tuple[str, ...], unknown: tuple[str, ...]
) -> None:
    """The examples as a human reads them: what each section says is known is known, and no more."""
    trace = read([shared / "traces/format-examples" / example], tokenizer=WordEncoder())

    def is_known(name: str) -> bool:
        if name == "arrival":
            return not np.isnan(trace.arrival_s).all()
        if name in ("prompt", "output"):
            return bool((getattr(trace, f"{name}_tokens") > 0).any())
        return getattr(trace, name) is not None

    assert {name for name in known if not is_known(name)} == set()
    assert {name for name in unknown if is_known(name)} == set()
