"""AIBrix's workload: every second a line with the requests that are sent in it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

from helpers.traffic import START_NS, Call
from logs.writers.lmcache import prompt_text

FORMAT = "aibrix"
KEEPS = frozenset(("arrival_s", "prompt_tokens", "output_tokens", "blocks", "session"))
HAS = attrgetter("ok")  # a workload has no outcome, so nothing fails in it
RELATIVE = True
RESOLUTION_NS = 10**9


def write(calls: Sequence[Call], path: Path) -> None:
    """Names of both generations, and a line for a second in which nothing is sent."""
    lines = [{"timestamp": 0, "requests": []}]
    answered = [call for call in calls if call.ok]
    for second, group in itertools.groupby(answered, lambda call: (call.arrival_ns - START_NS) // 10**9):
        lines.append({"timestamp": second * 1000, "requests": [_request(call) for call in group]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _request(call: Call) -> dict[str, object]:
    if int(call.id.rpartition("-")[2]) % 2:
        lengths = {"Prompt Length": call.prompt_tokens, "Output Length": call.output_tokens}
    else:
        lengths = {"prompt_length": call.prompt_tokens, "output_length": call.output_tokens}
    return {"prompt": prompt_text(call), "session_id": call.session, **lengths}
