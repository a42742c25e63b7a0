"""The fault suite: real processes, real signals; what it lost, and how long it took to notice and to be whole.

    python -m benchmarks.faults [--out faults.jsonl] [--only WORDS] [--repeats N] [--table]

Each repeat of a scenario is one line of `--out`; what is there is not run again, so that the suite can be
interrupted. It ends by printing the table, and writes it to docs/faults.md once every repeat is there, as
`--table` alone does.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers.faults_fleets import tiny_folder  # noqa: E402 - needs the path above
from helpers.faults_run import Row  # noqa: E402
from helpers.faults_suite import SUITE, Scenario, rows  # noqa: E402

HEADS = (
    "fault",
    "fleet",
    "repeats",
    "requests",
    "open at the fault",
    "lost",
    "wrong",
    "doubled",
    "noticed, s",
    "whole again, s",
    "extra delay P99, s",
    "beside",
)
DOCS = ROOT / "docs" / "faults.md"
BEGIN, END = "<!-- python -m benchmarks.faults -->\n", "<!-- end -->"
BESIDE = {
    "retries": "{:.0f} retries",
    "longest_s": "longest wait {:.1f} s",
    "leavers": "{:.0f} left",
    "blocks_back_s": "blocks back in {:.2f} s",
    "exit_s": "exit after {:.1f} s",
    "clients_know_s": "clients know in {:.2f} s",
    "instances_end_s": "instances end in {:.2f} s",
    "ready_s": "new router ready in {:.1f} s",
    "answered_s": "503 after {:.2f} s",
    "good_share": "good rate {:.0%} of the knee's",
    "refused_p99_s": "429 P99 {:.3f} s",
    "deepest_queue": "queue up to {:.0f}",
    "growth": "memory {:+.1%}",
}


def main() -> int:
    """Run what is missing, then print the table."""
    given = _arguments()
    done = read(given.out)
    if not given.table:
        with tempfile.TemporaryDirectory() as folder:
            model = tiny_folder(Path(folder))
            for scenario in SUITE:
                if all(word in scenario.key for word in given.only):
                    done += run(scenario, done, given, model)
    words = table(done)
    print(words)
    if complete(done):
        before, _, after = DOCS.read_text(encoding="utf-8").partition(BEGIN)
        DOCS.write_text(before + BEGIN + words + END + after.partition(END)[2], encoding="utf-8")
    return int(any(not row.clean for row in done if row.scenario != "router killed"))


def run(scenario: Scenario, done: Sequence[Row], given: argparse.Namespace, model: Path) -> list[Row]:
    """The repeats of a scenario that are not done, written as they come."""
    have = {row.repeat for row in done if (row.scenario, row.fleet) == (scenario.name, scenario.spec.words)}
    missing = [n for n in range(given.repeats or scenario.repeats) if n not in have]
    new = []
    for row in rows(scenario, missing, model, given.log):
        print(f"{scenario.key} [{row.repeat}]: {row}", file=sys.stderr, flush=True)
        with given.out.open("ab") as out:
            out.write(msgspec.json.encode(row) + b"\n")
        new.append(row)
    return new


def read(path: Path) -> list[Row]:
    """The rows that are done; none where there is no file."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines()]


def complete(done: Sequence[Row]) -> bool:
    """Every repeat of every scenario is there."""
    have = {(row.scenario, row.fleet, row.repeat) for row in done}
    return all((one.name, one.spec.words, number) in have for one in SUITE for number in range(one.repeats))


def table(done: Sequence[Row]) -> str:
    """Markdown, a line a scenario in the order of the suite; below it when and where."""
    if not done:
        return ""
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    for scenario in SUITE:
        mine = [row for row in done if (row.scenario, row.fleet) == (scenario.name, scenario.spec.words)]
        if mine:
            lines.append(f"| {' | '.join(_cells(mine))} |")
    dates = sorted({row.at[:10] for row in done})
    when = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    cores = f"{os.cpu_count()} cores of {_processor()}"
    return "\n".join([*lines, "", f"{when}, {cores}, Python {platform.python_version()}.", ""])


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _cells(mine: Sequence[Row]) -> list[str]:
    requests, lost, wrong, doubled = (
        sum(getattr(row, name) for row in mine) for name in ("requests", "lost", "wrong", "doubled")
    )
    delays = list(itertools.chain.from_iterable(row.delays_s for row in mine))
    found = {name: _worst(mine, name) for name in BESIDE}
    beside = [words.format(found[name]) for name, words in BESIDE.items() if found[name] is not None]
    refused, tied = sum(row.refused for row in mine), sum(row.ties for row in mine)
    beside += [f"{refused:,} refused"] if refused else []
    beside += [f"{tied} answers with tied tokens"] if tied else []
    beside += [f"**{why}**" for why in sorted({why for row in mine for why in row.why})[:3]]
    return [
        mine[0].scenario,
        mine[0].fleet,
        str(len(mine)),
        f"{requests:,}",
        f"{len(delays):,}" if delays else "",
        f"{lost:,}",
        f"{wrong:,}",
        f"{doubled:,}",
        _range(mine, "detected_s"),
        _range(mine, "back_s"),
        f"{np.quantile(delays, 0.99):.2f}" if delays else "",
        "; ".join(beside),
    ]


def _worst(mine: Sequence[Row], name: str) -> float | None:
    found = [value for row in mine if (value := row.figures.get(name)) is not None]
    if not found:
        return None
    return sum(found) if name in ("retries", "leavers") else min(found) if name == "good_share" else max(found)


def _range(mine: Sequence[Row], name: str) -> str:
    """Median and worst."""
    found = [value for row in mine if (value := row.figures.get(name)) is not None]
    return f"{np.median(found):.2f}, at most {max(found):.2f}" if found else ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("faults.jsonl"), help="a line a repeat; what is there stays"
    )
    parser.add_argument(
        "--only", nargs="*", default=(), help="scenarios whose name and fleet have all these words"
    )
    parser.add_argument("--repeats", type=int, help="instead of each scenario's own")
    parser.add_argument("--log", type=Path, help="where the fleet's talk goes")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
