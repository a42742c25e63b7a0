"""What happens to logs on their way to us: damage to lines and to files, from a seeded source of chance.

A `Spoiler` damages one line, whatever its kind; `spoil_file` what files and disks do to the whole. Both give
bytes and never look at how the reader works.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from typing import Any

# JSON, and what loggers take for it, in place of any value.
JUNK: tuple[str, ...] = (
    "null", "true", "false", "0", "-1", "-0", "1.5", "-0.0", "1e30", "-1e30", "1e400", "-1e400", "NaN",
    "Infinity", "-Infinity", "2147483648", "4294967296", "9007199254740993", "18446744073709551615",
    "18446744073709551616", "-9223372036854775809", "9" * 400, "9" * 5000, "0.0000000001", '""', '" "', '"x"',
    '"NaN"', '"-1"', '"1e400"', '"\\u0000"', '"\\ud800"', '"\\ufeff"', '"\\u202e"', '"{"', '"["', '"[]"',
    '"{}"', '"null"', '"\\u0661\\u0662\\u0663"', '"\\u00b2"', '"1_000"', '"0x10"', '"' + "9" * 300 + '"',
    '"1700000000"', "1700000000", "1700000000000", "1700000000000000000", "-1700000000", '"2026-13-45"',
    '"2026-09-14"', '"2026-09-14T08:00:00"', '"2026-09-14T08:00:00+25:00"', '"2026-09-14T08:00:60Z"',
    '"0001-01-01T00:00:00+14:00"', '"9999-12-31T23:59:59.9999999Z"', '"1969-12-31T23:59:59Z"', '"08:00"',
    "[]", "[null]", "[[]]", "[{}]", "[1, -2]", "[1.5]", '["a", "b"]', "[true]", "[4294967295, 4294967296]",
    "{}", '{"": null}', '{"a": {"b": [{}]}}', '{"messages": [null]}', '{"messages": {"role": "user"}}',
    '{"content": [{"type": "text"}]}', '[{"role": 3, "content": {"a": []}}]', '[{"role": "user"}]',
    '[[{"role": "user", "content": "a"}]]', '{"usage": null}', '{"usage": {"prompt_tokens": -5}}',
    '"{\\"a\\": 1e999}"', '"{\\"messages\\": \\"x\\"}"', '"data: {\\"choices\\": [null]}\\n\\ndata: [DONE]"',
)  # fmt: skip
_BYTES: tuple[bytes, ...] = (
    b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\r",
    b"\x0b", b"\x0c", b"\x1b[31m", b"\x85", b"\\", b'"', b"'", b"`", b",", b";", b"\t", b"{", b"}", b"[", b"]",
    b"(", b")", b":", b"=", b"<", b">", b" ", b"-", b".", b"0", b"9", b"e", b"x", b"\\u", b"\\x", b" ... ",
    b"...", b"None", b"null", b"nan", b"%s", b"\xd9\xa3",
)  # fmt: skip
_NUMBERS = (b"-1", b"0", b"NaN", b"1e400", b"9" * 30, b"9" * 5000, b"1.5", b"", b"\xd9\xa1", b"--1", b"1.2.3")
_TIMES = (
    b"2026-02-30T08:00:00Z", b"2026-09-14T25:00:00Z", b"2026-09-14T08:00:00+02:00", b"2026-09-14 08:00:00",
    b"2026-09-14T08:00:00.123456789Z", b"1970-01-01T00:00:00Z", b"2126-01-01T00:00:00-11:30", b"2026-09-14",
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_TIME = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?|\d\d-\d\d \d\d:\d\d:\d\d")
_DEEP = 10_000
_MOST_BYTES = 4_000_000  # of a line that grows with every blow


class Spoiler:
    """Damages lines. `others` are lines of other logs, which may get in between."""

    def __init__(self, rng: random.Random, others: list[bytes]) -> None:
        self._rng = rng
        self._others = others

    def line(self, line: bytes) -> bytes:
        """One line with one blow or a few; it may become several, or none."""
        for _ in range(self._rng.choice((1, 1, 1, 2, 4))):
            if len(line) < _MOST_BYTES:
                line = self._blow(line)
        return line

    def _blow(self, line: bytes) -> bytes:
        if not line:
            return self._rng.choice(_BYTES)
        if line.lstrip()[:1] in (b"{", b"[") and self._rng.random() < 0.6:
            try:
                return self.value(json.loads(line)).encode("utf-8", "surrogatepass")
            except (ValueError, RecursionError):
                pass
        return self._rng.choice(_BLOWS)(self, line)

    def value(self, value: Any) -> str:
        """JSON of a value with one blow at a random place, also within JSON that stands in a text."""
        rng = self._rng
        if isinstance(value, dict) and value and rng.random() < 0.8:
            struck = rng.choice(list(value))
            return "{" + ", ".join(self._member(key, item, key == struck) for key, item in value.items()) + "}"
        if isinstance(value, list) and value and rng.random() < 0.85:
            struck = rng.randrange(len(value))
            items = [self.value(item) if i == struck else _json(item) for i, item in enumerate(value)]
            if rng.random() < 0.1:
                items.insert(struck, rng.choice(JUNK))
            return "[" + ", ".join(items) + "]"
        if isinstance(value, str) and value[:1] in ("{", "[") and rng.random() < 0.8:
            try:
                return _json(self.value(json.loads(value)))
            except (ValueError, RecursionError):
                pass
        return self._other_type(value) if rng.random() < 0.4 else rng.choice(JUNK)

    def _member(self, key: str, item: Any, struck: bool) -> str:
        """A field; the one that is struck is damaged, renamed, lost or there twice."""
        member = f"{_json(key)}: {_json(item)}"
        if not struck:
            return member
        chance = self._rng.random()
        if chance < 0.06:
            return f"{_json(key + '_')}: {_json(item)}"
        if chance < 0.12:
            return f'"": {_json(item)}'
        if chance < 0.2:
            return f"{member}, {_json(key)}: {self._rng.choice(JUNK)}"
        if chance < 0.24:
            return f"{_json(key)}: {self._rng.choice(JUNK)}, {member}"
        return f"{_json(key)}: {self.value(item)}"

    def _other_type(self, value: Any) -> str:
        """The same said in another type, or far off."""
        rng, text = self._rng, _json(value)
        ways = [f"[{text}]", f'{{"value": {text}}}', _json(text), f"[{text}, {text}]"]
        if isinstance(value, bool | str):
            ways += [_json(str(value) * rng.choice((2, 50))), _json(str(value)[: len(str(value)) // 2])]
        elif isinstance(value, int | float) and abs(value) < 1e100:
            ways += [
                _json(-value),
                _json(value * 1000),
                _json(value / 1000),
                _json(str(value)),
                _json(value**2),
            ]
        elif isinstance(value, dict | list) and value:
            ways += [_json(list(value)), _json(str(value)), _json(len(value))]
        if rng.random() < 0.05:
            depth = rng.randrange(1, _DEEP)
            ways = ["[" * depth + text + "]" * depth, '{"a":' * depth + text + "}" * depth]
        return rng.choice(ways)

    def _piece(self, line: bytes, pattern: re.Pattern[bytes], junk: tuple[bytes, ...]) -> bytes:
        found = list(pattern.finditer(line))
        if not found:
            return line
        match = self._rng.choice(found)
        return line[: match.start()] + self._rng.choice(junk) + line[match.end() :]

    def _number(self, line: bytes) -> bytes:
        return self._piece(line, _NUMBER, _NUMBERS)

    def _time(self, line: bytes) -> bytes:
        return self._piece(line, _TIME, _TIMES)

    def _insert(self, line: bytes) -> bytes:
        place = self._rng.randrange(len(line) + 1)
        return line[:place] + self._rng.choice(_BYTES) * self._rng.choice((1, 1, 3, 70)) + line[place:]

    def _flip(self, line: bytes) -> bytes:
        damaged = bytearray(line)
        for _ in range(self._rng.randrange(1, 5)):
            damaged[self._rng.randrange(len(damaged))] = self._rng.randrange(256)
        return bytes(damaged)

    def _cut(self, line: bytes) -> bytes:
        """Half-written, from either side, or with a hole."""
        one, other = sorted(self._rng.randrange(len(line) + 1) for _ in range(2))
        return self._rng.choice((line[:one], line[other:], line[:one] + line[other:]))

    def _lose(self, line: bytes) -> bytes:
        return line.replace(self._rng.choice((b'"', b"'", b",", b":", b"}", b"(", b"]")), b"", 1)

    def _repeat(self, line: bytes) -> bytes:
        return self._rng.choice((line + line, line + b" " + line, line + b"\n" + line, line + b"," + line))

    def _wrap(self, line: bytes) -> bytes:
        wraps = (
            (b"[", b"]"),
            (b'"', b'"'),
            (b"data: ", b""),
            (b"(pid=1) ", b""),
            (b'{"log": ', b"}"),
            (b"\xff\xfe", b""),
        )
        before, after = self._rng.choice(wraps)
        return before + line + after

    def _deepen(self, line: bytes) -> bytes:
        depth = self._rng.randrange(1, _DEEP)
        return self._rng.choice(
            (b"[" * depth + line, b'{"a":' * depth + line, line + b"(" * depth, b"{" * depth)
        )

    def _shuffle(self, line: bytes) -> bytes:
        pieces = [line[place : place + 7] for place in range(0, len(line), 7)]
        return b"".join(self._rng.sample(pieces, len(pieces)))

    def _other(self, line: bytes) -> bytes:
        other = self._rng.choice(self._others)
        return self._rng.choice((other, line[: len(line) // 2] + other[len(other) // 2 :]))

    def _end(self, line: bytes) -> bytes:
        return line + self._rng.choice((b"\r", b"\x00", b",", b"\\", b"\n\n", b"\xef\xbb\xbf", b" \t ", b"}"))

    def _begin(self, line: bytes) -> bytes:
        return self._rng.choice((b"\xef\xbb\xbf", b"\x00\x00", b"#", b" ", b"\x1b[32m", b"--", b",")) + line


_BLOWS: list[Callable[[Spoiler, bytes], bytes]] = [
    Spoiler._number, Spoiler._number, Spoiler._time, Spoiler._insert, Spoiler._insert, Spoiler._flip,
    Spoiler._cut, Spoiler._cut, Spoiler._lose, Spoiler._repeat, Spoiler._wrap, Spoiler._deepen,
    Spoiler._shuffle, Spoiler._other, Spoiler._end, Spoiler._begin,
]  # fmt: skip


def spoil_file(content: bytes, rng: random.Random, other: bytes) -> bytes:
    """What happens to a file as a whole. `other` is the content of a file in another format."""
    lines = content.split(b"\n")
    packed = gzip.compress(content, 1, mtime=0)
    place = rng.randrange(len(content) + 1)
    ways: list[Callable[[], bytes]] = [
        lambda: content[:place],
        lambda: content[place:],
        lambda: content + content,
        lambda: content + other,
        lambda: other + b"\n" + content,
        lambda: b"\n".join(reversed(lines)),
        lambda: b"\n".join(rng.sample(lines, len(lines))),
        lambda: b"\r\n".join(lines),
        lambda: b"\r".join(lines),
        lambda: b"".join(lines),
        lambda: b"[" + b",".join(lines) + b"]",
        lambda: b'{"data": [' + b",\n".join(line for line in lines if line) + b"]}",
        lambda: b"\n\n".join(lines) + b"\n\n \n",
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content[:place] + b"\xef\xbb\xbf" + content[place:],
        lambda: content[:place] + b"\x00" * 4096 + content[place:],
        lambda: content.decode("utf-8", "replace").encode("utf-16"),
        lambda: packed[: rng.randrange(2, len(packed))],
        lambda: packed + packed,
        lambda: packed + b"trailing",
        lambda: _flipped(packed, rng),
        lambda: packed[:10] + rng.randbytes(50),
    ]
    return rng.choice(ways)()


def _flipped(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    damaged[rng.randrange(10, len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _json(value: Any) -> str:
    return json.dumps(value)
