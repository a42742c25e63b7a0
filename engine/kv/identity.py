"""What makes two prefixes the same: the namespace (who may share) and the key of each page (what was said).

The rendered chat template, tools and system prompt are in the tokens, so they need no field of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence

from engine.request import Request


def namespace(model: str, adapter: str | None = None, scope: str | None = None) -> str:
    """Root of the prefix tree for one model, adapter and cache scope (a tenant, or a client's own salt).

    Injective: no choice of names makes two different triples equal (vllm#44701).
    """
    return json.dumps([model, adapter, scope])


def page_keys(request: Request, tokens: Sequence[int], block_size: int) -> Callable[[int], Hashable]:
    """Function from a full page's ordinal to its key, for `tokens` = prompt and growing output of `request`.

    The tokens themselves (exact comparison, no hash to collide), or the request's own keys; pages past those
    keys are unique to the request: they occupy capacity and nobody else hits them.
    """
    given = request.page_keys
    if given is None:
        return lambda page: tuple(tokens[page * block_size : (page + 1) * block_size])
    return lambda page: given[page] if page < len(given) else (request.id, page)
