"""Refusals: before anything is sent, with the share affected and the flag that goes round it."""

from __future__ import annotations

import pytest
from helpers.replay_traces import block_trace, steady_trace

from advisor.validation import refuse
from advisor.validation.window import select
from engine.errors import InputError, MachineError


def test_prompts_over_the_context_are_refused_with_their_share() -> None:
    # Prompt plus 4 output tokens against 100: 96 fits, 97 does not.
    window = select(block_trace([(96, []), (97, []), (10, []), (500, [])], 16), "all")
    refuse.over_context(window, 504)
    with pytest.raises(MachineError) as caught:
        refuse.over_context(window, 100)
    assert caught.value.exit_code == 3
    assert "2 of 4 requests (50.0%)" in caught.value.message
    assert "504" in (caught.value.why or "")
    assert "--fit lengths" in (caught.value.hint or "")


def test_load_over_the_limit_is_refused_with_its_share() -> None:
    # 60 s at 1.05: 3 s of work are left over, as much as a TTFT target of 3 s allows. At 2.1 the backlog passes
    # 3 s after 3 / 1.1 = 2.73 s, so 57.27 of 60 s are late: 95 %.
    refuse.over_load(refuse.Load(utilisation=1.05, length_s=60, backlog_s=3))
    with pytest.raises(MachineError) as caught:
        refuse.over_load(refuse.Load(utilisation=2.1, length_s=60, backlog_s=3))
    assert caught.value.exit_code == 3
    assert "2.00 times" in caught.value.message
    assert "95%" in (caught.value.why or "")
    assert "--fit rate" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://localhost:1", "http://[::1]:8000", "http://127.9.9.9"]
)
def test_this_machine_is_never_refused(url: str) -> None:
    refuse.remote(url, allowed=False)


@pytest.mark.parametrize(
    "url", ["http://10.0.0.7:8000", "https://llm.example.com/v1", "http://127.0.0.1.example.com"]
)
def test_another_machine_needs_to_be_allowed(url: str) -> None:
    with pytest.raises(MachineError, match="not this machine") as caught:
        refuse.remote(url, allowed=False)
    assert "--yes" in (caught.value.hint or "")
    refuse.remote(url, allowed=True)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://localhost", "http://"])
def test_what_is_no_url_is_an_input_error(url: str) -> None:
    with pytest.raises(InputError):
        refuse.remote(url, allowed=True)


def test_steady_trace_fits() -> None:
    refuse.over_context(select(steady_trace(3, 1.0, prompt=10, output=2), "all"), 12)
