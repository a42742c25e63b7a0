"""The Workload: everything measured on a Trace of one model. Pure numbers, no text, safe to share.

These are the `lengths`, `arrivals`, `latency`, `sharing`, `classes` and `traits` objects of the JSON contract
(docs/metrics.md defines each number). What the log cannot give is None, with an entry in `unknown`. Fields that
came after the first plans were written have defaults, so that those plans can still be read.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Report(BaseModel):
    """Base of the models that `--json` prints: frozen, unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class UnknownField(Report):
    """What the log does not tell: its JSON path, why, how to get it, and the findings that it takes away.

    Those findings cannot fire; ADV101, which always does, fires without figures.
    """

    path: str
    why: str
    how_to_get: str
    turns_off: tuple[str, ...] = ()


class Distribution(Report):
    """Lengths in tokens or times in seconds; percentiles are linear-interpolated.

    Only the mean is known where the log gives sums.
    """

    mean: float
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class Cap(Report):
    """A length at which prompts pile up: `share` of prompts within 2 tokens of `at`."""

    at: int
    share: float


class Lengths(Report):
    """Prompt and output lengths, tokens."""

    prompt: Distribution | None
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


class Latency(Report):
    """Latencies as the log has them, seconds: what the engine that wrote it gave, not what a plan promises."""

    ttft_s: Distribution | None = None
    tpot_s: Distribution | None = None  # (e2e - ttft) / (output tokens - 1) of each request
    e2e_s: Distribution | None = None


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


class CacheLife(Report):
    """Token hit rate of a cache that keeps a block for `seconds` after its last use."""

    seconds: int
    hit_rate_tokens: float


class WindowPoint(Report):
    """Hit rates of the log cut into equal windows of `share` of its requests, each from an empty cache."""

    share: float
    hit_rate_tokens: float
    hit_rate_blocks: float


class Duplicates(Report):
    """Requests that the log holds twice."""

    requests: int  # copies beyond the first
    share: float  # of requests
    hit_rate_tokens: float | None  # without the copies


class Sharing(Report):
    """Prefix sharing at the log's block size, over requests with known content; docs/metrics.md defines all."""

    block_size: int | None
    known_share: float | None = None  # of prompt tokens (else of requests): content that the log shows
    cached_share: float | None = None  # cached tokens over prompt tokens, as the log has them
    unexplained_share: float | None = None  # cached tokens that no other request explains, over the same
    hit_rate_tokens: float | None  # unlimited cache
    hit_rate_blocks: float | None
    hit_rate_optimal: float | None  # the same at 1-token pages
    within_session: float | None  # token hit rate from the same session; sums with across_session to the whole
    across_session: float | None
    within_client: float | None = None  # the same by client
    across_client: float | None = None
    capacity_curve: tuple[CapacityPoint, ...]
    capacity_error: float | None  # 95 % half-width of the curve where it was sampled; 0 where exact
    cache_life: tuple[CacheLife, ...] = ()
    window_curve: tuple[WindowPoint, ...] = ()
    reuse_gap_s: ReuseGap | None
    top_prefixes: tuple[TopPrefix, ...]
    duplicates: Duplicates | None = None
    any_position_share: float | None


class PromptPlace(Report):
    """Where the prompts of two first requests part: `char` characters into the prompt at that line."""

    file: str
    line: int
    char: int


class PromptLayout(Report):
    """What prompts share behind their first difference, on a sample whose text was at hand.

    Lengths are in `unit`, medians over neighbouring first requests of sessions; rates are by content-defined
    chunks, so a little below those of blocks.
    """

    requests: int  # in the sample
    first_requests: int
    unit: Literal["tokens", "bytes"]
    leading: int
    trailing: int
    shared_behind: int  # anywhere behind the first difference
    hit_rate: float
    any_position_share: float
    hit_rate_reordered: float  # with what many first requests share moved to the front
    examples: tuple[PromptPlace, ...]


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


class TurnCounts(Report):
    """Turns of a session."""

    mean: float
    p50: float
    p90: float
    max: int


class ThinkTime(Report):
    """Seconds between a turn and the next; `basis` says between what. Turns that overlap are left out."""

    basis: str
    p50: float
    p90: float
    p99: float
    over_300_s: float  # share: longer than the usual 5-minute cache life


class TurnTokens(Report):
    """Prompt tokens of a turn behind the prefix that it shares with the turn before."""

    p50: float
    p99: float


class Sessions(Report):
    """Conversations, by the session ids of the log or inferred, of the requests that have one."""

    basis: Literal["session ids of the log", "inferred from growing prefixes"]
    sessions: int
    request_share: float  # of all requests that have a session
    turns: TurnCounts
    multi_turn_share: float  # of requests, in sessions of at least two turns
    think_s: ThinkTime | None
    overlapping_share: float | None  # of turns, that start before the turn before has ended
    new_tokens: TurnTokens | None


class TopClient(Report):
    """One client; `client` is its ordinal in the log, as in trace.jsonl, never its name."""

    client: int
    request_share: float
    token_share: float | None  # of prompt and output tokens


class Burstiness(Report):
    """CV of gaps in each window of each client with enough requests there, after ServeGen."""

    window_s: float
    active_windows: int  # of a client each
    cv_p50: float | None
    over_1_share: float | None  # of active windows: burstier than Poisson arrivals
    over_1_rate_share: float | None  # the same weighted by the window's rate


class Clients(Report):
    """Who sends the requests. Shares are of all requests of the log, labelled or not."""

    clients: int
    request_share: float  # of requests that name their client
    top1_share: float
    top10_share: float
    top1_token_share: float | None
    top10_token_share: float | None
    top: tuple[TopClient, ...]
    burstiness: Burstiness | None


class TrafficWindow(Report):
    """One window of the log; means are null where it has no such request."""

    start_s: float
    requests: int
    rate_rps: float
    prompt_mean: float | None
    output_mean: float | None
    hit_rate_tokens: float | None  # unlimited cache that has seen all of the log before


class Regime(Report):
    """A stretch of the log with one arrival rate, seconds after the first arrival."""

    start_s: float
    end_s: float
    requests: int
    rate_rps: float


class Drift(Report):
    """How the traffic changes inside the log: consecutive full windows from the first arrival."""

    window_s: float
    windows: tuple[TrafficWindow, ...]
    regimes: tuple[Regime, ...]  # one where the rate does not change
    idle_share: float  # of windows, without a request
    day_night_ratio: float | None  # busiest hour of the day over the quietest


class Workload(Report):
    """Everything measured on a Trace of one model."""

    model: str | None
    requests: int | None
    span_s: float | None  # last - first arrival
    lengths: Lengths
    arrivals: Arrivals
    latency: Latency
    sharing: Sharing
    uncached_prompt: Distribution | None  # prompt tokens not covered by an unlimited prefix cache
    classes: tuple[LengthClass, ...]
    sessions: Sessions | None = None
    clients: Clients | None = None
    drift: Drift | None = None
    layout: PromptLayout | None = None
    unknown: tuple[UnknownField, ...]
