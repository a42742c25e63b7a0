"""ShareGPT conversations: a dataset of chats, unrolled into the requests that such a chat would have made.

Every answer is a request whose prompt is all that was said before it; a chat that is kept as one row would show
no sharing (vllm-project/vllm#54783). Long chats are split into rows `ID_0`, `ID_1`, ...: they are one session,
and where they follow each other one conversation. There are no times and no counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from advisor.logs.formats.base import Basis, Format, Parsed, as_label, mostly
from advisor.logs.formats.published import not_told
from advisor.logs.options import ReadOptions
from advisor.logs.record import Prompt, Record, Row, UnusableError
from advisor.logs.trace import Unknown

_LISTS = ("conversations", "conversation", "items")
_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
    "bing": "assistant", "bard": "assistant", "system": "system", "tool": "tool", "function_response": "tool",
}  # fmt: skip
_PART = re.compile(r"(.+)_(\d+)")


class ShareGPT(Format):
    """`id`, `conversations[{from, value}]`; also `conversation[{role, content}]`."""

    name: ClassVar[str] = "sharegpt"
    ordered: ClassVar[bool] = True  # a part goes on from the part before
    fields: ClassVar[tuple[str, ...]] = ("id", "conversations")
    cannot_tell: ClassVar[tuple[Unknown, ...]] = not_told(
        "ShareGPT's conversations",
        "arrivals", "sharing.cached_share", "latency.ttft_s", "latency.e2e_s", "log.models", "clients",
    )  # fmt: skip

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        del sample, options  # there is nothing to settle
        self.counts: Counter[str] = Counter()
        self._last: tuple[str, int] | None = None  # name and number of the part that was read last ...
        self._said: list[dict[str, str]] = []  # ... and all that had been said at its end

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: bool(turns := _turns(row)) and _message(turns[0]) is not None)

    def parse(self, row: Row) -> Iterator[Parsed]:
        turns = _turns(row)
        if not turns:
            raise UnusableError("conversation without turns")
        name = as_label(row.get("id", row.get("conversation_id")))
        part = _PART.fullmatch(name) if name is not None else None
        said: list[dict[str, str]] = []
        if part is not None:
            name, number = part[1], int(part[2])
            if number > 0 and self._last == (name, number - 1):
                said = self._said
                self.counts["continued"] += 1
            self._last, self._said = (name, number), said
        yield from self._requests(turns, said, name)

    def basis(self) -> Basis:
        notes = ["a dataset, not traffic: every answer is taken as a request with all that was said before it"]
        if continued := self.counts["continued"]:
            notes.append(f"parts of split conversations, taken as going on from the part before: {continued}")
        return Basis(clock=None, arrival="none", prefix="text of the prompts", notes=tuple(notes))

    def _requests(
        self, turns: Sequence[Any], said: list[dict[str, str]], session: str | None
    ) -> Iterator[Parsed]:
        """A request for every answer; `said` grows with the conversation."""
        asked = False
        for turn in turns:
            message = _message(turn)
            if message is None:
                yield UnusableError("turn without text")
                continue
            if message["role"] == "assistant":
                if asked:
                    yield Record(
                        prompt=Prompt(messages=list(said)), output_text=message["content"], session=session
                    )
                else:
                    yield UnusableError("answer without a question")
                asked = False
            elif message["role"] != "system":
                asked = True
            said.append(message)
        if asked:
            yield UnusableError("question without an answer")


def _turns(row: Row) -> list[Any]:
    return next((value for key in _LISTS if isinstance(value := row.get(key), list) and value), [])


def _message(turn: object) -> dict[str, str] | None:
    """A turn as a chat message; None where it is none."""
    if not isinstance(turn, Mapping):
        return None
    role, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if not isinstance(role, str) or not isinstance(text, str):
        return None
    return {"role": _ROLES.get(role.lower(), "user"), "content": text}
