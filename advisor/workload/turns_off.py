"""Which findings an unknown takes away: the evidence that each of them rests on, by JSON path.

The codes are those of docs/rules.md. A path that is not here is evidence for no finding alone.
"""

from __future__ import annotations

from types import MappingProxyType

NEED_DEVICE_TIME = (
    "ADV102", "ADV103", "ADV104", "ADV105", "ADV201", "ADV202", "ADV203", "ADV204", "ADV301", "ADV302",
    "ADV303", "ADV304", "ADV305", "ADV306", "ADV401", "ADV403", "ADV404", "ADV601", "ADV801", "ADV802",
)  # fmt: skip
NEED_REUSE = ("ADV102", "ADV103")  # the logged cached share is evidence enough

TURNS_OFF = MappingProxyType(
    {
        "lengths.prompt": ("ADV101", *NEED_DEVICE_TIME, "ADV906"),
        "lengths.prompt.max": ("ADV101", *NEED_DEVICE_TIME, "ADV906"),  # the mean alone is known
        "lengths.output": ("ADV101", *NEED_DEVICE_TIME),
        "lengths.output.max": ("ADV101", *NEED_DEVICE_TIME),
        "arrivals.rate_rps": ("ADV101", *NEED_DEVICE_TIME),
        "arrivals.cv": ("ADV402", "ADV902"),
        "sharing.hit_rate_tokens": ("ADV101", *NEED_REUSE, "ADV104", "ADV105", "ADV501"),
        "sharing.capacity_curve": ("ADV104",),
        "sharing.any_position_share": ("ADV501",),
        "sharing.unexplained_share": ("ADV905",),
        "layout": ("ADV502",),
        "clients": ("ADV405",),
        "drift": ("ADV907", "ADV908"),
    }
)


def findings_off(path: str, *, cached_share_known: bool) -> tuple[str, ...]:
    """The findings that cannot fire, or for ADV101 have no figures, where this path is null."""
    codes = TURNS_OFF.get(path, ())
    if path == "sharing.hit_rate_tokens" and cached_share_known:
        return tuple(code for code in codes if code not in ("ADV101", *NEED_REUSE))
    return codes
