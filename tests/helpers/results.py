"""Validations made by hand: plausible records of a fleet with a queue, and the Result that they give.

No engine, no clock, no file: the same arguments give the same Result. Scores, latencies, evidence and gates
come from the functions that a real run uses, so that a constructed Result never contradicts itself.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from advisor.advice.analysis import Analysis
from advisor.simulation.slo import Slo
from advisor.validation import gates as gating
from advisor.validation.classes import ClassTarget, by_class, slos
from advisor.validation.elsewhere import elsewhere
from advisor.validation.faults import FaultReport
from advisor.validation.metrics import latencies, score, tokens_per_chunk
from advisor.validation.predicted import Compared, Predicted
from advisor.validation.probes import Probe, curve
from advisor.validation.record import Record
from advisor.validation.replay import End
from advisor.validation.result import Cached, CpuUse, Rehearsal, Replayed, Result
from advisor.validation.search import Search
from advisor.validation.statistics import evidence, evidence_of
from advisor.validation.verdict import decide

SLO = Slo(ttft_s=0.5, tpot_s=0.05, attainment=0.90)
DIGEST = "3f1c9a" + "0" * 58
START = 1_790_000_000.0  # 2026-09-21 14:13:20 UTC
_ANALYSIS = Path(__file__).resolve().parent / "data" / "analysis.json.gz"


def sample_analysis() -> Analysis:
    """What `advise analyze` made of the sample log for 8 x h100-sxm, once, with roofline step times."""
    content = json.loads(gzip.decompress(_ANALYSIS.read_bytes()))
    return Analysis(**{name: value for name, value in content.items() if name in Analysis.model_fields})


def make_records(
    requests: int = 600,
    *,
    window_s: float = 60.0,
    servers: int = 4,
    tpot_s: float = 0.028,
    lag_s: float = 0.0008,
    failed: int = 0,
    unsent: int = 0,
    seed: int = 0,
) -> tuple[Record, ...]:
    """A window of requests through `servers` prefill queues, then even decodes with a rare stall.

    `failed` of them end as 500s, cut streams and timeouts in turn; the last `unsent` were never sent.
    """
    rng = np.random.default_rng(seed)
    due = np.sort(rng.uniform(0, window_s, requests))
    prompts = np.clip(rng.lognormal(6.4, 0.8, requests), 16, 7000).astype(int)
    outputs = np.clip(rng.lognormal(4.2, 0.6, requests), 1, 400).astype(int)
    bad = set(rng.choice(requests - unsent, failed, replace=False).tolist()) if failed else set()
    free = np.zeros(servers)
    made = []
    for row in range(requests):
        at, want_in, want_out = float(due[row]), int(prompts[row]), int(outputs[row])
        basics: dict[str, Any] = {
            "row": row, "t_sched": at, "want_in": want_in, "want_out": want_out, "session": row // 3,
            "turn": row % 3, "slo_class": "route=/batch" if row % 5 == 0 else None,
        }  # fmt: skip
        if row >= requests - unsent:
            made.append(Record(status="unsent", **basics))
            continue
        sent = at + lag_s * float(rng.uniform(0.2, 1.2))
        server = int(free.argmin())
        cached = want_in // 2 // 16 * 16
        free[server] = max(free[server], sent) + 0.02 + (want_in - cached) / 4000
        if row in bad:
            made.append(_failed(row, sent, basics))
            continue
        gaps = rng.normal(tpot_s, tpot_s / 12, want_out - 1) * float(rng.uniform(0.8, 1.25))
        gaps[rng.random(want_out - 1) < 0.004] += 0.18
        chunks = free[server] + np.concatenate(([0.0], np.cumsum(np.maximum(gaps, 0.001))))
        made.append(
            Record(
                status="ok",
                t_send=sent,
                t_hdr=sent + 0.002,
                t_any=float(chunks[0]),
                t_chunk=tuple(chunks.tolist()),
                t_done=float(chunks[-1]) + 0.001,
                n_in=want_in,
                n_cached=cached,
                n_out=want_out,
                n_out_source="usage",
                finish_reason="length",
                **basics,
            )
        )
    return tuple(made)


def _failed(row: int, sent: float, basics: dict[str, Any]) -> Record:
    kind = ("http_5xx", "broken_stream", "timeout")[row % 3]
    after = {"http_5xx": 0.05, "broken_stream": 0.6, "timeout": 20.0}[kind]
    return Record(status=kind, t_send=sent, t_done=sent + after, **basics)  # type: ignore[arg-type]


def make_result(
    records: Sequence[Record] | None = None,
    *,
    slo: Slo = SLO,
    window_s: float = 60.0,
    end: End = "complete",
    scaled: tuple[str, ...] = (),
    emulates: str | None = None,
    classes: tuple[ClassTarget, ...] = (),
    predicted: bool = True,
    replayed: dict[str, Any] | None = None,
    **more: Any,
) -> Result:
    """The Result of some records; `replayed` and `more` replace fields of Replayed and Result."""
    of_run = tuple(make_records() if records is None else records)
    own = slos(classes, slo)
    scored, seen = score(of_run, slo, window_s, own), latencies(of_run)
    proof = evidence_of(of_run, slo, own, seed=0)
    gates = gating.judge(of_run, seen, slo, end)
    by = by_class(of_run, slo, classes, window_s)
    word, reason = decide(scored, seen, slo, proof, gates, classes=by, emulates=emulates)
    tokens_in = sum(record.want_in for record in of_run)
    sent: dict[str, Any] = {
        "url": "http://127.0.0.1:8000", "model": "llama-3.1-8b", "window": "busiest:10m", "from_s": 1234.0,
        "length_s": window_s, "prompt_tokens": tokens_in, "output_tokens": sum(r.want_out for r in of_run),
        "left_out": 0, "tick_s": None, "scaled": scaled, "seed": 7, "start_unix_s": START,
    }  # fmt: skip
    fields: dict[str, Any] = {
        "verdict": word, "reason": reason, "end": end, "plan_digest": DIGEST,
        "replayed": Replayed(**(sent | (replayed or {}))), "slo": slo, "score": scored, "evidence": proof,
        "classes": by, "latencies": seen, "tokens_per_chunk": tokens_per_chunk(of_run), "gates": gates,
        "cached": Cached(
            block_size=16, prompt_tokens=tokens_in, expected_tokens=tokens_in // 2,
            measured_tokens=sum(record.n_cached or 0 for record in of_run),
        ),
        "elsewhere": elsewhere(of_run, slo), "records": of_run,
        "predicted": make_predicted(seen, scored.attainment) if predicted else None,
        "cpu": CpuUse(
            wall_s=window_s, cores=2, client_s=1.3, router_s=2.1, instances_s=96.0, client_share=0.011,
            router_share=0.018,
        ),
        "rehearsal": None if emulates is None else Rehearsal(
            gpu=emulates, time_scale=4.0, would_be=reason.split("would have been ")[-1].split(" (")[0],
            step_p50_s=0.024, lag_p99_s=0.0006,
        ),
    }  # fmt: skip
    return Result(**(fields | more))


def make_predicted(seen: Any, attainment: float, off: float = 0.06) -> Predicted:
    """A prediction that is `off` by so much, relative, in every latency."""

    def row(metric: str, measured: float | None, error: float) -> Compared:
        if measured is None:
            return Compared(metric=metric, predicted=None, measured=None, error=None)
        return Compared(metric=metric, predicted=measured * (1 + error), measured=measured, error=error)

    rows = [Compared(metric="attainment", predicted=attainment - 0.01, measured=attainment, error=-0.01)]
    for name in ("ttft", "tpot"):
        found = getattr(seen, name)
        error = off if name == "ttft" else -off / 2
        rows += [row(f"{name}_{at}_s", getattr(found, at, None), error) for at in ("p50", "p90")]
    rows.append(Compared(metric="hit_rate_tokens", predicted=0.512, measured=0.497, error=0.015))
    advice = (
        None
        if abs(off) <= 0.1
        else f"the prediction of ttft_p90_s is off by {off * 100:+.0f} %: advise calibrate"
    )
    return Predicted(
        source="calibrated: llama-3.1-8b, h100-sxm x 1", step_error_p90=0.11, rows=tuple(rows),
        low_attainment=attainment - 0.035, high_attainment=min(1.0, attainment + 0.02), advice=advice,
    )  # fmt: skip


def make_search() -> Search:
    """A search that began at 11 requests/s and ended between 12.1 and 12.6."""
    asked = [
        ("log", 1.0, 0.99, "keeps"), ("bracket", 0.88, 0.995, "keeps"), ("bracket", 1.37, 0.71, "fails"),
        ("bisect", 1.1, 0.97, "keeps"), ("bisect", 1.23, 0.88, "fails"), ("bisect", 1.16, 0.945, "keeps"),
        ("bisect", 1.21, 0.925, "keeps"), ("bisect", 1.26, 0.86, "fails"), ("confirm", 1.21, 0.93, "keeps"),
        ("confirm", 1.21, 0.915, "keeps"), ("confirm", 1.26, 0.875, "fails"),
    ]  # fmt: skip
    probes = []
    for seed, (stage, factor, share, judged) in enumerate(asked, 1):
        total = round(600 * factor)
        found = evidence(round(share * total), total, SLO.attainment)
        probes.append(
            Probe.model_validate(
                {
                    "factor": factor,
                    "rate_rps": 10 * factor,
                    "seed": seed,
                    "stage": stage,
                    "judged": judged,
                    "why": f"{found.misses} missed of {total}",
                    "evidence": found,
                    "good_rate_rps": 10 * factor * share,
                    "in_flight_slope": 0.31 if judged == "fails" else 0.02,
                    "ended_early": factor == 1.37,
                }
            )
        )
    together = evidence(1999, 2178, SLO.attainment)
    return Search(
        probes=tuple(probes), curve=curve(probes, 10.0), low_rps=12.1, high_rps=12.6, goodput_rps=12.3,
        low_attainment=together.share, evidence=together, gpus=8, predicted_rps=11.0, not_monotone=None,
        end="found", why="12.1 requests/s keep the targets in 3 runs, 12.6 do not",
    )  # fmt: skip


def make_fault() -> FaultReport:
    """A decode instance killed half way."""
    return FaultReport(
        kind="decode-kill", target="decode-0", at_s=30.2, back_s=34.9, requests=61, attainment=0.62,
        attainment_without=0.981, lost=3, predicted_attainment=0.7,
    )  # fmt: skip


BATCH = ClassTarget("route", "/batch", (("ttft_s", 2.0), ("attainment", 0.8)))
SCENARIOS = (
    "pass", "likely pass", "likely fail", "fail", "invalid", "rehearsed", "scaled", "search", "fault",
    "interrupted", "classes",
)  # fmt: skip


def scenario(name: str) -> Result:
    """A Result of each kind that a reader may meet; the names are SCENARIOS."""
    makers: dict[str, Any] = {
        "pass": lambda: make_result(),
        "likely pass": lambda: make_result(make_records(60, window_s=6.0, failed=4), window_s=6.0),
        "likely fail": lambda: make_result(make_records(60, window_s=6.0, failed=8), window_s=6.0),
        "fail": lambda: make_result(make_records(tpot_s=0.047, servers=2, failed=9)),
        "invalid": lambda: make_result(make_records(lag_s=0.08)),
        "rehearsed": lambda: make_result(make_records(failed=3), emulates="h100-sxm"),
        "scaled": lambda: make_result(scaled=("arrivals stretched 1.40 times",)),
        "search": lambda: make_result(search=make_search()),
        "fault": lambda: make_result(
            make_records(failed=20),
            fault=make_fault(),
            predicted=False,
            incidents=("decode-0 died and came back",),
        ),
        "interrupted": lambda: make_result(make_records(unsent=120), end="interrupted"),
        "classes": lambda: make_result(
            classes=(BATCH,), replayed={"fell_back": ("no min_tokens: lengths may vary",)}
        ),
    }
    result: Result = makers[name]()
    return result
