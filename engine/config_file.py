"""engine.yaml on disk: read it into an EngineConfig, and word one as YAML."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from engine.config import EngineConfig
from engine.errors import InputError


def read_config(path: Path) -> EngineConfig:
    """Read engine.yaml. Raises InputError that names the key."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        return EngineConfig.model_validate(values or {})
    except OSError as error:
        hint = "advise analyze LOG writes one"
        raise InputError(
            "cannot read the configuration", where=str(path), why=error.strerror, hint=hint
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError("not valid YAML", where=str(path), why=str(error)) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "top level"
        why = f"{key}: {first['msg'].removeprefix('Value error, ')}"
        raise InputError("not an engine configuration", where=str(path), why=why) from None


def config_text(config: EngineConfig) -> str:
    """The YAML of a configuration, every field written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
