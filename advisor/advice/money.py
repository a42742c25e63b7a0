"""What a plan costs: the rent of the GPUs that the traffic needs, and what a hosted API would ask for it.

Prices are dated assumptions of the profiles, or the user's (`--gpu-price`); each figure says which. The
arithmetic is `price`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from advisor.advice import profiles
from advisor.advice.plan import Plan
from advisor.advice.price import ApiPrice, Tokens, api_usd_per_month, usd_per_million_tokens, usd_per_month
from advisor.advice.profile_schemas import HostedPrice
from advisor.advice.target import Target
from advisor.workload.model import Workload

CACHE_LIFE_S = 300  # of an unused prefix at most providers


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """US dollars an hour of one GPU, what kind of price that is, and where it is from."""

    usd_per_hour: float
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class Offer:
    """The cheapest hosted API that has the model: US dollars a month for the traffic, and whose price."""

    model: str
    usd_per_month: float
    source: str


def gpu_price(target: Target) -> GpuPrice | None:
    """The price of the target's GPU; None on a CPU and where none is known."""
    if target.gpu_price is not None:
        return GpuPrice(target.gpu_price, "as given", target.origins.get("gpu_price", "the target"))
    rental = None if target.on_cpu else profiles.gpu_rental(target.gpu)
    if rental is None:
        return None
    return GpuPrice(
        rental.usd_per_hour,
        f"an assumption of {rental.as_of}, {rental.low:g} to {rental.high:g} are asked; --gpu-price",
        rental.source,
    )


def priced(plan: Plan, workload: Workload) -> Plan:
    """The plan with the rent of the GPUs that it needs, a month and per million tokens of prompt and output.

    Unchanged where a price, the number of GPUs or the tokens are not known.
    """
    price, rate = gpu_price(plan.target), workload.arrivals.rate_rps
    prompt, output = workload.lengths.prompt, workload.lengths.output
    if price is None or plan.gpus_needed is None or rate is None or prompt is None or output is None:
        return plan
    gpus, usd = plan.gpus_needed, price.usd_per_hour
    each = usd_per_million_tokens(gpus, usd, rate * (prompt.mean + output.mean))
    if plan.target.deadline_s is not None:
        each = _of_batch(plan, usd, prompt.mean + output.mean)
    why = f"{gpus} x {plan.target.gpu} at {usd:g} USD an hour ({price.kind}); source: {price.source}"
    return plan.model_copy(
        update={
            "usd_per_month": usd_per_month(gpus, usd),
            "usd_per_million_tokens": each,
            "reasons": {**plan.reasons, "usd_per_month": why},
        }
    )


def _of_batch(plan: Plan, usd_per_hour: float, tokens: float) -> float | None:
    """US dollars per million tokens of a batch, `tokens` a request: it has no rate, only an end."""
    if plan.choice is None or plan.simulation is None or not plan.simulation.batch_s:
        return None
    rate_rps = plan.simulation.requests / plan.simulation.batch_s
    return usd_per_million_tokens(plan.choice.gpus, usd_per_hour, rate_rps * tokens)


def hosted_offer(workload: Workload, model: str) -> Offer | None:
    """The cheapest hosted API of the log's own model or of `model`; None where none is known.

    Prompt tokens that come again within the providers' usual cache life are billed as cached where the API has
    such a price; the log's own reuse is what hits.
    """
    prompt, output, rate = workload.lengths.prompt, workload.lengths.output, workload.arrivals.rate_rps
    if prompt is None or output is None or rate is None:
        return None
    lives = workload.sharing.cache_life or ()
    hit = next((life.hit_rate_tokens for life in lives if life.seconds == CACHE_LIFE_S), 0.0)
    offers = [
        Offer(
            f"{price.provider} {price.model}",
            api_usd_per_month(_tokens(price, prompt.mean, output.mean, hit), rate, _api_price(price)),
            f"list price, {profiles.hosted().as_of}",
        )
        for price in profiles.hosted().prices
        if _same(price.model, workload.model) or _same(price.model, model)
    ]
    return min(offers, key=lambda offer: (offer.usd_per_month, offer.model), default=None)


def _tokens(price: HostedPrice, prompt: float, output: float, hit: float) -> Tokens:
    cached = hit if price.cached_input is not None else 0.0
    return Tokens.of(prompt, output, cached, writes=price.cache_write is not None)


def _api_price(price: HostedPrice) -> ApiPrice:
    return ApiPrice(price.input, price.output, price.cached_input, price.cache_write)


def _same(hosted: str, model: str | None) -> bool:
    """Whether both names mean one model: equal, or of one profile."""
    if model is None:
        return False
    if hosted.lower() == model.lower():
        return True
    known, other = profiles.known_model(hosted), profiles.known_model(model)
    return known is not None and other is not None and known.id == other.id
