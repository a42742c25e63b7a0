"""Routes: which operations the log holds, in words that are safe to show.

A route may hold names of people, tenants and deployments. What is shown is made of the words that public APIs
use in their paths; any other part becomes `*`.
"""

from __future__ import annotations

import re

import numpy as np

from advisor.logs.trace import Labels
from advisor.workload.model import Report

_WORDS = frozenset((
    "api", "openai", "anthropic", "azure", "bedrock", "vertex", "google", "deployments", "engines", "models",
    "model", "inference", "serve", "chat", "completion", "completions", "acompletion", "atext_completion",
    "text_completion", "text", "generate", "generate_stream", "generatecontent", "streamgeneratecontent",
    "generation", "generations", "respond", "responses", "aresponses", "messages", "anthropic_messages",
    "invoke", "invoke-with-response-stream", "converse", "converse-stream", "infer", "predict", "embed",
    "embedding", "embeddings", "aembedding", "encode", "rerank", "arerank", "score", "pooling", "classify",
    "moderation", "moderations", "audio", "speech", "transcription", "transcriptions", "translations", "image",
    "images", "edits", "files", "batch", "batches", "tokenize", "detokenize", "count_tokens", "health",
    "healthz", "ping", "ready", "metrics", "version", "stream",
))  # fmt: skip
_VERSION = re.compile(r"v\d{1,2}(alpha|beta)?\d?")
_HOST = re.compile(r"([A-Z]+ )?(\w+://[^/]*)?")  # with the method in front of it
_PARTS = re.compile(r"[^/:]+")


class RouteRows(Report):
    """Requests of the routes that show as `name`, null where the log has none; `routes`: how many those are."""

    name: str | None
    routes: int
    requests: int


def measure_routes(route: Labels | None, requests: int) -> tuple[RouteRows, ...]:
    """The routes of a log of so many requests, largest first; routes that show the same are one entry."""
    if route is None:
        return (RouteRows(name=None, routes=0, requests=requests),) if requests else ()
    counts = np.bincount(route.codes[route.codes >= 0], minlength=len(route.names))
    shown: dict[str | None, RouteRows] = {}
    for name, count in zip(map(safe_route, route.names), counts.tolist(), strict=True):
        if count:
            before = shown.get(name, RouteRows(name=name, routes=0, requests=0))
            shown[name] = RouteRows(name=name, routes=before.routes + 1, requests=before.requests + count)
    unlabelled = int((route.codes < 0).sum())
    if unlabelled:
        shown[None] = RouteRows(name=None, routes=0, requests=unlabelled)
    return tuple(sorted(shown.values(), key=lambda rows: (-rows.requests, rows.name or "")))


def safe_route(name: str) -> str:
    """The route with every part that is no word of a public API as `*`; host and query are left out."""
    path = re.split(r"[?#\s]", _HOST.sub("", name, count=1), maxsplit=1)[0]
    return _PARTS.sub(lambda part: part[0] if _is_public(part[0].lower()) else "*", path) or "*"


def _is_public(word: str) -> bool:
    return word in _WORDS or _VERSION.fullmatch(word) is not None
