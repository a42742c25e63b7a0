"""What is refused before a single request is sent: a run that could only fail, or that must not start.

Each refusal is a MachineError (exit 3) with what it would have done and the flag that goes round it, where
there is one; what can only be a mistake in the command is an InputError (exit 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from advisor.validation.endpoint import Endpoint
from advisor.validation.hosts import is_loopback, list_price, provider_of
from advisor.validation.window import Window
from engine.errors import InputError, MachineError

_RATE_SPAN_S = 10.0  # a limit on the rate holds for every stretch of this length (ours)


@dataclass(frozen=True, slots=True)
class Load:
    """How much a window asks of the advised plan, by its calibrated step times.

    An instance that starts idle may fall behind by `backlog_s` of work before a request misses its TTFT target.
    """

    utilisation: float  # seconds of work that a second of the window brings
    length_s: float
    backlog_s: float = 0.0

    @property
    def limit(self) -> float:
        """The utilisation at which the last request of the window still keeps its TTFT target."""
        return 1 + self.backlog_s / self.length_s

    @property
    def late_share(self) -> float:
        """Share of the window, at a steady rate, that finds more than `backlog_s` of work before it."""
        if self.utilisation <= self.limit:
            return 0.0
        return 1 - self.backlog_s / ((self.utilisation - 1) * self.length_s)


def over_context(window: Window, max_len: int) -> None:
    """Refuse a window with a request (prompt plus output) longer than the model's context."""
    lengths = window.trace.prompt_tokens + window.trace.output_tokens
    over = int(np.count_nonzero(lengths > max_len))
    if over:
        raise MachineError(
            f"{over} of {len(window)} requests ({over / len(window):.1%}) are longer than the model's context",
            why=f"the longest takes {int(lengths.max())} tokens, the context holds {max_len}",
            hint="add --fit lengths to scale them (the verdict then says: not your traffic)",
        )


def over_load(load: Load) -> None:
    """Refuse a window that asks for more than the plan's calibrated limit."""
    if load.utilisation > load.limit:
        raise MachineError(
            f"the window asks for {load.utilisation / load.limit:.2f} times what the plan can serve here",
            why=f"about {load.late_share:.0%} of the requests would miss their TTFT target by load alone",
            hint="add --fit rate to stretch the arrivals (the verdict then says: not your traffic)",
        )


def remote(url: str, *, allowed: bool, key: bool = False) -> None:
    """Refuse a host that is not this machine unless that was allowed, and a key that would travel in the clear.

    `key`: an API key goes with every request. Raises InputError for what is no URL, or has a password in it.
    """
    host = _host(url)
    if is_loopback(host):
        return
    if key and urlsplit(url).scheme != "https":
        raise InputError(
            f"the API key would go to {host} in the clear",
            why="the URL is http and the host is not this machine",
            hint=f"advise validate --url https://{host}",
        )
    if not allowed:
        raise MachineError(
            f"{host} is not this machine",
            why="a replay sends real load, which may cost money or disturb others",
            hint="add --yes if the host is yours",
        )


def question(url: str) -> str | None:
    """What to ask a person before load goes to `url`; None where nothing needs asking. Raises as `remote`."""
    host = _host(url)
    if is_loopback(host):
        return None
    provider = provider_of(url)
    whose = (
        "is not this machine" if provider is None else f"is the hosted API of {provider}, which charges for it"
    )
    return f"{host} {whose}. Send it real load?"


def hosted(url: str) -> None:
    """Refuse a search for goodput on a hosted API: it raises the rate until requests fail."""
    provider = provider_of(url)
    if provider is not None:
        raise MachineError(
            f"a search on the hosted API of {provider} is refused",
            why="it raises the rate until latency targets are missed: other people's service, and your money",
            hint="advise validate --url URL   (without --search: one replay at the log's own rate)",
        )


def busy(endpoint: Endpoint, *, shared: bool) -> None:
    """Refuse an endpoint that serves others now, unless sharing it was allowed."""
    load = endpoint.busy
    if shared or load is None or load.total == 0:
        return
    raise MachineError(
        f"{endpoint.url} is serving others: {load.running} requests run and {load.waiting} wait",
        why="they would be measured too, and would suffer from the replay",
        hint="add --shared if that is meant, or wait until it is idle",
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be sent. None: no limit of ours."""

    max_rate: float | None = None  # requests a second, over every ten seconds
    max_requests: int | None = None  # of all runs together, warm-up included
    max_cost: float | None = None  # US dollars, of all runs together


class Planned(Protocol):
    """What a validation will send; `usd` and the counts are of one run, of which there may be `most_runs`."""

    @property
    def requests(self) -> int: ...
    @property
    def warm_up_requests(self) -> int: ...
    @property
    def duration_s(self) -> float: ...
    @property
    def usd(self) -> float | None: ...
    @property
    def most_runs(self) -> int: ...


def over_limits(cost: Planned, limits: Limits, due_s: npt.NDArray[np.float64] | None = None) -> None:
    """Refuse what is beyond the user's own limits. `due_s`: seconds at which requests are due, sorted.

    Without `due_s` the rate is the mean of the run.
    """
    each = cost.requests + cost.warm_up_requests
    requests = each * cost.most_runs
    if limits.max_requests is not None and requests > limits.max_requests:
        raise MachineError(
            f"{requests} requests are more than --max-requests {limits.max_requests}",
            why="" if cost.most_runs == 1 else f"a search may take {cost.most_runs} replays of {each}",
            hint="--window busiest:1m is shorter",
        )
    rate = each / max(cost.duration_s, _RATE_SPAN_S) if due_s is None else peak_rate(due_s)
    if limits.max_rate is not None and rate > limits.max_rate:
        raise MachineError(
            f"the window asks for {rate:.3g} requests/s, more than --max-rate {limits.max_rate:g}",
            why=f"in its busiest {_RATE_SPAN_S:g} s" if due_s is not None else "on average",
            hint=f"add --rate {0.99 * limits.max_rate / rate:.2g} to send a part of the traffic",
        )
    if limits.max_cost is None:
        return
    if cost.usd is None:
        raise MachineError(
            "what the run costs is not known, so --max-cost cannot be kept",
            why="there is no list price for this model, and no price of the machines",
            hint="--max-requests limits it too",
        )
    if cost.usd * cost.most_runs > limits.max_cost:
        raise MachineError(
            f"the run may cost {cost.usd * cost.most_runs:.2f} USD, more than --max-cost {limits.max_cost:g}",
            why=""
            if cost.most_runs == 1
            else f"a search may take {cost.most_runs} replays of {cost.usd:.2f} USD",
            hint="--window busiest:1m is shorter",
        )


def peak_rate(due_s: npt.NDArray[np.float64]) -> float:
    """Requests a second in the busiest ten seconds; `due_s` is sorted. [requests]"""
    if len(due_s) == 0:
        return 0.0
    ends = np.searchsorted(due_s, due_s + _RATE_SPAN_S, side="left")
    return float((ends - np.arange(len(due_s))).max()) / _RATE_SPAN_S


def price(
    endpoint: Endpoint, prompt_tokens: int, output_tokens: int, duration_s: float, usd_per_hour: float | None
) -> float | None:
    """US dollars of one run: a hosted API's list price of the tokens, nothing cached; else rent for its time.

    None where neither is known.
    """
    if endpoint.provider is not None:
        prices = list_price(endpoint.provider, endpoint.model)
        return None if prices is None else (prompt_tokens * prices[0] + output_tokens * prices[1]) / 1e6
    return None if usd_per_hour is None else usd_per_hour * duration_s / 3600


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        named = False
    if not named:
        raise InputError(f"{url!r} is not a URL", hint="--url http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise InputError(
            "a URL with a user or a password in it is not used",
            why="others see command lines",
            hint="export ADVISE_API_KEY=KEY",
        )
    return str(parts.hostname)
