"""AIPerf and GuideLLM send a load to the bundled engine, as our replay does: without errors, every token of it.

Prints the table of docs/load-generators.md for a small load; what it says of time is output, not asserted.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers.embedded import embedded_folder

from advisor.validation.elsewhere import AIPERF, GUIDELLM
from benchmarks._load_tools import VENVS, version_of
from benchmarks.load_generators import Load, Row, measured, table

pytestmark = pytest.mark.tools
LOAD = Load(requests=10, rate_rps=0.5)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """One round; each run is checked for failures and lengths as it ends."""
    for tool in ("aiperf", "guidellm"):
        if not (VENVS / tool / "bin" / tool).exists():
            pytest.skip(f"needs {tool} in .venv-readers: make test-tools")
    embedded_folder()
    return measured(LOAD, 1)


def test_both_tools_run_and_report(rows: list[Row]) -> None:
    assert [(row.tool, row.quantity) for row in rows] == [
        (AIPERF, "TTFT"), (AIPERF, "ITL"), (GUIDELLM, "TTFT"), (GUIDELLM, "ITL"), (GUIDELLM, "TPOT"),
    ]  # fmt: skip
    assert all(min(row.theirs, row.by_formula, row.ours) > 0 for row in rows)
    sys.stdout.write("\n" + table(rows, LOAD, 1) + "\n")


@pytest.mark.parametrize(("tool", "cited"), [("aiperf", AIPERF), ("guidellm", GUIDELLM)])
def test_the_formulas_are_of_the_version_that_is_installed(tool: str, cited: str) -> None:
    """Where it fails, read the tool's sources again."""
    if not Path(VENVS / tool / "bin" / tool).exists():
        pytest.skip(f"needs {tool} in .venv-readers: make test-tools")
    assert cited.endswith(version_of(tool))
