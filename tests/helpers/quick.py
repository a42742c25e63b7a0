"""What a test of the decision does not look at, left out of a plan: it costs as much as all the rest."""

from __future__ import annotations

import pytest

from advisor.advice.search.search import Search


def only_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """No random search, no flip points, and no report drawn."""
    monkeypatch.setattr(
        "advisor.commands.planning.write_analysis_page", lambda folder, *_: folder / "report.html"
    )
    monkeypatch.setattr(Search, "random", lambda *_, **__: None)
    monkeypatch.setattr("advisor.advice.simulated.find_flips", lambda *_, **__: [])
