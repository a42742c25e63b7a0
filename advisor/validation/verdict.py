"""The outcome of a validation: PASS, FAIL, INVALID or REHEARSED, and everything it rests on.

PASS: attainment reaches the target as a point estimate and, with a TBT target, the pooled P99 gap keeps it too.
FAIL: it does not. INVALID: a gate is red, so the measurement says nothing about the server. REHEARSED: what
would have been PASS or FAIL came from an emulated fleet, which proves plumbing, not advice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, InstanceOf

from advisor.simulation.slo import Slo
from advisor.validation.gates import Gate
from advisor.validation.metrics import Latencies, Score
from advisor.validation.record import Record, write_records
from advisor.validation.replay import End
from advisor.workload.model import Report

Word = Literal["PASS", "FAIL", "INVALID", "REHEARSED"]


class Replayed(Report):
    """What was sent where."""

    url: str
    model: str
    window: str = Field(description="the window as asked for")
    length_s: float = Field(description="length of the window as replayed, seconds")
    prompt_tokens: int
    output_tokens: int
    left_out: int = Field(description="requests of the window without an output length, not replayed")
    tick_s: float | None = Field(description="the log's clock tick, where arrivals were spread within it")
    scaled: tuple[str, ...] = Field(description="what --fit changed; empty: the log's own traffic")
    seed: int = Field(description="seed of the prompts' content")
    start_unix_s: float = Field(description="wall clock at the first scheduled arrival, seconds since 1970 UTC")


class CpuUse(Report):
    """CPU time on this machine while the replay ran; shares are of each core that instances run on."""

    wall_s: float
    cores: int | None = Field(description="cores that instances run on; null where they are not known")
    client_s: float
    router_s: float | None = Field(description="null where the server does not tell")
    instances_s: float | None = Field(description="of all instances; null where the server does not tell")
    client_share: float | None
    router_share: float | None


class Rehearsal(Report):
    """What an emulated fleet stood for, and how well its clock kept time."""

    gpu: str
    time_scale: float = Field(
        description="its clock was so many times slower; latencies here are divided by it"
    )
    would_be: Literal["PASS", "FAIL"] = Field(description="the verdict, had it been a real fleet")
    step_p50_s: float | None = Field(description="median step of its clock, seconds")
    lag_p99_s: float | None = Field(description="P99 of how late a step ended, seconds of the same clock")


class Cached(Report):
    """Prompt tokens from the prefix cache, of the requests that report them."""

    block_size: int = Field(description="the engine's block, tokens")
    prompt_tokens: int
    expected_tokens: int = Field(description="with an unlimited cache that knows every earlier prompt")
    measured_tokens: int


class Result(Report):
    """One validation. Leaves `records` out of its JSON: they have a file of their own."""

    format_version: Literal["1"] = "1"
    verdict: Word
    reason: str = Field(description="one sentence")
    end: End
    replayed: Replayed
    slo: Slo
    score: Score
    latencies: Latencies
    cached: Cached | None = Field(description="null where the server does not report cached tokens")
    tokens_per_chunk: float | None = Field(description="above 1.05, TBT does not compare with other streams")
    gates: tuple[Gate, ...]
    cpu: CpuUse | None = Field(None, description="router and client share the cores with the instances")
    rehearsal: Rehearsal | None = Field(None, description="null in front of real instances")
    incidents: tuple[str, ...] = Field((), description="what befell the fleet during the run: losses, restarts")
    records: tuple[InstanceOf[Record], ...] = Field(exclude=True, repr=False)

    @property
    def label(self) -> str:
        """The verdict as shown: `PASS`, or `PASS (scaled: not your traffic)`."""
        return f"{self.verdict} (scaled: not your traffic)" if self.replayed.scaled else self.verdict

    @property
    def exit_code(self) -> int:
        """0 PASS and REHEARSED, 1 FAIL, 4 INVALID, 130 interrupted."""
        if self.end == "interrupted":
            return 130
        return {"PASS": 0, "REHEARSED": 0, "FAIL": 1, "INVALID": 4}[self.verdict]

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write `result.json` and `requests.jsonl`, one record a line, into `folder`."""
        result, requests = folder / "result.json", folder / "requests.jsonl"
        result.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
        write_records(self.records, requests)
        return result, requests


def decide(
    score: Score, latencies: Latencies, slo: Slo, gates: tuple[Gate, ...], emulates: str | None = None
) -> tuple[Word, str]:
    """The verdict, and its reason in one sentence with N and the misses. `emulates`: a GPU that is not here."""
    red = [gate for gate in gates if gate.colour == "red"]
    if red:
        return "INVALID", "; ".join(f"{gate.name}: {gate.text}" for gate in red)
    word, reason = attained(score, latencies, slo)
    if emulates is None:
        return word, reason
    return (
        "REHEARSED",
        f"would have been {word} ({reason}); {emulates} was emulated: this proves plumbing, not advice",
    )


def attained(score: Score, latencies: Latencies, slo: Slo) -> tuple[Literal["PASS", "FAIL"], str]:
    """Whether the targets were kept, and the reason in one sentence."""
    missed = score.requests - score.good
    reached = f"{score.attainment:.1%} of {score.requests} requests kept the targets, {missed} missed"
    if score.attainment < slo.attainment:
        return "FAIL", f"{reached}; {slo.attainment:.0%} wanted"
    gaps = latencies.tbt
    if slo.tbt_s is not None and gaps is not None and gaps.p99 > slo.tbt_s:
        return "FAIL", f"{reached}, but the P99 gap is {gaps.p99 * 1e3:.0f} ms; {slo.tbt_s * 1e3:.0f} ms wanted"
    return "PASS", f"{reached}; {slo.attainment:.0%} wanted"
