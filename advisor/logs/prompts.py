"""Finding the prompt inside a logged request: messages, plain text or token ids.

Knows the shapes of the OpenAI endpoints and their neighbours. Pictures and other media have no text here; the
logged token counts include them. It never keeps what it finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from advisor.logs.record import Prompt, Row, UnusableError
from advisor.logs.times import as_number

_BODIES = ("request", "body", "request_body", "requestBody", "proxy_server_request", "input")
_RESPONSES = ("response", "response_body", "responseBody", "output", "completion", "answer")
_MEDIA = ("image", "input_image", "audio", "input_audio", "video", "file", "input_file", "document")
_MESSAGE_KEYS = ("tool_calls", "tool_call_id", "name")


def find_prompt(row: Row) -> Prompt | None:
    """The prompt of a row, at its top or in the usual places of a request body; None without one."""
    return next((prompt for body in _bodies(row) if (prompt := _from_body(body)) is not None), None)


def as_prompt(value: object) -> Prompt | None:
    """A prompt from the value of one field: text, messages (as JSON text too) or token ids."""
    value = _parsed(value)
    if isinstance(value, dict):
        return _from_body(value)
    if isinstance(value, str):
        return Prompt(text=value) if value and as_number(value) is None else None
    if isinstance(value, list) and value:
        if all(isinstance(item, dict) for item in value):
            return Prompt(messages=[_message(item) for item in value], media=any(map(_has_media, value)))
        if all(type(item) is int and 0 <= item < 2**32 for item in value):
            return Prompt(tokens=value)
        if len(value) > 1:
            raise UnusableError("several prompts in one request")
        return Prompt(text=value[0]) if isinstance(value[0], str) else None
    return None


def find_output(row: Row) -> str | None:
    """The text of the answer, where the row has one."""
    for holder in (row, *(value for key in _RESPONSES if (value := _parsed(row.get(key))) is not None)):
        if isinstance(holder, str):
            return holder
        if not isinstance(holder, dict):
            continue
        body = holder.get("body") if isinstance(holder.get("body"), dict) else holder
        choices = body.get("choices") if isinstance(body, dict) else None
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            message = choices[0].get("message")
            text = message.get("content") if isinstance(message, dict) else choices[0].get("text")
            return text if isinstance(text, str) else None
    return None


def _bodies(row: Row) -> Iterator[Mapping[str, Any]]:
    yield row
    for key in _BODIES:
        if key in row and isinstance(body := _parsed(row[key]), dict):
            if isinstance(inner := _parsed(body.get("body")), dict):
                yield inner
            yield body


def _from_body(body: Mapping[str, Any]) -> Prompt | None:
    value = next((found for key in ("messages", "prompt", "input", "text") if (found := body.get(key))), None)
    prompt = None if isinstance(value, dict) else as_prompt(value)
    if prompt is None or prompt.tokens is not None:
        return prompt
    system = _text(body.get("system") or body.get("instructions"))
    if system:
        own = prompt.messages if prompt.messages is not None else [{"role": "user", "content": prompt.text}]
        prompt = Prompt(messages=[{"role": "system", "content": system}, *own], media=prompt.media)
    tools = body.get("tools")
    if prompt.messages is not None and isinstance(tools, list) and tools:
        prompt.tools = [tool for tool in tools if isinstance(tool, dict)]
    return prompt


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    kept = {key: message[key] for key in _MESSAGE_KEYS if message.get(key)}
    role = "system" if role == "developer" else str(role or "user")
    return {"role": role, "content": _text(message.get("content")), **kept}


def _has_media(message: Mapping[str, Any]) -> bool:
    parts = message.get("content")
    kinds = (
        [str(part.get("type")) for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    )
    return any(kind.startswith(_MEDIA) for kind in kinds)


def _text(content: object) -> str:
    """Text of a content field: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    parts = [part.get("text", part.get("content")) if isinstance(part, dict) else part for part in content]
    return "\n".join(part for part in parts if isinstance(part, str))


def _parsed(value: object) -> Any:
    """JSON that was logged as a string, parsed; anything else as it is."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return value
    return value
