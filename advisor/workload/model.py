"""The Workload: everything measured on a Trace of one model. Pure numbers, no text, safe to share.

These are the `lengths`, `arrivals`, `sharing`, `classes` and `traits` objects of the JSON contract
(docs/metrics.md defines each number). What the log cannot give is None, with an entry in `unknown`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Report(BaseModel):
    """Base of the models that `--json` prints: frozen, unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class UnknownField(Report):
    """A null of the report: its JSON path, why it is null, and how to get it."""

    path: str
    why: str
    how_to_get: str


class Distribution(Report):
    """Lengths in tokens; percentiles are linear-interpolated."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Cap(Report):
    """A length at which prompts pile up: `share` of prompts within 2 tokens of `at`."""

    at: int
    share: float


class Lengths(Report):
    """Prompt and output lengths, tokens."""

    prompt: Distribution
    output: Distribution | None
    caps: tuple[Cap, ...]


class Arrivals(Report):
    """How requests arrive. All None when the log has no times."""

    rate_rps: float | None  # requests / (last - first arrival)
    cv: float | None  # population std over mean of sorted gaps
    cv_spread: float | None  # the same with equal stamps spread uniformly within the clock tick
    tick_s: float | None  # clock resolution: the most common positive gap where many stamps are equal
    dispersion: dict[str, float | None]  # variance over mean of counts in windows of 1, 10, 60 s
    peak_rps: dict[str, float | None]  # highest count in a window of 10, 60 s over its length
    gamma_shape: float | None  # maximum likelihood, on spread gaps
    on_off_share: float | None  # share of gaps under 10 ms


class CapacityPoint(Report):
    """Hit rates of an LRU cache of `tokens` tokens that evicts leaves first."""

    tokens: int
    hit_rate_tokens: float
    hit_rate_blocks: float


class ReuseGap(Report):
    """Seconds between uses of a block, leaving out blocks that every request shares."""

    p50: float
    p90: float


class TopPrefix(Report):
    """A shared prefix: its length, how many requests start with it, its share of all hit tokens."""

    tokens: int
    requests: int
    hit_share: float


class Sharing(Report):
    """Prefix sharing at the log's block size; definitions in docs/metrics.md."""

    block_size: int | None
    hit_rate_tokens: float | None  # unlimited cache
    hit_rate_blocks: float | None
    hit_rate_optimal: float | None  # the same at 1-token pages
    within_session: float | None  # token hit rate from the same session; sums with across_session to the whole
    across_session: float | None
    capacity_curve: tuple[CapacityPoint, ...]
    capacity_error: float | None  # 95 % half-width of the curve where it was sampled; 0 where exact
    reuse_gap_s: ReuseGap | None
    top_prefixes: tuple[TopPrefix, ...]
    any_position_share: float | None


class LengthClass(Report):
    """A cluster of requests with similar lengths."""

    share: float  # of requests
    prompt_token_share: float
    output_token_share: float
    prompt_p50: float
    prompt_p90: float
    output_p50: float
    output_p90: float


class Trait(Report):
    """How far a workload has one of the six traits; None where the evidence for it is missing."""

    name: str
    strength: float | None  # 0 to 1
    evidence: dict[str, float | None]


class Workload(Report):
    """Everything measured on a Trace of one model."""

    model: str | None
    requests: int
    span_s: float | None  # last - first arrival
    lengths: Lengths
    arrivals: Arrivals
    sharing: Sharing
    uncached_prompt: Distribution | None  # prompt tokens not covered by an unlimited prefix cache
    classes: tuple[LengthClass, ...]
    unknown: tuple[UnknownField, ...]
