"""Prefix caching: always on; what varies is its value, the capacity it needs and the order of the queue.

h is the token hit rate at the KV capacity really left, h_inf with an unlimited cache, phi the share of device
time that goes into prefill. phi * h is the share of device time saved.
"""

from __future__ import annotations

from advisor.advice.finding import Finding
from advisor.advice.rules.formulas import saved_time, speedup_ceiling
from advisor.advice.rules.rule import Rule

MATTERS = 0.10
NEGLIGIBLE = 0.03
CAPACITY_GAP = 0.10
FCFS_SHARE = 0.9
QUEUE = (2.0, 128.0)

CACHING_ON = Rule(
    "ADV101",
    "Keep prefix caching on",
    "always",
    (
        "SGLang, section 6.3: 0.27 % cost with no reuse at all",
        "Amdahl: saving phi * h, ceiling 1 / (1 - phi h)",
    ),
)
SHARING_MATTERS = Rule(
    "ADV102",
    "Shared prefixes carry real work: protect them",
    "phi * h >= 0.10",
    ("SGLang router: affinity at match > 0.3, load override at > 64 and > 1.5x", "ours: 0.10"),
)
NO_SPEEDUP = Rule(
    "ADV103",
    "Expect no speedup from prefix caching",
    "phi * h < 0.03",
    ("SGLang, section 6.2: long outputs with little sharing gain almost nothing", "ours: 0.03"),
)
CAPACITY_LIMITED = Rule(
    "ADV104",
    "The KV cache is too small for this sharing",
    "h_inf - h > 0.10",
    ("Mooncake: hit rate against cache capacity; remote reuse", "ours: 0.10"),
)
QUEUE_ORDER = Rule(
    "ADV105",
    "Serve the longest cached prefix first, with aging",
    "h_FCFS < 0.9 hit_opt, and a queue of 2 to 128 requests, and the cache holds the longest request",
    (
        "SGLang, section 3, theorem on the depth-first order",
        "LPMX: P50 -62 %, P99 +64 % with sharing to gain; P99 +13 % with none",
        "ours: 0.9",
    ),
)


def prefix_caching(
    hit: float | None,
    hit_unlimited: float | None,
    hit_optimal: float | None,
    prefill_share: float | None,
    hit_basis: str | None = None,
) -> Finding:
    """Rule 1. Unknown values stay null in the evidence; caching is on all the same. `hit_basis`: of `hit`."""
    known = hit if hit is not None else hit_unlimited
    saved = None if known is None or prefill_share is None else saved_time(prefill_share, known)
    return CACHING_ON.found(
        "do",
        {
            "hit_rate_tokens": hit,
            "hit_rate_basis": hit_basis,
            "hit_rate_unlimited": hit_unlimited,
            "hit_rate_optimal": hit_optimal,
            "prefill_time_share": prefill_share,
            "saved_time_share": saved,
            "speedup_ceiling": None
            if known is None or prefill_share is None
            else speedup_ceiling(prefill_share, known),
        },
        saving=None if saved is None else f"{saved:.1%} of device time",
    )


def sharing_matters(prefill_share: float, hit: float, replicas: int) -> Finding | None:
    """Rule 1a: keep prefixes stable; with several replicas route by prefix."""
    saved = saved_time(prefill_share, hit)
    if saved < MATTERS:
        return None
    routed = replicas > 1
    return SHARING_MATTERS.found(
        "do",
        {"saved_time_share": saved, "replicas": replicas, "router": "prefix_affinity" if routed else None},
        saving=f"{saved:.1%} of device time is lost if prompts stop sharing",
        next="router policy: prefix_affinity in engine.yaml"
        if routed
        else "keep the start of prompts byte-identical across releases",
    )


def no_speedup(prefill_share: float, hit: float) -> Finding | None:
    """Rule 1b: little prefill, or little sharing; leave the cache on, promise nothing."""
    saved = saved_time(prefill_share, hit)
    if saved >= NEGLIGIBLE:
        return None
    return NO_SPEEDUP.found(
        "off",
        {"saved_time_share": saved, "prefill_time_share": prefill_share, "hit_rate_tokens": hit},
        saving=f"{saved:.1%} of device time",
    )


def capacity_limited(
    hit: float,
    hit_unlimited: float,
    kv_tokens: int,
    tokens_for_gap: int | None,
    remote_reuse_bytes_per_s: float,
) -> Finding | None:
    """Rule 1c. `tokens_for_gap`: the cache size at which the gap to an unlimited one closes to 0.10.

    `remote_reuse_bytes_per_s`: fetching KV from elsewhere beats recomputing it only over a faster link
    (Mooncake).
    """
    if hit_unlimited - hit <= CAPACITY_GAP:
        return None
    return CAPACITY_LIMITED.found(
        "do",
        {
            "hit_rate_tokens": hit,
            "hit_rate_unlimited": hit_unlimited,
            "kv_tokens": kv_tokens,
            "kv_tokens_needed": tokens_for_gap,
            "remote_reuse_bytes_per_s": remote_reuse_bytes_per_s,
        },
        saving=f"up to {hit_unlimited - hit:.1%} of prompt tokens",
        next="give the cache more memory: higher tensor parallelism, an 8-bit KV cache or fewer max_seqs",
    )


def queue_order(
    hit_fcfs: float, hit_optimal: float, queue: float, kv_tokens: int, longest_request: float, ttft_target: bool
) -> Finding | None:
    """Rule 1d. `queue` is the typical number of waiting requests; a TTFT target asks for a replay first."""
    low, high = QUEUE
    if hit_fcfs >= FCFS_SHARE * hit_optimal or not low <= queue <= high or kv_tokens < longest_request:
        return None
    return QUEUE_ORDER.found(
        "check" if ttft_target else "do",
        {
            "hit_rate_fcfs": hit_fcfs,
            "hit_rate_optimal": hit_optimal,
            "queue": queue,
            "kv_tokens": kv_tokens,
            "longest_request": longest_request,
        },
        saving=f"up to {hit_optimal - hit_fcfs:.1%} of prompt tokens; the P99 TTFT pays for it",
        next="advise validate" if ttft_target else "queue_policy: prefix_first in engine.yaml",
    )
