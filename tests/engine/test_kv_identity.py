"""Who may share a prefix: namespaces and page keys."""

from __future__ import annotations

from helpers.core_driver import request
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.identity import namespace, page_keys
from engine.request import Request, SamplingParams

Names = tuple[str, str | None, str | None]
NAMES = st.tuples(st.text(), st.none() | st.text(), st.none() | st.text())


@given(NAMES, NAMES)
def test_two_namespaces_are_equal_only_for_equal_parts(a: Names, b: Names) -> None:
    assert (namespace(*a) == namespace(*b)) == (a == b)


def test_adapter_and_scope_cannot_be_confused() -> None:
    """vllm#44701: an adapter's name and a salt were told apart by nothing."""
    tricky = ["", "x", 'x", "y', "x\x00y", "null", '["x"]']
    names = [(m, a, s) for m in tricky for a in [None, *tricky] for s in [None, *tricky]]
    assert len({namespace(*one) for one in names}) == len(names)


def test_pages_are_named_by_their_tokens_as_they_grow() -> None:
    tokens = [1, 2, 3]
    key = page_keys(request("r", tokens), tokens, 2)
    tokens.append(4)
    assert [key(0), key(1)] == [(1, 2), (3, 4)]


def test_given_keys_name_pages_and_pages_past_them_are_unique() -> None:
    """A simulator's block ordinals; generated blocks that nobody asks for again occupy capacity only."""
    one, two = (Request(name, (0,) * 4, SamplingParams(), page_keys=(71, 72)) for name in ("one", "two"))
    keys = [[page_keys(r, r.prompt, 2)(page) for page in range(3)] for r in (one, two)]
    assert keys[0][:2] == keys[1][:2] == [71, 72]
    assert keys[0][2] != keys[1][2]
