"""One small request before the clock starts, and everything that its answer shows of an endpoint.

Not for measuring: the answer is read whole and parsed in the simplest way. Text is looked at for being there,
never kept; of a refusal the server's own words are, since they name the field that it does not take.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import aiohttp

from engine.errors import MachineError

_MOST_BYTES = 2**22
_MOST_DETAIL = 4000


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. Counts are None where the server does not give them."""

    status: int
    detail: str = ""  # of a refusal
    streamed: bool = False
    n_in: int | None = None
    n_out: int | None = None
    n_cached: int | None = None
    token_ids: int | None = None  # ids in all chunks
    chunks: int = 0  # that hold text or ids
    finish_reason: str | None = None

    @property
    def taken(self) -> bool:
        """Whether the request was understood and answered as a stream."""
        return self.status == 200 and self.streamed and not self.detail


async def send(session: aiohttp.ClientSession, url: str, body: bytes) -> Answer:
    """Send one request and read its answer. Raises MachineError where no form of request could do better."""
    try:
        async with session.post(
            url, data=body, headers={"Content-Type": "application/json"}, allow_redirects=False
        ) as response:
            content = bytearray()
            async for piece in response.content.iter_chunked(2**16):
                content += piece
                if len(content) > _MOST_BYTES:
                    break
            status = response.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise MachineError(
            f"the endpoint did not answer a small request to {url}",
            why=type(error).__name__,
            hint="advise doctor --endpoint URL",
        ) from error
    text = content.decode("utf-8", errors="replace")
    if status in (401, 403):
        raise MachineError(
            f"{url} refuses the API key" if "Authorization" in session.headers else f"{url} wants an API key",
            why=f"it answers {status}",
            hint="export ADVISE_API_KEY=KEY",
        )
    if status == 429:
        raise MachineError(
            f"{url} limits requests already",
            why="it answers 429 to a single small one",
            hint="advise doctor --endpoint URL",
        )
    if status != 200:
        return Answer(status, detail=_message(text) or "no reason given")
    return _read(text)


def _read(text: str) -> Answer:
    events = [_event(line[5:]) for line in text.splitlines() if line.startswith("data:")]
    if not events:
        return Answer(200, detail="the answer is not a stream")
    usage: dict[str, Any] = {}
    ids: int | None = None
    chunks, reason = 0, None
    for event in events:
        if event.get("error"):
            return Answer(200, detail=_message(json.dumps(event)), streamed=True)
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            reason = choice.get("finish_reason") or reason
            here = choice.get("token_ids")
            if here is not None:
                ids = (ids or 0) + len(here)
            chunks += bool(here) or bool(choice.get("text")) or _says(choice.get("delta") or {})
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        200,
        streamed=True,
        n_in=usage.get("prompt_tokens"),
        n_out=usage.get("completion_tokens"),
        n_cached=details.get("cached_tokens"),
        token_ids=ids,
        chunks=chunks,
        finish_reason=reason,
    )


def _message(text: str) -> str:
    """The words of a refusal: `error.message` where it is in OpenAI's form, else all of it."""
    error = _event(text).get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return printable(str(message or text))[:_MOST_DETAIL]


def printable(text: str) -> str:
    """A server's words as they may be shown: on one line, without control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _event(payload: str) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except ValueError:
        return {}  # [DONE]
    return event if isinstance(event, dict) else {}


def _says(delta: dict[str, Any]) -> bool:
    return any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls"))
