"""Layouts: which are listed for so many GPUs, what each of them takes, and their neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.planning import devices, layout

from advisor.advice.profiles import model_shape
from advisor.advice.search.hardware import Hardware
from advisor.advice.search.layout import BUDGETS, REFINE, Layout, by_prefix, default_layout, layouts, variants
from advisor.advice.sizing import DEGREES, ModelCopy
from advisor.advice.target import Target
from engine.errors import MachineError


def shapes(every: list[Layout]) -> set[tuple[tuple[int, int], ...]]:
    """(instances, TP) of every pool, of layouts without pipeline stages."""
    return {
        tuple((pool.count, pool.tp) for pool in one.pools)
        for one in every
        if all(pool.pp == 1 for pool in one.pools)
    }


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


def staged(every: list[Layout]) -> set[tuple[tuple[str, int, int, int], ...]]:
    """(role, instances, TP, PP) of every pool, of layouts with pipeline stages."""
    return {
        tuple((pool.role, pool.count, pool.tp, pool.pp) for pool in one.pools) for one in every if one.staged
    }


def test_stages_are_listed_where_weights_fill_the_gpus() -> None:
    """OPT-66B, 132 GB on GPUs of 80: DistServe runs its prefill on TP 4 and its decode on TP 2 x PP 2.

    OPT-13B, 26 GB, has no use for stages; nor has TP 4 of OPT-66B, of which a GPU has 33 GB.
    """
    every = layouts(devices("opt-66b", longest=2048), 8, reuse=False)
    found = staged(every)
    assert (("prefill", 1, 4, 1), ("decode", 1, 2, 2)) in found
    assert (("colocated", 2, 2, 2),) in found
    assert {(tp, pp) for pools in found for _, _, tp, pp in pools if pp > 1} == {(1, 2), (1, 4), (2, 2)}
    assert {one.gpus for one in every} == {8}
    assert not staged(layouts(devices("opt-13b", longest=2048), 8, reuse=False))


def test_stages_have_their_name_their_memory_and_small_budgets() -> None:
    """Sarathi-Serve, section 4.3: 1,536 where a pipeline's bubbles make 2,048 too large."""
    hardware = devices("opt-66b", longest=2048)
    [one] = [one for one in layouts(hardware, 8, reuse=False) if one.name == "2 x TP 2 x PP 2, chunked 512"]
    [pool] = one.pools
    assert (pool.devices_per_instance, pool.max_seqs, pool.kv_tokens) == (4, 512, hardware.kv_tokens(2, 512, 2))
    every = [one for one in layouts(hardware, 8, reuse=True) if one.staged]
    every += [other for one in every for other in variants(one, hardware, reuse=True)]
    assert max(pool.token_budget for one in every for pool in one.pools if pool.pp > 1) == 1536
    assert all(one.staged for one in every)


def test_defaults_have_stages_only_where_no_tp_holds_the_model() -> None:
    """DeepSeek-V3 in 8 bits, 671 GB: 16 GPUs of 80 GB hold it as two stages, 8 do not (its own advice: 16)."""
    for model, gpus, dtype, expected in (
        ("llama-3-8b", 8, "auto", (8, 1, 1)),
        ("llama-2-70b", 8, "auto", (4, 2, 1)),
        ("deepseek-v3", 16, "fp8", (1, 8, 2)),
    ):
        target, shape = Target(model=model, gpu="h100-sxm", gpus=gpus, dtype=dtype), model_shape(model)
        copies = {tp: ModelCopy(target, shape, tp, dtype) for tp in DEGREES}
        [pool] = default_layout(replace(devices(model), copies=copies), gpus).pools
        assert (pool.count, pool.tp, pool.pp) == expected
    with pytest.raises(MachineError, match="does not fit"):
        default_layout(devices("deepseek-v3"), 8)


def test_every_instance_holds_the_longest_request() -> None:
    """Llama-3-8B: 131,072 B of KV a token; 80 GB less 16 GB of weights hold 400,000 tokens, not 600,000."""
    for one in layouts(devices(longest=600_000), 4, reuse=False):
        assert all(pool.tp * pool.pp >= 2 and (pool.kv_tokens or 0) >= 600_000 for pool in one.pools)
    assert layouts(devices(longest=10**8), 4, reuse=False) == []


def on_cores(cores: int, sizes: tuple[int, ...]) -> Hardware:
    """`cores` of a host with 16 GB, instances of some of `sizes` cores."""
    target, shape = (
        Target(model="smollm2-135m-instruct", gpu="cpu", gpus=cores, memory_bytes=16 * 10**9),
        (model_shape("smollm2-135m-instruct", None)),
    )
    copies = {size: ModelCopy(target, shape, 1, "bfloat16", cores=size) for size in sizes}
    return replace(devices(degrees=sizes), on_cpu=True, copies=copies)


def test_two_cores_are_one_instance_or_two_or_a_split() -> None:
    every = layouts(on_cores(2, (2, 1)), 2, reuse=True)
    found = {
        tuple((pool.role, pool.count, pool.devices_per_instance, pool.tp) for pool in one.pools): one
        for one in every
    }
    assert set(found) == {
        (("colocated", 1, 2, 1),),
        (("colocated", 2, 1, 1),),
        (("prefill", 1, 1, 1), ("decode", 1, 1, 1)),
    }
    assert {one.gpus for one in every} == {2}
    assert len({one.name for one in every}) == len(every)
    assert found[("prefill", 1, 1, 1), ("decode", 1, 1, 1)].name == "1 prefill x 1 core + 1 decode x 1 core"


def test_each_core_has_its_part_of_the_memory() -> None:
    """SmolLM2-135M: 2 x 30 layers x 3 heads x 64 x 2 bytes a token; a quarter of 16 GB on two cores."""
    for one in layouts(on_cores(2, (2, 1)), 2, reuse=False):
        for pool in one.pools:
            room = 4e9 / 2 * pool.devices_per_instance / (2 * 30 * 3 * 64 * 2)
            assert room - 32 <= (pool.kv_tokens or 0) <= room


def test_sizes_without_step_times_are_not_listed() -> None:
    every = layouts(on_cores(4, (4,)), 4, reuse=True)
    assert {(one.gpus, one.pools[0].count, one.split) for one in every} == {(4, 1, False)}
    [pool] = default_layout(on_cores(4, (4, 1)), 4).pools
    assert (pool.count, pool.devices_per_instance) == (1, 4)


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
