"""What makes two prefixes the same: the namespace (who may share) and the keys of its pages (what was said).

The rendered chat template, tools and system prompt are in the tokens, so they need no field of their own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence

from engine.request import Request, Run

RunOf = Callable[[int], Run]


def namespace(model: str, adapter: str | None = None, scope: str | None = None) -> str:
    """Root of the prefix tree for one model, adapter and cache scope (a tenant, or a client's own salt).

    Injective: no choice of names makes two different triples equal (vllm#44701).
    """
    return json.dumps([model, adapter, scope])


def runs_of(request: Request, tokens: Sequence[int], block_size: int) -> RunOf:
    """The runs of pages of `tokens` = prompt and growing output of `request`, by ordinal; they leave no gap.

    A page is a run by itself, under its tokens (exact comparison, no hash to collide). Where the request gives
    runs, those; pages behind them are one run of its own: they occupy capacity and nobody else hits them.
    """
    given = request.runs
    if given is None:
        return lambda i: Run(tuple(tokens[i * block_size : (i + 1) * block_size]), i, i + 1)
    own = Run((request.id,), given[-1].stop if given else 0, sys.maxsize)
    return lambda i: given[i] if i < len(given) else own


def own_from(request: Request) -> int:
    """The first page that no other request can have; where pages are named by their tokens there is none."""
    runs = request.runs
    if runs is None:
        return sys.maxsize
    return runs[-1].stop if runs else 0
