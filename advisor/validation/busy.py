"""How many requests an endpoint serves right now, by its metrics page: a replay wants to be alone there.

Owns the names that engines give to those gauges. A page that is not there, or is of an engine that we do not
know, says nothing: None, never zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from advisor.advice.current.metrics import samples_of


@dataclass(frozen=True, slots=True)
class Busy:
    """Requests at one moment, of all instances behind the page."""

    running: int
    waiting: int

    @property
    def total(self) -> int:
        """Requests that were neither answered nor refused."""
        return self.running + self.waiting


# (running, waiting) by engine, as their own metrics pages name them. SGLang writes a colon or an underscore by
# version; TensorRT-LLM's Prometheus page is on a path of its own; NVIDIA Dynamo counts at its front end.
_GAUGES = {
    "advise": (("advise_requests_running", "advise_requests_queued"),),
    "vllm": (("vllm:num_requests_running", "vllm:num_requests_waiting"),),
    "sglang": (
        ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
        ("sglang_num_running_reqs", "sglang_num_queue_reqs"),
    ),
    "trtllm": (("trtllm_num_requests_running", "trtllm_num_requests_waiting"),),
    "llamacpp": (("llamacpp:requests_processing", "llamacpp:requests_deferred"),),
    "dynamo": (("dynamo_frontend_inflight_requests", "dynamo_frontend_queued_requests"),),
}
_PREFIXES = {
    "advise": ("advise_",),
    "vllm": ("vllm:",),
    "sglang": ("sglang:", "sglang_"),
    "trtllm": ("trtllm_",),
    "llamacpp": ("llamacpp:",),
    "dynamo": ("dynamo_",),
}


def busy_of(page: str) -> Busy | None:
    """The requests that a metrics page counts; None where it has no such gauge."""
    sums: dict[str, float] = {}
    for name, _, text in samples_of(page):
        value = _number(text)
        if value is not None:
            sums[name] = sums.get(name, 0.0) + value
    for pairs in _GAUGES.values():
        for running, waiting in pairs:
            if running in sums:
                return Busy(round(sums[running]), round(sums.get(waiting, 0.0)))
    return None


def engine_of(page: str) -> str | None:
    """Whose page it is, by the prefix of its metrics; None where that is nobody we know."""
    names = {name for name, _, _ in samples_of(page)}
    for engine, prefixes in _PREFIXES.items():
        if any(name.startswith(prefixes) for name in names):
            return engine
    return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
