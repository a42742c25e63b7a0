"""Many random events on the whole split: front, fleet, drivers, cores, lease tables and copies.

helpers.fleet_world says what happens, helpers.fleet_router what is checked after each event: invariants of the
fleet and of every core, leases against kept KV, what the fleet believes against what the instances hold, and
every token against the model alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from helpers.fleet_defects import DEFECTS, Defect
from helpers.fleet_world import soak

ROOT = Path(__file__).parents[2]
# What must have happened, of a million events; about a third of what does. Without it the run proves little.
ENOUGH = {
    "request": 25_000,
    "ended: length": 8_000,
    "ended: abort": 2_500,
    "ended: its instance died 3 times": 1_400,
    "ended: no instance of the other role is up": 2_000,
    "copy ok": 1_600,
    "copy corrupt": 140,
    "copy failed": 160,
    "copy expired": 600,
    "copy timeout": 350,
    "lease ran out": 400,
    "death": 1_200,
    "pause": 750,
    "declared dead": 450,
    "replaced": 1_000,
    "drain": 1_000,
    "restart": 2_900,
    "router restarted": 50,
    "KV message lost": 1_900,
    "KV message doubled": 1_800,
    "answer doubled": 8_000,
    "preempted": 150,
    "Refused": 450,
}


def check(counts: Counter[str]) -> None:
    print(dict(counts))  # noqa: T201 - the figure that is asked for
    share = counts["events"] / 1_000_000
    rare = {what: counts[what] for what, least in ENOUGH.items() if counts[what] < least * share}
    assert not rare, f"too seldom: {rare}"


def test_30_000_random_events_of_the_split_leave_no_finding() -> None:
    check(soak(30_000, events_of_a_world=1000))


@pytest.mark.slow
def test_1_000_000_random_events_of_the_split_leave_no_finding() -> None:
    counts = soak(1_000_000, seed=1_000_000)
    assert counts["events"] >= 1_000_000
    check(counts)


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_defect_is_noticed(defect: Defect, tmp_path: Path) -> None:
    """In a copy of the tree, in a fifth of the events above; how many it takes is printed."""
    for folder in ("engine", "tests/helpers"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / defect.where
    text = file.read_text()
    assert text.count(defect.old) == 1, "this code is no longer there: plant the defect in what took its place"
    file.write_text(text.replace(defect.old, defect.new))
    code = "from helpers.fleet_world import events_until_noticed as until; print(until(200_000))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{tmp_path / 'tests'}", "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    print(f"{defect.name}: {ran.stdout}")  # noqa: T201 - the figure that is asked for
    assert ran.stdout.strip() != "None"
