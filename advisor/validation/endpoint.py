"""What is at the other end: is it up, what does it stand for, which model, how long a context, how many ids.

Asked before the clock starts, so that a wrong URL is an error with a hint, not a run of misses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from advisor.validation.client import authorization
from engine.errors import MachineError

_TIMEOUT = aiohttp.ClientTimeout(total=10)
_MOST_BYTES = 2**20
_SMALL_VOCABULARY = 32_000  # ids that every model in use has, for servers that do not tell their size


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that answered."""

    url: str
    model: str
    max_len: int | None  # tokens of prompt plus output; None where the server does not say
    vocab_size: int
    emulates: str | None = None  # the GPU whose step times it sleeps
    time_scale: float = 1.0  # its clock is so many times slower than that of what it emulates
    oversubscribed: bool = False  # its instances share cores


async def inspect(url: str, *, api_key: str | None = None) -> Endpoint:
    """Ask /health and /v1/models. Raises MachineError where the server is not up or is not one."""
    base = url.rstrip("/")
    try:
        async with aiohttp.ClientSession(headers=authorization(api_key), timeout=_TIMEOUT) as session:
            async with session.get(f"{base}/health") as response:
                if response.status >= 500:
                    raise _not_ready(url, f"/health answers {response.status}")
                health = _health(await response.content.read(_MOST_BYTES))
            async with session.get(f"{base}/v1/models") as response:
                if response.status in (401, 403):
                    raise MachineError(f"{url} wants an API key", hint="export ADVISE_API_KEY=KEY")
                if response.status != 200:
                    raise _not_ready(url, f"/v1/models answers {response.status}")
                models = await response.json(content_type=None)
        return _endpoint(url, models, health)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _not_ready(url, type(error).__name__) from error
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise _not_ready(url, "/v1/models is not in the form of OpenAI's API") from error


class _Emulated(msgspec.Struct):
    gpu: str
    time_scale: float = 1.0


class _Health(msgspec.Struct):
    """What the bundled engine says beyond being up; other engines say nothing of it."""

    oversubscribed: bool = False
    emulated: _Emulated | None = None


def _health(body: bytes) -> _Health:
    try:
        return msgspec.json.decode(body, type=_Health)
    except msgspec.DecodeError:
        return _Health()


def _endpoint(url: str, models: Any, health: _Health) -> Endpoint:
    model = models["data"][0]
    max_len = model.get("max_model_len")
    return Endpoint(
        url=url,
        model=str(model["id"]),
        max_len=None if max_len is None else int(max_len),
        vocab_size=int(model.get("vocab_size") or _SMALL_VOCABULARY),
        emulates=None if health.emulated is None else health.emulated.gpu,
        time_scale=1.0 if health.emulated is None else health.emulated.time_scale,
        oversubscribed=health.oversubscribed,
    )


def _not_ready(url: str, why: str) -> MachineError:
    return MachineError(f"no engine answers at {url}", why=why, hint="advise launch")
