"""What published traces and datasets do not tell, said in the same words by all of them.

Their how-to is about logging one's own service, since nobody can add to a file that others published.
"""

from __future__ import annotations

from advisor.logs.trace import Unknown

_LOG = "log {} on your own service: docs/collecting-logs.md"
_NOUNS = {  # path of the JSON contract -> what is missing
    "arrivals": "the arrival time of every request",
    "lengths.output": "the output tokens of every request",
    "sharing": "prompts, or block hashes,",
    "sharing.cached_share": "the cached prompt tokens of every request",
    "latency.ttft_s": "the time to first token",
    "latency.e2e_s": "the duration of every request",
    "log.models": "the model of every request",
    "clients": "who sent each request",
    "sessions": "a session id with every request",
}


def not_told(source: str, *paths: str) -> tuple[Unknown, ...]:
    """An entry for each path; `source` names the trace in the plural: "Azure's traces"."""
    return tuple(Unknown(path, f"{source} do not hold {_plain(path)}", _how_to_get(path)) for path in paths)


def _how_to_get(path: str) -> str:
    return _LOG.format(_NOUNS[path])


def _plain(path: str) -> str:
    return _NOUNS[path].rstrip(",")
