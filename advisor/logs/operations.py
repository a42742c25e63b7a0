"""What in a log is no request for text: embeddings, moderation, health checks, warm-up.

Owns how such rows are known. The route decides where there is one; names of models and response objects only
where nothing was generated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

OTHER = "other operation than generating text"
WARM_UP = "warm-up"

_ROUTE = re.compile(
    r"(^|[/._])a?(embeddings?|moderations?|re-?rank|health\w*|metrics|models|images|audio|speech|transcriptions?"
    r"|(de)?tokenize|count_tokens|ping|version|readyz?|livez?|files|batches)(/|\?|$)"
)
_MODEL = re.compile(r"embedding|[-_/]embed([-_]|$)|moderation|re-?rank|whisper|(^|/)tts-|dall-e|gpt-image")
_OBJECTS = frozenset(("list", "embedding", "embeddings", "moderation"))
_PROBES = re.compile(r"kube-probe|healthcheck|health-check|googlehc|prometheus|blackbox|uptime")
_WARM = frozenset(("true", "1", "warmup", "warm-up", "warm_up"))


def other_route(route: str | None) -> bool:
    """Whether a path, URL or operation name is of something else than generating text."""
    return route is not None and _ROUTE.search(route.lower()) is not None


def other_model(model: str | None) -> bool:
    """Whether a model of this name generates no text."""
    return model is not None and _MODEL.search(model.lower()) is not None


def why_no_request(found: Mapping[str, Any], route: str | None, model: str | None, output: int) -> str | None:
    """Why a row with these fields (see `fields`) is no request for text; None for a request.

    `output` is its output tokens, -1 where unknown.
    """
    if "phase" in found and str(found["phase"]).lower() in _WARM:
        return WARM_UP
    if other_route(route):
        return OTHER
    if output <= 0 and (other_model(model) or str(found.get("object")) in _OBJECTS):
        return OTHER
    agent = found.get("agent")
    return OTHER if isinstance(agent, str) and _PROBES.search(agent.lower()) else None
