"""What the log is too short, too coarse or too silent for."""

from __future__ import annotations

from advisor.advice.finding import Finding
from advisor.advice.rules.rule import Rule

ENOUGH_REQUESTS = 1000
ENOUGH_SECONDS = 1800.0

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


def short_log(requests: int, span_s: float | None) -> Finding | None:
    """Rule 0b, amount."""
    if requests >= ENOUGH_REQUESTS and span_s is not None and span_s >= ENOUGH_SECONDS:
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


def no_sharing(known: bool) -> Finding | None:
    """Sharing is unknown: caching stays on, its value is not estimated."""
    if known:
        return None
    return NO_SHARING.found(
        "check", {}, next="log prompt text (it is hashed while reading, not kept), or hash_ids of it"
    )


def no_outputs(known: bool) -> Finding | None:
    """Without output lengths there is no decode work to plan for."""
    if known:
        return None
    return NO_OUTPUTS.found("check", {}, next="log the number of output tokens of each request")
