"""The roofline: its terms by hand, its sums, and the errors that its profile states against measured steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advisor.advice import profiles
from advisor.advice.steps import gpu_device, gpu_roofline
from engine.shape import Experts, Latent, ModelShape, Window
from engine.step_time.model import StepShape
from engine.step_time.roofline import CPU_CONSTANTS, Constants, Device, RooflineStepTime, cpu_cores

TINY = ModelShape(layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, ffn=16, vocab=32, max_len=128)
IDEAL = Constants()
# A layer of TINY: q 8x8, k and v 8x4 each, o 8x8, three 8x16 matrices, two norms of 8; the vocabulary 8x32.
LAYERS, HEAD = 2 * (64 + 32 + 32 + 64 + 3 * 128 + 16), 256


def decode(rows: int, mean: int) -> StepShape:
    return StepShape((), rows, rows * mean)


def test_terms_add_up_by_hand() -> None:
    constants = Constants(
        compute=0.5, weights=0.25, kv=0.8, attention=0.4, cached_attention=0.2,
        layer_us=1000, step_us=5000, activations=3, mixed=1.5,
    )  # fmt: skip
    model = RooflineStepTime(TINY, Device(flops=1e6, bytes_per_s=1e6), constants)
    terms = model.terms(StepShape(((10, 20),), 2, 70))
    assert terms.compute == pytest.approx((2 * LAYERS * 12 + 2 * HEAD * 3) / 5e5)
    assert terms.weights == pytest.approx((LAYERS + HEAD) * 2 / 2.5e5)
    # Each query-key pair: 2 heads x 4 numbers, multiplied and added, for scores and for values, in 2 layers.
    pair = 2 * 2 * 8 * 2
    assert terms.attention == pytest.approx(1.5 * (pair * 55 / 4e5 + pair * 200 / 2e5))
    kv_token = 2 * 2 * 1 * 4 * 2
    assert terms.kv == pytest.approx(kv_token / 8e5 * (1.5 * 70 + 20))
    assert (terms.layers, terms.step) == pytest.approx((2e-3, 5e-3))
    assert terms.activations == pytest.approx(12 * 3 * 2 * 8 * 2 / 1e6)
    assert model.seconds(StepShape(((10, 20),), 2, 70)) == pytest.approx(sum(terms))
    assert model.seconds(decode(2, 35)) == pytest.approx(sum(model.terms(decode(2, 35))))


def test_tensor_parallelism_divides_work_and_adds_all_reduces() -> None:
    constants = Constants(link=0.5, all_reduce_us=8, pcie=0.25, pcie_all_reduce_us=30)
    device = Device(flops=1e6, bytes_per_s=1e6, link_bytes_per_s=1e5)
    shape = replace(TINY, kv_heads=2)
    step = StepShape(((16, 0),))
    one, two = (RooflineStepTime(shape, device, constants, tp).seconds(step) for tp in (1, 2))
    # 2 all-reduces a layer of 16 x 8 two-byte numbers; a ring of 2 moves them once, at half the link's rate.
    assert two == pytest.approx(one / 2 + 2 * 2 * (8e-6 + 16 * 8 * 2 / 5e4))
    over_pcie = RooflineStepTime(shape, replace(device, link_bytes_per_s=0.0), constants, 2).seconds(step)
    assert over_pcie == pytest.approx(one / 2 + 2 * 2 * (30e-6 + 16 * 8 * 2 / 8e9))


def test_kv_heads_that_are_fewer_than_devices_are_read_on_each() -> None:
    device = Device(flops=1e30, bytes_per_s=1e6, link_bytes_per_s=1e30)
    models = (RooflineStepTime(TINY, device, IDEAL, tp) for tp in (1, 2, 4))
    reads = [model.decode_line(1, 100)[1] for model in models]
    assert reads == pytest.approx([2 * 2 * 4 * 2 / 1e6] * 3)


def test_weights_in_8_bits_use_their_own_peak_and_leave_the_head_in_16() -> None:
    device = Device(flops=1e6, bytes_per_s=1e6, weight_flops=2e6)
    terms = RooflineStepTime(TINY, device, IDEAL, weight_bytes=1.0).terms(decode(3, 0))
    assert terms.compute == pytest.approx(3 * (2 * LAYERS / 2e6 + 2 * HEAD / 1e6))
    assert terms.weights == pytest.approx((LAYERS + 2 * HEAD) / 1e6)


@pytest.mark.parametrize(("tokens", "distinct"), [(1, 2), (2, 3.5), (3, 4.625), (1000, 8)])
def test_experts_read_are_those_expected_to_be_reached(tokens: int, distinct: float) -> None:
    """8 (1 - (3/4)^n) experts of 8 are reached by n tokens that take 2 each: 2, 3.5, 4.625."""
    shape = replace(TINY, experts=Experts(count=8, active=2, ffn=16))
    device = Device(flops=1e6, bytes_per_s=1e6)
    expert, router = 3 * 8 * 16, 8 * 8
    others = 2 * (192 + 16 + router) + HEAD
    terms = RooflineStepTime(shape, device, IDEAL).terms(decode(tokens, 0))
    assert terms.weights == pytest.approx((others + 2 * distinct * expert) * 2 / 1e6)
    assert terms.compute == pytest.approx(tokens * (2 * 2 * (192 + 16 + router + 2 * expert) + 2 * HEAD) / 1e6)


def test_a_window_bounds_what_decodes_read_and_prefills_attend_to() -> None:
    shape = replace(TINY, window=Window(size=16, layers=1))
    model = RooflineStepTime(shape, Device(flops=1e6, bytes_per_s=1e6), IDEAL)
    token = 2 * 1 * 4 * 2 / 1e6  # one layer
    reads = [model.terms(decode(2, mean)).kv for mean in (10, 16, 40)]
    assert reads == pytest.approx([2 * 20 * token, 2 * 32 * token, (80 + 32) * token])
    # 30 new tokens behind 10: in the windowed layer 6 queries see 11 to 16 keys, the other 24 see 16.
    pair = 2 * 8 * 2 / 1e6
    full, windowed = 30 * 31 / 2 + 30 * 10, sum(range(11, 17)) + 24 * 16
    assert model.terms(StepShape(((30, 10),))).attention == pytest.approx(pair * (full + windowed))
    assert model.bend == 16


def test_latent_kv_is_read_whole_on_every_device() -> None:
    shape = replace(TINY, head_dim=6, latent=Latent(kv_rank=10, q_rank=None, nope=4, rope=2, value=4))
    device = Device(flops=1e30, bytes_per_s=1e6, link_bytes_per_s=1e30)
    for tp in (1, 2):
        growth = RooflineStepTime(shape, device, IDEAL, tp).decode_line(1, 50)[1]
        assert growth == pytest.approx(2 * 12 * 2 / 1e6)


def test_an_empty_step_takes_no_time() -> None:
    assert RooflineStepTime(TINY, cpu_cores(2), CPU_CONSTANTS).seconds(StepShape()) == 0


def test_two_cores_are_in_the_range_seen_on_server_cores() -> None:
    # Issue 2, "Facts that save time": 13 to 25 ms a decode step, 350 to 500 prompt tokens/s a core in bf16.
    model = RooflineStepTime(profiles.model("smollm2-135m-instruct").shape, cpu_cores(2), CPU_CONSTANTS)
    assert 0.013 < model.seconds(decode(1, 200)) < 0.025
    rate_per_core = 512 / model.seconds(StepShape(prefill=((512, 0),))) / 2
    assert 300 < rate_per_core < 500


def test_a_bridge_reaches_two_gpus_and_pcie_the_rest() -> None:
    assert gpu_device("h100-nvl", 2).link_bytes_per_s == 300e9
    assert gpu_device("h100-nvl", 4).link_bytes_per_s == 0
    assert gpu_device("h100-sxm", 8).link_bytes_per_s == 450e9


def test_the_stated_error_is_that_of_engine_and_device() -> None:
    shape = profiles.model("llama-3.1-70b").shape
    errors = {
        (stack, gpu): gpu_roofline(shape, gpu, stack, tp=8).error_p90
        for stack in ("vllm", "advise")
        for gpu in ("h100-sxm", "b200-sxm", "l40s", "h100-nvl")
    }
    assert errors["vllm", "b200-sxm"] < errors["vllm", "h100-sxm"] < errors["vllm", "l40s"]
    assert errors["vllm", "h100-nvl"] == errors["vllm", "l40s"]  # a bridge does not reach eight
    assert errors["advise", "h100-sxm"] > errors["vllm", "h100-sxm"]
    experts = gpu_roofline(profiles.model("gpt-oss-120b").shape, "h100-sxm", "vllm")
    assert experts.error_p90 > errors["vllm", "h100-sxm"]


def test_versions_of_an_engine_have_their_own_constants() -> None:
    assert profiles.roofline("trtllm", "0.9.0").id == "trtllm-0"
    assert {profiles.roofline("trtllm", version).id for version in (None, "", "1.2.0rc6")} == {"trtllm"}


@pytest.mark.parametrize("tp", [1, 4])
def test_the_seconds_of_a_step_are_the_sum_of_its_terms(tp: int) -> None:
    model = gpu_roofline(profiles.model_shape("llama-3.1-8b"), "h100-sxm", "vllm", tp=tp)
    for prefill in (((512, 0),), ((100, 4000), (33, 7))):
        for rows, context in ((0, 0), (1, 5), (64, 200_000)):
            shape = StepShape(prefill, rows, context)
            assert model.seconds(shape) == pytest.approx(sum(model.terms(shape)), rel=1e-12)
