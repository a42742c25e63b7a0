"""Values out of text that Python's `repr` wrote: what engines put into their text logs.

Owns a tolerant scanner: strings, numbers, lists, dicts and dataclasses are read, whatever else (a tensor, an
enum) is None. Nothing is ever evaluated, and damaged text is an UnusableError.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from advisor.logs.record import UnusableError

_DEEPEST = 32
_STRING = re.compile(
    r"""[bBrRuU]{0,2}(?:'(?P<single>[^'\\]*+(?:\\.[^'\\]*+)*+)'|"(?P<double>[^"\\]*+(?:\\.[^"\\]*+)*+)")""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_IDS = re.compile(r"\[[\d, ]*+\]")  # a list of whole numbers, as JSON writes it too
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:inf|nan)\b")
_LONGEST_NUMBER = 40  # characters
_WORD = re.compile(r"[A-Za-z_][\w.]*")
_WORDS = {"None": None, "True": True, "False": False}
_OBJECT = re.compile(r"<[^<>]*+(?:<[^<>]*+>[^<>]*+)*+>")
_OTHER = re.compile(r"""[^,()\[\]{}'"][^,()\[\]{}]*+""")
_ITEM = re.compile(  # what most items are, in one step: a word, a number or a string without escapes
    r"""[ ,]*+(?:(?P<field>\w+)=|'(?P<key>[^'\\]*+)':[ ])?
    (?:(?P<word>None|True|False)|(?P<number>[+-]?\d+(?:\.\d+)?)|'(?P<text>[^'\\]*+)')(?=[,)\]}])""",
    re.VERBOSE,
)
_NONES = re.compile(r"(?:[ ,]*+\w++=None(?=[,)]))++")  # as most fields of a request are
_GAP = re.compile(r"[ ,]*+(?:(?P<field>[A-Za-z_]\w*+)=)?")  # before a value
_CUT = " ... "
_CLOSING = {"[": "]", "(": ")", "{": "}"}


@dataclass(frozen=True, slots=True, repr=False)
class Cut:
    """A string or list whose middle the writer left out: `'start' ... 'end'`."""

    head: Any


def read_repr(text: str, start: int = 0) -> tuple[Any, int]:
    """The value that starts at `start`, and where it ends. Raises UnusableError.

    A dataclass `Name(field=value)` is the dict of its fields that are not None. What is no literal is None.
    """
    return _value(text, start, 0)


def _value(text: str, place: int, depth: int) -> tuple[Any, int]:
    if depth > _DEEPEST:
        raise UnusableError("Python text nested too deeply")
    value, end = _plain(text, place, depth)
    if text.startswith(_CUT, end):
        _, end = _value(text, end + len(_CUT), depth + 1)
        return Cut(value), end
    return value, end


def _plain(text: str, place: int, depth: int) -> tuple[Any, int]:
    opening = text[place : place + 1]
    if opening in _CLOSING:
        return _bracketed(text, place, depth)
    if match := _STRING.match(text, place):
        content = match["double"] if match["single"] is None else match["single"]
        return _ESCAPE.sub(_unescape, content) if "\\" in content else content, match.end()
    if (match := _NUMBER.match(text, place)) and text[match.end() : match.end() + 1] in ",)]} ":
        return _number(match[0]), match.end()
    if match := _WORD.match(text, place):
        if match[0] in _WORDS:
            return _WORDS[match[0]], match.end()
        if text.startswith("(", match.end()):
            items, end = _items(text, match.end() + 1, ")", depth)
            return _as_dict(items), end
    if match := _OBJECT.match(text, place) or _OTHER.match(text, place):
        return None, match.end()
    raise UnusableError("damaged Python text")


def _bracketed(text: str, place: int, depth: int) -> tuple[Any, int]:
    if match := _IDS.match(text, place):
        try:
            return msgspec.json.decode(match[0]), match.end()
        except msgspec.DecodeError:
            raise UnusableError("damaged Python text") from None
    opening = text[place]
    items, end = _items(text, place + 1, _CLOSING[opening], depth)
    return _as_dict(items) if opening == "{" else [value for _, value in items], end


def _items(text: str, place: int, closing: str, depth: int) -> tuple[list[tuple[Any, Any]], int]:
    """The (name, value) pairs up to a closing bracket; the name is None where an item has none."""
    items: list[tuple[Any, Any]] = []
    while True:
        if closing == ")" and (match := _NONES.match(text, place)):
            place = match.end()
        while match := _ITEM.match(text, place):
            field, key, word, number, content = match.groups()
            value = _WORDS[word] if word else content if number is None else _number(number)
            if field is None or value is not None:
                items.append((key if field is None else field, value))
            place = match.end()
        name = None
        if match := _GAP.match(text, place):
            name, place = match["field"], match.end()
        if name is None and text.startswith(closing, place):
            return items, place + 1
        value, place = _value(text, place, depth + 1)
        if closing == "}" and text.startswith(": ", place):
            name = value
            value, place = _value(text, place + 2, depth + 1)
        if not text.startswith((",", closing), place):
            if place >= len(text):
                raise UnusableError("damaged Python text")
            _, place = _plain(text, place, depth + 1)  # the rest of something that is no literal
            value = None
        items.append((name, value))


def _as_dict(items: list[tuple[Any, Any]]) -> dict[str, Any]:
    return {name: value for name, value in items if isinstance(name, str)}


def _number(digits: str) -> int | float | None:
    if len(digits) > _LONGEST_NUMBER:
        return None
    if digits.lstrip("+-").isdecimal():
        return int(digits)
    number = float(digits)
    return number if math.isfinite(number) else None


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) == 1:
        return _ESCAPES.get(code, match[0])
    number = int(code[1:], 16)
    return chr(number) if number <= 0x10FFFF else "\ufffd"
