"""The prompt and the answer of a call out of span attributes and events, in all the ways they are written.

In order: `gen_ai.input.messages` (JSON or structured), flattened `llm.input_messages.N...` (OpenInference) and
`gen_ai.prompt.N...` (old names), events of the span, `input.value`, which repeats the request. Index keys count
as numbers. Content that an attribute limit cut, or that was taken out, is no prompt. Never keeps what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from advisor.logs.formats.base import as_row
from advisor.logs.formats.otlp_spans import Attributes, Event
from advisor.logs.messages import text_of
from advisor.logs.prompts import as_prompt, hidden, parsed
from advisor.logs.record import Prompt, UnusableError

_MESSAGES = ("gen_ai.input.messages", "gen_ai.prompt", "gen_ai.event.content")
_FLAT = ("llm.input_messages.", "gen_ai.prompt.", "llm.prompts.")
_FLAT_TOOLS = ("llm.tools.", "llm.request.functions.")
_ANSWERS = ("gen_ai.output.messages", "gen_ai.output.text", "gen_ai.completion")
_FLAT_ANSWERS = ("llm.output_messages.", "gen_ai.completion.")
_CONTENT = (*_MESSAGES, *_FLAT, *_FLAT_TOOLS, "gen_ai.system_instructions", "gen_ai.tool.definitions")
_ROLE_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
DETAILS = "gen_ai.client.inference.operation.details"
CHOICE = "gen_ai.choice"
_MOST_PARTS = 12  # of one flattened key
_JSON = ("[{", '{"')
_CUT_FROM = 64  # characters: shorter texts are equally long by chance
_CUT_TEXTS = 3  # different ones of the greatest length


class CutError(Exception):
    """The log has the prompt, but an attribute limit cut it."""


def check_whole(attributes: Attributes, limit: int | None) -> None:
    """Raise CutError where a text of the prompt is just as long as the exporter lets it be."""
    if limit is None:
        return
    content = [key for key in attributes if key.startswith(_CONTENT)] or ["input.value"]
    for key in content:
        value = attributes.get(key)
        if isinstance(value, str) and len(value) == limit:
            raise CutError


def is_message(event: Event) -> bool:
    """Whether an event is one message of a prompt."""
    return event.name in _ROLE_EVENTS or (event.name == "gen_ai.prompt" and isinstance(event.body, dict))


def prompt_of(attributes: Attributes, events: Sequence[Event]) -> Prompt | None:
    """What the call asked; None where the log does not have it. Raises CutError, UnusableError."""
    prompt = _from_attributes(attributes)
    if prompt is None:
        prompt = _from_events(events)
    if prompt is None and (value := attributes.get("input.value")) is not None and not _is_hidden(value):
        prompt = as_prompt(value)
    if prompt is None or prompt.tokens is not None:
        return prompt
    system = _message_text(attributes.get("gen_ai.system_instructions"))
    tools = _tools(attributes)
    if prompt.messages is None and (system or tools):
        prompt = Prompt(messages=[{"role": "user", "content": prompt.text}])
    if prompt.messages is not None:
        if system:
            prompt.messages = [{"role": "system", "content": system}, *prompt.messages]
        prompt.tools = tools or prompt.tools
    return prompt


def answer_of(attributes: Attributes, events: Sequence[Event]) -> str | None:
    """The text of the answer; None where the log does not have it."""
    for name in _ANSWERS:
        if (value := attributes.get(name)) is not None:
            return _output_text(value)
    for prefix in _FLAT_ANSWERS:
        if messages := _flat(attributes, prefix):
            return "\n".join(text_of(message.get("content")) for message in messages)
    for event in events:
        if event.name == CHOICE:
            body = as_row(event.body) or as_row(parsed(event.attributes.get("gen_ai.event.content")))
            return text_of(as_row(body.get("message")).get("content"))
    return None


def longest_texts(samples: Iterable[Attributes]) -> int | None:
    """The length at which an exporter cut texts; None where nothing says that it did.

    That several different texts have exactly the greatest length is no chance.
    """
    longest, texts = 0, set[int]()
    for attributes in samples:
        for value in attributes.values():
            if isinstance(value, str) and len(value) >= max(longest, _CUT_FROM):
                if len(value) > longest:
                    longest = len(value)
                    texts.clear()
                texts.add(hash(value))
    return longest if len(texts) >= _CUT_TEXTS else None


def _from_attributes(attributes: Attributes) -> Prompt | None:
    for name in _MESSAGES:
        value = attributes.get(name)
        if value in (None, "", [], "[]", "{}") or _is_hidden(value):
            continue
        opened = parsed(value)
        if isinstance(opened, str) and opened.startswith(_JSON):
            raise CutError
        return as_prompt([opened] if isinstance(opened, dict) and "role" in opened else opened)
    for prefix in _FLAT:
        if messages := _flat(attributes, prefix):
            return (
                None if all(_is_hidden(message.get("content")) for message in messages) else as_prompt(messages)
            )
    return None


def _from_events(events: Sequence[Event]) -> Prompt | None:
    messages: list[dict[str, Any]] = []
    for event in events:
        if event.name in ("gen_ai.content.prompt", DETAILS):
            return prompt_of(event.attributes, ())
        if is_message(event):
            messages.append(_event_message(event))
    told = any(message.get("content") or message.get("tool_calls") for message in messages)
    return as_prompt(messages) if told else None  # without content capture, events are empty


def _event_message(event: Event) -> dict[str, Any]:
    """The message of an event: its body, or an attribute that holds it as JSON."""
    body = event.body if isinstance(event.body, dict) else parsed(event.attributes.get("gen_ai.event.content"))
    message = dict(body) if isinstance(body, dict) else {"content": body or event.attributes.get("content")}
    if event.name in _ROLE_EVENTS:
        message["role"] = message.get("role") or _ROLE_EVENTS[event.name]
    return message


def _tools(attributes: Attributes) -> list[Mapping[str, Any]] | None:
    tools = parsed(attributes.get("gen_ai.tool.definitions"))
    if isinstance(tools, list):
        return [tool for tool in tools if isinstance(tool, dict)] or None
    for prefix in _FLAT_TOOLS:
        if items := _unflatten(attributes, prefix):
            schemas = (parsed(as_row(item.get("tool")).get("json_schema", item)) for item in items)
            return [schema for schema in schemas if isinstance(schema, dict)] or None
    return None


def _flat(attributes: Attributes, prefix: str) -> list[dict[str, Any]]:
    """Flattened messages, in the order of their numbers."""
    return [_as_chat(item) for item in _unflatten(attributes, prefix)]


def _as_chat(item: Mapping[str, Any]) -> dict[str, Any]:
    """One flattened message as APIs write it."""
    message = as_row(item.get("message")) or item
    content: Any = message.get("content")
    if content is None and isinstance(parts := message.get("contents"), list):
        content = [as_row(part.get("message_content")) for part in parts]
    if content is None and "prompt" in message:
        content = as_row(message["prompt"]).get("text")  # of a plain completion
    opened = parsed(content)
    calls = [as_row(call.get("tool_call")) or call for call in _list(message.get("tool_calls"))]
    return {
        "role": message.get("role"),
        "content": opened if isinstance(opened, list) else content,
        "tool_calls": calls,
        "tool_call_id": message.get("tool_call_id"),
    }


def _unflatten(attributes: Attributes, prefix: str) -> list[dict[str, Any]]:
    """The objects of keys like `PREFIX10.message.role`, nested, in the order of their numbers."""
    root: dict[str, Any] = {}
    for key, value in attributes.items():
        if not key.startswith(prefix):
            continue
        *path, last = key[len(prefix) :].split(".", _MOST_PARTS)
        place = root
        for part in path:
            below = place.setdefault(part, {})
            if not isinstance(below, dict):
                break
            place = below
        else:
            place.setdefault(last, value)
    return _list(_numbered(root))


def _numbered(value: Any) -> Any:
    """Objects whose keys are all numbers as lists."""
    if not isinstance(value, dict):
        return value
    inner = {key: _numbered(item) for key, item in value.items()}
    if inner and all(key.isdecimal() and len(key) < 10 for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner


def _list(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _message_text(value: object) -> str:
    return "" if value is None or _is_hidden(value) else text_of(parsed(value))


def _output_text(value: object) -> str | None:
    messages = parsed(value)
    if isinstance(messages, str):
        return messages if messages[:1] != "[" else None  # a cut list says nothing of its length
    try:
        prompt = as_prompt(messages)
    except UnusableError:
        return None
    if prompt is None or prompt.messages is None:
        return None
    return "\n".join(message["content"] for message in prompt.messages)


def _is_hidden(value: object) -> bool:
    return isinstance(value, str) and hidden(value)
