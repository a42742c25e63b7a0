"""Refusals: before anything is sent, with the share affected and the flag that goes round it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from helpers.replay_traces import block_trace, steady_trace

from advisor.validation import refuse
from advisor.validation.busy import Busy
from advisor.validation.endpoint import Endpoint
from advisor.validation.keys import read_key
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


@pytest.mark.parametrize("url", ["http://user:secret@127.0.0.1:8000", "https://token@llm.example.com"])
def test_a_password_in_a_url_is_not_used_and_not_shown(url: str) -> None:
    with pytest.raises(InputError) as caught:
        refuse.remote(url, allowed=True)
    shown = f"{caught.value.message} {caught.value.where} {caught.value.why} {caught.value.hint}"
    assert "secret" not in shown
    assert "token@" not in shown


def test_a_key_never_travels_in_the_clear() -> None:
    refuse.remote("http://127.0.0.1:8000", allowed=False, key=True)
    refuse.remote("https://llm.example.com", allowed=True, key=True)
    refuse.remote("http://llm.example.com", allowed=True, key=False)
    with pytest.raises(InputError, match="in the clear"):
        refuse.remote("http://llm.example.com", allowed=True, key=True)


def test_only_another_machine_is_asked_about() -> None:
    assert refuse.question("http://localhost:8000") is None
    assert "10.0.0.7 is not this machine" in (refuse.question("http://10.0.0.7:8000") or "")
    assert "hosted API of groq" in (refuse.question("https://api.groq.com") or "")
    with pytest.raises(InputError):
        refuse.question("nonsense")


def test_hosted_apis_are_never_searched() -> None:
    refuse.hosted("http://127.0.0.1:8000")
    refuse.hosted("https://llm.example.com")
    with pytest.raises(MachineError, match="hosted API of mistral"):
        refuse.hosted("https://api.mistral.ai/v1")


def endpoint(busy: Busy | None = None, **more: str) -> Endpoint:
    return Endpoint("http://127.0.0.1:1", more.pop("model", "m"), None, 32_000, busy=busy, **more)


def test_an_endpoint_that_serves_others_needs_shared() -> None:
    refuse.busy(endpoint(Busy(0, 0)), shared=False)
    refuse.busy(endpoint(None), shared=False)
    for load in (Busy(1, 0), Busy(0, 2)):
        refuse.busy(endpoint(load), shared=True)
        with pytest.raises(MachineError, match="serving others") as caught:
            refuse.busy(endpoint(load), shared=False)
        assert "--shared" in (caught.value.hint or "")


@dataclass(frozen=True)
class Planned:
    requests: int = 100
    warm_up_requests: int = 20
    duration_s: float = 60.0
    usd: float | None = 3.0
    most_runs: int = 1


def test_limits_hold_for_all_runs_with_their_warm_up() -> None:
    refuse.over_limits(Planned(), refuse.Limits())
    refuse.over_limits(Planned(), refuse.Limits(max_requests=120, max_cost=3.0, max_rate=2.0))
    with pytest.raises(MachineError, match="120 requests are more than --max-requests 119"):
        refuse.over_limits(Planned(), refuse.Limits(max_requests=119))
    with pytest.raises(MachineError, match="240 requests"):
        refuse.over_limits(Planned(most_runs=2), refuse.Limits(max_requests=120))
    with pytest.raises(MachineError, match=r"6\.00 USD, more than --max-cost 5"):
        refuse.over_limits(Planned(most_runs=2), refuse.Limits(max_cost=5.0))
    with pytest.raises(MachineError, match="not known"):
        refuse.over_limits(Planned(usd=None), refuse.Limits(max_cost=5.0))
    with pytest.raises(MachineError, match=r"asks for 2 requests/s, more than --max-rate 1\.9"):
        refuse.over_limits(Planned(), refuse.Limits(max_rate=1.9))


def test_a_limit_on_the_rate_holds_in_the_busiest_ten_seconds() -> None:
    # One request a second for 100 s, and 30 more within [50, 53): 40 in [50, 60).
    due_s = np.sort(np.concatenate((np.arange(100.0), 50.05 + np.arange(30) / 10)))
    assert refuse.peak_rate(due_s) == 4.0
    assert refuse.peak_rate(np.array([0.0, 10.0, 20.0])) == 0.1
    assert refuse.peak_rate(np.array([])) == 0.0
    refuse.over_limits(Planned(), refuse.Limits(max_rate=4.0), due_s)
    with pytest.raises(MachineError, match="4 requests/s") as caught:
        refuse.over_limits(Planned(), refuse.Limits(max_rate=2.0), due_s)
    assert "--rate 0.49 " in (caught.value.hint or "")


def test_hosted_tokens_cost_their_list_price_and_machines_their_time() -> None:
    # gpt-4o-mini: 0.15 USD per million prompt tokens, 0.60 of output. Two million and half a million: 0.60 USD.
    hosted = endpoint(provider="openai", model="gpt-4o-mini-2024-07-18")
    assert refuse.price(hosted, 2_000_000, 500_000, 60, None) == pytest.approx(0.60)
    assert refuse.price(hosted, 2_000_000, 500_000, 60, 99.0) == pytest.approx(0.60)
    assert refuse.price(endpoint(provider="openai", model="unheard-of"), 1, 1, 60, None) is None
    assert refuse.price(endpoint(), 2_000_000, 500_000, 1800, 4.0) == 2.0
    assert refuse.price(endpoint(), 2_000_000, 500_000, 1800, None) is None


def test_a_key_is_from_the_environment_or_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("  sk-123\n")
    file.chmod(0o600)
    assert read_key(file, {"ADVISE_API_KEY": "other"}) == "sk-123"
    assert read_key(None, {"ADVISE_API_KEY": "other"}) == "other"
    assert read_key(None, {}) is None
    for mode in (0o640, 0o604):
        file.chmod(mode)
        with pytest.raises(InputError, match="others can read") as caught:
            read_key(file, {})
        assert "sk-123" not in f"{caught.value.message}{caught.value.why}{caught.value.hint}"
        assert f"chmod 600 {file}" == caught.value.hint


@pytest.mark.parametrize("text", ["", "  \n", "two words", "line\nbreak", "k\u00e9y", "x" * 5000])
def test_what_cannot_be_a_key_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(InputError) as caught:
        read_key(file, {})
    assert not text.strip() or text.strip() not in f"{caught.value.message}{caught.value.why}"


def test_a_key_file_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_key(tmp_path / "none", {})
