"""Qwen-Bailian traces: lengths, ids of 16-token blocks, and chats as chains of requests.

Source: alibaba-edu/qwen-bailian-usagetraces-anon. Times are seconds from the start. Each block is hashed by
itself, so an id says nothing of what comes before it; numbering tells beginnings apart (`advisor.logs.chain`).
The last block may hold padding, and has another id once an answer fills it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, Format, as_count, as_label, mostly
from advisor.logs.formats.mooncake import check_ids
from advisor.logs.formats.published import not_told
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, find_zone
from advisor.logs.trace import Unknown

BLOCK_TOKENS = 16
_NO_PARENT = -1


class QwenBailian(Format):
    """`chat_id`, `parent_chat_id`, `timestamp`, `input_length`, `output_length`, `type`, `turn`, `hash_ids`."""

    name: ClassVar[str] = "qwen-bailian"
    ordered: ClassVar[bool] = True  # a turn is of the chat that the turn before is of
    fields: ClassVar[tuple[str, ...]] = ("chat_id", "parent_chat_id", "input_length", "turn", "hash_ids")
    cannot_tell: ClassVar[tuple[Unknown, ...]] = not_told(
        "Qwen-Bailian's traces",
        "sharing.cached_share", "latency.ttft_s", "latency.e2e_s", "log.models", "clients",
    )  # fmt: skip

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        stamps = [row.get("timestamp") for row in sample]
        self._clock = Clock.of_sample(stamps, options.time_unit or "s", find_zone(options.tz))
        self._first: dict[int, int] = {}  # chat -> the chat that its conversation began with

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: {"chat_id", "parent_chat_id", "hash_ids"} <= row.keys())

    def parse(self, row: Row) -> Iterable[Record]:
        prompt = as_count(row.get("input_length"), "prompt length")
        if prompt < 0:
            raise UnusableError("no prompt length")
        ids = check_ids(row.get("hash_ids"))
        if ids is not None and prompt <= (len(ids) - 1) * BLOCK_TOKENS:
            self.counts["unfit"] += 1
            ids = None
        return (
            Record(
                arrival_ns=self._clock.ns(row.get("timestamp")),
                prompt_tokens=prompt,
                output_tokens=as_count(row.get("output_length"), "output length"),
                hash_ids=ids,
                route=as_label(row.get("type")),
                session=self._session(row),
            ),
        )

    def basis(self) -> Basis:
        notes = [
            "sessions are the chains of chat_id and parent_chat_id; the type of a request is its route",
            "hash_ids name single blocks: equal ids count as shared only behind equal ids",
        ]
        if unfit := self.counts["unfit"]:
            notes.append(
                f"rows with more hash_ids than their prompt has blocks, their content left unknown: {unfit}"
            )
        if cut := self.counts["cut"]:
            notes.append(f"turns whose turn before is not in the log: {cut}")
        return Basis(
            clock=self._clock,
            arrival=f"timestamp, {self._clock.words}",
            prefix=f"hash_ids of {BLOCK_TOKENS} tokens",
            block_size=BLOCK_TOKENS,
            notes=tuple(notes),
        )

    def _session(self, row: Row) -> str | None:
        """The name of the conversation that a request is a turn of; None where it has no id."""
        chat, parent = row.get("chat_id"), row.get("parent_chat_id")
        if type(chat) is not int:
            return None
        if type(parent) is not int or parent == _NO_PARENT:
            return str(self._first.setdefault(chat, chat))
        if parent not in self._first:
            self.counts["cut"] += 1
            self._first[parent] = parent
        self._first[chat] = self._first[parent]
        return str(self._first[chat])
