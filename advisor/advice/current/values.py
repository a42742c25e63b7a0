"""Values of flags: what kind each knob has, and from text or YAML to that kind."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from advisor.advice.current.model import TITLES, Stack, Value
from advisor.advice.current.secret import shown, without_userinfo
from engine.errors import InputError

# switch: on when named; truth: takes true or false; count: a whole number; size: also 8k = 8000 and 8K = 8192;
# length: a size or `auto`, which is -1.
Kind = Literal["switch", "truth", "count", "size", "length", "number", "text", "json"]
Json = dict[str, Any]

NUMBER = re.compile(r"-?[0-9.]+([eE][+-]?[0-9]+)?")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT]?)")
_UNIT = {
    "": 1,
    **{u: 1000**i for i, u in enumerate("kmgt", 1)},
    **{u: 1024**i for i, u in enumerate("KMGT", 1)},
}
_TRUTH = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}
_MOST_DIGITS = 15


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting that matters to a plan, its flags (without dashes in front), and its range."""

    name: str
    kind: Kind
    flags: tuple[str, ...]
    least: float = 1
    most: float = math.inf


@dataclass(frozen=True, slots=True)
class Given:
    """One value as it was given; `json` holds the mapping of a json knob."""

    value: Value
    by: str
    json: Json = field(default_factory=dict)


def convert(stack: Stack, knob: Knob, value: Any, by: str) -> Given:
    """A value of a word or a YAML value in the knob's kind. Raises InputError that names the flag."""
    title = TITLES[stack]
    if knob.kind == "json":
        return Given(None, by, _json(value, by))
    if isinstance(value, list | dict):
        raise InputError(f"{by} is not understood", why="one value is expected", hint="give one value")
    text = str(value).strip()
    if knob.kind == "text":
        return Given(without_userinfo(text), by)
    number = _converted(knob.kind, text)
    if number is None:
        what = {"switch": "true or false", "truth": "true or false", "number": "a number"}.get(
            knob.kind, "a whole number"
        )
        hint = "write plain digits" if knob.kind == "count" and _SIZE.fullmatch(text) else None
        if "$" in text or "{{" in text:
            hint = "replace the variable by its value"
        raise InputError(f"{by}: {shown(text)} is not {what}", why=f"{title} takes {what} here", hint=hint)
    if not isinstance(number, bool) and number < knob.least and number != -1:
        raise InputError(
            f"{by}: {number:g} is too small",
            why=f"the least is {knob.least:g}",
            hint="look at the launch line: the engine would refuse this",
        )
    if not isinstance(number, bool) and number > knob.most:
        raise InputError(
            f"{by}: {number:g} is too large",
            why=f"the most is {knob.most:g}",
            hint="look at the launch line: the engine would refuse this",
        )
    return Given(number, by)


def _converted(kind: Kind, text: str) -> bool | int | float | None:
    if kind in ("switch", "truth"):
        return _TRUTH.get(text.lower())
    if kind == "length" and text == "auto":
        return -1
    size = _SIZE.fullmatch(text)
    if kind in ("size", "length") and size is not None and len(text) <= _MOST_DIGITS:
        return int(float(size.group(1)) * _UNIT[size.group(2)])
    if not NUMBER.fullmatch(text) or len(text) > _MOST_DIGITS:
        return None
    try:
        value = float(text) if kind == "number" else int(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _json(value: Any, by: str) -> Json:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InputError(f"{by} is not JSON", hint="quote it in single quotes") from None
    if not isinstance(value, dict):
        raise InputError(f"{by} is not a JSON object", hint='{"key": value}, in single quotes')
    return value
