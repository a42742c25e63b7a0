"""AIPerf and GuideLLM beside our replay: the same load on the bundled engine, medians side by side.

    python -m benchmarks.load_generators [--requests 40] [--rate 0.5] [--rounds 3]

All three send the same arrivals, prompt lengths and output lengths to one engine with the embedded model on one
core, one after the other, in another order each round. Our records of the round also give what either tool
would have reported by its own formula (`advisor.validation.elsewhere`), so that a difference is seen to be one
of definition or one of clients. Prints the table of docs/load-generators.md; medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from advisor.deploy.local import start_engine
from advisor.logs.trace import Trace
from advisor.simulation.slo import Slo
from advisor.validation.elsewhere import AIPERF, GUIDELLM, Elsewhere, elsewhere
from advisor.validation.endpoint import inspect
from advisor.validation.options import Options
from advisor.validation.result import Result
from advisor.validation.validate import validate
from benchmarks._load_tools import Figures, Site, aiperf, guidellm, version_of
from engine.config import EngineConfig, PoolConfig, ServerConfig
from engine.errors import AdviseError, InvalidMeasurementError
from engine.fetch import model_folder

AGREE = 0.05
WARM_UP = 999  # seed of a first run, not counted
LOOSE = Slo(ttft_s=60.0, tpot_s=10.0)
ORDERS = (("ours", "aiperf", "guidellm"), ("guidellm", "ours", "aiperf"), ("aiperf", "guidellm", "ours"))
HEADS = (
    "tool", "quantity", "its median ms", "by its formula from our records ms", "apart",
    "our metric", "ms", "apart", "",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """Poisson arrivals, requests/s, of equal requests; lengths in tokens."""

    requests: int
    rate_rps: float
    prompt: int = 64
    output: int = 32

    def trace(self, seed: int) -> Trace:
        """The requests of a round, whole milliseconds apart: what the tools' schedules take."""
        gaps = np.random.default_rng(seed).exponential(1 / self.rate_rps, self.requests)
        arrival = np.round(np.cumsum(gaps) - gaps[0], 3)
        return Trace(
            arrival_s=arrival,
            prompt_tokens=np.full(self.requests, self.prompt, dtype=np.int64),
            output_tokens=np.full(self.requests, self.output, dtype=np.int64),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of one tool in one round, seconds; `ours`: our own metric of that name or nearest to it."""

    tool: str
    quantity: str
    theirs: float
    by_formula: float
    metric: str
    ours: float


def main() -> int:
    """Run all rounds, then print the table."""
    given = _arguments()
    try:
        found = measured(Load(given.requests, given.rate), given.rounds)
    except AdviseError as error:
        print(f"{error.message}: {error.why}" if error.why else error.message, file=sys.stderr)
        return error.exit_code
    print(table(found, Load(given.requests, given.rate), given.rounds))
    return 0


def measured(load: Load, rounds: int) -> list[Row]:
    """The rows of all rounds. Raises InvalidMeasurementError where a request failed or a length is off."""
    folder = model_folder(None, fetch=True)
    pool = PoolConfig(prefix_cache=False)  # the tools repeat their prompts, ours never
    config = EngineConfig(pools=(pool,), server=ServerConfig(port=0))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch, start_engine(config) as engine:
        vocabulary = asyncio.run(inspect(engine.url)).vocab_size
        site = Site(engine.url, config.model.name, folder, vocabulary)
        _ours(site, load.trace(WARM_UP), WARM_UP)  # what is slow only once
        for number in range(rounds):
            rows += one_round(site, load, number, Path(scratch))
            print(*rows[-5:], sep="\n", file=sys.stderr, flush=True)
    return rows


def one_round(site: Site, load: Load, number: int, folder: Path) -> list[Row]:
    """Each of the three once, on the same arrivals."""
    trace = load.trace(number)
    theirs: dict[str, Figures] = {}
    for who in ORDERS[number % len(ORDERS)]:
        if who == "ours":
            ours = _ours(site, trace, number)
        else:
            theirs[who] = (aiperf if who == "aiperf" else guidellm)(site, trace, number, folder)
            _check(who, theirs[who], load)
    return rows_of(theirs["aiperf"], theirs["guidellm"], ours)


def _ours(site: Site, trace: Trace, seed: int) -> Result:
    """Our replay of the load. Raises InvalidMeasurementError where a request failed."""
    result = validate(trace, url=site.url, slo=LOOSE, window="all", options=Options(seed=seed))
    if result.latencies.ttft is None or result.latencies.ttft.n != len(trace):
        raise InvalidMeasurementError("not every request of our replay completed", why=str(result.score.misses))
    return result


def _check(who: str, found: Figures, load: Load) -> None:
    """Raises InvalidMeasurementError where a tool sent something else than the load.

    GuideLLM may close its report before it has counted the last answer.
    """
    if found.failed or found.completed < load.requests - (who == "guidellm"):
        raise InvalidMeasurementError(f"{who}: {found.completed} of {load.requests}, {found.failed} failed")
    if found.output_tokens != load.output or abs(found.prompt_tokens - load.prompt) > 2:
        raise InvalidMeasurementError(
            f"{who} sent {found.prompt_tokens:.1f} tokens and was sent {found.output_tokens:.1f}"
        )


def rows_of(theirs_aiperf: Figures, theirs_guidellm: Figures, ours: Result) -> list[Row]:
    """What either tool reported beside its formula on our records, and beside our own metric."""
    formula = {one.tool: one for one in elsewhere([record.undilated() for record in ours.records], LOOSE)}
    ttft, tpot = ours.latencies.ttft, ours.latencies.tpot
    assert ttft is not None
    assert tpot is not None
    rows = []
    for tool, theirs in ((AIPERF, theirs_aiperf), (GUIDELLM, theirs_guidellm)):
        mine = _medians(formula[tool])
        for quantity, value in theirs.medians_s.items():
            metric, own = ("TTFT", ttft.p50) if quantity == "TTFT" else ("TPOT", tpot.p50)
            rows.append(Row(tool, quantity, value, mine[quantity], metric, own))
    return rows


def _medians(one: Elsewhere) -> dict[str, float]:
    found = {"TTFT": one.ttft_p50_s, "ITL": one.itl_p50_s, "TPOT": one.tpot_p50_s}
    return {name: value for name, value in found.items() if value is not None}


def table(rows: Sequence[Row], load: Load, rounds: int) -> str:
    """Markdown, a line a quantity of a tool; medians over the rounds."""
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    for tool, quantity in dict.fromkeys((row.tool, row.quantity) for row in rows):
        same = [row for row in rows if (row.tool, row.quantity) == (tool, quantity)]
        theirs, formula, own = (
            statistics.median(getattr(row, name) for row in same) for name in ("theirs", "by_formula", "ours")
        )
        near, alike = abs(theirs / own - 1) <= AGREE, abs(theirs / formula - 1) <= AGREE
        word = "agrees" if near else "by definition" if alike else "differs"
        lines.append(
            f"| {tool} | {quantity} | {theirs * 1e3:.1f} | {formula * 1e3:.1f} | {theirs / formula - 1:+.1%} "
            f"| {same[0].metric} | {own * 1e3:.1f} | {theirs / own - 1:+.1%} | {word} |"
        )
    versions = ", ".join(f"{name} {version_of(name)}" for name in ("aiperf", "guidellm"))
    said = (
        f"{rounds} rounds of {load.requests} requests, Poisson arrivals at {load.rate_rps:g}/s, {load.prompt} "
        f"tokens in, {load.output} out; {versions}; {datetime.now(UTC):%Y-%m-%d}; {platform.machine()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}"
    )
    return "\n".join([*lines, "", f"{said}."])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load_generators", description=__doc__)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--rate", type=float, default=0.5, help="requests/s")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
