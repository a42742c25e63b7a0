"""The Plan: a target, candidates with what each would give, the choice and its reasons.

Plain data in canonical form: no clock, no host, no path but those the user gave, so that the same inputs give
the same bytes. Fields that only a simulation can fill are None until one has run; the Analysis lists them
under `unknown`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field

from advisor.advice.target import Target
from advisor.workload.model import Report
from engine.config import EngineConfig, ModelConfig, PoolConfig, RouterConfig

PlanVerdict = Literal["change", "keep_defaults", "undecided", "infeasible", "hosted"]


class StepTimeUse(Report):
    """Which step times the plan rests on, and their known error."""

    source: Literal["calibrated", "published", "roofline"]
    error_p90: float | None = Field(description="P90 relative error on held-out steps; null where unknown")
    key: str = Field(description="what the numbers are for: engine, device, model, dtype, TP")
    shared: str | None = Field(
        None, description="what router and client take of the cores of the instances; null on GPUs"
    )


class Interval(Report):
    """Low, middle and high value of a simulated quantity."""

    low: float
    mid: float
    high: float


class Candidate(Report):
    """One configuration that was considered."""

    name: str
    pools: tuple[PoolConfig, ...]
    router: RouterConfig
    gpus: int = Field(description="GPUs; on a CPU cores")
    goodput_rps_per_gpu: Interval | None = None
    attainment: float | None = None
    ttft_p90_s: float | None = None
    tpot_p90_s: float | None = None
    tbt_p99_s: float | None = None
    hit_rate_tokens: float | None = None
    kv_tokens: int | None = Field(None, description="KV cache of one instance, tokens")
    rejected: str | None = Field(None, description="why the candidate is out; null where it is not")


class Group(Report):
    """Some of the requests, and how the chosen candidate serves them. Times are null where none is served."""

    name: str
    share: float = Field(description="of the requests")
    attainment: float | None = Field(description="share that keep every target, each by its own largest gap")
    ttft_p90_s: float | None
    tpot_p90_s: float | None


class LengthGroup(Group):
    """The requests of one length class."""

    prompt_p50: float
    output_p50: float


class Loss(Report):
    """What it costs when one instance of the chosen candidate dies in the busiest minutes and comes back."""

    role: Literal["colocated", "prefill", "decode"] = Field(description="of the instance that dies")
    left: int = Field(description="instances of its kind that go on")
    at_s: float = Field(description="when it dies, seconds after the first arrival")
    down_s: float = Field(description="seconds until it is back, its cache empty")
    caught_up_s: float | None = Field(
        description="seconds from its death until no more requests are in the fleet than without it; "
        "null: not before the last arrival"
    )
    requests: int = Field(description="that come from its death until then")
    attainment: float | None = Field(description="of these")
    attainment_without: float | None = Field(description="of the same requests where nothing dies")
    rerun: int = Field(description="times that a request begins again elsewhere, or when it is back")
    dropped: int = Field(description="requests that are served without the loss and not with it")
    attainment_of_all: float = Field(description="of all requests of the log, with the loss")


class Waiting(Report):
    """What would be decided if each turn waited for the one before it, and then its logged think time."""

    verdict: PlanVerdict
    chosen: str | None = Field(description="name of the candidate; null when infeasible")


class Simulation(Report):
    """What the plan's figures rest on."""

    requests: int = Field(description="requests of the log that can be simulated")
    simulated: int = Field(description="requests simulated by the search, all candidates together")
    needed_rps: float = Field(description="mean rate of the log, times --rate: what to plan for")
    why: str = Field(description="why the verdict is what it is")
    random: dict[str, Any] | None = Field(
        None, description="the best of random search at as many simulated requests, goodput per GPU"
    )
    at_needed: dict[str, float | None] | None = Field(
        None, description="the chosen candidate at the rate to plan for"
    )
    regimes: tuple[Group, ...] | None = Field(
        None, description="at that rate: `steady`, and `bursts` where there are any"
    )
    classes: tuple[LengthGroup, ...] | None = Field(
        None, description="at that rate: each length class, the largest first; empty where all are one"
    )
    loss: Loss | None = Field(None, description="at that rate: one instance dies")
    batch_s: float | None = Field(
        None,
        description="with objective throughput: seconds until all requests of the log, there at once, have "
        "ended on the target's GPUs; of the soonest candidate where none ends by the deadline",
    )
    waiting: Waiting | None = Field(
        None, description="where over 5 % of turns would be sent before the turn before has ended"
    )


class Plan(Report):
    """What to run for this traffic on this target."""

    target: Target
    step_time: StepTimeUse
    candidates: tuple[Candidate, ...]
    attribution: tuple[dict[str, Any], ...] | None = None
    chosen: str | None = Field(description="name of the chosen candidate; null when infeasible")
    runner_up: str | None = None
    margin: dict[str, float | None] | None = None
    verdict: PlanVerdict
    gpus_needed: int | None = None
    usd_per_month: float | None = None
    usd_per_million_tokens: float | None = None
    flips: tuple[dict[str, Any], ...] | None = None
    mean_trap: dict[str, Any] | None = None
    backtest: dict[str, Any] | None = None
    runs_on: dict[str, str] = Field(description="per engine: `yes`, or why it cannot launch this plan")
    simulation: Simulation | None = None
    files: tuple[str, ...] = ()
    reasons: dict[str, str] = Field(
        default_factory=dict, description="why each chosen value is what it is, by dotted path in engine.yaml"
    )

    @property
    def choice(self) -> Candidate | None:
        """The chosen candidate."""
        return next((c for c in self.candidates if c.name == self.chosen), None)

    def engine_config(self) -> EngineConfig:
        """The bundled engine's configuration for the chosen candidate. Raises ValueError when infeasible."""
        choice = self.choice
        if choice is None:
            raise ValueError("an infeasible plan has no configuration")
        return EngineConfig(pools=choice.pools, router=choice.router, model=served_model(self.target))


def served_model(target: Target) -> ModelConfig:
    """The model part of the bundled engine's configuration; for numbers that it lacks it takes its own."""
    own = get_args(ModelConfig.model_fields["dtype"].annotation)
    dtype = target.dtype if target.dtype in own else "auto"
    return ModelConfig(name=target.model, path=target.model_path, dtype=dtype, max_len=target.max_len)
