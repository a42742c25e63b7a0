"""Goodput of a running endpoint: the log's own rate first, then one replay a rate, as `search` asks for them.

Owns the step from a rate to its replay: the window scaled, prompts that no other replay has, its records
judged. Every probe is in the journal with its outcome, so that an interrupted search goes on where it was; only
the replay at the log's own rate is made again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.advice.target import Objective
from advisor.logs.trace import Trace
from advisor.simulation.slo import Slo
from advisor.validation import loop, metrics, roofline
from advisor.validation.classes import slos
from advisor.validation.journal import Journal, read_journal
from advisor.validation.options import Options, Progress, Silent
from advisor.validation.probing import Judgement, judge_attainment, judge_capacity, probe_seconds
from advisor.validation.record import Record
from advisor.validation.refuse import peak_rate
from advisor.validation.result import Result
from advisor.validation.run import Ran, Site, Traffic, gates_of, result_of, run_once
from advisor.validation.scale import scale_window
from advisor.validation.search import MOST_PROBES, Probe, Stage, find_goodput
from advisor.validation.statistics import Sequential
from advisor.validation.validate import choose, cost_of, journal_of, reach
from advisor.validation.window import DEFAULT_WINDOW

LOWEST, HIGHEST = 0.05, 20.0  # times the window's own rate: as far as a search goes (ours)
_OURS = ("send_lag", "arrivals", "prompt_lengths", "output_lengths", "cache", "clock_lag", "cores")
"""Gates that say that the measurement is wrong, not that the endpoint failed."""


@dataclass(frozen=True, slots=True)
class Sought:
    """What a search is told beyond the options of a replay."""

    objective: Objective = "goodput"
    predicted_rps: float | None = None  # the plan's goodput, where the search begins
    gpus: int | None = None  # devices behind the endpoint


def seek(
    trace: Trace,
    *,
    url: str,
    slo: Slo,
    sought: Sought,
    window: str = DEFAULT_WINDOW,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Result:
    """The Result of the log's own rate, with the Search beside it. Raises as `validate`."""
    options, progress = options or Options(), progress or Silent()
    site = loop.run(reach(url, options, search=True))
    traffic = choose(trace, window, site, replace(options, resume=False))
    progress.cost(cost_of(traffic, site, options, most_runs=MOST_PROBES))
    done = _journalled(traffic, options) if options.resume else ()
    with journal_of(options, fresh=not options.resume) as journal:
        seeking = _Seeking(site, traffic, slo, sought, options, progress, journal, len(done))
        return seeking.result(done)


def _journalled(traffic: Traffic, options: Options) -> tuple[Probe, ...]:
    """The probes of an interrupted search of the same traffic."""
    parts = read_journal(options.journal) if options.journal is not None else ()
    same = [part for part in parts if part.header.search_digest == traffic.digest and part.probe is not None]
    return tuple(part.probe for part in same if part.probe is not None and part.probe.stage != "log")


class _Seeking:
    """One search: its endpoint, its traffic, and how many replays there were."""

    def __init__(
        self,
        site: Site,
        traffic: Traffic,
        slo: Slo,
        sought: Sought,
        options: Options,
        progress: Progress,
        journal: Journal | None,
        runs: int,
    ) -> None:
        self._site, self._traffic, self._slo, self._sought = site, traffic, slo, sought
        self._options, self._progress, self._journal, self._runs = options, progress, journal, runs
        window = traffic.window
        self._rate_rps = int(np.count_nonzero(window.judged)) / max(window.length_s, 1e-9)

    def result(self, done: Sequence[Probe]) -> Result:
        """Replay at the log's rate, then search."""
        ran = self._replay(1.0, 0, "log")
        result = result_of(self._site, ran, self._slo, self._options)
        if ran.end == "interrupted":
            return result
        first = self._judged(ran, 1.0, 0, "log")
        short = self._too_short(result)
        predicted = self._sought.predicted_rps
        search = find_goodput(
            self._probe,
            start=1.0 if predicted is None else predicted / self._rate_rps,
            rate_rps=self._rate_rps,
            lowest=LOWEST,
            highest=self._highest(),
            gpus=self._sought.gpus,
            predicted_rps=predicted,
            done=(first, *done),
        )
        if short is not None:
            search = search.model_copy(update={"why": f"{search.why}; {short}"})
        end = "interrupted" if search.end == "interrupted" else result.end
        return result.model_copy(update={"search": search, "end": end})

    def _too_short(self, result: Result) -> str | None:
        """Whether replays of this window are shorter than those that tell much."""
        e2e, length_s = result.latencies.e2e, result.replayed.length_s
        wanted_s = probe_seconds(self._rate_rps, 0.0 if e2e is None else e2e.p99, self._slo.attainment)
        if length_s >= wanted_s:
            return None
        return f"each replay was of {length_s:.0f} s, and {wanted_s:.0f} s would tell more"

    def _highest(self) -> float:
        """The highest factor: by the user's limit, and half of what this client can send."""
        window, limits = self._traffic.window, self._options.limits
        rates = [HIGHEST]
        if limits.max_rate is not None:
            rates.append(limits.max_rate / max(peak_rate(np.sort(window.due_s)), 1e-9))
        share = roofline.measure_client(quick=True).share(
            self._rate_rps, self._rate_rps * float(window.trace.output_tokens.mean())
        )
        if 0 < share < math.inf:  # on busy cores it is not known, and the send_lag gate speaks
            rates.append(roofline.GREEN_SHARE / share)
        return max(LOWEST, min(rates))

    def _probe(self, factor: float, seed: int, stage: Stage) -> Probe | None:
        ran = self._replay(factor, seed, stage)
        return None if ran.end == "interrupted" else self._judged(ran, factor, seed, stage)

    def _replay(self, factor: float, seed: int, stage: Stage) -> Ran:
        """One replay. Confirmations draw sessions of their own; all others nest."""
        options, traffic = self._options, self._traffic
        draw = seed if stage == "confirm" else options.seed or 0
        window = scale_window(traffic.window, factor, options.scale, draw)
        content = (traffic.seed + self._runs) % 2**32
        self._runs += 1
        traffic = replace(
            traffic,
            window=window,
            seed=content,
            digest=window.digest(),
            searched=traffic.digest,
            stage=stage,
            factor=options.rate * factor,
        )
        one = run_once(
            self._site,
            traffic,
            self._slo,
            options,
            self._progress,
            self._journal,
            enough=self._hopeless(int(np.count_nonzero(window.judged)), stage),
        )
        return loop.run(one)

    def _hopeless(self, requests: int, stage: Stage) -> Hopeless | None:
        """What ends a probe that certainly fails; none of those whose shares are added up or shown."""
        if stage in ("log", "confirm") or self._sought.objective == "tbt":
            return None
        own = slos(self._options.classes, self._slo)
        return Hopeless(Sequential(requests, self._slo.attainment), self._slo, own)

    def _judged(self, ran: Ran, factor: float, seed: int, stage: Stage) -> Probe:
        records, own = ran.undilated(), slos(self._options.classes, self._slo)
        judgement = self._judgement(ran, records, own)
        wrong = self._wrong(ran, records)
        score = metrics.score(records, self._slo, ran.traffic.window.length_s, own)
        probe = Probe(
            factor=factor,
            rate_rps=len(records) / max(ran.traffic.window.length_s, 1e-9),
            seed=seed,
            stage=stage,
            judged=judgement.judged if wrong is None else "invalid",
            why=judgement.why if wrong is None else wrong,
            evidence=judgement.evidence,
            good_rate_rps=score.good_rate_rps,
            in_flight_slope=judgement.growth,
            ended_early=ran.end == "enough",
        )
        if self._journal is not None:
            self._journal.judged(probe)
        self._progress.probe(factor, f"{probe.rate_rps:.3g} requests/s: {probe.judged}, {probe.why}")
        return probe

    def _judgement(self, ran: Ran, records: list[Record], own: dict[str, Slo]) -> Judgement:
        if self._sought.objective == "tbt" and self._slo.tbt_s is not None:
            return judge_capacity(records, self._slo.tbt_s)
        return judge_attainment(records, self._slo, own, ended_early=ran.end == "enough")

    def _wrong(self, ran: Ran, records: list[Record]) -> str | None:
        """Why a probe's measurement cannot be trusted; None where it can. An early end left the rest unsent."""
        sent = [record for record in records if record.t_send is not None] or records
        judged = gates_of(self._site, ran, sent, self._slo, self._options)
        red = [gate for gate in judged if gate.colour == "red" and gate.name in _OURS]
        return "; ".join(f"{gate.name}: {gate.text}" for gate in red) or None


class Hopeless:
    """Asked at each record of a probe: whether so many have missed that it fails whatever comes."""

    def __init__(self, sequential: Sequential, slo: Slo, own: dict[str, Slo]) -> None:
        self._sequential, self._slo, self._own = sequential, slo, own

    def __call__(self, record: Record) -> bool:
        """True ends the replay."""
        one = record.undilated()
        good = metrics.miss(one, self._own.get(one.slo_class or "", self._slo)) is None
        return self._sequential.add(good) == "fails"
