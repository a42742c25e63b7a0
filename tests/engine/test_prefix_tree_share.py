"""benchmarks/prefix_tree.py measures what it says: each call of the cache once, with nothing to reuse."""

from __future__ import annotations

from itertools import count

import pytest
from helpers.server_fake import FakeExecutor

from benchmarks.prefix_tree import TIMED, Clock, Spent, run, timed_cache
from engine.kv.cache import KVCache
from engine.kv.prefix import PrefixTree

BLOCKS = 100  # 1,600 tokens: three requests of up to 670 do not fit twice


def ticking() -> Clock:
    """A clock that ticks once a reading."""
    ticks = count()
    return lambda: float(next(ticks))


def test_the_share_is_the_time_in_outermost_calls_over_the_time_of_the_steps() -> None:
    """On a clock that ticks once a reading, a call takes one tick, and a step at least the three around it."""
    done = run(FakeExecutor("abc"), steps=600, at_once=2, num_blocks=BLOCKS, vocab=50_000, clock=ticking())
    calls = sum(done.spent.calls.values())
    assert sum(done.spent.seconds.values()) == calls
    assert done.steps == len(done.shapes) == 600
    # Two readings a call, of which those within steps count, and three more intervals a step.
    admissions = done.spent.calls["match"]
    assert done.wall_s <= 3 * 600 + 2 * calls
    assert done.wall_s >= 3 * 600 + 2 * (calls - admissions)
    assert done.share == calls / done.wall_s


def test_nothing_is_reused_and_everything_else_happens() -> None:
    done = run(FakeExecutor("abc"), steps=600, at_once=2, num_blocks=BLOCKS, vocab=50_000)
    assert done.hit_tokens == 0
    assert min(done.spent.calls[kind] for kind in ("match", "publish", "release", "evict")) > 4
    assert 0 < done.share < 1


def test_calls_within_calls_count_once_and_errors_are_noted_too() -> None:
    spent = Spent(ticking())
    inner = spent.timed("inner", lambda: None)
    outer = spent.timed("outer", lambda: (inner(), inner()))
    outer()
    assert (spent.calls["outer"], spent.calls["inner"], spent.seconds["outer"]) == (1, 0, 1)

    def fails() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        spent.timed("fails", fails)()
    inner()
    assert (spent.calls["fails"], spent.calls["inner"]) == (1, 1)


def test_the_cache_is_as_it_was_afterwards() -> None:
    owners = {"cache": KVCache, "tree": PrefixTree}
    before = [getattr(owners[owner], name) for owner, name in TIMED.values()]
    with timed_cache(Spent(ticking())):
        assert all(getattr(owners[o], n) is not f for (o, n), f in zip(TIMED.values(), before, strict=True))
    assert [getattr(owners[owner], name) for owner, name in TIMED.values()] == before
