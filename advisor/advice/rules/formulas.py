"""Formulas of prefix sharing, KV transfer and integer splits; sources beside each.

`integer_split` is rule 8: it waits for goodputs that a simulation measures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def transfer_bits_per_s(kv_bytes_token: float, prompt_tokens: float, rate_rps: float) -> float:
    """Decimal bits/s that a prefill pool sends to its decode pool (DistServe, section 3.3)."""
    return 8 * kv_bytes_token * prompt_tokens * rate_rps


def remote_reuse_bandwidth(
    hidden: int, prefix_tokens: float, gqa: float, flops: float, bytes_per_element: float = 2
) -> float:
    """Bytes/s above which fetching KV of a prefix beats recomputing it (Mooncake, section on cache reuse).

    B > G * 2 d s / (gqa * (a p d + b d^2)) with a = 4, b = 22, p prefix tokens, G FLOP/s of the instance.
    """
    p, d = prefix_tokens, hidden
    return flops * 2 * d * bytes_per_element / (gqa * (4 * p * d + 22 * d * d))


def optimal_hit_rate(requests: int, shared: int, unique: int) -> float:
    """Hit rate of n requests with one shared prefix, unique tails: (n - 1) s / (n (s + u)) (SGLang, 3)."""
    return (requests - 1) * shared / (requests * (shared + unique))


def saved_time(prefill_share: float, hit_rate: float) -> float:
    """Share of device time that prefix caching saves: phi * h (Amdahl)."""
    return prefill_share * hit_rate


def speedup_ceiling(prefill_share: float, hit_rate: float) -> float:
    """Largest throughput gain from prefix caching: 1 / (1 - phi h) (Amdahl)."""
    saved = saved_time(prefill_share, hit_rate)
    return math.inf if saved >= 1 else 1 / (1 - saved)


@dataclass(frozen=True, slots=True)
class Split:
    """x prefill and y decode instances, and their goodput per GPU, requests/s."""

    prefill: int
    decode: int
    goodput_per_gpu: float


# Rate matching of aiconfigurator's picking.py: what pools keep of their own best rate when they must match.
DERATE_PREFILL, DERATE_DECODE = 0.90, 0.92


def integer_split(
    prefill_rps: float, decode_rps: float, gpus: int, derate: tuple[float, float] = (1.0, 1.0)
) -> Split | None:
    """The best split of exactly `gpus` one-GPU instances: max of min(x g_p, y g_d) / (x + y); None below 2.

    `derate` scales the two goodputs (aiconfigurator: 0.90, 0.92). Ties go to fewer prefill instances.
    """
    splits = [
        Split(x, gpus - x, min(derate[0] * x * prefill_rps, derate[1] * (gpus - x) * decode_rps) / gpus)
        for x in range(1, gpus)
    ]
    return max(splits, key=lambda s: s.goodput_per_gpu, default=None)
