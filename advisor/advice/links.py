"""How fast KV moves between the two phases of a split: within a node and between nodes."""

from __future__ import annotations

import re

from advisor.advice import profiles
from advisor.advice.target import Target
from engine.errors import InputError
from engine.step_time.roofline import PCIE_BYTES_PER_S

NODE_GPUS = 8  # ours: GPUs that share a node
_LINK = re.compile(r"\s*([0-9.]+)\s*([GM])(?:bps|bit/s)\s*", re.IGNORECASE)


def parse_link(text: str) -> float:
    """Bits/s of a network written like `100Gbps`. Raises InputError."""
    match = _LINK.fullmatch(text)
    if match is None:
        raise InputError(f"link {text!r} is not understood", hint="--link 100Gbps")
    return float(match.group(1)) * {"G": 1e9, "M": 1e6}[match.group(2).upper()]


def stage_link(target: Target) -> float:
    """Bytes/s between any two GPUs of a node: the way of activations from one pipeline stage to the next."""
    if target.on_cpu:
        return target.host_costs.copy_bytes_per_s
    return profiles.gpu(target.gpu).link_bytes_per_s(NODE_GPUS) or PCIE_BYTES_PER_S


def links_of(target: Target, gpus: int) -> tuple[float, float | None]:
    """Bytes/s between two instances, and bits/s between nodes (None: one node holds everything)."""
    if target.on_cpu:
        return target.host_costs.copy_bytes_per_s, None
    if gpus > NODE_GPUS and target.link is not None:
        network = parse_link(target.link)
        return network / 8, network
    return profiles.gpu(target.gpu).link.gbs_per_dir * 1e9 or PCIE_BYTES_PER_S, None
