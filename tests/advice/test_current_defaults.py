"""The stacks' own defaults, as read in their sources (exports.md sections 2 and 4)."""

from __future__ import annotations

import pytest

from advisor.advice.current import Current, defaults, read_current
from engine.errors import InputError


def unverified(current: Current) -> set[str]:
    return {one.setting for one in current.assumed if not one.verified}


@pytest.mark.parametrize(
    ("version", "gpu", "gb", "budget", "seqs"),
    [
        ("0.33.0", "b200-sxm", 180, 16_384, 1024),
        ("0.33.0", "h200-sxm", 141, 8192, 1024),
        ("0.33.0", "h100-sxm", 80, 8192, 1024),
        ("0.33.0", "a100-sxm-80g", 80, 2048, 256),
        ("0.33.0", "l4", 24, 2048, 256),
        ("0.20.2", "b200-sxm", 180, 8192, 1024),  # the class from 160 GiB came later
        ("0.8.5", "a100-sxm-80g", 80, 8192, 1024),  # the exception of A100 came later
    ],
)
def test_vllm_budget_and_sequences_follow_gpu_and_version(
    version: str, gpu: str, gb: float, budget: int, seqs: int
) -> None:
    current = defaults("vllm", version, gb, gpu=gpu)
    one = current.pools[0]
    assert (one.token_budget, one.max_seqs) == (budget, seqs)
    assert (one.batching, one.prefix_cache, one.queue_policy, one.block_size) == ("chunked", True, "fcfs", 16)
    assert not unverified(current)


def test_vllm_memory_fraction_changed_by_0_20_2() -> None:
    assert defaults("vllm", "0.19.1", 80).memory_fraction == 0.90
    assert defaults("vllm", "0.20.2", 80).memory_fraction == 0.92
    assert "memory_fraction" in unverified(defaults("vllm", "0.20.1", 80))


def test_vllm_throughput_mode_doubles_only_what_is_not_said() -> None:
    current = read_current("vllm serve m --performance-mode throughput --max-num-seqs 100")
    assert (current.pools[0].token_budget, current.pools[0].max_seqs) == (4096, 100)


def test_vllm_budget_without_chunking_holds_the_longest_prompt() -> None:
    current = read_current("vllm serve m --no-enable-chunked-prefill --max-model-len 32768")
    assert current.pools[0].token_budget == 32_768
    refused = read_current(
        "vllm serve m --no-enable-chunked-prefill --max-model-len 32768 --max-num-batched-tokens 2048"
    )
    assert any("refuses to start" in note for note in refused.notes)


def test_vllm_budget_below_the_sequences_is_refused_by_vllm() -> None:
    notes = read_current("vllm serve m --max-num-batched-tokens 128 --max-num-seqs 256").notes
    assert any("max_num_batched_tokens is below max_num_seqs" in note for note in notes)


def test_vllm_of_the_first_engine_is_prefill_first_and_not_verified() -> None:
    current = defaults("vllm", "0.6.3", 80, max_len=4096)
    one = current.pools[0]
    assert (one.batching, one.prefix_cache, one.token_budget) == ("prefill_first", False, 4096)
    assert {"token_budget", "max_seqs", "prefix_cache", "chunked"} <= unverified(current)


def test_a_version_newer_than_was_read_is_not_verified() -> None:
    assert "token_budget" in unverified(defaults("vllm", "0.40.0", 80))
    assert any("not verified" in note for note in defaults("sglang", "0.7.0", 80).notes)


def test_without_a_version_the_newest_one_is_said() -> None:
    assert any("vLLM 0.33.0" in note for note in defaults("vllm", None, 80).notes)


@pytest.mark.parametrize(
    ("version", "gb", "chunk"),
    [
        ("0.5.23", 16, 2048),
        ("0.5.23", 24, 4096),
        ("0.5.23", 48, 4096),
        ("0.5.23", 80, 8192),
        ("0.5.23", 141, 8192),
        ("0.5.23", 180, 16_384),
        ("0.5.5", 24, 2048),
        ("0.4.6", 24, 2048),
        ("0.4.6", 48, 8192),
    ],
)
def test_sglang_chunk_follows_gpu_memory(version: str, gb: float, chunk: int) -> None:
    assert defaults("sglang", version, gb).pools[0].token_budget == chunk


def test_sglang_queue_was_longest_prefix_up_to_0_4_3() -> None:
    assert defaults("sglang", "0.4.3", 80).pools[0].queue_policy == "prefix_first"
    assert defaults("sglang", "0.4.4", 80).pools[0].queue_policy == "fcfs"


def test_sglang_keeps_the_radix_cache_and_prefills_first() -> None:
    one = defaults("sglang", "0.5.23", 80).pools[0]
    assert (one.prefix_cache, one.batching) == (True, "prefill_first")


def test_sglang_sequences_from_its_kv_cache() -> None:
    # 512 x 1,000,000 / 128,000 = 4000, between 2048 and 4096.
    line = "sglang serve --model-path m --max-total-tokens 1000000 --context-length 128000"
    assert read_current(line).pools[0].max_seqs == 4000


def test_trtllm_leaves_chunking_off_and_reuses_blocks() -> None:
    current = defaults("trtllm", "1.2.1", 80)
    one = current.pools[0]
    assert (one.token_budget, one.max_seqs, one.block_size, one.prefix_cache) == (8192, 2048, 32, True)
    assert current.memory_fraction == 0.9
    assert any("chunked prefill is off" in note for note in current.notes)


def test_tgi_and_mii() -> None:
    tgi = defaults("tgi", "3.3.7", 80).pools[0]
    assert (tgi.max_seqs, tgi.prefix_cache, tgi.batching) == (128, True, "chunked")
    mii = defaults("mii", "0.3.3", 80)
    one = mii.pools[0]
    assert (one.token_budget, one.max_seqs, mii.max_len, one.prefix_cache) == (768, 512, 8192, False)


def test_every_pool_value_is_either_read_or_assumed() -> None:
    settings = {"tp", "token_budget", "max_seqs", "block_size", "prefix_cache"}
    for stack in ("vllm", "sglang", "trtllm", "tgi", "mii"):
        assert settings <= {one.setting for one in defaults(stack).assumed}, stack


def test_an_unknown_stack_is_an_input_error() -> None:
    with pytest.raises(InputError, match="not known"):
        defaults("orca")  # type: ignore[arg-type]
