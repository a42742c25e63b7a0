"""The embedded model for tests: fetched once to the user cache; tests skip visibly where that is impossible."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import MachineError
from engine.fetch import model_folder


def embedded_folder() -> Path:
    """SmolLM2-135M-Instruct as a Hugging-Face-style folder."""
    try:
        return model_folder(None, fetch=True)
    except MachineError as error:
        pytest.skip(f"needs the embedded model: {error.why}")
