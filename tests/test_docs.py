"""Documentation that is checked against the code."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from engine.config import Config, ModelConfig, PoolConfig, RouterConfig, ServerConfig

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.parametrize("model", [PoolConfig, RouterConfig, ModelConfig, ServerConfig])
def test_every_field_of_engine_yaml_is_documented(model: type[Config]) -> None:
    text = (DOCS / "configuration.md").read_text()
    for name, field in model.model_fields.items():
        default = yaml.safe_dump(field.default).splitlines()[0]
        assert f"| `{name}` | `{default}` | {field.description} |" in text
