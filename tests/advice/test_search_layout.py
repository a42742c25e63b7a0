"""Layouts: which are listed for so many GPUs, what each of them takes, and their neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.planning import devices, layout

from advisor.advice.search.layout import BUDGETS, REFINE, Layout, by_prefix, layouts, variants


def shapes(every: list[Layout]) -> set[tuple[tuple[int, int], ...]]:
    """(instances, TP) of every pool."""
    return {tuple((pool.count, pool.tp) for pool in one.pools) for one in every}


def test_three_gpus_split_in_every_integer_way() -> None:
    """DistServe, Figure 1: 2 prefill + 1 decode is one of the two ways at TP 1; of TP 2 a pool holds one."""
    splits = shapes([one for one in layouts(devices(), 3, reuse=False) if one.split])
    assert splits == {((1, 1), (2, 1)), ((2, 1), (1, 1)), ((1, 2), (1, 1)), ((1, 1), (1, 2))}


@pytest.mark.parametrize("gpus", [1, 2, 3, 5, 6, 8])
def test_no_layout_leaves_a_gpu_idle_where_one_gpu_holds_the_model(gpus: int) -> None:
    every = layouts(devices(), gpus, reuse=False)
    assert {one.gpus for one in every} == {gpus}
    assert any(one.split for one in every) == (gpus > 1)


def test_each_budget_is_listed_once_for_each_tp() -> None:
    """8 GPUs, TP 1, 2, 4 and 8: as many colocated layouts as budgets times four; all names differ."""
    every = layouts(devices(), 8, reuse=False)
    assert sum(not one.split for one in every) == 4 * len(BUDGETS)
    assert len({one.name for one in every}) == len(every)


def test_a_model_of_140_gb_needs_two_gpus_of_80_and_an_odd_one_stays_idle() -> None:
    """Llama-2-70B in 16 bits: 138 GB of weights. On 5 GPUs the instances have 2 or 4."""
    every = layouts(devices("llama-2-70b"), 5, reuse=False)
    assert shapes([one for one in every if not one.split]) == {((2, 2),), ((1, 4),)}
    assert shapes([one for one in every if one.split]) == {((1, 2), (1, 2))}


def test_every_instance_holds_the_longest_request() -> None:
    """Llama-3-8B: 131,072 B of KV a token; 80 GB less 16 GB of weights hold 400,000 tokens, not 600,000."""
    for one in layouts(devices(longest=600_000), 4, reuse=False):
        assert all(pool.tp >= 2 and (pool.kv_tokens or 0) >= 600_000 for pool in one.pools)
    assert layouts(devices(longest=10**8), 4, reuse=False) == []


def test_cores_make_one_instance_of_all() -> None:
    hardware = replace(devices(degrees=(1,)), on_cpu=True)
    every = layouts(hardware, 4, reuse=True)
    assert {(one.gpus, one.pools[0].count, one.split) for one in every} == {(4, 1, False)}


def test_routing_by_prefix_is_listed_where_prompts_share_and_there_is_a_choice() -> None:
    every = layouts(devices(), 2, reuse=True)
    routed = [one for one in every if one.router.policy == "prefix_affinity"]
    # 1 x TP 2 has no choice, nor has 1 prefill + 1 decode.
    assert shapes(routed) == {((2, 1),)}
    assert not any(one.router.policy == "prefix_affinity" for one in layouts(devices(), 2, reuse=False))
    assert by_prefix(routed[0]) is None


def test_neighbours_differ_in_one_setting() -> None:
    """Budgets 128 to either side, as tiles go; what needs shared prefixes or a split only there."""
    found = list(variants(layout("mine, chunked 512", 2, token_budget=512), devices(), reuse=False))
    assert [one.pools[0].token_budget for one in found] == [512 - REFINE, 512 + REFINE, 512, 512]
    assert [one.pools[0].max_seqs for one in found] == [256, 256, 64, 128]
    shared = list(variants(layout("mine", 1, prefill=1), devices(), reuse=True))
    assert [one.pools[0].queue_policy for one in shared] == ["fcfs", "fcfs", "prefix_first", "fcfs"]
    assert [one.router.bypass for one in shared] == [False, False, False, True]
    assert len({one.name for one in (*found, *shared)}) == len(found) + len(shared)


def test_the_smallest_budget_has_no_smaller_neighbour() -> None:
    found = list(variants(layout("mine", token_budget=128), devices(), reuse=False))
    assert [one.pools[0].token_budget for one in found] == [256, 128, 128]
