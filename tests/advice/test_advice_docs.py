"""docs/rules.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from advisor.advice.rules import ALL_RULES

DOC = Path(__file__).resolve().parent.parent.parent / "docs" / "rules.md"


def test_the_table_of_rules_is_the_code() -> None:
    rows = [line for line in DOC.read_text().splitlines() if line.startswith("| ADV")]
    assert rows == [
        f"| {rule.code} | {rule.title} | {rule.condition} | {'; '.join(rule.basis)} |"
        for rule in ALL_RULES.values()
    ]
