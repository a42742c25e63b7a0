"""docs/formats.md has a row for every format, and names only findings that exist."""

from __future__ import annotations

import re
from pathlib import Path

from advisor.advice.rules import ALL_RULES
from advisor.logs.formats import FORMATS

DOC = (Path(__file__).resolve().parent.parent.parent / "docs" / "formats.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in DOC.splitlines() if line.startswith("| `")
]


def test_every_format_has_one_full_row() -> None:
    assert sorted(row[0].strip("`") for row in ROWS) == sorted(kind.name for kind in FORMATS)
    assert all(len(row) == 6 and all(row) for row in ROWS)


def test_every_finding_named_there_exists() -> None:
    named = set(re.findall(r"ADV\d+", DOC))
    assert named
    assert named <= set(ALL_RULES)
