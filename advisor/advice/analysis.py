"""The Analysis: everything that `advise analyze LOG --json` prints, as one model.

This is the JSON contract; docs/metrics.md defines the numbers. `plan.json` is its canonical form with a
digest.
"""

from __future__ import annotations

import hashlib
import json

from pydantic import Field

from advisor.advice.finding import Finding
from advisor.advice.plan import Plan
from advisor.workload.model import (
    Arrivals,
    Clients,
    Drift,
    Latency,
    LengthClass,
    Lengths,
    PromptLayout,
    Report,
    Sessions,
    Sharing,
    Trait,
    UnknownField,
)
from advisor.workload.models import ModelRows
from advisor.workload.routes import RouteRows

FORMAT_VERSION = "1"


class Meta(Report):
    """Which program and inputs made this."""

    format_version: str = FORMAT_VERSION
    advise_version: str
    seed: int
    inputs_digest: str = Field(description="SHA-256 of the log, the flags and the step times used")


class LogSummary(Report):
    """What was read and what was assumed."""

    format: str
    files: int
    lines: int
    requests: int | None = Field(description="null where the log gives sums without a count")
    items: int | None = None  # = requests of all models + skipped
    skipped: dict[str, int]
    models: tuple[ModelRows, ...]
    routes: tuple[RouteRows, ...] = ()
    span_s: float | None
    arrival_basis: str
    tick_s: float | None
    token_basis: str
    prefix_basis: str | None
    notes: tuple[str, ...] = ()


class Analysis(Report):
    """The whole result of `advise analyze`."""

    meta: Meta
    log: LogSummary
    lengths: Lengths
    arrivals: Arrivals
    latency: Latency = Latency()
    sharing: Sharing
    classes: tuple[LengthClass, ...]
    sessions: Sessions | None = None
    clients: Clients | None = None
    drift: Drift | None = None
    layout: PromptLayout | None = None
    traits: tuple[Trait, ...]
    findings: tuple[Finding, ...]
    unknown: tuple[UnknownField, ...]
    not_modelled: tuple[str, ...]
    plan: Plan | None
    plan_reason: str | None = Field(description="why there is no plan; null where there is one")

    def canonical(self) -> str:
        """JSON with sorted keys and no spaces: equal analyses give equal text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def digest(self) -> str:
        """SHA-256 of the canonical form, hexadecimal: the identity of a plan."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()
