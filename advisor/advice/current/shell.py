"""From shell text to simple commands: words, and the variables that hold for them.

Nothing is executed. Handles comments, line continuations, quotes, `;`, `&&`, pipes, redirections, assignments,
`export`, here-documents (kept as files), and variables that the text itself sets. Values of variables whose
names say that they are secret are dropped at once.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from advisor.advice.current.secret import is_secret
from engine.errors import InputError

_CONTINUED = re.compile(r"(?:\\|`|\^)[ \t]*\r?\n")
_REDIRECTED = re.compile(r"(?<=\s)(?:&>>?|[0-9]?>>?)[ \t]*&?[ \t]*[^\s;&|'\"]+")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_TARGET = re.compile(r">\s*(\S+)")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$\((\w+)\)|\$(\w+)")
_STOPS = ";&|\n"


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command and the variables set for it."""

    words: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Script:
    """The commands of a text in order, and the files that its here-documents write, by base name."""

    commands: tuple[Command, ...]
    files: dict[str, str] = field(default_factory=dict)


def split(text: str, env: Mapping[str, str] | None = None) -> Script:
    """The commands of `text`. Raises InputError where quotes do not close."""
    lines, files = _without_heredocs(text.splitlines())
    plain = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    plain = _REDIRECTED.sub(" ", _CONTINUED.sub(" ", plain + "\n"))
    shared = keep(env or {})
    commands = []
    for words in _simple(plain):
        own: dict[str, str] = {}
        rest = _assignments(words, shared, own)
        if not rest:
            shared.update(own)
        elif rest[0] in ("export", "declare", "local"):
            _assignments(rest[1:], shared, shared)
        elif rest[0] != "set":
            scope = {**shared, **own}
            commands.append(Command(tuple(expand(word, scope) for word in rest), scope))
    return Script(tuple(commands), files)


def keep(env: Mapping[str, str]) -> dict[str, str]:
    """The variables without the secret ones."""
    return {name: value for name, value in env.items() if not is_secret(name)}


def expand(word: str, env: Mapping[str, str]) -> str:
    """`word` with known variables and defaults filled in; others stay as they are written."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(3) or match.group(4)
        return env.get(name) or (match.group(2) if match.group(2) is not None else match.group(0))

    return _VARIABLE.sub(value, word)


def _without_heredocs(lines: list[str]) -> tuple[list[str], dict[str, str]]:
    kept: list[str] = []
    files: dict[str, str] = {}
    rest = iter(lines)
    for line in rest:
        start = _HEREDOC.search(line)
        if start is None:
            kept.append(line)
            continue
        body: list[str] = []
        for inner in rest:
            if inner.strip() == start.group(1):
                break
            body.append(inner)
        target = _TARGET.search(line[: start.start()]) or _TARGET.search(line[start.end() :])
        if target is not None:
            files[base_name(target.group(1))] = "\n".join(body)
    return kept, files


def base_name(path: str) -> str:
    """The last part of a path, of either slash."""
    return re.split(r"[/\\]", path.strip("'\""))[-1]


def _simple(text: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_STOPS)
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    words: list[str] = []
    comment = False
    try:
        for token in lexer:
            if token and not token.strip(_STOPS):
                # A comment ends with its line, whatever stands in it.
                if comment and "\n" not in token:
                    continue
                if words:
                    yield words
                words, comment = [], False
            elif comment or token.startswith("#"):
                comment = True
            else:
                words.append(token)
    except ValueError:
        raise InputError(
            "the command cannot be split into words",
            why="a quote is not closed",
            hint="close the quote, or give the command in a file",
        ) from None
    if words:
        yield words


def _assignments(words: list[str], env: Mapping[str, str], into: dict[str, str]) -> list[str]:
    """Put leading NAME=VALUE words into `into`; the words behind them."""
    for index, word in enumerate(words):
        match = _ASSIGNED.fullmatch(word)
        if match is None:
            return words[index:]
        if not is_secret(match.group(1)):
            into[match.group(1)] = expand(match.group(2), {**env, **into})
    return []
