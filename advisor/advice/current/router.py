"""What stands in front of the instances: vllm-router, smg and sglang-router, in our three words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import RouterConfig

_AFFINE = ("cache_aware", "kv_aware", "prefix_hash", "consistent_hash", "consistent_hashing")
_LOADED = ("power_of_two", "least_load", "sticky_least_loaded")
_COUNTED = {"--prefill": "prefill", "--decode": "decode", "--worker-urls": "colocated"}


@dataclass(frozen=True, slots=True)
class Front:
    """A router's policy, how many instances of each role it names, and what our words leave out."""

    router: RouterConfig
    policy: str | None
    counts: dict[str, int]
    note: str | None


def read_router(words: Sequence[str]) -> Front:
    """The router that these arguments start."""
    policy: str | None = None
    counts: dict[str, int] = {}
    flag = ""
    for word in words:
        if word.startswith("-"):
            flag, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values = [word]
        for value in values:
            if flag == "--policy" and policy is None:
                policy = value
            elif flag in _COUNTED and "://" in value:  # a bootstrap port may stand behind the address
                counts[_COUNTED[flag]] = counts.get(_COUNTED[flag], 0) + 1
    known = policy if policy and re.fullmatch(r"[a-z_]{1,32}", policy) else None
    if known in _AFFINE:
        return Front(RouterConfig(policy="prefix_affinity"), known, counts, None)
    if known in _LOADED:
        return Front(RouterConfig(policy="least_loaded"), known, counts, None)
    named = known in (None, "round_robin")
    note = None if named else f"the router's policy {known} is modelled as round robin"
    return Front(RouterConfig(), known, counts, note)
