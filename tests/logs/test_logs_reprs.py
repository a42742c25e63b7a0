"""Python's own `repr` reads back, what is no literal is unknown, and damage is an error of ours."""

from __future__ import annotations

import ast
import dataclasses
import random
from typing import Any

import pytest

from advisor.logs.record import UnusableError
from advisor.logs.reprs import Cut, read_repr


@pytest.mark.parametrize(
    "value",
    [
        "", "plain", "it's", 'say "hi"', "both ' and \"", "\n\r\t\\", "\\n is no newline",
        "\x00\x7f\xad\x1b[0m", "é ü 漢字 \u2028 \U0001f600", "\ud800 alone", "a ... b", ", text='x'",
        "x" * 10_000, [], [1, 2, 3], [-1, 2], [1.5, None, True, False], [[1, 2], ["a", []]], {},
        {"a": {"b": [1, {"c": None}]}},
        {"with: colon": "and, comma", "brackets": "([{"}, 0, -7, 1e-9, 1e300, None, True,
    ],
)  # fmt: skip
def test_a_value_reads_back_from_its_repr(value: object) -> None:
    text = repr(value)
    assert read_repr(text) == (value, len(text))
    assert read_repr(f"before {text}, after", 7) == (value, 7 + len(text))


def test_ast_agrees() -> None:
    text = "{'a': 'x\\'y', 'b': [1, 2.5, -3], 'c': (None, True), 'd': \"it's\", 'e': {'f': '\\u00e9\\n'}}"
    value, end = read_repr(text)
    expected = ast.literal_eval(text)
    assert value == expected | {"c": list(expected["c"])}  # tuples read as lists
    assert end == len(text)


def test_a_dataclass_is_its_fields_and_its_missing_ones_are_none() -> None:
    @dataclasses.dataclass
    class Request:
        rid: str
        text: str | None
        ids: list[int] | None
        params: dict[str, Any]

    text = repr(Request("r-1", None, [5, 6], {"n": 1, "stop": ["\n", "it's"], "t": 0.2}))
    text = text[text.index("Request(") :]
    value, end = read_repr(text)
    assert value == {"rid": "r-1", "ids": [5, 6], "params": {"n": 1, "stop": ["\n", "it's"], "t": 0.2}}
    assert value.get("text") is None
    assert end == len(text)


@pytest.mark.parametrize(
    "shown",
    [
        "nan", "-inf", "torch.float16", "<Mode.A: 'a'>", "<object at 0x7f>", "tensor([[1., 2.]], device='cpu')",
        "array([1, 2], dtype=int64)", "datetime.datetime(2026, 9, 14, 8, 0)", "SizedImage 3x4", "12abc",
        "9" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_literal_is_unknown_and_costs_nothing_else(shown: str) -> None:
    value, _ = read_repr(f"Request(before='a', odd={shown}, after='b')")
    assert (value["before"], value["after"]) == ("a", "b")
    assert value.get("odd") in (
        None,
        {},
        {"device": "cpu"},
        {"dtype": None},
    )  # an object with fields has its fields


def test_cut_values_keep_their_head() -> None:
    value, _ = read_repr("Request(text='start' ... 'end', ids=[1, 2] ... [8, 9], rid='r')")
    assert isinstance(value["text"], Cut)
    assert isinstance(value["ids"], Cut)
    assert (value["text"].head, value["ids"].head, value["rid"]) == ("start", [1, 2], "r")
    assert "start" not in repr(value["text"])


@pytest.mark.parametrize(
    "text",
    ["", "'open", '"open', "[1, 2", "{'a': 1", "Request(a=1", "[1,, 2]", "[" * 9999, "{'a': " * 99, "X(" * 999],
)  # fmt: skip
def test_damage_is_unusable(text: str) -> None:
    with pytest.raises(UnusableError):
        read_repr(text)


def test_random_damage_never_raises_anything_else() -> None:
    good = "Request(rid='d1', text=\"it's\", ids=[1, 2], p={'a': 1.5, 'b': nan}, m=<A: 'x'>), out={'m': {}}"
    rng = random.Random(5)
    for _ in range(20_000):
        damaged = list(good)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice("'\"()[]{},=:<> \\x0nu.")
        try:
            _, end = read_repr("".join(damaged))
        except UnusableError:
            continue
        assert 0 < end <= len(good)
