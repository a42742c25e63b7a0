"""A Result in words and tables, for the terminal and for the HTML report.

Owns the wording; every number comes from the Result and has its unit. What a run does not have is absent: a
function then gives None, or nothing.
"""

from __future__ import annotations

from advisor.report import words
from advisor.report.grid import Grid
from advisor.report.rows import seconds
from advisor.report.words import count, figure, metric, plural, points, rate, share
from advisor.validation.metrics import Latency
from advisor.validation.miss import attribution
from advisor.validation.predicted import Compared
from advisor.validation.result import Result
from advisor.validation.statistics import Evidence

PERCENTILES = ("p50", "p90", "p99", "max")
SHARES = ("attainment", "hit_rate_tokens")  # whose error is in points
MOST_ERROR = 0.10  # of a prediction, beyond which it is marked


def headline(result: Result) -> str:
    """One line: the verdict, N and what was kept."""
    told = f"{result.score.good:,} of {plural(result.score.requests, 'request')} kept the targets"
    if result.verdict == "INVALID":
        return "INVALID: the measurement says nothing about the server"
    if result.rehearsal is not None:
        return f"REHEARSED: would have been {result.rehearsal.would_be}; {told}"
    return f"{result.label}: {told}"


def sent(result: Result) -> str:
    """What was replayed, where."""
    replayed = result.replayed
    warm = f" after {count(replayed.warm_up_requests)} to warm up" if replayed.warm_up_requests else ""
    return (
        f"{plural(result.score.requests, 'request')} in {replayed.length_s:,.0f} s ({replayed.window}){warm} "
        f"to {replayed.url}, {replayed.model}: {count(replayed.prompt_tokens)} prompt and "
        f"{count(replayed.output_tokens)} output tokens"
    )


def beside(result: Result) -> list[str]:
    """What a reader of the figures must know, one sentence each."""
    replayed = result.replayed
    found = [*replayed.scaled]
    if replayed.left_out:
        found.append(f"{plural(replayed.left_out, 'request')} without a known output length left out")
    if replayed.turns == "causal":
        found.append("each turn waited for the one before it")
    if replayed.resumed:
        found.append(f"{plural(replayed.resumed, 'outcome')} from an earlier, interrupted run")
    found += [*replayed.fell_back, *result.incidents]
    chunk = result.tokens_per_chunk
    if chunk is not None and chunk > 1.05:
        found.append(f"{chunk:.2f} tokens a chunk: gaps between chunks are not gaps between tokens")
    cpu = result.cpu
    if cpu is not None and cpu.client_share is not None:
        router = "" if cpu.router_share is None else f"router {cpu.router_share:.1%}, "
        found.append(f"CPU: {router}client {cpu.client_share:.1%} of each of {cpu.cores} cores")
    return found


def kept(result: Result) -> str:
    """Attainment, good rate and cached prompt tokens."""
    good = result.score.good_rate_rps
    told = [f"{share(result.score.attainment)} of {plural(result.score.requests, 'request')}"]
    if good is not None:
        told.append(f"{good:.3g} good requests/s")
    if result.cached is not None:
        cached = result.cached.measured_tokens / max(1, result.cached.prompt_tokens)
        told.append(f"{share(cached)} of prompt tokens cached")
    return "; ".join(told)


def misses(result: Result) -> str:
    """`7: 5 TTFT only, 2 error (1 http_5xx, 1 timeout)`."""
    total = result.score.requests - result.score.good
    if not total:
        return "none"
    groups = {name: number for name, number in attribution(result.score).items() if number}
    kinds = [f"{number:,} {kind}" for kind, number in result.score.misses.items() if not _is_target(kind)]
    told = [
        f"{number:,} {name}" + (f" ({', '.join(kinds)})" if name == "error" else "")
        for name, number in groups.items()
    ]
    return f"{total:,}: {', '.join(told)}"


def _is_target(kind: str) -> bool:
    return set(kind.split("+")) <= {"ttft", "tpot", "tbt"}


def bounds(evidence: Evidence) -> tuple[float, float]:
    """The 95 % band: the wider of the exact bounds and those from blocks of time."""
    low, high = evidence.low, evidence.high
    if evidence.block_low is not None and evidence.block_high is not None:
        return min(low, evidence.block_low), max(high, evidence.block_high)
    return low, high


def proof(result: Result) -> list[str]:
    """What the misses prove, and how far one run may be trusted to say so; nothing if INVALID."""
    evidence = result.evidence
    if evidence is None or result.verdict == "INVALID":
        return []
    found = [
        f"at least {share(evidence.low)} and at most {share(evidence.high)}, each with "
        f"{evidence.confidence:.0%} confidence, if requests were independent"
    ]
    if evidence.block_low is not None and evidence.block_high is not None and evidence.block_s is not None:
        found.append(
            f"requests of one run queue behind each other: blocks of {evidence.block_s:.0f} s give "
            f"{share(evidence.block_low)} to {share(evidence.block_high)}"
        )
    return found


def gates(result: Result) -> Grid:
    """Every gate with its figure."""
    rows = tuple((gate.name.replace("_", " "), gate.colour, gate.text) for gate in result.gates)
    return Grid("Validity", ("check of the measurement", "", "figure"), rows, words=(0, 1, 2))


def latencies(result: Result) -> Grid:
    """Every latency's percentiles."""
    named = (
        ("TTFT", result.latencies.ttft), ("TTFT from the send", result.latencies.ttft_svc),
        ("TPOT", result.latencies.tpot), ("gap between chunks", result.latencies.tbt),
        ("largest gap", result.latencies.max_gap), ("E2E", result.latencies.e2e),
        ("send lag", result.latencies.send_lag), ("waited for a turn", result.latencies.dependency_delay),
    )  # fmt: skip
    rows = tuple((name, *quantiles(one), f"{one.n:,}") for name, one in named if one is not None)
    return Grid("Latencies", ("", *PERCENTILES, "samples"), rows)


def quantiles(one: Latency | None) -> tuple[str, ...]:
    """The percentiles in words; dashes for none."""
    return tuple("-" if one is None else seconds(getattr(one, name)) for name in PERCENTILES)


def classes(result: Result) -> Grid | None:
    """The classes, the worst first, each against its own targets."""
    if not result.classes:
        return None
    rows = tuple(
        (
            one.name, share(one.share), share(one.score.attainment), f"{one.slo.attainment:.0%}",
            f"{one.score.requests - one.score.good} of {one.score.requests}", words.kept(one.slo),
        )
        for one in result.classes
    )  # fmt: skip
    headings = ("class, the worst first", "share", "kept", "wanted", "missed", "targets")
    return Grid("Classes", headings, rows, words=(0, 5))


def error(row: Compared) -> str:
    """The error of a prediction: points for shares, per cent for the rest."""
    if row.error is None:
        return "-"
    return points(row.error) if row.metric in SHARES else f"{row.error:+.1%}"


def predicted(result: Result) -> Grid | None:
    """Predicted beside measured; its note says on which step times."""
    found = result.predicted
    if found is None:
        return None
    rows = tuple(
        (metric(row.metric), figure(row.metric, row.predicted), figure(row.metric, row.measured), error(row))
        for row in found.rows
    )
    known = "" if found.step_error_p90 is None else f"; P90 error of the step times {found.step_error_p90:.0%}"
    between = ""
    if found.low_attainment is not None and found.high_attainment is not None:
        low, high = share(found.low_attainment), share(found.high_attainment)
        between = f"; attainment with steps slower and faster by it {low} to {high}"
    note = f"step times {found.source}{known}{between}"
    return Grid("Predicted and measured", ("", "predicted", "measured", "error"), rows, note)


def off(row: Compared) -> bool:
    """Whether the prediction is off by more than a tenth."""
    return row.error is not None and abs(row.error) > MOST_ERROR


def elsewhere(result: Result) -> Grid | None:
    """What other tools would have reported of the same records."""
    if not result.elsewhere:
        return None
    head = ("", "TTFT p50", "TTFT p99", "TPOT p50", "ITL p50", "ITL p99", "good")
    ours = result.latencies
    ttft, tpot, tbt = ours.ttft, ours.tpot, ours.tbt
    mine = (
        "advise",
        seconds(ttft.p50 if ttft else None),
        seconds(ttft.p99 if ttft else None),
        seconds(tpot.p50 if tpot else None),
        seconds(tbt.p50 if tbt else None),
        seconds(tbt.p99 if tbt else None),
        share(result.score.attainment),
    )
    rows = tuple(
        (
            one.tool, seconds(one.ttft_p50_s), seconds(one.ttft_p99_s), seconds(one.tpot_p50_s),
            seconds(one.itl_p50_s), seconds(one.itl_p99_s), share(one.good_share),
        )
        for one in result.elsewhere
    )  # fmt: skip
    return Grid("What other tools would have reported", head, (mine, *rows))


def search(result: Result) -> Grid | None:
    """Every probe of the search, in its order."""
    found = result.search
    if found is None:
        return None
    rows = tuple(
        (
            rate(one.rate_rps), f"{one.factor:.2f}x", one.stage,
            ("<= " if one.ended_early and one.judged == "fails" else "") + share(one.evidence.share),
            f"{one.evidence.misses:,} of {one.evidence.requests:,}", one.judged, str(one.seed),
        )
        for one in found.probes
    )  # fmt: skip
    headings = ("rate", "log", "stage", "kept", "missed", "judged", "seed")
    return Grid("Search", headings, rows, words=(2, 5))


def goodput(result: Result) -> list[str]:
    """Goodput by the search, per GPU with its interval, and how it ended."""
    found = result.search
    if found is None:
        return []
    told = []
    if found.low_rps is not None:
        high = "no higher rate failed" if found.high_rps is None else f"{rate(found.high_rps)} does not"
        told.append(f"{rate(found.low_rps)} keeps the targets, {high}")
        if found.gpus:
            ends = [one / found.gpus for one in (found.low_rps, found.high_rps) if one is not None]
            between = " to ".join(f"{end:.3g}" for end in ends)
            told.append(f"per GPU {between} requests/s, of {plural(found.gpus, 'GPU')}")
        if found.evidence is not None:
            low, high_share = bounds(found.evidence)
            told.append(
                f"at {rate(found.low_rps)} {share(found.low_attainment)} of {count(found.evidence.requests)} "
                f"requests kept the targets (95 %: {share(low)} to {share(high_share)})"
            )
    if found.predicted_rps is not None:
        told.append(f"predicted: {rate(found.predicted_rps)}")
    if found.not_monotone:
        told.append(found.not_monotone)
    return told if found.end == "found" and told else [*told, found.why]


def fault(result: Result) -> list[str]:
    """What a fault cost."""
    found = result.fault
    if found is None:
        return []
    when = "all through the run" if found.at_s is None else f"{found.at_s:.1f} s after the start"
    back = ""
    if found.at_s is not None:
        back = (
            "; not whole again by the end"
            if found.back_s is None
            else f"; whole again {found.back_s - found.at_s:.1f} s later"
        )
    told = [f"{found.kind} of {found.target}, {when}{back}"]
    if found.attainment is not None:
        without = (
            "" if found.attainment_without is None else f", {share(found.attainment_without)} of all others"
        )
        of = plural(found.requests, "request")
        told.append(f"{share(found.attainment)} of {of} meanwhile kept the targets{without}")
    if found.predicted_attainment is not None:
        told.append(f"the plan's simulated loss said {share(found.predicted_attainment)}")
    told.append(f"{plural(found.lost, 'request')} without a complete answer")
    return told


def next_step(result: Result) -> str:
    """The command that follows from the verdict."""
    if result.end == "interrupted":
        return "advise validate --resume   (goes on where it was)"
    if result.verdict == "INVALID":
        return "advise doctor --client   (is this machine fast enough to measure?)"
    if result.predicted is not None and result.predicted.advice is not None and "FAIL" in result.verdict:
        return "advise calibrate   (the plan's step times are not this engine's)"
    if result.search is not None:
        return "advise analyze LOG --compare-to advise-out --check   (later: does the plan still fit?)"
    return {
        "PASS": "advise validate --search   (how much more it holds)",
        "LIKELY PASS": "advise validate --window all   (more requests, for a proof)",
        "LIKELY FAIL": "advise validate --window all   (more requests, for a proof)",
        "FAIL": "advise plan advise-out --gpus N   (more GPUs; or looser --ttft, --tpot)",
        "REHEARSED": "advise launch   (on the plan's own GPUs; then advise validate)",
    }[result.verdict]
