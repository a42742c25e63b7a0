"""docs/bugs.md: all 77 bugs are there, each with a test that exists or the reason why it needs none."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
REASONS = ("Cannot: ",)


def rows() -> dict[int, tuple[str, str, str]]:
    """Threads, kind, and what holds it, by number."""
    text = (ROOT / "docs" / "bugs.md").read_text(encoding="utf-8")
    found = [(int(number), rest) for number, *rest in ROW.findall(text)]
    assert len(found) == len({number for number, _ in found}), "a number is there twice"
    return {number: (rest[0], rest[1], rest[2]) for number, rest in found}


@cache
def functions_of(path: str) -> frozenset[str]:
    """All functions of a file, by name."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def test_all_77_are_there() -> None:
    assert sorted(rows()) == list(range(1, 78))


def test_every_test_that_is_named_exists() -> None:
    for number, (*_, held) in rows().items():
        for path, name in TEST.findall(held):
            assert (ROOT / path).is_file(), f"bug {number}: no file {path}"
            assert name.startswith("test_"), f"bug {number}: {name} is no test"
            assert name in functions_of(path), f"bug {number}: no {name} in {path}"


def test_every_bug_has_a_test_or_a_reason() -> None:
    bare = [n for n, (*_, held) in rows().items() if not TEST.search(held) and not held.startswith(REASONS)]
    assert bare == []


def test_every_test_named_after_a_bug_is_in_its_row() -> None:
    held = {number: row[2] for number, row in rows().items()}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in functions_of(path.relative_to(ROOT).as_posix()):
            named = re.match(r"test_bugs?_(\d+)(?:_and_(\d+))?_", name)
            for number in named.groups() if named else ():
                assert number is None or name in held[int(number)], f"{name} is not in row {number}"
