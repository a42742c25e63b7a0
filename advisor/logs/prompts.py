"""Finding the prompt inside a logged request: messages, plain text or token ids.

Knows the shapes of the OpenAI and Anthropic endpoints and their neighbours. Pictures and other media have no
text here; the logged token counts include them. It never keeps what it finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from advisor.logs.messages import as_messages, text_of
from advisor.logs.record import Prompt, Row, UnusableError
from advisor.logs.times import as_number

_BODIES = (
    "request", "body", "request_body", "requestBody", "proxy_server_request", "request_json", "input", "params",
)  # fmt: skip
_RESPONSES = ("response", "response_body", "responseBody", "response_json", "output", "completion", "answer")
_PROMPTS = ("messages", "prompt", "input", "text")
_SENT = re.compile(r'data: ?[{\[]|event: ?\S+\s|\[?\{[^}]{0,300}"(choices|object|delta|usage|stop_reason)"\s*:')
_HIDDEN = ("redacted", "__redacted__", "[redacted]", "<redacted>", "***")


def find_prompt(row: Row) -> Prompt | None:
    """The prompt of a row, at its top or in the usual places of a request body; None without one."""
    for body in _bodies(row):
        prompt = _from_body(body)
        if prompt is not None:
            if prompt.tools is None and prompt.messages is not None and body is not row:
                prompt.tools = _tools(row)
            return prompt
    return None


def history_elsewhere(row: Row) -> bool:
    """Whether a request only adds to a conversation that the server keeps, so that its prompt is not logged."""
    return any(map(_continues, _bodies(row)))


def as_prompt(value: object) -> Prompt | None:
    """A prompt from the value of one field: text, messages (as JSON text too), a request body or token ids."""
    text, value = value, parsed(value)
    if isinstance(value, dict):
        prompt = _from_body(value)
        return Prompt(text=text) if prompt is None and value and isinstance(text, str) else prompt
    if isinstance(value, str):
        return Prompt(text=value) if value and as_number(value) is None and not hidden(value) else None
    if isinstance(value, list) and value:
        kinds = set(map(type, value))
        if kinds == {dict}:
            return _from_messages(value)
        if kinds == {int} and min(value) >= 0 and max(value) < 2**32:
            return Prompt(tokens=value)
        if len(value) > 1:
            raise UnusableError("several prompts in one request")
        return Prompt(text=value[0]) if isinstance(value[0], str) and value[0] else None
    return None


def find_output(row: Row) -> str | None:
    """The text of the answer, where the row has one."""
    for holder in (row, *(value for key in _RESPONSES if (value := parsed(row.get(key))) is not None)):
        if isinstance(holder, str):
            return None if as_sent(holder) else holder
        if not isinstance(holder, dict):
            continue
        body = holder.get("body") if isinstance(holder.get("body"), dict) else holder
        if isinstance(body, dict) and (text := _answer(body, holder is row)) is not None:
            return text
    return None


def as_sent(text: str) -> bool:
    """Whether a text is what a service sent, events or JSON, that could not be parsed: a copy that was cut."""
    return _SENT.match(text) is not None


def parsed(value: object) -> Any:
    """JSON that was logged as a string, parsed; anything else as it is."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return value
    return value


def hidden(text: str) -> bool:
    """Whether a text only says that the real one was taken out."""
    return len(text) < 60 and (text.lower() in _HIDDEN or text.lower().startswith("redacted-by-"))


def _bodies(row: Row) -> Iterator[Mapping[str, Any]]:
    yield row
    for key in _BODIES:
        if key in row and isinstance(body := parsed(row[key]), dict):
            if isinstance(inner := parsed(body.get("body")), dict):
                yield inner
            yield body


def _from_body(body: Mapping[str, Any]) -> Prompt | None:
    if _continues(body):
        return None
    for key in _PROMPTS:
        if value := body.get(key):
            break
    else:
        return None
    prompt = None if isinstance(value, dict) else as_prompt(value)
    if prompt is None or prompt.tokens is not None:
        return prompt
    system = text_of(body.get("system") or body.get("instructions"))
    tools = _tools(body)
    if (system or tools) and prompt.messages is None and "prompt" not in body:
        prompt = Prompt(messages=[{"role": "user", "content": prompt.text}])  # a text of the Responses API
    if prompt.messages is not None:
        if system:
            prompt.messages = [{"role": "system", "content": system}, *prompt.messages]
        prompt.tools = tools
    return prompt


def _continues(body: Mapping[str, Any]) -> bool:
    """Requests of the Responses API may name what came before instead of repeating it."""
    return bool(
        body.get("previous_response_id") or ("input" in body and isinstance(body.get("conversation"), dict))
    )


def _from_messages(items: Sequence[Mapping[str, Any]]) -> Prompt | None:
    found = as_messages(items)
    if found is None or _all_hidden(found[0]):
        return None
    return Prompt(messages=found[0], media=found[1])


def _all_hidden(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether what was said was taken out of all messages that said anything."""
    for message in messages:
        if message["content"] and not hidden(message["content"]):
            return False
    return any(message["content"] for message in messages)


def _tools(body: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """Tool definitions, which go before the messages; `functions` is the name of old."""
    if "tools" in body and isinstance(tools := parsed(body["tools"]), list):
        return [tool for tool in tools if isinstance(tool, dict)] or None
    if "functions" in body and isinstance(old := body["functions"], list):
        return [{"type": "function", "function": item} for item in old if isinstance(item, dict)] or None
    return None


def _answer(body: Mapping[str, Any], is_row: bool) -> str | None:
    """The text of a response: OpenAI's choices, or the content of a Responses or Anthropic answer."""
    choices = body.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        message = choices[0].get("message")
        text = message.get("content") if isinstance(message, dict) else choices[0].get("text")
        return text if isinstance(text, str) else None
    if is_row:
        return None  # at the top of a row such names may mean the request
    if isinstance(output := body.get("output"), list):
        return text_of([item for item in output if isinstance(item, dict) and item.get("type") == "message"])
    return text_of(body["content"]) if body.get("type") == "message" and "content" in body else None
