"""What runs now as a layout: every value read or assumed, and every change that the simulation makes said."""

from __future__ import annotations

import pytest
from helpers.workloads import workload

from advisor.advice.control import control_of, default_control
from advisor.advice.current import read_current
from advisor.advice.profiles import model_shape
from advisor.advice.search.hardware import Hardware, hardware_of
from advisor.advice.situation import draw
from advisor.advice.sizing import ModelCopy
from advisor.advice.steps import choose_step_times
from advisor.advice.target import Stack, Target
from engine.errors import InputError


def target(stack: Stack = "vllm", gpus: int = 8, model: str = "llama-3.1-8b") -> Target:
    return Target(stack=stack, stack_version="0.20.2" if stack == "vllm" else None, model=model, gpu="h100-sxm",
                  gpus=gpus)  # fmt: skip


def hardware(of: Target, longest: int = 8000) -> Hardware:
    shape = model_shape(of.model)
    return Hardware(
        on_cpu=False,
        step_times={tp: choose_step_times(of, shape, tp, {}).model for tp in (1, 2, 4, 8)},
        copies={tp: ModelCopy(of, shape, tp, of.dtype) for tp in (1, 2, 4, 8)},
        longest=longest,
        kv_bytes_per_token=shape.kv_bytes_per_token(),
        link_bytes_per_s=450e9,
    )


def test_a_launch_line_is_the_layout_that_is_simulated() -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B -tp 2 -dp 3 --max-num-seqs 100 --max-num-batched-tokens 4096"
    control = control_of(read_current(line), hardware(target()), 8)
    [pool] = control.layout.pools
    assert (pool.count, pool.tp, pool.max_seqs, pool.token_budget, pool.batching) == (
        3,
        2,
        100,
        4096,
        "chunked",
    )
    assert pool.kv_tokens == hardware(target()).kv_tokens(2, 4096)
    assert control.layout.gpus == 6
    assert control.known
    assert control.reasons["control.max_seqs"] == "read: 100 (--max-num-seqs)"
    assert control.reasons["control.prefix_cache"].startswith("assumed: True (vLLM")


def test_what_the_simulation_changes_is_said() -> None:
    line = "python -m sglang.launch_server --model-path m --tp-size 2 --pp-size 2 --page-size 1"
    control = control_of(read_current(line), hardware(target()), 8)
    [pool] = control.layout.pools
    assert (pool.tp, pool.pp, pool.devices_per_instance, pool.block_size) == (2, 2, 4, 16)
    told = " ".join(why for name, why in control.reasons.items() if ".notes." in name)
    assert "PP" not in told
    assert "blocks of 1 tokens are simulated as blocks of 16" in told


def test_a_flag_that_is_not_known_is_named_without_its_value() -> None:
    control = control_of(read_current("vllm serve m --max-num-sequences s3cret"), hardware(target()), 8)
    assert "max-num-seqs" in control.reasons["control.unknown.--max-num-sequences"]
    assert "s3cret" not in str(control.reasons)


@pytest.mark.parametrize(
    ("line", "model", "words"),
    [
        ("vllm serve m -tp 3", "llama-3.1-8b", "TP 3"),
        ("vllm serve m", "llama-3.1-70b", "does not fit"),
        ("vllm serve m -pp 33", "llama-3.1-8b", "does not fit"),
        (
            "python -m sglang.launch_server --model-path m --disaggregation-mode prefill",
            "llama-3.1-8b",
            "not whole",
        ),
    ],
)
def test_what_cannot_be_simulated_is_an_input_error(line: str, model: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        control_of(read_current(line), hardware(target(model=model)), 8)


@pytest.mark.parametrize(
    ("stack", "batching", "budget", "seqs"),
    # vLLM 0.20.2 and SGLang 0.5.23 on GPUs of 80 GB, TensorRT-LLM 1.2 (reference/exports.md sections 2 and 4)
    [
        ("vllm", "chunked", 8192, 1024),
        ("sglang", "prefill_first", 8192, 2048),
        ("trtllm", "chunked", 8192, 2048),
    ],
)
def test_without_a_word_a_stack_runs_its_own_defaults(
    stack: Stack, batching: str, budget: int, seqs: int
) -> None:
    control = default_control(target(stack), hardware(target(stack)), 8)
    assert control is not None
    [pool] = control.layout.pools
    assert (pool.batching, pool.token_budget, pool.max_seqs) == (batching, budget, seqs)
    assert (pool.count, pool.tp) == (8, 1)
    assert not control.known
    assert not any(why.startswith("read: 8192") for why in control.reasons.values())


def test_defaults_take_the_fewest_gpus_an_instance_that_hold_the_model() -> None:
    large = target(model="llama-3.1-70b")
    control = default_control(large, hardware(large, longest=20_000), 8)
    assert control is not None
    [pool] = control.layout.pools
    # Of two GPUs of 80 GB 0.9 are 144 GB: 141 GB of weights leave no 6.5 GB for 20,000 tokens of 320 KiB.
    assert (pool.count, pool.tp) == (2, 4)


def test_the_bundled_engine_needs_no_control_of_its_own() -> None:
    assert default_control(target("advise"), hardware(target("advise")), 8) is None


def test_fp8_halves_the_kv_that_a_split_has_to_move() -> None:
    """Llama-3.1-8B: 131,072 bytes a token in 16 bits (papers.md, section 3)."""
    moved = {}
    for kv_dtype in ("auto", "fp8"):
        wanted = target("vllm").model_copy(update={"model": "llama-3.1-8b", "kv_dtype": kv_dtype})
        situation = draw(workload(), wanted, {})
        moved[kv_dtype] = hardware_of(situation, {}).kv_bytes_per_token
    assert moved == {"auto": 131_072, "fp8": 65_536}
