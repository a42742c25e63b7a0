"""What the log is too short, too coarse or too silent for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from advisor.advice.finding import Finding
from advisor.advice.rules.risks import DRIFT
from advisor.advice.rules.rule import Rule
from advisor.workload.model import Cap, Regime

ENOUGH_REQUESTS = 1000
ENOUGH_SECONDS = 1800.0
UNEXPLAINED = 0.03
CAP_TOKENS = 2  # width of a cap, as in advisor.workload.lengths
IDLE = 0.10

SHORT_LOG = Rule(
    "ADV901",
    "The log is short: take its figures as rough",
    "fewer than 1,000 requests, or less than 30 minutes",
    ("ours: 1,000, 30 min",),
)
COARSE_CLOCK = Rule(
    "ADV902",
    "Arrival times are coarse: the gaps say nothing about bursts",
    "many equal stamps: the clock ticks slower than requests arrive",
    ("Mooncake's trace: stamps of 3 s make CV 3.03 out of 1.0", "ours"),
)
NO_SHARING = Rule(
    "ADV903",
    "The log cannot show prefix sharing",
    "neither prompt text nor block hashes",
    ("ours",),
)
NO_OUTPUTS = Rule(
    "ADV904",
    "The log has no output lengths: nothing can be planned from it",
    "no output token counts",
    ("ours",),
)
INCOMPLETE = Rule(
    "ADV905",
    "The log looks sampled or cut: its sharing is a lower bound",
    "cached tokens that no other request of the log explains > 0.03 of prompt tokens",
    (
        "arithmetic: an engine has cached only what requests brought",
        "Mooncake's trace: 0.366 of blocks hit, 0.122 in a random tenth of its requests",
        "ours: 0.03",
    ),
)
CAPPED = Rule(
    "ADV906",
    "Prompts pile up at the longest length: they look cut off there",
    "at least 1 % of prompts within 2 tokens of the longest, which is above the median",
    ("Azure code 2023: 3.7 % of prompts have 7,435 to 7,437 tokens", "ours: 1 %, 2 tokens"),
)
CHANGING = Rule(
    "ADV907",
    "The rate changes inside the log: plan for the busier part",
    "several regimes of the rate, the busiest more than 25 % above the mean",
    ("Zhang and Siegmund, 2007: the penalty of a change point", "ours: 25 %, as in ADV802"),
)
IDLE_TIME = Rule(
    "ADV908",
    "Idle time inside the log hides how busy it is otherwise",
    "windows without a request > 10 % more than Poisson arrivals at the mean rate leave",
    ("ours: 10 %",),
)


def short_log(requests: int | None, span_s: float | None) -> Finding | None:
    """Rule 0b, amount."""
    if requests is not None and requests >= ENOUGH_REQUESTS and span_s is not None and span_s >= ENOUGH_SECONDS:
        return None
    return SHORT_LOG.found(
        "check", {"requests": requests, "span_s": span_s}, next="advise analyze MORE_LOGS..."
    )


def coarse_clock(tick_s: float | None, cv: float | None, cv_spread: float | None) -> Finding | None:
    """Rule 0b, resolution. `tick_s` is set where stamps are quantised."""
    if tick_s is None:
        return None
    return COARSE_CLOCK.found(
        "check",
        {"tick_s": tick_s, "cv": cv, "cv_spread": cv_spread},
        next="log arrival times with milliseconds",
    )


def no_sharing(known: bool, cached_share: float | None = None) -> Finding | None:
    """Sharing is unknown: caching stays on; only cached tokens of the log can say what it is worth."""
    if known:
        return None
    return NO_SHARING.found(
        "check",
        {"cached_share": cached_share},
        next="log prompt text (it is hashed while reading, not kept), or hash_ids of it",
    )


def incomplete(
    unexplained_share: float | None, cached_share: float | None, hit_unlimited: float | None
) -> Finding | None:
    """Requests that are not in the log filled the cache, so that the log shows only a part of the sharing."""
    if unexplained_share is None or unexplained_share <= UNEXPLAINED:
        return None
    return INCOMPLETE.found(
        "check",
        {
            "unexplained_share": unexplained_share,
            "cached_share": cached_share,
            "hit_rate_unlimited": hit_unlimited,
        },
        next="log every request, over one unbroken stretch of time",
    )


def no_outputs(known: bool) -> Finding | None:
    """Without output lengths there is no decode work to plan for."""
    if known:
        return None
    return NO_OUTPUTS.found("check", {}, next="log the number of output tokens of each request")


def capped(caps: Sequence[Cap], longest: float | None, median: float | None) -> Finding | None:
    """Truncation piles prompts up at the maximum. Where most prompts have one length, that is the traffic."""
    if longest is None or median is None:
        return None
    cap = next((cap for cap in caps if longest - cap.at <= CAP_TOKENS and median < cap.at - CAP_TOKENS), None)
    if cap is None:
        return None
    return CAPPED.found(
        "check",
        {"at": cap.at, "share": cap.share, "median": median},
        next="look for a limit of that length in clients and gateway: without it prompts would be longer",
    )


def changing_rate(regimes: Sequence[Regime], mean_rps: float | None) -> Finding | None:
    """Change points of the rate; the sizing rate is a mean over all of them."""
    if len(regimes) < 2 or not mean_rps:
        return None
    busiest = max(regimes, key=lambda regime: regime.rate_rps)
    if busiest.rate_rps <= (1 + DRIFT) * mean_rps:
        return None
    return CHANGING.found(
        "check",
        {
            "regimes": len(regimes),
            "mean_rps": mean_rps,
            "busiest_rps": busiest.rate_rps,
            "busiest_from_s": busiest.start_s,
            "busiest_to_s": busiest.end_s,
        },
        next=f"advise analyze LOG --rate {busiest.rate_rps / mean_rps:.2f}x, or that part: --since, --until",
    )


def idle_time(idle_share: float, requests_per_window: float) -> Finding | None:
    """Nights and gaps: `idle_share` of the windows have no request. Rare requests leave empty windows, too."""
    expected = math.exp(-requests_per_window)
    if idle_share - expected <= IDLE:
        return None
    return IDLE_TIME.found(
        "check",
        {"idle_share": idle_share, "idle_share_of_poisson": expected},
        next=f"advise analyze LOG --rate {1 / (1 - idle_share):.2f}x, the rate while there is traffic",
    )
