"""A metrics page: fetching it, its samples, and what it says of an engine's configuration.

Asks only the host that the user named: no redirect is followed, no proxy is used, and no credential is sent but
the key that a caller has for that host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from advisor.advice.current import sglang, vllm
from advisor.advice.current.flags import Parsed, parse_mapping
from advisor.advice.current.model import Current, Said
from advisor.advice.current.settings import Around
from advisor.advice.current.values import Given
from engine.errors import InputError

Sample = tuple[str, dict[str, str], str]  # name, labels, value

MOST_BYTES = 16 * 2**20
TIMEOUT_S = 10.0
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"\s*,?')
_VLLM_LABELS = {
    "block_size": "block-size",
    "gpu_memory_utilization": "gpu-memory-utilization",
    "cache_dtype": "kv-cache-dtype",
    "enable_prefix_caching": "enable-prefix-caching",
}


def read_metrics(url: str, around: Around, *, timeout_s: float = TIMEOUT_S) -> Current:
    """The configuration behind `url`. Raises InputError where nothing, or something else, answers."""
    import asyncio  # and aiohttp below: every analysis would import them, few ask a running engine

    address = _address(url)
    text = asyncio.run(fetch(address, timeout_s))
    return parse_metrics(text, address, around)


def _address(url: str) -> str:
    """`url` with /metrics; without anything secret, since it is shown."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InputError("the address is not understood", hint="http://HOST:PORT/metrics") from None
    if parts.username or parts.password or parts.query or not parts.hostname:
        why = "user, password and query are not used here" if parts.hostname else "it names no host"
        raise InputError("the address is not understood", why=why, hint="http://HOST:PORT/metrics")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = host if port is None else f"{host}:{port}"
    return f"{parts.scheme}://{place}{parts.path.rstrip('/') or '/metrics'}"


async def fetch(address: str, timeout_s: float = TIMEOUT_S, api_key: str | None = None) -> str:
    """The page at `address`. Raises InputError where none answers."""
    import aiohttp

    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}

    limit = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit, headers=headers) as session,
            session.get(address, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise InputError(f"the server answers {response.status}", where=address, hint="curl " + address)
            body = bytearray()
            async for chunk in response.content.iter_chunked(2**16):
                body += chunk
                if len(body) > MOST_BYTES:
                    raise InputError(
                        "the answer is too long for a metrics page", where=address, hint="curl " + address
                    )
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise InputError(
            "no metrics page answers", where=address, why=type(error).__name__, hint="curl " + address
        ) from None
    return body.decode("utf-8", errors="replace")


def parse_metrics(text: str, where: str, around: Around) -> Current:
    """The configuration in a metrics page. Raises InputError where the page is of no engine that we know."""
    samples = list(samples_of(text))
    names = {name for name, _, _ in samples}
    if any(name.startswith("vllm:") for name in names):
        return _vllm(samples, where, around)
    if any(name.startswith("sglang:") for name in names):
        return _sglang(samples, where, around)
    why = "it has no metric of vLLM or SGLang" if samples else "it has no metrics"
    raise InputError(
        "this page does not say how an engine is configured",
        where=where,
        why=why,
        hint="--current 'vllm serve MODEL ...', as a launch line",
    )


def samples_of(text: str) -> Iterator[Sample]:
    """(name, labels, value) of each line; other lines are passed over."""
    for line in text.splitlines():
        match = None if line.startswith("#") or len(line) > 20_000 else _SAMPLE.fullmatch(line.strip())
        if match is not None:
            yield match.group(1), dict(_LABEL.findall(match.group(2) or "")), match.group(3)


def _vllm(samples: list[Sample], where: str, around: Around) -> Current:
    configs = [labels for name, labels, _ in samples if name == "vllm:cache_config_info"]
    if not configs:
        raise InputError(
            "the page has no vllm:cache_config_info",
            where=where,
            why="this engine does not say it",
            hint="--current 'vllm serve MODEL ...', as a launch line",
        )
    labels = configs[0]
    said = {key: labels[label] for label, key in _VLLM_LABELS.items() if labels.get(label, "None") != "None"}
    parsed = parse_mapping(vllm.TABLE, said, "vllm:cache_config_info")
    kv_tokens = _whole(labels.get("kv_cache_size_tokens"))
    blocks, size = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
    if kv_tokens is None and blocks and size:
        kv_tokens = blocks * size
    engines = len({labels.get("engine", "") for labels in configs})
    return _with_kv(vllm.build(_named(parsed, samples), around), kv_tokens, engines, "vllm:cache_config_info")


def _sglang(samples: list[Sample], where: str, around: Around) -> Current:
    def gauge(name: str) -> int | None:
        return next((_whole(value) for found, _, value in samples if found == name), None)

    kv_tokens, page = gauge("sglang:max_total_num_tokens"), gauge("sglang:page_size")
    if kv_tokens is None:
        pages = gauge("sglang:num_pages")
        kv_tokens = pages * page if pages and page else None
    if kv_tokens is None:
        raise InputError(
            "the page has no sglang:max_total_num_tokens",
            where=where,
            why="this engine does not say it",
            hint="--current 'vllm serve MODEL ...', as a launch line",
        )
    parsed = parse_mapping(sglang.TABLE, {"page-size": page} if page else {}, "sglang")
    ranks = len(
        {labels.get("dp_rank", "") for name, labels, _ in samples if name == "sglang:max_total_num_tokens"}
    )
    current = sglang.build(_named(parsed, samples), around)
    return _with_kv(current, kv_tokens, ranks, "sglang:max_total_num_tokens")


def _named(parsed: Parsed, samples: list[Sample]) -> Parsed:
    names = {labels["model_name"] for _, labels, _ in samples if labels.get("model_name")}
    if len(names) != 1:
        return parsed
    return Parsed({"model": Given(names.pop(), "label model_name")}).over(parsed)


def _with_kv(current: Current, kv_tokens: int | None, count: int, by: str) -> Current:
    pool = current.pools[0].model_copy(update={"kv_tokens": kv_tokens, "count": max(1, count)})
    said = (*current.read, Said("kv_tokens", kv_tokens, by)) if kv_tokens else current.read
    note = (
        "a metrics page does not say token budget, sequences, TP or the queue: give the launch line for those"
    )
    return replace(current, pools=(pool,), read=said, notes=(*current.notes, note))


def _whole(text: str | None) -> int | None:
    try:
        value = float(text) if text is not None else 0.0
    except ValueError:
        return None
    return int(value) if 0 < value < 1e15 and value == int(value) else None
