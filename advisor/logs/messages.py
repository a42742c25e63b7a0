"""One item of a chat as one message, whichever API logged it: role, text, tool calls.

Knows the content of OpenAI's chat and Responses APIs, Anthropic's blocks and OpenTelemetry's parts. Tool calls
and results are content like any other: two prompts that differ there are different prompts. Media have no text
here. Never keeps what it reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

Message = dict[str, Any]

_ROLES = {"developer": "system", "model": "assistant", "function": "tool"}
_PLAIN_ROLES = ("system", "user", "assistant")
_MEDIA = (
    "image", "input_image", "audio", "input_audio", "video", "file", "input_file", "document", "blob", "uri",
    "inline_data",
)  # fmt: skip
_CALLS = frozenset(("tool_use", "tool_call", "server_tool_use"))  # blocks by which a model calls a tool
_TEXTS = ("text", "content", "thinking", "refusal", "response", "result", "output", "summary")
_DEEPEST = 6  # parts within parts


def as_messages(items: Iterable[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], bool] | None:
    """The messages that items say, and whether any holds media; None where one is only with the server.

    Most items of most logs are the message that they say, and taken as they are: other ways cost many times as
    much.
    """
    messages: list[Mapping[str, Any]] = []
    media = False
    for item in items:
        if len(item) == 2 and type(item.get("content")) is str and item.get("role") in _PLAIN_ROLES:
            messages.append(item)
            continue
        if item.get("type") == "item_reference":
            return None
        message, with_media = as_message(item)
        messages.append(message)
        media = media or with_media
    return messages, media


def as_message(item: Mapping[str, Any]) -> tuple[Message, bool]:
    """The message that an item says, and whether it holds media."""
    role, content = item.get("role"), item.get("content")
    kind = item.get("type")
    if kind == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": [_call(item)]}, False
    if kind == "function_call_output":
        role, content = "tool", item.get("output")
    elif kind == "reasoning" and role is None:
        role, content = "assistant", item.get("summary")
    elif "parts" in item and content is None:
        content = item["parts"]
    said = _Said()
    said.take(content, _DEEPEST)
    message: Message = {"role": _role(role), "content": "\n".join(said.texts)}
    calls = _listed_calls(item) or said.calls
    if calls:
        message["tool_calls"] = calls
    for name in ("tool_call_id", "name"):
        if isinstance(value := item.get(name), str) and value:
            message[name] = value
    return message, said.media


def text_of(content: object) -> str:
    """The text of a content field: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if not content:
        return ""
    said = _Said()
    said.take(content, _DEEPEST)
    return "\n".join(said.texts)


def as_json(value: object) -> str:
    """JSON of a logged value; empty where it is no JSON."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, UnicodeEncodeError, RecursionError, OverflowError):
        return ""


@dataclass(slots=True)
class _Said:
    """What the parts of one content say."""

    texts: list[str] = field(default_factory=list)
    calls: list[Message] = field(default_factory=list)
    media: bool = False

    def take(self, content: object, depth: int) -> None:
        if isinstance(content, str):
            self.texts.append(content)
        elif isinstance(content, Mapping):
            self._part(content, depth)
        elif isinstance(content, Sequence) and depth:
            for part in content:
                self.take(part, depth - 1)

    def _part(self, part: Mapping[str, Any], depth: int) -> None:
        kind = str(part.get("type", ""))
        if kind.startswith(_MEDIA):
            self.media = True
            self.texts.append(_stand_in(part))
        elif kind in _CALLS:
            self.calls.append(_call(part))
        elif (value := next((found for key in _TEXTS if (found := part.get(key))), None)) is not None:
            if isinstance(value, Mapping) and "type" not in value:
                self.texts.append(as_json(value))  # the structured result of a tool
            elif depth:
                self.take(value, depth - 1)


def _stand_in(part: Mapping[str, Any]) -> str:
    """What tells one picture from another, in place of its data: prompts that differ there share no more."""
    return f"<|media-{hashlib.blake2b(as_json(part).encode(), digest_size=8).hexdigest()}|>"


def _call(item: Mapping[str, Any]) -> Message:
    """A tool call as OpenAI's chat API writes it, which chat templates expect."""
    arguments = item.get("arguments", item.get("input"))
    return {
        "type": "function",
        "function": {"name": str(item.get("name") or ""), "arguments": "" if arguments is None else arguments},
    }


def _listed_calls(item: Mapping[str, Any]) -> list[Message]:
    calls = item.get("tool_calls")
    if isinstance(calls, list):
        return [call if "function" in call else _call(call) for call in calls if isinstance(call, dict)]
    old = item.get("function_call")
    return [_call(old)] if isinstance(old, dict) else []


def _role(role: object) -> str:
    name = role if isinstance(role, str) and role else "user"
    return _ROLES.get(name, name)
