"""How far step-time models are from measured ones, and whether they order tensor-parallel degrees rightly.

    python -m benchmarks.step_times [FOLDER] [--fit] [--here SECONDS]

FOLDER holds the public measurements (default ../shared/silicon). Errors are medians and P90s of the absolute
relative error, in percent. `--fit` prints the constants that the chosen sources give, for comparison with
profiles/roofline.yaml. `--here` calibrates this machine's own engine for so long and prints its error.
Layouts and token budgets are not checked: these data have no pairs that differ in nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks._constants import CHOSEN, fit_constants
from benchmarks._silicon import Measured, Silicon, matrix
from engine import calibrate
from engine.fetch import model_folder
from engine.step_time.files import read_step_log
from engine.step_time.fit import fit, term_scales

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "silicon"
LIMITS_S = (0.015, 0.020, 0.030)
POINTS, DRAWS = 10, 5
NVLINK = (
    *("trtllm09-a100", "trtllm09-h100", "trtllm09-gh200"),
    *("trtllm05-docs-a100", "trtllm05-docs-h100", "gptfast-a100"),
)
Key = TypeVar("Key")


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--here", type=float, default=0.0, metavar="SECONDS")
    options = parser.parse_args()
    silicon = Silicon(options.folder)
    steps, served = list(silicon.steps()), list(silicon.served())
    if options.fit:
        for family, (chosen, *_) in CHOSEN.items():
            rows = [row for row in (*steps, *served) if row.source in chosen and not row.moe]
            found = {name: f"{value:.3g}" for name, value in fit_constants(family, rows).items()}
            print(f"{family:10}{len(rows):6} rows  {found}")
        return
    step_table(steps)
    served_table(served)
    order_table([row for row in served if not row.moe])
    if options.here:
        own_engine(options.here)


def step_table(steps: list[Measured]) -> None:
    """Built-in step times by source; then ten points of each model, TP and dtype, the rest as test."""
    print(f"{'step times, built-in':34}{'rows':>6}{'all':>16}{'decode':>16}{'prefill':>16}{'10 points':>16}")
    dense = [row for row in steps if not row.moe]
    for source in sorted({row.source for row in dense}):
        rows = [row for row in dense if row.source == source]
        print(_line(source, rows, *_phases(rows), show(ten_points(rows))))
    rows = [row for row in dense if row.source in NVLINK]
    points = show(ten_points(rows)) + "  (limit 8 / 20)"
    print(_line("A100, H100, GH200 (limit 10 / 30)", rows, *_phases(rows), points))
    rows = [row for row in steps if row.moe]
    print(_line("Mixtral, one expert path", rows, *_phases(rows), ""))


def _phases(rows: list[Measured]) -> list[str]:
    return [show(errors(row for row in rows if row.phase == phase)) for phase in ("decode", "prefill")]


def ten_points(rows: list[Measured]) -> list[float]:
    """Absolute errors of the steps that were not among the ten refitted to, over some draws of those."""
    random = np.random.default_rng(0)
    found: list[float] = []
    for group in _by(rows, lambda row: (*row.group, row.tp)).values():
        if len(group) < 2 * POINTS:
            continue
        for _ in range(DRAWS):
            order = random.permutation(len(group))
            chosen, rest = ([group[i] for i in part] for part in (order[:POINTS], order[POINTS:]))
            found += refitted(chosen, rest)
    return found


def refitted(chosen: list[Measured], rest: list[Measured]) -> list[float]:
    """Absolute errors on `rest` of the built-in terms rescaled to `chosen`."""
    x, y = matrix(rest)
    return list(np.abs(x @ term_scales(*matrix(chosen)) / y - 1))


def served_table(served: list[Measured]) -> None:
    """Served TPOT by group, built-in and calibrated on three rows of four."""
    print(f"\n{'served TPOT':62}{'rows':>6}{'built-in':>16}{'calibrated':>16}")
    pooled: dict[str, list[Measured]] = defaultdict(list)
    calibrated: dict[str, list[float]] = defaultdict(list)
    for group, rows in sorted(_by(served, lambda row: row.group).items()):
        kind = "nim" if group[0].startswith("nim") else "experts" if rows[0].moe else "dense"
        if len(rows) < 2 * POINTS:
            pooled[kind] += rows
            continue
        held = [row for i, row in enumerate(rows) if i % 4 == 3]
        found = refitted([row for i, row in enumerate(rows) if i % 4 != 3], held)
        pooled[kind] += rows
        calibrated[kind] += found
        name = f"{group[0][:24]} {group[2].split('/')[-1]} {group[3]} {group[4]}"
        print(f"{name[:61]:62}{len(rows):6}{show(errors(rows))}{show(found)}")
    limits = {"dense": "  (limits 15 / 25, 5 / 15)"}
    for kind, rows in pooled.items():
        print(f"{kind:62}{len(rows):6}{show(errors(rows))}{show(calibrated[kind])}{limits.get(kind, '')}")


def order_table(served: list[Measured]) -> None:
    """Of two TPs with all else equal: which gives more output tokens/s per GPU within a limit on TPOT."""
    print(f"\n{'TP order at a TPOT limit':26}{'pairs':>6}{'right':>8}{'lower TP':>10}{'higher TP':>11}")
    parts: dict[str, Callable[[Measured], bool]] = {
        "inferencex": lambda row: row.source.startswith("inferencex"),
        "nv-gap": lambda row: row.source.startswith("nv-gap"),
        "nim": lambda row: row.source.startswith("nim"),
        "all (limit 85 %, + 10)": lambda _: True,
    }
    for name, part in parts.items():
        rows = [row for row in served if part(row)]
        outcomes = {limit: order_pairs(rows, limit) for limit in LIMITS_S}
        if name.startswith("all"):
            for limit, found in outcomes.items():
                print(_order_line(f"  {limit * 1e3:.0f} ms", found))
        print(_order_line(name, [pair for found in outcomes.values() for pair in found]))


def _order_line(name: str, pairs: list[tuple[bool, bool]]) -> str:
    predicted, measured = np.array(pairs).T
    lower = 100 * measured.mean()
    return (
        f"{name:26}{len(pairs):6}{100 * (predicted == measured).mean():7.0f}%{lower:9.0f}%{100 - lower:10.0f}%"
    )


def order_pairs(rows: list[Measured], limit_s: float) -> list[tuple[bool, bool]]:
    """For every pair with a winner: whether the lower TP wins, by the model and as measured."""
    found = []
    for group in _by(rows, lambda row: (*row.group, row.lengths)).values():
        by_tp = _by(group, lambda row: row.tp)
        for low, high in itertools.combinations(sorted(by_tp), 2):
            measured = [_best(by_tp[tp], limit_s, lambda row: row.seconds) for tp in (low, high)]
            predicted = [_best(by_tp[tp], limit_s, lambda row: sum(row.terms)) for tp in (low, high)]
            if max(measured)[0] > 0:
                found.append((predicted[0] > predicted[1], measured[0] > measured[1]))
    return found


def _best(rows: list[Measured], limit_s: float, tpot: Callable[[Measured], float]) -> tuple[float, float]:
    """Most tokens/s per GPU within the limit; where nothing is within it, the least TPOT decides."""
    rates = [row.concurrency / tpot(row) / row.tp for row in rows if tpot(row) <= limit_s]
    return max(rates, default=0.0), -min(tpot(row) for row in rows)


def own_engine(seconds: float) -> None:
    """Calibrate the bundled engine on this machine; the error is on steps that the fit did not see."""
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "steps.jsonl"
        folder = model_folder(None, fetch=True, progress=print)
        calibrate.calibrate(folder, log, dtype="auto", threads=1, seconds=seconds, block_size=16, seed=0)
        steps = read_step_log(log)
    found = fit(steps.shapes, steps.seconds)
    p50, p90 = 100 * (found.error_p50 or 0), 100 * (found.error_p90 or 0)
    print(f"\nown engine, {len(steps.shapes)} steps, held out: {p50:.1f} / {p90:.1f} (limit 5 median)")


def _by(rows: Iterable[Measured], key: Callable[[Measured], Key]) -> dict[Key, list[Measured]]:
    found: dict[Key, list[Measured]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def _line(name: str, rows: list[Measured], *columns: str) -> str:
    return f"{name:34}{len(rows):6}{show(errors(rows))}" + "".join(columns)


def errors(rows: Iterable[Measured]) -> list[float]:
    """Absolute errors of the built-in model."""
    return [abs(row.error) for row in rows]


def show(found: list[float]) -> str:
    """Median / P90 in percent."""
    if not found:
        return f"{'-':>16}"
    p50, p90 = np.percentile(found, (50, 90)) * 100
    return f"{f'{p50:.1f} / {p90:.1f}':>16}"


if __name__ == "__main__":
    main()
