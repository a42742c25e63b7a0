"""Money: GPUs by the hour, tokens by the million, and what a hosted API would ask for the same traffic.

Pure functions of prices that are passed in, in USD. Prices are dated assumptions of the profiles or of the user
(`--gpu-price`); none is written here.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import InputError

HOURS_PER_MONTH = 730.0  # ours: 8760 / 12
SECONDS_PER_HOUR = 3600.0
MILLION = 1e6


@dataclass(frozen=True, slots=True)
class ApiPrice:
    """A hosted model's prices, USD per million tokens; `cached_input` and `cache_write` None: as input.

    `batch_discount`: share taken off every token of a batch job, 0.5 for half price.
    """

    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None
    batch_discount: float = 0.0

    def __post_init__(self) -> None:
        prices = (self.input, self.output, self.cached_input or 0.0, self.cache_write or 0.0)
        if min(prices) < 0 or not 0 <= self.batch_discount <= 1:
            raise InputError(
                "a price is negative, or a discount is outside 0 to 1", hint="give prices of at least 0"
            )


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of some traffic, or the means of one request: prompt tokens by how they are billed, and output."""

    uncached: float
    cached: float
    written: float
    output: float

    def __post_init__(self) -> None:
        if min(self.uncached, self.cached, self.written, self.output) < 0:
            raise InputError("a number of tokens is negative", hint="give counts of at least 0")

    @classmethod
    def of(cls, prompt: float, output: float, hit_rate: float, *, writes: bool = False) -> Tokens:
        """Of a prompt whose share `hit_rate` comes from the cache; `writes`: the rest is billed as written."""
        if not 0 <= hit_rate <= 1:
            raise InputError("a hit rate is outside 0 to 1", hint="give a rate from 0 to 1")
        rest = prompt * (1 - hit_rate)
        return cls(0.0 if writes else rest, prompt * hit_rate, rest if writes else 0.0, output)


def gpu_hours_per_month(gpus: float) -> float:
    """GPU-hours of GPUs that never stop."""
    return gpus * HOURS_PER_MONTH


def usd_per_month(gpus: float, usd_per_gpu_hour: float) -> float:
    """Rent of `gpus` that never stop, USD a month."""
    return gpu_hours_per_month(gpus) * _price(usd_per_gpu_hour)


def usd_per_million_tokens(
    gpus: float, usd_per_gpu_hour: float, tokens_per_second: float, load: float = 1.0
) -> float | None:
    """USD per million tokens of a fleet that serves `tokens_per_second` at full load, `load` of the time.

    None where it serves nothing. `load` is the mean rate over the rate that the fleet sustains.
    """
    if not 0 <= load <= 1 or tokens_per_second < 0:
        raise InputError(
            "the load is outside 0 to 1, or the token rate is negative", hint="give a load from 0 to 1"
        )
    served = tokens_per_second * load * SECONDS_PER_HOUR
    return gpus * _price(usd_per_gpu_hour) / served * MILLION if served > 0 else None


def api_usd(tokens: Tokens, price: ApiPrice, *, batch: bool = False) -> float:
    """What a hosted API asks for `tokens`, USD; `batch`: as a batch job."""
    cached = price.input if price.cached_input is None else price.cached_input
    written = price.input if price.cache_write is None else price.cache_write
    prompt = tokens.uncached * price.input + tokens.cached * cached + tokens.written * written
    discount = price.batch_discount if batch else 0.0
    return (prompt + tokens.output * price.output) * (1 - discount) / MILLION


def api_usd_per_month(tokens: Tokens, rate_rps: float, price: ApiPrice, *, batch: bool = False) -> float:
    """USD a month that a hosted API asks for `rate_rps` requests a second of these mean `tokens`."""
    return api_usd(tokens, price, batch=batch) * rate_rps * SECONDS_PER_HOUR * HOURS_PER_MONTH


def _price(usd_per_gpu_hour: float) -> float:
    if usd_per_gpu_hour < 0:
        raise InputError("a GPU price is negative", hint="--gpu-price 2.50")
    return usd_per_gpu_hour
