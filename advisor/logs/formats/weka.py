"""Weka's agentic traces (kv-cache-tester): one JSON document a conversation, or one a line.

Source: callanjfox/kv-cache-tester. Ids name full 64-token blocks and, where `hash_id_scope` is local, mean
something within their conversation only; sub-agents share its ids. Every conversation has a clock of its own
that starts at 0: when one began, seen from another, is not known. Text is not part of it.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from advisor.logs.formats.base import Basis, Format, Parsed, as_count, as_label, mostly
from advisor.logs.formats.mooncake import check_ids
from advisor.logs.formats.published import not_told
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, as_number, find_zone
from advisor.logs.trace import Unknown

BLOCK_TOKENS = 64
_SLACK_S = 2.0  # times are whole seconds: a sub-agent may seem to start before the turn that calls it ended
_MOST_NESTED = 20  # sub-agents of sub-agents
_NO_ORDER = Unknown(
    "arrivals",
    "each conversation has a clock of its own, so arrivals of different conversations cannot be compared",
    "analyze one conversation alone, or log wall-clock times on your own service: docs/collecting-logs.md",
)


class _Agent(NamedTuple):
    """Who sends requests: the conversation itself, or a sub-agent of it."""

    session: str | None
    starts_s: float  # on the conversation's clock
    ids_scope: str | None


class Weka(Format):
    """`id`, `block_size`, `hash_id_scope`, `requests[{t, model, in, out, hash_ids, api_time, think_time}]`."""

    name: ClassVar[str] = "weka"
    fields: ClassVar[tuple[str, ...]] = ("id", "models", "block_size", "hash_id_scope", "requests")
    cannot_tell: ClassVar[tuple[Unknown, ...]] = not_told("Weka's traces", "sharing.cached_share", "clients")

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        self._zone = find_zone(options.tz)
        sizes = [size for row in sample if type(size := row.get("block_size")) is int and size > 0]
        self._size = sizes[0] if sizes else BLOCK_TOKENS
        self._clock = Clock(options.time_unit or "s", False, self._zone, words="seconds from its first request")

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, _is_conversation)

    def parse(self, row: Row) -> Iterator[Parsed]:
        requests = row.get("requests")
        if not isinstance(requests, list) or not requests:
            raise UnusableError("conversation without requests")
        if row.get("block_size", BLOCK_TOKENS) != self._size:
            raise UnusableError("another block size than the first conversation's", len(requests))
        name, content = as_label(row.get("id")), _fingerprint(requests)
        self.counts[f"named {name} {content}"] += 1
        if self.counts[f"named {name} {content}"] > 1:
            raise UnusableError("copy of a conversation with the same id", len(requests))
        self.counts["conversations"] += 1
        self.counts[f"content {content}"] += 1
        # Two conversations may have one name; with their content it is theirs alone.
        local = row.get("hash_id_scope") != "global"
        self.counts["local"] += local
        yield from self._requests(requests, _Agent(name, 0.0, f"{name} {content}" if local else None), 0)

    def basis(self) -> Basis:
        alone = self.counts["conversations"] == 1
        return Basis(
            clock=self._clock if alone else None,
            arrival="t, seconds from the start of the conversation" if alone else "none",
            prefix=f"hash_ids of {self._size} tokens",
            block_size=self._size,
            rounding="floor",
            scope="conversation" if self.counts["local"] else "global",
            notes=tuple(self._notes()),
            unknown=() if alone else (_NO_ORDER,),
        )

    def _notes(self) -> Iterator[str]:
        if (conversations := self.counts["conversations"]) > 1:
            yield (
                f"{conversations} conversations; requests are in the order of the time since their own one "
                "began, as if all had begun at once, so hit rates of small caches are low estimates"
            )
        if self.counts["local"]:
            yield "hash_ids are compared within a conversation only, as hash_id_scope says"
        copies = [count for name, count in self.counts.items() if name.startswith("content ") and count > 1]
        if copies:
            extra = sum(copies) - len(copies)
            yield f"conversations that repeat another's requests under a new id, kept: {extra}"
        for key, words in (
            ("returned", "a sub-agent is logged when it returns, so it began duration_ms before its t"),
            ("marked", "times of sub-agents count from the t of their entry"),
            ("absolute", "times of sub-agents count from the start of the conversation"),
        ):
            if count := self.counts[key]:
                yield f"{words}: {count} of {self.counts['agents']} sub-agents"

    def _requests(self, requests: Sequence[Any], agent: _Agent, depth: int) -> Iterator[Parsed]:
        """Requests of one agent and of those that it calls."""
        first = True
        ended = 0.0  # the request before, on the agent's own clock
        for number, request in enumerate(requests):
            if not isinstance(request, Mapping):
                yield UnusableError("not a request")
            elif isinstance(request.get("requests"), list):
                if depth >= _MOST_NESTED:
                    yield UnusableError("sub-agents nested too deeply")
                    continue
                starts_s = agent.starts_s + self._origin(request, ended, agent)
                inner = as_label(request.get("agent_id")) or str(number)
                session = None if agent.session is None else f"{agent.session}/{inner}"
                yield from self._requests(
                    request["requests"], agent._replace(session=session, starts_s=starts_s), depth + 1
                )
            else:
                try:
                    yield self._record(request, agent, first)
                except UnusableError as error:
                    yield error
                    continue
                first = False
                ended = float(as_number(request.get("t")) or 0.0) + float(
                    as_number(request.get("api_time")) or 0.0
                )

    def _origin(self, entry: Mapping[str, Any], ended: float, agent: _Agent) -> float:
        """Where the zero of a sub-agent's times is, on the clock of the agent that called it.

        Its times count from its own start, as they begin with 0, or from the start of the conversation. It
        starts at `t`, unless `t` less `duration_ms` is where the turn that called it ended: then `t` is when it
        returned, as in the published files.
        """
        self.counts["agents"] += 1
        inner = [as_number(request.get("t")) for request in entry["requests"] if isinstance(request, Mapping)]
        begins = min((number for number in inner if number is not None), default=0.0)
        if begins > 0 and begins + _SLACK_S >= ended + agent.starts_s:
            self.counts["absolute"] += 1
            return -agent.starts_s
        marker = float(as_number(entry.get("t")) or 0.0)
        began = marker - float(as_number(entry.get("duration_ms")) or 0.0) / 1e3
        if began < marker and abs(began - ended) <= _SLACK_S:
            self.counts["returned"] += 1
            return began
        self.counts["marked"] += 1
        return marker

    def _record(self, request: Mapping[str, Any], agent: _Agent, first: bool) -> Record:
        prompt = as_count(request.get("in"), "prompt length")
        if prompt < 0:
            raise UnusableError("no prompt length")
        ids = check_ids(request.get("hash_ids"))
        if ids is not None and len(ids) > prompt // self._size:
            raise UnusableError("more hash_ids than the prompt has full blocks")
        t = as_number(request.get("t"))
        if t is None:
            raise UnusableError("no arrival time")
        return Record(
            arrival_ns=self._clock.ns(max(0.0, agent.starts_s + t)),
            prompt_tokens=prompt,
            output_tokens=as_count(request.get("out"), "output length"),
            ttft_s=_seconds(request.get("ttft")),
            e2e_s=_seconds(request.get("api_time")),
            think_s=math.nan if first else _seconds(request.get("think_time")),
            hash_ids=ids,
            model=as_label(request.get("model")),
            session=agent.session,
            scope=agent.ids_scope,
        )


def _is_conversation(row: Row) -> bool:
    requests = row.get("requests")
    return (
        isinstance(requests, list) and "block_size" in row and ("hash_id_scope" in row or "tool_tokens" in row)
    )


def _fingerprint(requests: Sequence[Any]) -> str:
    """Equal for conversations with the same requests, whatever they are called."""
    digest = hashlib.blake2b(digest_size=8)
    for request in requests:
        if isinstance(request, Mapping):
            own = [as_number(request.get(name)) for name in ("t", "in", "out", "api_time", "duration_ms")]
            ids = request.get("hash_ids")
            blocks = sum(ids) if isinstance(ids, list) and set(map(type, ids)) == {int} else None
            digest.update(repr((own, blocks)).encode())
    return digest.hexdigest()


def _seconds(value: object) -> float:
    number = as_number(value)
    return math.nan if number is None or number < 0 else float(number)
