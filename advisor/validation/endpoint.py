"""What is at the other end: is it up, which engine and model, how long a context, whom else it serves.

Asked before the clock starts, so that a wrong URL is an error with a hint, not a run of misses. Only reads; of
a hosted API it reads nothing but the list of models. Everything beyond that list may be absent: what is not
told is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec

from advisor.validation.busy import Busy, busy_of, engine_of
from advisor.validation.client import authorization
from advisor.validation.hosts import is_loopback, provider_of
from advisor.validation.probe import printable
from engine.errors import InputError, MachineError

Kind = Literal["advise", "vllm", "sglang", "trtllm", "llamacpp", "ollama", "dynamo", "hosted", "unknown"]
NAMES: dict[Kind, str] = {
    "advise": "the bundled engine",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
    "llamacpp": "llama.cpp",
    "ollama": "Ollama",
    "dynamo": "NVIDIA Dynamo",
    "hosted": "a hosted API",
    "unknown": "an OpenAI-compatible server",
}
USER_AGENT = {"User-Agent": "advise-probe"}
"""Sent with every request that is not part of a replay, so that a server's own log tells them apart."""

_TIMEOUT = aiohttp.ClientTimeout(total=10)
_MOST_BYTES = 16 * 2**20  # a metrics page of many models is long
_SMALL_VOCABULARY = 32_000  # ids that every model in use has, for servers that do not tell their size
# What servers write into the `owned_by` of their models: the constants in their source.
_OWNERS: dict[str, Kind] = {
    "advise": "advise",
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt_llm": "trtllm",
    "llamacpp": "llamacpp",
    "library": "ollama",
}
# Where the version is told. SGLang's /server_info is left alone: it answers with the server's own API keys.
_VERSIONS: dict[Kind, tuple[str, str]] = {
    "vllm": ("/version", "version"),
    "trtllm": ("/version", "version"),
    "llamacpp": ("/props", "build_info"),
    "ollama": ("/api/version", "version"),
}
# TensorRT-LLM's /metrics is a queue of its iterations: reading it would take them from whoever watches it.
_METRICS_PATHS: dict[Kind, str] = {"trtllm": "/prometheus/metrics"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that answered."""

    url: str  # without a trailing slash or /v1
    model: str
    max_len: int | None  # tokens of prompt plus output; None where the server does not say
    vocab_size: int
    emulates: str | None = None  # the GPU whose step times it sleeps
    time_scale: float = 1.0  # its clock is so many times slower than that of what it emulates
    oversubscribed: bool = False  # its instances share cores
    kind: Kind = "unknown"
    version: str | None = None
    busy: Busy | None = None  # requests when it was looked at; None where it does not tell
    provider: str | None = None  # of a hosted API

    @property
    def engine(self) -> str:
        """What it is, for people."""
        if self.provider is not None:
            return f"the hosted API of {self.provider}"
        return NAMES[self.kind] + ("" if self.version is None else f" {self.version}")


def base_of(url: str) -> str:
    """The address that /v1/... is appended to: without a trailing slash or /v1, as clients are often given."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


async def inspect(url: str, *, api_key: str | None = None, model: str | None = None) -> Endpoint:
    """Ask /health, /v1/models, /metrics and the version.

    `model` chooses among several. Raises MachineError where the server is not up or is not one, InputError
    where it serves several models and none, or another, is named.
    """
    base = base_of(url)
    provider = provider_of(base)
    try:
        async with _session(api_key) as session:
            health = b""
            if provider is None:
                status, health = await _ask(session, f"{base}/health")
                if status >= 500 and status != 501:
                    raise _not_ready(url, f"/health answers {status}")
            async with session.get(f"{base}/v1/models") as response:
                if response.status in (401, 403):
                    raise MachineError(f"{url} wants an API key", hint="export ADVISE_API_KEY=KEY")
                if response.status != 200:
                    raise _not_ready(url, f"/v1/models answers {response.status}")
                server = response.headers.get("Server", "")
                models = await response.json(content_type=None)
            said = _health(health)
            card = _card(models, model, url)
            kind = "hosted" if provider else _kind(card, said, server)
            return await _rest(session, base, card, said, kind, provider)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _not_ready(url, type(error).__name__) from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise _not_ready(url, "/v1/models is not in the form of OpenAI's API") from error


def _session(api_key: str | None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers=authorization(api_key) | USER_AGENT, timeout=_TIMEOUT)


async def _rest(
    session: aiohttp.ClientSession,
    base: str,
    card: dict[str, Any],
    said: _Health,
    kind: Kind,
    provider: str | None,
) -> Endpoint:
    page = "" if provider else await _page(session, base, kind)
    if kind == "unknown":
        kind = _known(engine_of(page))
    version, props = await _version(session, base, kind)
    meta = card.get("meta") or {}
    max_len = card.get("max_model_len") or meta.get("n_ctx") or _slot_context(props)
    return Endpoint(
        url=base,
        model=str(card["id"]),
        max_len=None if max_len is None else int(max_len),
        vocab_size=int(card.get("vocab_size") or meta.get("n_vocab") or _SMALL_VOCABULARY),
        emulates=None if said.emulated is None else said.emulated.gpu,
        time_scale=1.0 if said.emulated is None else said.emulated.time_scale,
        oversubscribed=said.oversubscribed,
        kind=kind,
        version=version,
        busy=busy_of(page),
        provider=provider,
    )


async def _ask(session: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    async with session.get(url) as response:
        return response.status, await _body(response)


async def _quietly(session: aiohttp.ClientSession, url: str) -> bytes:
    """The page where there is one, else nothing: other engines have other pages."""
    try:
        status, body = await _ask(session, url)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return b""
    return body if status == 200 else b""


async def _page(session: aiohttp.ClientSession, base: str, kind: Kind) -> str:
    path = _METRICS_PATHS.get(kind, "/metrics")
    return (await _quietly(session, base + path)).decode("utf-8", errors="replace")


async def _version(session: aiohttp.ClientSession, base: str, kind: Kind) -> tuple[str | None, dict[str, Any]]:
    """The version, and the page that told it."""
    if kind not in _VERSIONS:
        return None, {}
    path, key = _VERSIONS[kind]
    told = _object(await _quietly(session, base + path))
    return (printable(str(told[key]))[:40] if told.get(key) else None), told


def _object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _slot_context(props: dict[str, Any]) -> int | None:
    """llama.cpp before its list of models told the context of a slot."""
    settings = props.get("default_generation_settings")
    size = settings.get("n_ctx") if isinstance(settings, dict) else None
    return size if isinstance(size, int) else None


async def _body(response: aiohttp.ClientResponse) -> bytes:
    read = bytearray()
    async for chunk in response.content.iter_chunked(2**16):
        read += chunk
        if len(read) > _MOST_BYTES:
            return b""
    return bytes(read)


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


def _card(models: Any, wanted: str | None, url: str) -> dict[str, Any]:
    """The model to use. An adapter names its base as parent: it is not what an endpoint mainly serves."""
    cards: list[dict[str, Any]] = models if isinstance(models, list) else models["data"]
    if wanted is not None:
        for card in cards:
            if card["id"] == wanted:
                return card
        raise InputError(
            f"{url} does not serve the model {wanted!r}",
            why=_listed(cards),
            hint=f"curl {base_of(url)}/v1/models",
        )
    own = [card for card in cards if not card.get("parent")] or cards
    if len(own) > 1:
        raise InputError(
            f"{url} serves {len(own)} models",
            why=_listed(own),
            hint=f"advise validate --url {url} --model {own[0]['id']}",
        )
    return own[0]


def _listed(cards: list[dict[str, Any]]) -> str:
    names = [str(card["id"]) for card in cards]
    more = "" if len(names) <= 5 else f" and {len(names) - 5} more"
    return "it serves " + ", ".join(names[:5]) + more


def _kind(card: dict[str, Any], said: _Health, server: str) -> Kind:
    if said.emulated is not None:
        return "advise"
    owner = str(card.get("owned_by", ""))
    if owner not in _OWNERS and server.startswith("llama.cpp"):
        return "llamacpp"
    return _OWNERS.get(owner, "unknown")


def _known(name: str | None) -> Kind:
    return next((kind for kind in NAMES if kind == name), "unknown")


def _not_ready(url: str, why: str) -> MachineError:
    host = urlsplit(url).hostname or ""
    hint = "advise launch" if is_loopback(host) else f"curl {base_of(url)}/v1/models"
    return MachineError(f"no engine answers at {url}", why=why, hint=hint)
