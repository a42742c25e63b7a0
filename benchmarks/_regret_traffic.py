"""The workloads of `regret`: three for two cores, six for eight emulated GPUs with a model of 70B.

Fixed before anything was measured. Those of the cores are kinds of `three_ideas`; the targets of the others are
loose enough that more than one layout keeps them at some rate, and tight enough that no two keep them alike.
"""

from __future__ import annotations

from advisor.simulation.slo import Slo
from benchmarks._three_traffic import CPU_KINDS, WARM, Group, Kind

SMOKE = Kind("smoke", (Group(1.0, (16, 32), (4, 8)),), Slo(ttft_s=2.0, tpot_s=0.5), 1.0)
CPU = CPU_KINDS[:3]
EMULATED = (
    Kind(
        "shared prefix",
        (Group(1.0, (256, 768), (16, 48), prefixes=8, prefix_tokens=1024),),
        Slo(ttft_s=1.5, tpot_s=0.08),
        20.0,
        WARM,
    ),
    Kind("long outputs", (Group(1.0, (64, 192), (96, 160)),), Slo(ttft_s=2.0, tpot_s=0.03), 20.0, WARM),
    Kind(
        "long prompts beside streams",
        (Group(0.2, (2048, 4096), (4, 12)), Group(0.8, (64, 192), (32, 64))),
        Slo(ttft_s=3.0, tbt_s=0.15),
        20.0,
        WARM,
    ),
    Kind("strict targets", (Group(1.0, (256, 768), (32, 64)),), Slo(ttft_s=0.4, tpot_s=0.04), 20.0, WARM),
    Kind(
        "chat",
        (Group(0.7, (64, 256), (64, 128), prefixes=16, prefix_tokens=512), Group(0.3, (512, 1536), (32, 96))),
        Slo(ttft_s=1.0, tpot_s=0.05),
        20.0,
        WARM,
    ),
    Kind("documents", (Group(1.0, (2048, 4096), (32, 64)),), Slo(ttft_s=3.0, tpot_s=0.06), 20.0, WARM),
)


def kinds(setup: str) -> tuple[Kind, ...]:
    """The workloads of a setup, in the order of its table."""
    return {"cpu": CPU, "emulated": EMULATED, "smoke": (SMOKE,)}[setup]
