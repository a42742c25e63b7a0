"""Plans without simulating them, for tests that are about something else."""

from __future__ import annotations

from typing import Any

import pytest

import advisor.analyze
from advisor.advice.advise import Advice, advise


def advise_by_rules(*given: Any, trace: object = None, **named: Any) -> Advice:
    """`advise` without the trace, so that the rules make the plan."""
    del trace
    return advise(*given, **named)


def plan_by_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every analysis in this process plan so."""
    monkeypatch.setattr(advisor.analyze, "advise", advise_by_rules)
