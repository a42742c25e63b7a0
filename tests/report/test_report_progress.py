"""How far a long job is, where nobody looks at a terminal: a line a tenth, and a line a part."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from advisor.report.progress import watching


def test_reading_prints_tenths_and_simulating_prints_parts() -> None:
    out = StringIO()
    with watching(Console(file=out, force_terminal=False, width=80)) as watch:
        for done in range(101):
            watch.reading(done, 100)
        for part in ("searching", "searching", "attribution"):
            watch.simulating(part, 1500)
    lines = out.getvalue().splitlines()
    assert lines[:10] == [f"reading: {tenth}0 %" for tenth in range(1, 11)]
    assert lines[10:] == [
        "simulating, searching: 1,500 requests so far",
        "simulating, attribution: 4,500 requests so far",
    ]


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    out = StringIO()
    with watching(Console(file=out, force_terminal=True, width=80)) as watch:
        watch.reading(1, 2)
        watch.simulating("searching", 400)
    assert "simulating, searching: 400" in out.getvalue()
