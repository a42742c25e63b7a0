"""Every error that a user may see has a hint, and a hint that is a command of ours can be run.

Enumerated from the source of both packages: every place that makes an AdviseError, and every text that begins
as a command line of `advise`. What stands three spaces behind a command is no part of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.command_lines import GROUP, problem

ROOT = Path(__file__).resolve().parent.parent
FILLED = "1"  # what stands for a value that is filled in


class Place(NamedTuple):
    """A piece of source: where, and what."""

    file: str
    line: int
    code: str


@cache
def trees() -> dict[str, ast.Module]:
    paths = [path for package in ("advisor", "engine") for path in sorted(ROOT.glob(f"{package}/**/*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


@cache
def error_names() -> frozenset[str]:
    """AdviseError and all classes made from it, as far as they go."""
    found = {"AdviseError"}
    classes = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while more := {one.name for one in classes if {name_of(base) for base in one.bases} & found} - found:
        found |= more
    return frozenset(found)


def name_of(node: ast.expr) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def errors_in(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) in error_names():
            yield node


def hint_of(call: ast.Call) -> ast.expr | None:
    """The hint that is passed, or everything where a mapping is; None where there is none."""
    for keyword in call.keywords:
        if keyword.arg is None:
            return keyword.value
        if keyword.arg == "hint":
            empty = isinstance(keyword.value, ast.Constant) and not keyword.value.value
            return None if empty else keyword.value
    return None


def without_hint(tree: ast.AST) -> list[ast.Call]:
    return [call for call in errors_in(tree) if hint_of(call) is None]


def texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts in a piece of source, what is filled in as FILLED; the parts of such a text are none."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else FILLED for part in node.values]
        yield node.lineno, "".join(str(part) for part in parts)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    for child in ast.iter_child_nodes(node):
        yield from texts(child)


def commands() -> list[Place]:
    """Every text that begins as a command line of ours."""
    found = [
        Place(file, line, text)
        for file, tree in trees().items()
        for line, text in texts(tree)
        if re.match(r"advise [a-z-]", text) and "\n" not in text and not text.startswith("advise-")
    ]
    return list(dict.fromkeys(found))


def test_errors_are_found_in_all_their_kinds() -> None:
    assert error_names() == {"AdviseError", "InputError", "MachineError", "InvalidMeasurementError"}
    assert sum(len(list(errors_in(tree))) for tree in trees().values()) > 250


def test_every_error_has_a_hint() -> None:
    lacking = [
        f"{file}:{call.lineno}: {ast.unparse(call)[:100]}"
        for file, tree in trees().items()
        for call in without_hint(tree)
    ]
    assert lacking == []


@pytest.mark.parametrize(
    ("code", "lacks"),
    [
        ("InputError('a', why='b')", True),
        ("errors.MachineError('a', hint=None)", True),
        ("InputError('a', hint='')", True),
        ("InputError('a', hint='--flag')", False),
        ("InputError('a', **words)", False),
        ("ValueError('a')", False),
    ],
)
def test_what_counts_as_a_hint(code: str, lacks: bool) -> None:
    assert bool(without_hint(ast.parse(code))) is lacks


def test_every_command_of_ours_that_is_named_can_be_run() -> None:
    found = commands()
    assert len(found) > 60
    wrong = {
        f"{place.file}:{place.line}: {place.code}": why
        for place in found
        if (why := problem(place.code)) is not None
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("line", "fine"),
    [
        ("advise launch advise-out --emulate 1   (a rehearsal)", True),
        ("advise --version   (say so)", True),
        ("advise lunch", False),
        ("advise launch --no-such-flag", False),
        ("advise launch --port", False),
        ("advise calibrate with nobody else there", False),
    ],
)
def test_what_can_be_run(line: str, fine: bool) -> None:
    assert (problem(line) is None) is fine


def test_every_flag_that_a_hint_begins_with_is_one_of_ours() -> None:
    known = {
        name
        for command in GROUP.commands.values()
        for one in command.params
        for name in (*one.opts, *one.secondary_opts)
    }
    wrong = [
        f"{file}:{line}: {text}"
        for file, tree in trees().items()
        for call in errors_in(tree)
        if (hint := hint_of(call)) is not None
        for line, text in texts(hint)
        if (flag := re.match(r"(?:add |leave )?(--[a-z-]+)", text)) and flag[1] not in known
    ]
    assert wrong == []
