"""Whether a measurement deserves trust: each gate is green, amber or red, and one red makes the run INVALID.

Thresholds are in docs/validation.md. A gate says nothing about the server: a run with a slow client or wrong
lengths is neither a pass nor a fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from advisor.simulation.slo import Slo
from advisor.validation.metrics import Latencies
from advisor.validation.record import Record
from advisor.validation.replay import ABORT_SHARE, End
from advisor.workload.model import Report

CLOCK_LAG = 0.05  # of the median step: what an emulation's steps may be late
Colour = Literal["green", "amber", "red"]


class Gate(Report):
    """One check of the measurement itself."""

    name: str
    colour: Colour
    value: float | None = Field(description="the figure that was judged; null where it could not be measured")
    green: float = Field(description="green up to here (or from here, for shares that should be high)")
    red: float = Field(description="red beyond here")
    text: str = Field(description="the figure in words")


def judge(records: Sequence[Record], latencies: Latencies, slo: Slo, end: End) -> tuple[Gate, ...]:
    """Every gate of a run, in the order in which they are shown."""
    return (
        send_lag(latencies, slo),
        arrivals(records, slo),
        prompt_lengths(records),
        output_lengths(records),
        errors(records),
        completeness(records, end),
    )


def clock_lag(step_p50_s: float | None, lag_p99_s: float | None) -> Gate:
    """How late an emulation's steps ended, P99, over its median step; beyond 5 % its times mean nothing."""
    value = None if lag_p99_s is None or not step_p50_s else lag_p99_s / step_p50_s
    text = "the engine does not tell how late its clock was"
    if value is not None and lag_p99_s is not None and step_p50_s is not None:
        text = f"P99 {lag_p99_s * 1e3:.2f} ms late, {value:.1%} of the median step of {step_p50_s * 1e3:.2f} ms"
    return _at_most("clock_lag", value, CLOCK_LAG, CLOCK_LAG, text, missing="red")


def cache(measured: int, expected: int, prompt_tokens: int) -> Gate:
    """Prompt tokens from the cache beyond those that the window's own prefixes explain: 2 points, 5 points.

    More means that prompts were in the cache before, which flatters the run; less is a cache that was small.
    """
    value = (measured - expected) / max(prompt_tokens, 1)
    most, found = expected / max(prompt_tokens, 1), measured / max(prompt_tokens, 1)
    text = f"{found:.1%} of prompt tokens came from the cache, {most:.1%} can"
    return _at_most("cache", value, 0.02, 0.05, text, missing="amber")


def cores() -> Gate:
    """Red: a fleet whose instances share cores is slower than any plan of it."""
    text = "more instances than cores: correctness only"
    return _at_most("cores", None, 1.0, 1.0, text, missing="red")


def send_lag(latencies: Latencies, slo: Slo) -> Gate:
    """P99 of send minus due; new connections count. 5 ms or 2 % of the TTFT target; 10 ms or 5 %."""
    green, red = _lag_limits(slo)
    value = None if latencies.send_lag is None else latencies.send_lag.p99
    text = "nothing was sent" if value is None else f"P99 {value * 1e3:.1f} ms"
    return _at_most("send_lag", value, green, red, text, missing="red")


def arrivals(records: Sequence[Record], slo: Slo) -> Gate:
    """Share of requests sent by the end of the schedule, give or take the lag that the gate above allows."""
    end = max(record.t_due for record in records) + _lag_limits(slo)[1]
    value = sum(record.t_send is not None and record.t_send <= end for record in records) / len(records)
    return _at_least("arrivals", value, 0.995, 0.99, f"{value:.2%} of the scheduled rate")


def prompt_lengths(records: Sequence[Record]) -> Gate:
    """Prompt tokens by the server against those wanted: mean error; none off by more than 2 % and 8 tokens."""
    pairs = [(record.n_in, record.want_in) for record in records if record.n_in is not None]
    if not pairs:
        return _at_most("prompt_lengths", None, 0.005, 0.01, "the server reports no usage", missing="amber")
    errors = [abs(got - want) for got, want in pairs]
    value = sum(error / want for error, (_, want) in zip(errors, pairs, strict=True)) / len(pairs)
    far = sum(error > max(0.02 * want, 8) for error, (_, want) in zip(errors, pairs, strict=True))
    text = f"mean error {value:.2%}, {sum(error > 0 for error in errors)} of {len(pairs)} not exact"
    gate = _at_most("prompt_lengths", value, 0.005, 0.01, text, missing="amber")
    return gate.model_copy(update={"colour": "amber"}) if far and gate.colour == "green" else gate


def output_lengths(records: Sequence[Record]) -> Gate:
    """Share of complete streams with exactly the forced number of output tokens."""
    complete = [record for record in records if record.status in ("ok", "wrong_length")]
    if not complete:
        return _at_least("output_lengths", None, 0.995, 0.99, "no stream is complete")
    value = sum(record.status == "ok" for record in complete) / len(complete)
    return _at_least("output_lengths", value, 0.995, 0.99, f"{value:.2%} exact")


def errors(records: Sequence[Record]) -> Gate:
    """Share of requests that failed. They are misses already; over half, nothing else is worth reading."""
    failed = sum(record.status not in ("ok", "wrong_length", "unsent", "interrupted") for record in records)
    finished = sum(record.status not in ("unsent", "interrupted") for record in records)
    value = failed / finished if finished else None
    text = f"{failed} of {finished} failed"
    return _at_most("errors", value, 0.01, ABORT_SHARE, text, missing="red")


def completeness(records: Sequence[Record], end: End) -> Gate:
    """Whether the run reached its end."""
    open_ones = sum(record.status in ("unsent", "interrupted") for record in records)
    value = open_ones / len(records)
    text = end if end == "complete" else f"{end}: {open_ones} of {len(records)} requests have no outcome"
    gate = _at_most("completeness", value, 0.0, 0.0, text, missing="red")
    return gate if end == "complete" else gate.model_copy(update={"colour": "red"})


def _lag_limits(slo: Slo) -> tuple[float, float]:
    """Green up to the first, red above the second, seconds."""
    ttft = slo.ttft_s or 0.0
    return max(0.005, 0.02 * ttft), max(0.010, 0.05 * ttft)


def _at_most(name: str, value: float | None, green: float, red: float, text: str, *, missing: Colour) -> Gate:
    colour = missing
    if value is not None:
        colour = "green" if value <= green else "amber" if value <= red else "red"
    return Gate(name=name, colour=colour, value=value, green=green, red=red, text=text)


def _at_least(name: str, value: float | None, green: float, red: float, text: str) -> Gate:
    colour: Colour = "red"
    if value is not None and value >= red:
        colour = "green" if value >= green else "amber"
    return Gate(name=name, colour=colour, value=value, green=green, red=red, text=text)
