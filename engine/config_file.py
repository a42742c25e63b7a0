"""Configurations on disk: read engine.yaml and its like strictly, and word an EngineConfig as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from engine.config import Config, EngineConfig
from engine.errors import InputError

C = TypeVar("C", bound=Config)


def read_config(path: Path) -> EngineConfig:
    """Read engine.yaml. Raises InputError that names the key."""
    return read_strict(path, EngineConfig, "engine configuration", hint="advise analyze LOG   (writes one)")


def read_strict(path: Path, model: type[C], what: str, *, hint: str) -> C:
    """Read a YAML file as `model`, in words an `what`; `hint` says where to have one from.

    Raises InputError that names the key.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        return model.model_validate(values or {})
    except OSError as error:
        raise InputError(f"cannot read the {what}", where=str(path), why=error.strerror, hint=hint) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError("not valid YAML", where=str(path), why=str(error), hint=hint) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "top level"
        why = f"{key}: {first['msg'].removeprefix('Value error, ')}"
        raise InputError(f"not an {what}", where=str(path), why=why, hint=hint) from None


def config_text(config: EngineConfig) -> str:
    """The YAML of a configuration, every field written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
