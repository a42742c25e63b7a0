"""The results of `three_ideas`: JSON lines that only grow, and the table made of them.

A record is what a setup stands on, the plan of a kind, or one cell: a configuration at a load. Each names the
code that it was measured with; a run goes on from records of its own code and seed alone. Lines that are cut
short, as by a kill, count for nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from benchmarks._three_traffic import Kind, kinds

FACTORS = (0.7, 1.0, 1.3)  # of the advised configuration's predicted goodput: the three loads
ARMS = ("nothing", "cache alone", "token budget alone", "split alone", "together")
ADVISED = "advised"  # the sixth, where the advice is none of the five


class SetupRecord(msgspec.Struct, frozen=True, kw_only=True, tag="setup", tag_field="record"):
    """What all cells of a setup stand on. `step_times`: key and plain form of each calibration."""

    setup: str
    code: str
    seed: int
    at: str
    machine: str
    words: str
    dtype: str = "auto"
    step_times: tuple[dict[str, Any], ...] = ()
    host: dict[str, Any] = {}


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration: pools and router as in engine.yaml."""

    words: str
    pools: tuple[dict[str, Any], ...]
    router: dict[str, Any]


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True, tag="plan", tag_field="record"):
    """What is sent for a kind, and to which configurations. `advised` names one of `arms`.

    `goodput_rps`: predicted for it; the loads are `FACTORS` of that. `time_scale`: wall seconds of a modelled
    one.
    """

    setup: str
    code: str
    seed: int
    kind: str
    digest: str
    devices: int
    goodput_rps: float
    time_scale: float
    verdict: str
    advice: str
    advised: str
    arms: dict[str, Arm]

    def rate_rps(self, factor: float) -> float:
        """Requests/s of a load, of all devices, on the modelled clock."""
        return factor * self.goodput_rps


class CellRecord(msgspec.Struct, frozen=True, kw_only=True, tag="cell", tag_field="record"):
    """One configuration at one load. Rates in good requests/s and device; times in modelled seconds.

    `seconds`: wall seconds in which its requests were sent, the first `warm_s` of them not judged; `red`: gates
    that say it measured something else.
    """

    setup: str
    code: str
    seed: int
    kind: str
    digest: str
    arm: str
    factor: float
    seconds: float
    at: str
    requests: int
    good: int
    good_rate: float
    predicted_good: int
    predicted_rate: float
    ttft_p90_s: float | None
    predicted_ttft_p90_s: float | None
    tpot_p90_s: float | None
    predicted_tpot_p90_s: float | None
    hit_rate: float | None
    predicted_hit_rate: float | None
    misses: dict[str, int]
    red: tuple[str, ...]
    client_share: float | None
    router_share: float | None
    wall_s: float
    step_p50_s: float | None = None
    lag_p99_s: float | None = None
    incidents: tuple[str, ...] = ()
    warm_s: float = 0.0


Record = SetupRecord | PlanRecord | CellRecord
Sort = TypeVar("Sort", bound=msgspec.Struct)


class Results:
    """The file of results. One process writes at a time. `sorts`: the tagged records that it holds."""

    def __init__(self, path: Path, sorts: Any = Record) -> None:
        self._path = path
        self.records = read(path, sorts)

    def add(self, record: msgspec.Struct) -> None:
        """Append a record; it is on the disk when this returns."""
        line = msgspec.json.encode(record) + b"\n"
        with self._path.open("ab+") as file:
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                line = b"\n" + line  # behind a line that was cut short
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.records.append(record)

    def last(self, sort: type[Sort], **like: object) -> Sort | None:
        """The newest record of a sort whose fields are these."""
        return next(iter(self.every(sort, **like)), None)

    def every(self, sort: type[Sort], **like: object) -> list[Sort]:
        """All records of a sort whose fields are these, newest first."""
        return [
            one
            for one in reversed(self.records)
            if isinstance(one, sort) and all(getattr(one, name) == value for name, value in like.items())
        ]


def read(path: Path, sorts: Any = Record) -> list[Any]:
    """All whole records of a file, oldest first; none where there is no file."""
    if not path.exists():
        return []
    found: list[Any] = []
    for line in path.read_bytes().split(b"\n"):
        try:
            found.append(msgspec.json.decode(line, type=sorts))
        except msgspec.DecodeError:
            continue
    return found


def table(results: Results, setup: str) -> str:
    """Markdown: what a setup's newest code was measured with, in the order of kinds and configurations."""
    newest = results.last(SetupRecord, setup=setup)
    if newest is None:
        return ""
    same = {"setup": setup, "code": newest.code, "seed": newest.seed}
    heads = ("traffic", "configuration", *(f"{factor:g} x" for factor in FACTORS))
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    notes: list[str] = []
    cells: list[CellRecord] = []
    for kind in kinds("cpu" if setup == "cpu" else "emulated"):
        plan = results.last(PlanRecord, kind=kind.name, digest=kind.digest, **same)
        if plan is None:
            continue
        found = {
            (arm, factor): results.last(
                CellRecord, kind=kind.name, digest=kind.digest, arm=arm, factor=factor, **same
            )
            for arm in plan.arms
            for factor in FACTORS
        }
        cells += [cell for cell in found.values() if cell is not None]
        lines += _rows(plan, found)
        notes.append(_note(kind, plan, [cell for cell in found.values() if cell is not None]))
    footer = _footer(newest, cells)
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), "", footer])


def _rows(plan: PlanRecord, found: dict[tuple[str, float], CellRecord | None]) -> list[str]:
    offered = " | ".join(f"{_offered(plan, found, factor):.3g}" for factor in FACTORS)
    lines = [f"| **{plan.kind}** | *offered* | {offered} |"]
    for name, arm in plan.arms.items():
        mark = " \\*" if name == plan.advised else ""
        cells = [_cell(found[name, factor]) for factor in FACTORS]
        lines.append(f"| | {name}{mark}: {arm.words} | {' | '.join(cells)} |")
    return lines


def _offered(plan: PlanRecord, found: dict[tuple[str, float], CellRecord | None], factor: float) -> float:
    """Requests/s and device that were sent: Poisson, so not just those that were meant to be."""
    for (_, at), cell in found.items():
        if cell is not None and at == factor:
            return cell.requests * plan.time_scale / (cell.seconds - cell.warm_s) / plan.devices
    return plan.rate_rps(factor) / plan.devices


def _cell(cell: CellRecord | None) -> str:
    if cell is None:
        return ""
    return f"{cell.good_rate:.3g}{'?' if cell.red else ''} / {cell.predicted_rate:.3g}"


def _note(kind: Kind, plan: PlanRecord, cells: Sequence[CellRecord]) -> str:
    counts = [[cell.requests for cell in cells if cell.factor == factor] for factor in FACTORS]
    sent = ", ".join(f"{max(count):,}" if count else "none" for count in counts)
    slower = "" if plan.time_scale == 1 else f" on a clock {plan.time_scale:g} times slower"
    seconds = ", ".join(f"{one:g}" for one in sorted({cell.seconds for cell in cells}))
    verdict = plan.verdict.replace("_", " ")
    warm = f", the first {kind.warm:.0%} of the time not judged" if kind.warm else ""
    return (
        f"**{kind.name}**: {kind.words}; {kind.targets}. Advised: {plan.advice} ({verdict}). "
        f"{sent} requests judged at the three loads, sent in {seconds or 'no'} s{slower}{warm}."
    )


def _footer(setup: SetupRecord, cells: Sequence[CellRecord]) -> str:
    dates = sorted({cell.at[:10] for cell in cells}) or [setup.at[:10]]
    when = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    parts = [
        "Good requests/s and device (both targets kept), measured / predicted by simulating the same requests",
        "\\* advised",
        *_doubts(cells),
        f"router took {_share([cell.router_share for cell in cells])} and client "
        f"{_share([cell.client_share for cell in cells])} of the cores",
        setup.words,
        f"{setup.machine}, code {setup.code}, seed {setup.seed}, {when}",
    ]
    return "; ".join(parts) + "."


def _doubts(cells: Sequence[CellRecord]) -> list[str]:
    red = sorted({name for cell in cells for name in cell.red})
    return [f"? a gate of validation was red there ({', '.join(red)})"] if red else []


def _share(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f"{np.median(known):.1%} (at most {max(known):.1%})" if known else "an unknown part"
