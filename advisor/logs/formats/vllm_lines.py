"""The lines of vLLM's text log: their heads, their times, and what the server said of itself when it started.

Times have neither year nor zone. They are put into an assumed leap year and counted from the first line, so
only their differences mean something; a log may run over New Year.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from advisor.logs.formats.base import as_label
from advisor.logs.record import LINE, Row, UnusableError

_HEAD = re.compile(
    r"(?P<writer>.{0,200}?)(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) \[?[\w./\-]{1,100}:\d+\] "
)
_PROCESS = re.compile(r"\((?:APIServer|ApiServer_\d+|EngineCore\w*) pid=\d+\) ")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAYS_BACK = 30  # at most between a line and the first, where it is before it
_DAY_S = 86_400
_YEAR_S = sum(_MONTHS) * _DAY_S
_ARGUMENTS = re.compile(r"(?:non-default )?args: ")
_VERSION = re.compile(
    r"(?:vLLM API server version |Initializing an? (?:V\d )?LLM engine \()v?(\d{1,3})\.(\d{1,3})"
)
_SERVED = re.compile(r"served_model_name'?(?:=|: )\[?['\"]([^'\"\\]{1,200})['\"]")
_MODEL = re.compile(r"(?:'model(?:_tag)?': |[ (]model(?:_tag)?=)['\"]([^'\"\\]{1,200})['\"]")
_MAX_LOG_LEN = re.compile(r"max_log_len'?(?:=|: )(\d{1,9})\b")
_CACHED_LEFT_OUT = (0, 16)  # since about then the prompt throughput leaves cached tokens out (vllm pull 33290)
_CUT_SAMPLE = 3  # prompts of one and the same round length, the greatest of all, make it a limit


@dataclass(frozen=True, slots=True)
class Message:
    """A line with a head: its time in seconds of the assumed year, who wrote it, and where its text starts."""

    line: str
    start: int
    writer: str
    month: int
    day: int
    second: int

    def since(self, first: int) -> int:
        """Seconds after `first`: at least -30 days, less than a year after that."""
        start = first - _DAYS_BACK * _DAY_S
        return (self.second - start) % _YEAR_S + start - first


def plain(row: Row) -> str:
    """The text of a row, without colours; empty where it has none."""
    line = row.get(LINE)
    if not isinstance(line, str):
        return ""
    return _COLOUR.sub("", line) if "\x1b" in line else line


def read_head(line: str) -> Message | None:
    """A message of vLLM; None for any other line. Raises UnusableError where its time is damaged."""
    match = _HEAD.match(line)
    if match is None:
        return None
    month, day, hour, minute, second = map(int, match.group("month", "day", "hour", "minute", "second"))
    if not (1 <= month <= 12 and 1 <= day <= _MONTHS[month - 1] and hour < 24 and minute < 60 and second < 61):
        raise UnusableError("arrival time not understood")
    days = sum(_MONTHS[: month - 1]) + day - 1
    of_year = days * _DAY_S + hour * 3600 + minute * 60 + second
    return Message(line, match.end(), match["writer"], month, day, of_year)


def is_vllm(line: str) -> bool:
    """Whether only vLLM writes such a line."""
    return bool(_HEAD.match(line) or _PROCESS.match(line))


def read_heads(sample: Sequence[Row]) -> list[Message]:
    """The messages among the first rows of a log."""
    messages = []
    for row in sample:
        try:
            message = read_head(plain(row))
        except UnusableError:
            continue
        if message is not None:
            messages.append(message)
    return messages


@dataclass(frozen=True, slots=True)
class Server:
    """What the server logged when it started, where the log goes back that far; of several, no model."""

    model: str | None = None
    max_log_len: int | None = None
    counts_cached: bool | None = None  # whether its prompt throughput includes cached tokens

    @classmethod
    def of_sample(cls, messages: Iterable[Message]) -> Server:
        """Read the version and the arguments."""
        models: set[str | None] = set()
        most: int | None = None
        counts_cached: bool | None = None
        for message in messages:
            if match := _VERSION.match(message.line, message.start):
                counts_cached = (int(match[1]), int(match[2])) < _CACHED_LEFT_OUT
            if arguments := _ARGUMENTS.match(message.line, message.start):
                place = arguments.end()
                named = _SERVED.search(message.line, place) or _MODEL.search(message.line, place)
                limit = _MAX_LOG_LEN.search(message.line, place)
                models.add(as_label(named[1]) if named else None)
                most = int(limit[1]) if limit else most
        return cls(models.pop() if len(models) == 1 else None, most, counts_cached)


def usual_cut(texts: Sequence[str]) -> int | None:
    """The number of characters at which prompts look cut; None where none does.

    `--max-log-len` leaves no mark. Different prompts of the very same, round, greatest length give it away.
    """
    most = max(map(len, texts), default=0)
    longest = {text for text in texts if len(text) == most}
    rounded = most % 10 == 0 or most & (most - 1) == 0
    return most if rounded and most >= 32 and len(longest) >= _CUT_SAMPLE else None
