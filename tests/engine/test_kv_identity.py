"""Who may share a prefix: namespaces and page keys."""

from __future__ import annotations

from helpers.core_driver import request
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.identity import namespace, runs_of
from engine.request import Request, Run, SamplingParams

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
    run_of = runs_of(request("r", tokens), tokens, 2)
    tokens.append(4)
    assert [run_of(0), run_of(1)] == [Run((1, 2), 0, 1), Run((3, 4), 1, 2)]


def test_given_runs_name_pages_and_pages_past_them_are_the_requests_own() -> None:
    """A simulator's block ordinals; generated blocks that nobody asks for again occupy capacity only."""
    given = (Run(71, 0, 3), Run(72, 3, 4))
    one, two = (Request(name, range(9), SamplingParams(), runs=given) for name in ("one", "two"))
    runs = [[runs_of(r, [], 2)(i) for i in range(3)] for r in (one, two)]
    assert runs[0][:2] == runs[1][:2] == list(given)
    assert runs[0][2].key != runs[1][2].key
    assert runs[0][2].start == 4
