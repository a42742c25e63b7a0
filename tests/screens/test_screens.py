"""What people see: every screen at 80 and 120 columns, as files here.

`UPDATE_SCREENS=1 pytest tests/screens` renews them.
A change of a file is a change of what users read: look at it before it is committed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from helpers.screens import OUT, SCREENS, shown

from advisor import cli
from engine.errors import AdviseError, InputError, InvalidMeasurementError, MachineError

HERE = Path(__file__).resolve().parent
WIDTHS = (80, 120)
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
COLOURS = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-79]|38|4[0-79]|48|9[0-7])(?:;[0-9;]*)?m")


def plain(text: str) -> str:
    """Without spaces at the ends of lines."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def compare(name: str, text: str) -> None:
    """Against the file of that name, or into it."""
    path = HERE / f"{name}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was_and_fits(name: str, width: int) -> None:
    text = shown(SCREENS[name], width)
    compare(f"{name}-{width}", plain(text))
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text
    assert "…" not in text  # rich cuts what does not fit, and says so with this
    assert text.isascii()


@pytest.mark.parametrize("name", SCREENS)
def test_a_terminal_shows_the_same_and_no_color_takes_the_colours_away(name: str) -> None:
    piped = plain(shown(SCREENS[name], 80))
    coloured = shown(SCREENS[name], 80, terminal=True, colour=True)
    without = shown(SCREENS[name], 80, terminal=True, colour=False)
    assert plain(ESCAPES.sub("", coloured)) == piped
    assert plain(ESCAPES.sub("", without)) == piped
    assert not COLOURS.search(without)


def test_verdicts_are_coloured_on_a_terminal() -> None:
    text = shown(SCREENS["validate-fail"], 80, terminal=True, colour=True)
    assert COLOURS.search(text)


@pytest.mark.parametrize(
    "name", [name for name in SCREENS if name not in ("cost", "demo", "plan-beside", "launch")]
)
def test_a_screen_ends_with_the_next_command(name: str) -> None:
    lines = [line for line in shown(SCREENS[name], 80).splitlines() if line.strip()]
    places = [place for place, line in enumerate(lines) if re.match(r"next:? ", line)]
    assert places, lines[-3:]
    assert len(lines) - places[-1] <= 4  # what follows goes on from it


@pytest.mark.parametrize("name", [name for name in SCREENS if name.startswith("validate-")])
def test_a_validation_fits_a_tall_screen(name: str) -> None:
    assert len(shown(SCREENS[name], 80).splitlines()) <= 60


def _no_trace(path: Path) -> None:
    path.write_text("")


ERRORS = (
    InputError(
        "the window 5..3 ends before it begins", hint="--window busiest:10m, random:10m, all, or 60..120"
    ),
    MachineError(
        "port 8000 is in use",
        where="127.0.0.1:8000",
        why="another server listens",
        hint="advise launch --port 0",
    ),
    InvalidMeasurementError("the clock stood still", hint="advise validate again, with the lid open"),
    AdviseError("this is a bug in advise: KeyError at read.py:31"),
    InputError("a model named [bold]x[/bold]\x1b[31m", hint="ls ."),
)


def test_errors_say_what_where_why_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    for error in ERRORS:
        cli._complain(error)
    told = capsys.readouterr()
    assert told.out == ""
    assert "\x1b" not in told.err
    compare("errors", plain(told.err))


def test_a_dry_run_prints_the_command_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from helpers.results import sample_analysis

    from advisor.deploy.files import write_plan_files

    monkeypatch.chdir(tmp_path)
    write_plan_files(OUT, sample_analysis(), _no_trace)
    assert cli.run(["launch", str(OUT), "--emulate", "h100-sxm", "--dry-run"]) == 0
    told = capsys.readouterr()
    compare("launch-dry-run", re.sub(r"^\S+", "python", told.out))
