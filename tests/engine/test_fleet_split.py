"""The split as the fleet drives it: reserve, pull under a lease, decode; and what happens when a side is lost.

The order of actions is the protocol of reference/engines.md section 5.4; numbers in names are its bugs (6.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import pytest

from engine.config import PoolConfig, RouterConfig
from engine.errors import InputError
from engine.fleet.actions import (
    Abort,
    Action,
    Prefill,
    Pull,
    Reject,
    Release,
    Reserve,
    Serve,
    StartDecode,
    prefill_half,
)
from engine.fleet.fleet import Fleet
from engine.fleet.journey import continued
from engine.fleet.lease import Leases
from engine.invariants import InvariantError
from engine.request import Request, SamplingParams

PROMPT = (1, 2, 3, 4, 5)


def request(name: str = "r", max_tokens: int = 10) -> Request:
    return Request(name, PROMPT, SamplingParams(max_tokens=max_tokens, min_tokens=4, seed=3))


def split(
    prefill: int = 1,
    decode: int = 1,
    lost: Literal["colocate", "reject"] = "colocate",
    max_queued: int = 100,
) -> Fleet:
    pools = [PoolConfig(role="prefill", count=prefill), PoolConfig(role="decode", count=decode)]
    return Fleet(pools, RouterConfig(on_partner_loss=lost), lease_s=30.0, max_queued=max_queued)


def nothing(_: str) -> Sequence[int]:
    raise AssertionError("nobody runs")


class Split:
    """One request brought to a phase of its life, everything answered at once."""

    def __init__(self, fleet: Fleet, name: str = "r") -> None:
        self.fleet, self.name = fleet, name
        self.attempt = 0

    def to(self, phase: str) -> list[Action]:
        """The actions of the last step."""
        out = self.fleet.submit(request(self.name))
        for step in ("prefilling", "reserving", "pulling", "decoding"):
            [*_, last] = [one for one in out if not isinstance(one, Release)]
            assert not isinstance(last, Reject | Release | Abort)
            self.attempt = last.attempt
            if step == phase:
                break
            if step == "prefilling":
                out = self.fleet.prefilled(self.name, self.attempt, 70, now=0.0)
            elif step == "reserving":
                out = self.fleet.reserved(self.name, self.attempt, 2)
            else:
                out = self.fleet.pulled(self.name, self.attempt, now=1.0)
        self.fleet.check_invariants()
        return out


def after(produced: tuple[int, ...]) -> Request:
    return continued(request(), produced)


def test_a_request_goes_from_prefill_to_decode_in_the_order_of_the_protocol() -> None:
    fleet = split()
    [prefill] = fleet.submit(request())
    assert prefill == Prefill(0, request(), prefill.attempt)
    [reserve] = fleet.prefilled("r", prefill.attempt, 70, now=0.0)
    assert reserve == Reserve(1, request(), reserve.attempt)
    [pull] = fleet.reserved("r", reserve.attempt, 2)
    assert pull == Pull(0, 1, "r", reserve.attempt, epoch=1, start=2, stop=5)
    assert fleet.leases == 1
    assert fleet.pulled("r", pull.attempt, now=29.9) == [StartDecode(1, "r", pull.attempt, 70), Release(0, "r")]
    assert (fleet.leases, fleet.loads()) == (0, [0, 1])
    assert fleet.finished("r", pull.attempt) == []
    assert (fleet.in_flight, fleet.loads(), fleet.counts.finished) == (0, [0, 0], 1)


def test_the_prefill_side_computes_one_token_and_keeps_the_kv() -> None:
    half = prefill_half(request())
    assert (half.sampling.max_tokens, half.sampling.min_tokens, half.keep_kv) == (1, 4, True)


def test_one_token_needs_no_decode_side() -> None:
    [action] = split().submit(request(max_tokens=1))
    assert isinstance(action, Serve)
    assert action.instance == 0


def test_a_continued_request_keeps_its_end_and_its_noise() -> None:
    one = after((70, 71))
    assert one.prompt == (*PROMPT, 70, 71)
    assert (one.sampling.max_tokens, one.sampling.min_tokens, one.sampling.seed) == (8, 2, 3)
    with pytest.raises(InvariantError):
        after(tuple(range(10)))


def test_an_end_of_sequence_as_first_token_releases_what_was_kept() -> None:
    fleet = split()
    one = Split(fleet)
    one.to("prefilling")
    assert Release(0, "r") in fleet.finished("r", one.attempt)
    assert fleet.in_flight == 0


@pytest.mark.parametrize("now", [30.0, 300.0])
def test_54_a_pull_that_ends_after_its_lease_is_void(now: float) -> None:
    """vllm#52232, aws-do-eks#84: HTTP 200 with another prompt's KV."""
    fleet = split()
    one = Split(fleet)
    one.to("pulling")
    out = fleet.pulled("r", one.attempt, now)
    assert out[:2] == [Release(0, "r"), Abort(1, "r")]
    [again] = out[2:]
    assert isinstance(again, Prefill)
    assert again.request == after((70,))
    assert (fleet.leases, fleet.counts.voided, fleet.counts.transferred) == (0, 1, 0)


def test_61_blocks_under_a_copy_stay_reserved_until_it_ends() -> None:
    """The lease runs out: the source is freed at once, the target when nothing writes to it any more."""
    fleet = split()
    one = Split(fleet)
    one.to("pulling")
    assert fleet.tick(29.9) == []
    assert fleet.tick(30.0) == [Release(0, "r")]
    assert fleet.leases == 0
    assert fleet.holdings() == {(1, "r"): 1}
    out = fleet.pull_failed("r", one.attempt, now=31.0)
    assert out[0] == Abort(1, "r")
    assert isinstance(out[1], Prefill)


def test_heartbeats_of_the_decode_side_keep_the_lease() -> None:
    fleet = split()
    one = Split(fleet)
    one.to("pulling")
    for now in (20.0, 40.0, 60.0):
        fleet.heartbeat(0, now)  # the prefill side's own do not
        fleet.heartbeat(1, now)
        assert fleet.tick(now) == []
    assert isinstance(fleet.pulled("r", one.attempt, 89.9)[0], StartDecode)


def test_a_lease_is_of_one_start_of_its_holder_and_is_not_renewed_when_over() -> None:
    leases = Leases(30.0)
    leases.grant("a", epoch=1, now=0.0)
    leases.grant("b", epoch=1, now=5.0)
    assert leases.holds("a", 1, 29.0)
    assert not leases.holds("a", 2, 29.0)
    assert leases.renew("a", 29.0)
    assert not leases.renew("b", 35.0)
    assert leases.expired(40.0) == ["b"]
    assert leases.expired(59.0) == ["b", "a"]
    leases.drop("a")
    assert list(leases) == ["b"]


def test_66_a_source_that_was_replaced_does_not_count_as_the_one_that_holds_the_kv() -> None:
    """sglang#34289: another process behind the same address, its death unnoticed."""
    fleet = split()
    one = Split(fleet)
    one.to("pulling")
    assert fleet.instance_up(0, nothing) == []
    out = fleet.pulled("r", one.attempt, now=1.0)
    assert out[0] == Abort(1, "r")
    assert isinstance(out[1], Prefill)
    [reserve] = fleet.prefilled("r", out[1].attempt, 71, now=2.0)
    assert isinstance(reserve, Reserve)
    [pull] = fleet.reserved("r", reserve.attempt, 0)
    assert isinstance(pull, Pull)
    assert (pull.epoch, pull.stop) == (2, 6)


def test_57_who_finds_no_room_stays_first_and_nobody_is_asked_past_it() -> None:
    fleet = split()
    decoding = Split(fleet, "a")
    decoding.to("decoding")
    first, second = Split(fleet, "b"), Split(fleet, "c")
    first.to("reserving")
    prefill = second.fleet.submit(request("c"))[0]
    assert isinstance(prefill, Prefill)
    assert fleet.prefilled("c", prefill.attempt, 70, now=0.0) == []
    assert fleet.reserved("b", first.attempt, None) == []
    assert fleet.loads() == [0, 3]
    [retry] = fleet.finished("a", decoding.attempt)
    assert isinstance(retry, Reserve)
    assert retry.request.id == "b"
    pull, ask = fleet.reserved("b", retry.attempt, 0)
    assert isinstance(pull, Pull)
    assert isinstance(ask, Reserve)
    assert (pull.request_id, ask.request.id) == ("b", "c")
    fleet.reserved("c", ask.attempt, None)
    [backstop] = fleet.tick(1.0)
    assert isinstance(backstop, Reserve)
    fleet.check_invariants()


@pytest.mark.parametrize(
    ("phase", "freed"),
    [
        ("prefilling", [Abort(0, "r"), Release(0, "r")]),
        ("reserving", [Release(0, "r"), Abort(1, "r")]),
        ("pulling", [Release(0, "r")]),
        ("decoding", [Abort(1, "r")]),
    ],
)
def test_62_an_abort_in_any_phase_frees_every_side(phase: str, freed: list[Action]) -> None:
    fleet = split()
    one = Split(fleet)
    one.to(phase)
    assert fleet.aborted("r") == freed
    assert fleet.aborted("r") == []
    late: list[Callable[[], list[Action]]] = [
        lambda: fleet.prefilled("r", one.attempt, 70, 1.0),
        lambda: fleet.reserved("r", one.attempt, 0),
        lambda: fleet.finished("r", one.attempt),
        lambda: fleet.pulled("r", one.attempt, 1.0),
    ]
    answers = [one() for one in late]
    assert answers == [[], [], [], [Abort(1, "r")] if phase == "pulling" else []]
    assert (fleet.in_flight, fleet.loads(), fleet.counts.aborted) == (0, [0, 0], 1)
    fleet.check_invariants()


def test_a_dead_decode_instance_loses_nothing() -> None:
    """Running requests go on from their tokens; KV that is still kept is pulled by another, not recomputed."""
    fleet = split(decode=2)
    running, pulling = Split(fleet, "r"), Split(fleet, "s")
    running.to("decoding")
    pulling.to("pulling")
    assert fleet.loads() == [0, 1, 1]
    out = fleet.instance_down(1, {"r": (70, 71, 72)}.__getitem__)
    assert out == [Prefill(0, after((70, 71, 72)), out[0].attempt)]  # type: ignore[union-attr]
    [reserve] = fleet.instance_up(1, nothing) + fleet.instance_down(2, nothing)
    assert reserve == Reserve(1, request("s"), reserve.attempt)  # type: ignore[union-attr]
    assert fleet.counts.requeued == 1
    fleet.check_invariants()


def test_60_an_answer_to_an_attempt_that_is_over_is_ignored() -> None:
    """vllm#50425: it names the right request, but speaks of blocks that are gone."""
    fleet = split(decode=2)
    one = Split(fleet)
    one.to("reserving")
    [again] = fleet.instance_down(1, nothing)
    assert isinstance(again, Reserve)
    assert fleet.reserved("r", one.attempt, 2) == fleet.reserved("r", one.attempt, None) == []
    [pull] = fleet.reserved("r", again.attempt, 0)
    assert isinstance(pull, Pull)
    assert fleet.pulled("r", one.attempt, 1.0) == fleet.pull_failed("r", one.attempt, 1.0) == []
    assert fleet.prefilled("r", one.attempt, 70, 1.0) == fleet.finished("r", one.attempt) == []
    assert isinstance(fleet.pulled("r", pull.attempt, 1.0)[0], StartDecode)


def test_a_dead_prefill_instance_puts_its_requests_back() -> None:
    fleet = split(prefill=2)
    Split(fleet, "r").to("prefilling")
    kept = Split(fleet, "s")
    kept.to("reserving")
    [again] = fleet.instance_down(0, nothing)
    assert isinstance(again, Prefill)
    assert (again.instance, again.request) == (1, request())
    fleet.instance_up(0, nothing)
    out = fleet.instance_down(1, nothing)
    assert out[0] == Abort(2, "s")
    assert {one.request.id: len(one.request.prompt) for one in out[1:] if isinstance(one, Prefill)} == {
        "r": 5,
        "s": 6,
    }
    fleet.check_invariants()


def test_without_decode_instances_the_prefill_side_serves_colocated_and_says_so() -> None:
    fleet = split()
    running, kept = Split(fleet, "r"), Split(fleet, "s")
    running.to("decoding")
    kept.to("reserving")
    assert not fleet.degraded
    out = fleet.instance_down(1, {"r": (70, 71)}.__getitem__)
    assert fleet.degraded
    serves = [one for one in out if isinstance(one, Serve)]
    assert [(one.instance, one.request.id, len(one.request.prompt)) for one in serves] == [
        (0, "r", 7),
        (0, "s", 6),
    ]
    assert out.index(Release(0, "s")) < out.index(serves[1])
    assert isinstance(fleet.submit(request("t"))[0], Serve)
    fleet.instance_up(1, nothing)
    assert not fleet.degraded
    assert isinstance(fleet.submit(request("u"))[0], Prefill)


@pytest.mark.parametrize("lives", [False, True])
def test_instances_that_die_at_once_are_not_held_against_a_request(lives: bool) -> None:
    """kill -9 of all four lost half of what was open: each death handed it to the next of the dead."""
    fleet = split(prefill=2, decode=2)
    Split(fleet).to("decoding")
    out: list[Action] = []
    for index in (2, 3, 1, 0):
        if lives:
            fleet.heartbeat(index, now=0.0)
        out = fleet.instance_down(index, lambda _: (70,))
    assert [type(one) for one in out] == ([Reject] if lives else [])
    back = fleet.instance_up(0, nothing)
    assert [type(one) for one in back] == ([] if lives else [Serve])


@pytest.mark.parametrize("gone", [0, 1])
def test_a_split_may_reject_instead(gone: int) -> None:
    fleet = split(lost="reject")
    one = Split(fleet)
    one.to("decoding" if gone == 1 else "prefilling")
    out = fleet.instance_down(gone, lambda _: (70,))
    assert [type(action) for action in out] == [Reject]
    assert isinstance(fleet.submit(request("t"))[0], Reject)
    assert (fleet.counts.rejected, fleet.in_flight) == (2, 0)


def test_with_everybody_gone_requests_wait_for_whoever_returns() -> None:
    fleet = split(max_queued=2)
    fleet.instance_down(0, nothing)
    fleet.instance_down(1, nothing)
    assert [fleet.submit(request(name)) for name in "ab"] == [[], []]
    [full] = fleet.submit(request("c"))
    assert isinstance(full, Reject)
    assert [type(one) for one in fleet.instance_up(1, nothing)] == [Serve, Serve]


def test_failing_pulls_never_cost_more_than_computing_the_prompt() -> None:
    fleet = split(decode=2)
    one = Split(fleet)
    one.to("pulling")
    attempt = one.attempt
    for _ in range(2):
        abort, reserve = fleet.pull_failed("r", attempt, now=2.0)
        assert isinstance(abort, Abort)
        assert isinstance(reserve, Reserve)
        attempt = reserve.attempt
        fleet.reserved("r", attempt, 0)
    release, _, serve = fleet.pull_failed("r", attempt, now=2.0)
    assert release == Release(0, "r")
    assert isinstance(serve, Serve)
    assert (serve.instance in (1, 2), serve.request) == (True, after((70,)))


def test_kv_that_its_source_holds_no_longer_is_not_asked_for_again() -> None:
    """The source's own lease ran out first; the router's still holds."""
    fleet = split(decode=2)
    one = Split(fleet)
    one.to("pulling")
    release, abort, again = fleet.pull_failed("r", one.attempt, now=2.0, gone=True)
    assert release == Release(0, "r")
    assert isinstance(abort, Abort)
    assert isinstance(again, Prefill)
    assert again.request.prompt == (*PROMPT, 70)


def test_new_requests_are_refused_while_too_many_wait_for_their_first_token() -> None:
    fleet = split(max_queued=2)
    one = Split(fleet, "a")
    one.to("decoding")
    prefill = fleet.submit(request("b"))[0]
    fleet.submit(request("c"))
    assert isinstance(fleet.submit(request("d"))[0], Reject)
    assert isinstance(prefill, Prefill)
    fleet.prefilled("b", prefill.attempt, 70, 0.0)
    assert isinstance(fleet.submit(request("d"))[0], Prefill)
    with pytest.raises(InputError, match="already in flight"):
        fleet.submit(request("d"))


def test_new_requests_are_refused_while_too_many_wait_for_room_on_the_decode_side() -> None:
    """Their first token came at once, so nothing bounded them: at three times the load they were hundreds."""
    fleet = split(max_queued=2)
    for name in "abc":
        [prefill] = fleet.submit(request(name))
        assert isinstance(prefill, Prefill)
        fleet.prefilled(name, prefill.attempt, 70, now=0.0)
    assert fleet.queued == 2  # room is being asked for the first
    assert isinstance(fleet.submit(request("d"))[0], Reject)
    fleet.aborted("c")
    assert isinstance(fleet.submit(request("d"))[0], Prefill)


def test_a_draining_instance_gets_nothing_new_and_ends_what_it_has() -> None:
    fleet = split(decode=2)
    one = Split(fleet)
    one.to("decoding")
    fleet.drain(1)
    Split(fleet, "s").to("decoding")
    assert (fleet.loads(), fleet.states()) == ([0, 1, 1], ["up", "draining", "up"])
    fleet.finished("r", one.attempt)
    Split(fleet, "t").to("decoding")
    assert fleet.loads() == [0, 0, 2]
