"""Documentation that is checked against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from benchmarks.install import LOG
from engine.config import Config, ModelConfig, PoolConfig, RouterConfig, ServerConfig

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.parametrize("model", [PoolConfig, RouterConfig, ModelConfig, ServerConfig])
def test_every_field_of_engine_yaml_is_documented(model: type[Config]) -> None:
    text = (DOCS / "configuration.md").read_text()
    for name, field in model.model_fields.items():
        default = yaml.safe_dump(field.default).splitlines()[0]
        assert f"| `{name}` | `{default}` | {field.description} |" in text


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("log.jsonl").write_text(LOG)
    exec(compile(code, "docs/python.md", "exec"), {})  # noqa: S102  (our own documentation)
    first, *findings, budget = capsys.readouterr().out.splitlines()
    assert first.startswith("200 0.849")  # 199 requests hit 1,024 of 1,200 tokens
    assert any(line.startswith("ADV101 do") for line in findings)
    assert int(budget) % 128 == 0
