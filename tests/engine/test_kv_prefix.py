"""The prefix tree and the block pool below the scheduler."""

from __future__ import annotations

from random import Random

import pytest

from engine.invariants import InvariantError
from engine.kv.blocks import BlockPool
from engine.kv.cache import BlockTable, KVCache
from engine.kv.identity import own_from, runs_of
from engine.kv.prefix import Node, PrefixTree
from engine.request import Request, Run, SamplingParams

BLOCK = 4


def table(tokens: list[int], namespace: str = "") -> BlockTable:
    request = Request("r", tokens, SamplingParams())
    return BlockTable(namespace, runs_of(request, tokens, BLOCK))


def admit(cache: KVCache, tokens: list[int], namespace: str = "") -> tuple[BlockTable, int]:
    """A running table for `tokens`, and its hit in tokens."""
    one = table(tokens, namespace)
    hit = cache.match(one, len(tokens))
    assert cache.admit(one, len(tokens), spare=0)
    return one, hit


def serve(cache: KVCache, tokens: list[int], namespace: str = "") -> int:
    """One request from admission to release; its hit in tokens."""
    one, hit = admit(cache, tokens, namespace)
    cache.publish(one, len(tokens))
    cache.release(one, len(tokens))
    cache.check_invariants([])
    return hit


def test_pool_never_hands_out_the_trash_block() -> None:
    pool = BlockPool(5, Random(3))
    assert sorted(pool.take(1) + pool.take(3)) == [1, 2, 3, 4]
    with pytest.raises(IndexError):
        pool.take(1)


def test_pool_notices_a_double_free() -> None:
    pool = BlockPool(5)
    block = pool.take(1)
    pool.give_back(block)
    pool.give_back(block)
    with pytest.raises(InvariantError, match="twice"):
        pool.check_invariants()


def test_a_hit_is_full_pages_and_never_the_last_token() -> None:
    cache = KVCache(100, BLOCK)
    tokens = list(range(12))
    assert serve(cache, tokens) == 0
    assert serve(cache, tokens) == 8
    assert serve(cache, [*tokens, 1]) == 12
    assert serve(cache, [*tokens[:7], 99, *tokens[8:]]) == 4
    assert serve(cache, tokens[:3]) == 0


def test_namespaces_share_nothing() -> None:
    cache = KVCache(100, BLOCK)
    serve(cache, list(range(12)), "a")
    assert serve(cache, list(range(12)), "b") == 0
    assert serve(cache, list(range(12)), "a") == 8


def test_no_map_survives_the_reuse_of_a_block() -> None:
    """nano-vllm#163, vllm#4761: once evicted, a page is gone for everybody, also for a match made before."""
    cache = KVCache(5, BLOCK)
    serve(cache, list(range(12)))
    waiting = table(list(range(12)))
    assert cache.match(waiting, 12) == 8
    serve(cache, list(range(50, 65)))
    assert cache.match(waiting, 12) == 0


def test_a_match_made_early_is_brought_up_to_date() -> None:
    """vllm#17305: counted early, used late. Pages published since appear."""
    cache = KVCache(100, BLOCK)
    serve(cache, list(range(5)))
    waiting = table(list(range(12)))
    assert cache.match(waiting, 12) == 4
    serve(cache, list(range(12)))
    assert cache.match(waiting, 12) == 8


def test_a_page_published_twice_keeps_both_blocks() -> None:
    """mini-sglang#142 frees a duplicate that a block table still names: ours stays private."""
    cache = KVCache(100, BLOCK)
    tokens = list(range(9))
    (first, _), (second, hit) = admit(cache, tokens), admit(cache, tokens)
    assert hit == 0
    cache.publish(first, 9)
    blocks = list(second.blocks)
    cache.publish(second, 9)
    cache.check_invariants([first, second])
    assert second.blocks == blocks
    assert set(blocks).isdisjoint(first.blocks)
    assert second.private() == blocks
    cache.release(first, 9)
    cache.check_invariants([second])
    cache.release(second, 9)
    cache.check_invariants([])
    assert (cache.pool.free, cache.tree.evictable) == (97, 2)


def test_what_only_an_ended_request_can_have_waits_for_its_turn_and_then_goes_at_once() -> None:
    """5 blocks: a shared page of before, then 3 pages of a request alone, which is over; both could be had."""
    cache = KVCache(6, BLOCK)
    serve(cache, list(range(BLOCK)))
    alone = Request("alone", range(3 * BLOCK), SamplingParams(), runs=())
    one = BlockTable("", runs_of(alone, [], BLOCK), own_from(alone))
    assert cache.match(one, 3 * BLOCK) == 0
    assert cache.admit(one, 3 * BLOCK, spare=0)
    cache.release(one, 3 * BLOCK, over=True)
    cache.check_invariants([])
    assert (cache.pool.free, cache.tree.evictable) == (1, 4)
    assert cache.match(table(list(range(BLOCK + 1))), BLOCK + 1) == BLOCK
    taken = cache.take(2)  # a free one, and the oldest: the shared page
    assert (cache.pool.free, cache.tree.evictable) == (0, 3)
    assert cache.match(table(list(range(BLOCK + 1))), BLOCK + 1) == 0
    taken += cache.take(1)
    assert (cache.pool.free, cache.tree.evictable) == (2, 0)
    assert len(set(taken)) == 3
    assert set(taken).isdisjoint(cache.pool.check_invariants())


def test_pages_in_use_are_not_evicted() -> None:
    """mini-sglang#52: the whole path of a running request is held, not only its end."""
    cache = KVCache(6, BLOCK)
    one, _ = admit(cache, list(range(12)))
    cache.publish(one, 12)
    assert cache.available == 2
    other = table(list(range(50, 62)))
    cache.match(other, 12)
    assert not cache.admit(other, 12, spare=0)
    cache.release(one, 0)
    assert cache.admit(other, 12, spare=0)
    cache.check_invariants([other])


def test_spare_blocks_stay_available() -> None:
    cache = KVCache(4, BLOCK)
    assert not cache.admit(table([1, 2, 3]), 3, spare=3)
    assert cache.admit(table([1, 2, 3]), 3, spare=2)


def test_growing_takes_blocks_only_at_boundaries_and_stops_when_none_is_left() -> None:
    """nano-vllm#66: off by one at the block boundary."""
    cache = KVCache(4, BLOCK)
    one, _ = admit(cache, [1, 2, 3])
    sizes = [(cache.grow(one, positions), len(one.blocks)) for positions in (4, 5, 8, 9, 12, 13)]
    assert sizes == [(True, 1), (True, 2), (True, 2), (True, 3), (True, 3), (False, 3)]


def test_released_blocks_are_fenced_by_the_step_in_flight() -> None:
    """sglang#18803, vllm-ascend#14055: nothing that a step in flight may touch is handed out or evicted."""
    cache = KVCache(5, BLOCK)
    one, _ = admit(cache, list(range(9)))
    cache.publish(one, 8)
    cache.release(one, 8, after=7)
    cache.check_invariants([])
    assert cache.available == 1
    cache.retire(6)
    assert cache.available == 1
    cache.retire(7)
    assert (cache.pool.free, cache.tree.evictable) == (2, 2)


def test_without_prefix_cache_nothing_is_published() -> None:
    cache = KVCache(100, BLOCK, prefix_cache=False)
    serve(cache, list(range(12)))
    assert serve(cache, list(range(12))) == 0
    assert cache.pool.free == 99


class LeafLru:
    """Oracle: every unreferenced page with the time it was released; the oldest leaf goes first."""

    def __init__(self) -> None:
        self.released: dict[tuple[int, ...], int] = {}
        self.clock = 0

    def serve(self, tokens: list[int]) -> None:
        for page in range(len(tokens) // BLOCK, 0, -1):
            self.clock += 1
            self.released[tuple(tokens[: page * BLOCK])] = self.clock

    def evict(self) -> None:
        def is_leaf(prefix: tuple[int, ...]) -> bool:
            return not any(other[: len(prefix)] == prefix != other for other in self.released)

        del self.released[min(filter(is_leaf, self.released), key=self.released.__getitem__)]

    def hit(self, tokens: list[int]) -> int:
        pages = [page for page in range(len(tokens) // BLOCK + 1) if page * BLOCK < len(tokens)]
        return max(p * BLOCK for p in pages if p == 0 or tuple(tokens[: p * BLOCK]) in self.released)


def test_eviction_is_least_recently_used_leaf_first() -> None:
    random, cache, oracle = Random(11), KVCache(31, BLOCK), LeafLru()
    for _ in range(400):
        tokens = [random.randrange(2) * 100 + i // BLOCK for i in range(random.randrange(1, 29))]
        tokens = [tokens[i // BLOCK * BLOCK] for i in range(len(tokens))]
        hit = oracle.hit(tokens)
        reused = {tuple(tokens[: page * BLOCK]) for page in range(1, hit // BLOCK + 1)}
        kept = {prefix: oracle.released.pop(prefix) for prefix in reused}
        while len(oracle.released) + len(kept) + -(-len(tokens) // BLOCK) - len(kept) > 30:
            oracle.evict()
        oracle.serve(tokens)
        assert serve(cache, tokens) == hit
    assert len(cache.tree) == len(oracle.released)


def test_an_emptied_namespace_leaves_nothing_behind() -> None:
    tree = PrefixTree()
    path: list[Node] = []
    assert tree.publish("scope", path, lambda page: Run(page, page, page + 1), [5], 0, 1) == []
    tree.release(path)
    assert tree.evict(1) == [5]
    with pytest.raises(StopIteration):
        tree.evict(1)
    assert tree._roots == {}
    tree.check_invariants()
