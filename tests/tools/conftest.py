"""Other load generators, each in an environment of its own below `.venv-readers`: `make test-tools`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
Run = Callable[..., Any]


@pytest.fixture
def run_in() -> Run:
    """Run a script of this folder in the environment of a tool; gives the JSON of its last line."""

    def run(tool: str, script: str, *arguments: object) -> Any:
        python = ROOT / ".venv-readers" / tool / "bin" / "python"
        if not python.exists():
            pytest.skip(f"needs {tool} in .venv-readers: make test-tools")
        done = subprocess.run(
            [python, Path(__file__).parent / script, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
