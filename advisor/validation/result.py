"""The Result of a validation: everything its verdict rests on, as `result.json` holds it.

Data only. Leaves the records out of its JSON: they have a file of their own, `requests.jsonl`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, InstanceOf

from advisor.simulation.slo import Slo
from advisor.validation.classes import ClassScore
from advisor.validation.elsewhere import Elsewhere
from advisor.validation.faults import FaultReport
from advisor.validation.gates import Gate
from advisor.validation.metrics import Latencies, Score
from advisor.validation.predicted import Predicted
from advisor.validation.record import Record
from advisor.validation.replay import End
from advisor.validation.search import Search
from advisor.validation.statistics import Attained, Evidence
from advisor.workload.model import Report

Word = Literal["PASS", "LIKELY PASS", "LIKELY FAIL", "FAIL", "INVALID", "REHEARSED"]
RESULT_NAME, REQUESTS_NAME = "result.json", "requests.jsonl"


class Replayed(Report):
    """What was sent where."""

    url: str
    model: str
    window: str = Field(description="the window as asked for")
    from_s: float = Field(0.0, description="where it begins, seconds after the log's first arrival")
    length_s: float = Field(description="length of the window as replayed, seconds")
    prompt_tokens: int
    output_tokens: int
    left_out: int = Field(description="requests of the window without an output length, not replayed")
    tick_s: float | None = Field(description="the log's clock tick, where arrivals were spread within it")
    scaled: tuple[str, ...] = Field(description="what --fit or --rate changed; empty: the log's own traffic")
    turns: Literal["open", "causal"] = Field(
        "open", description="open: every request at its own time; causal: not before the turn before has ended"
    )
    cache: Literal["warm", "cold"] = Field(
        "cold", description="warm: what precedes the window was replayed first"
    )
    warm_up_requests: int = Field(0, description="requests sent before the window, not judged")
    form: str = Field("token ids", description="how prompts were sent: token ids, text, or chat")
    fell_back: tuple[str, ...] = Field((), description="what the endpoint lacks and what was done instead")
    resumed: int = Field(0, description="requests whose outcome is from an earlier, interrupted run")
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
    would_be: Attained = Field(description="the verdict, had it been a real fleet")
    step_p50_s: float | None = Field(description="median step of its clock, seconds")
    lag_p99_s: float | None = Field(description="P99 of how late a step ended, seconds of the same clock")


class Cached(Report):
    """Prompt tokens from the prefix cache, of the requests that report them."""

    block_size: int = Field(description="the engine's block, tokens")
    prompt_tokens: int
    expected_tokens: int = Field(description="with an unlimited cache that knows every earlier prompt")
    measured_tokens: int


class Result(Report):
    """One validation."""

    format_version: Literal["1"] = "1"
    verdict: Word
    reason: str = Field(description="one sentence")
    end: End
    plan_digest: str | None = Field(
        None, description="of the plan it is about; null: no plan, or an edited one"
    )
    replayed: Replayed
    slo: Slo
    score: Score
    evidence: Evidence | None = Field(None, description="what the misses prove")
    classes: tuple[ClassScore, ...] = Field((), description="the worst first; empty where all requests are one")
    latencies: Latencies
    cached: Cached | None = Field(description="null where the server does not report cached tokens")
    tokens_per_chunk: float | None = Field(description="above 1.05, TBT does not compare with other streams")
    gates: tuple[Gate, ...]
    predicted: Predicted | None = Field(None, description="null where there is no prediction of what was sent")
    not_predicted: str | None = Field(None, description="why there is no prediction")
    elsewhere: tuple[Elsewhere, ...] = Field((), description="what other tools would have reported")
    search: Search | None = Field(None, description="null without --search")
    fault: FaultReport | None = Field(None, description="null without --fault")
    cpu: CpuUse | None = Field(None, description="router and client share the cores with the instances")
    rehearsal: Rehearsal | None = Field(None, description="null in front of real instances")
    incidents: tuple[str, ...] = Field((), description="what befell the fleet during the run: losses, restarts")
    records: tuple[InstanceOf[Record], ...] = Field((), exclude=True, repr=False)

    @property
    def label(self) -> str:
        """The verdict as shown: `PASS`, or `PASS (scaled: not your traffic)`."""
        return f"{self.verdict} (scaled: not your traffic)" if self.replayed.scaled else self.verdict

    @property
    def exit_code(self) -> int:
        """0 PASS, LIKELY PASS and REHEARSED, 1 FAIL and LIKELY FAIL, 4 INVALID, 130 interrupted."""
        if self.end == "interrupted":
            return 130
        return {"FAIL": 1, "LIKELY FAIL": 1, "INVALID": 4}.get(self.verdict, 0)

    def save(self, folder: Path) -> Path:
        """Write `result.json` into `folder`, for its owner only."""
        path = folder / RESULT_NAME
        scratch = folder / f".{RESULT_NAME}.{os.getpid()}"
        # With its final mode from the start, then renamed: nobody ever reads half a file.
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(self.model_dump_json(indent=2) + "\n")
        scratch.replace(path)
        return path
