"""Public bugs of prefill/decode transfer (docs/bugs.md) that no other test of ours is about.

Fleet and core without IO; what needs real transfers comes with the split that serves.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.core_driver import Driver, request
from helpers.echo import chain, expected_output

from engine.config import PoolConfig, RouterConfig
from engine.core import EngineCore
from engine.errors import InputError
from engine.fleet.actions import Prefill, Release, Reserve
from engine.fleet.fleet import Fleet
from engine.request import Request, SamplingParams

BLOCK = 4


def split() -> Fleet:
    return Fleet([PoolConfig(role="prefill"), PoolConfig(role="decode")], RouterConfig(), lease_s=30.0)


def ask(name: str) -> Request:
    return Request(name, (1, 2, 3, 4, 5), SamplingParams(max_tokens=10))


def prefilled(fleet: Fleet, name: str) -> list[object]:
    """What follows the first token of `name`."""
    [prefill] = fleet.submit(ask(name))
    assert isinstance(prefill, Prefill)
    return [*fleet.prefilled(name, prefill.attempt, 70, now=0.0)]


def test_bug_51_a_client_that_left_before_the_decode_side_was_asked_leaves_nothing_kept() -> None:
    """vllm#41269, vllm#50425: between the prefill's answer and the decode side's turn the KV is nobody's."""
    fleet = split()
    [asked] = prefilled(fleet, "first")
    assert isinstance(asked, Reserve)
    assert prefilled(fleet, "behind it") == []
    assert fleet.leases == 2
    assert fleet.aborted("behind it") == [Release(0, "behind it")]
    assert (fleet.leases, fleet.in_flight) == (1, 1)
    fleet.check_invariants()


@pytest.mark.parametrize("silent_for", [30.0, 1e6])
def test_bug_51_kept_kv_that_nobody_asks_for_is_given_back_when_its_lease_is_over(silent_for: float) -> None:
    """The decode side went silent: the prefill side keeps nothing beyond the lease, and the request goes on."""
    fleet = split()
    prefilled(fleet, "r")
    assert fleet.tick(29.9) == []
    out = fleet.tick(silent_for)
    assert out[0] == Release(0, "r")
    assert any(isinstance(one, Prefill) and len(one.request.prompt) == 6 for one in out)
    assert fleet.leases == 0
    fleet.check_invariants()


def test_bug_56_who_was_pulled_onto_a_full_hit_can_be_preempted() -> None:
    """vllm#18411: on the decode side every page of the prompt was cached already; a preemption then crashes."""
    driver = Driver(PoolConfig(block_size=BLOCK, token_budget=64), num_blocks=13)
    prompt = [*range(9)]
    driver.run(request("before", prompt, output=1))
    driver.add(request("local", range(30, 42), output=28))
    driver.step()
    one = request("pulled", prompt, output=14)
    assert driver.core.reserve(one, driver.now) == 8
    token = expected_output(one)[0]
    driver.echo.expect(one)
    block = driver.core._scheduler.pulling["pulled"].table.blocks[2]
    driver.echo._kv[block][0] = chain("", prompt)[8]
    driver.echo._tokens["pulled"].append(token)
    driver.outputs["pulled"] = [token]
    driver.core.start_decode("pulled", token, driver.now)
    while driver.core.has_work:
        driver.step()
    assert driver.core.stats().preemptions == 1
    assert driver.outputs["pulled"] == expected_output(one)
    assert driver.outputs["local"] == expected_output(request("local", range(30, 42), output=28))


def test_bug_59_a_kept_request_that_was_preempted_keeps_blocks_for_all_of_its_prompt() -> None:
    """vllm-ascend#14180: preempted on the prefill side with its output on the way, it ends without blocks."""
    driver = Driver(PoolConfig(block_size=BLOCK, token_budget=3), num_blocks=14)
    driver.add(request("old", range(20), output=20))
    while not driver.outputs["old"]:
        driver.step()
    half = replace(request("half", range(30, 53), output=1), keep_kv=True)
    driver.add(half)
    while driver.core.has_work:
        driver.step()
    assert driver.core.stats().preemptions > 0
    assert driver.outputs["half"] == expected_output(half)
    table = driver.core._kept["half"].table
    links = chain("", list(half.prompt))
    kept = [driver.echo._kv[table.blocks[p // BLOCK]][p % BLOCK] for p in range(len(half.prompt))]
    assert kept == links
    driver.core.release_kv("half", driver.now)
    assert driver.core.stats().blocks_used == 0


def test_bug_63_a_prompt_that_one_side_can_never_hold_ends_and_is_not_decoded() -> None:
    """sglang#30233, #34208: the prefill side refuses it as too long, the decode side decodes what is there."""
    fleet = split()
    [asked] = prefilled(fleet, "r")
    assert isinstance(asked, Reserve)
    core = EngineCore(PoolConfig(block_size=BLOCK), num_blocks=4, max_len=1000)
    with pytest.raises(InputError, match="KV cache"):
        core.reserve(asked.request, 0.0)
    out = fleet.finished("r", asked.attempt)  # how a driver answers that
    assert Release(0, "r") in out
    assert (fleet.in_flight, fleet.leases, fleet.counts.finished) == (0, 0, 1)
    assert fleet.pulled("r", asked.attempt, 1.0) == []
