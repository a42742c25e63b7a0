"""Other people's programs, each in an environment of its own below `.venv-readers`: `make test-readers`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
Run = Callable[..., Any]


@pytest.fixture
def run_in() -> Run:
    """Run a script of this folder in the environment of a program; gives the JSON of its last line."""

    def run(program: str, script: str, *arguments: object) -> Any:
        python = ROOT / ".venv-readers" / program / "bin" / "python"
        if not python.exists():
            pytest.skip(f"needs {program} in .venv-readers: make test-readers")
        local = {"PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        done = subprocess.run(
            [python, Path(__file__).parent / script, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=os.environ | local,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
