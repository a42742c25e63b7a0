"""How to replay, what it will cost, and who wants to know: plain data for every part of a validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from advisor.validation.classes import ClassTarget
from advisor.validation.predicted import Served
from advisor.validation.refuse import Limits, Load
from advisor.validation.replay import Counts
from advisor.validation.scale import Scale
from advisor.validation.window import Window

Fit = Literal["rate", "lengths"]
Turns = Literal["open", "causal"]
Cache = Literal["warm", "cold"]


def no_limit(_window: Window) -> None:
    """No plan is held to its limit: a baseline, a fault, a foreign endpoint."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to replay, beyond what and where."""

    fit: frozenset[Fit] = frozenset()
    rate: float = 1.0  # times the log's rate
    scale: Scale = "sessions"
    turns: Turns = "open"
    cache: Cache = "cold"
    warm_up_s: float | None = None  # with a warm cache; None: WARM_SHARE of the window
    classes: tuple[ClassTarget, ...] = ()
    load: Callable[[Window], Load | None] = no_limit  # what a window asks of the advised plan
    served: Served | None = None  # what the plan says will answer; None: there is no plan to predict from
    block_size: int = 16  # of the engine's KV cache, tokens; only to say how many cached tokens to expect
    timeout_s: float = 120.0  # of one request, after its send
    # Of the prompts' content; None: a new one, so that no run meets an earlier one's cache.
    seed: int | None = None
    allow_remote: bool = False
    shared: bool = False  # the endpoint may serve others meanwhile
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None  # which of the endpoint's models; None: its only one
    tokenizer: str | None = None  # of an endpoint that takes text only: a folder or a name
    usd_per_hour: float | None = None  # of all devices behind the endpoint
    cores: int | None = None  # of this machine that the endpoint's instances run on; None: not known
    journal: Path | None = None  # where each record is written as it ends
    resume: bool = False  # go on where the journal's run was interrupted
    plan_digest: str | None = None
    send_delay_s: float = 0.0  # self-test: every send this late


@dataclass(frozen=True, slots=True)
class Cost:
    """What a validation will send, known before it sends."""

    url: str
    model: str
    requests: int  # of the window
    prompt_tokens: int  # of all that is sent
    output_tokens: int
    duration_s: float  # until the last request is sent
    end_unix_s: float  # wall clock then, seconds since 1970 UTC
    scaled: tuple[str, ...]
    left_out: int
    emulates: str | None = None  # the GPU that the endpoint stands for
    time_scale: float = 1.0  # the log's arrivals, and `duration_s`, are so many times longer
    warm_up_requests: int = 0  # sent before the window, not judged
    fell_back: tuple[str, ...] = ()  # what the endpoint lacks and what is done instead
    usd: float | None = None  # what it costs, where a price is known
    most_runs: int = 1  # a search may go on to so many replays of about this cost


class Progress(Protocol):
    """Who wants to know. Calls are short: they run between sends."""

    def cost(self, cost: Cost) -> None:
        """Called once, before the first request. An exception here stops the run."""
        ...

    def tick(self, counts: Counts) -> None:
        """Called about once a second while a run goes on."""
        ...

    def probe(self, factor: float, said: str) -> None:
        """A search has replayed one rate; `said` is what came of it."""
        ...


class Silent:
    """A Progress that tells nobody."""

    def cost(self, cost: Cost) -> None:
        """Nothing."""

    def tick(self, counts: Counts) -> None:
        """Nothing."""

    def probe(self, factor: float, said: str) -> None:
        """Nothing."""
