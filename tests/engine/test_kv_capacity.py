"""Sizes of models and of what memory is left for KV, against published figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import InputError, MachineError
from engine.kv.capacity import activation_bytes, cpu_kv_bytes, fullest_stage, gpu_kv_bytes, kv_blocks
from engine.shape import Experts, Latent, ModelShape

# Sizes from the models' config.json on the Hugging Face hub.
SMOLLM2_135M = ModelShape(30, 576, 9, 3, 64, 1536, 49152, 8192, tied_embeddings=True)
LLAMA3_8B = ModelShape(32, 4096, 32, 8, 128, 14336, 128256, 8192)
LLAMA3_70B = ModelShape(80, 8192, 64, 8, 128, 28672, 128256, 8192)
QWEN25_7B = ModelShape(28, 3584, 28, 4, 128, 18944, 152064, 32768, qkv_bias=True)
QWEN25_05B = ModelShape(24, 896, 14, 2, 64, 4864, 151936, 32768, tied_embeddings=True, qkv_bias=True)
QWEN3_06B = ModelShape(28, 1024, 16, 8, 128, 3072, 151936, 40960, tied_embeddings=True, qk_norm=True)
OPT_13B = ModelShape(40, 5120, 40, 40, 128, 20480, 50272, 2048, tied_embeddings=True, gated_mlp=False)
OPT_66B = ModelShape(64, 9216, 72, 72, 128, 36864, 50272, 2048, tied_embeddings=True, gated_mlp=False)
DEEPSEEK_V3 = ModelShape(
    61, 7168, 128, 128, 192, 18432, 129280, 163840,
    experts=Experts(256, 8, 2048, shared_ffn=2048, dense_layers=3),
    latent=Latent(kv_rank=512, q_rank=1536, nope=128, rope=64, value=128),
)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "published"),
    [
        (OPT_66B, 2_359_296),  # DistServe, section 3.3: x 512 = 1,207,959,552 B, its 1.13 GB
        (LLAMA3_70B, 327_680),  # DistServe, OSDI'24
        (QWEN25_7B, 57_344),  # DistServe, OSDI'24
        (QWEN25_05B, 12_288),  # 2 * layers * kv_heads * head_dim * 2 from its config.json
        (LLAMA3_8B, 131_072),  # 2 * layers * kv_heads * head_dim * 2 from its config.json
    ],
)
def test_kv_bytes_per_token_at_16_bits(shape: ModelShape, published: int) -> None:
    assert shape.kv_bytes_per_token() == published


@pytest.mark.parametrize(
    ("shape", "published"),
    [
        # Parameter counts of the safetensors on the models' hub pages.
        (SMOLLM2_135M, 134_515_008),
        (LLAMA3_8B, 8_030_261_248),
        (LLAMA3_70B, 70_553_706_496),
        (QWEN25_7B, 7_615_616_512),
        (QWEN25_05B, 494_032_768),
        (QWEN3_06B, 596_049_920),
    ],
)
def test_parameters(shape: ModelShape, published: int) -> None:
    assert shape.parameters == published


def test_shape_from_config_json() -> None:
    config = {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 28,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": 1_000_000},
    }
    shape = ModelShape.from_config(config)
    assert (shape.parameters, shape.rope_theta, shape.qk_norm) == (596_049_920, 1e6, True)
    with pytest.raises(InputError, match="hidden_size"):
        ModelShape.from_config({})


def test_gpu_memory_is_what_the_formula_leaves() -> None:
    """By hand: 80 GB x 0.9 - 16,060,522,496 weights - activations, and half of the weights at TP 2."""
    options = {"memory_bytes": 80_000_000_000, "token_budget": 512, "max_seqs": 64}
    activations = activation_bytes(LLAMA3_8B, token_budget=512, max_seqs=64)
    # 512 tokens x 2 bytes x (3 x 4096 + 3 x 14336) + 64 rows x 128256 x 4 bytes
    assert activations == 512 * 2 * 55_296 + 64 * 128_256 * 4
    assert gpu_kv_bytes(LLAMA3_8B, **options) == 72_000_000_000 - 16_060_522_496 - activations
    halved = activation_bytes(LLAMA3_8B, token_budget=512, max_seqs=64, tp=2)
    assert gpu_kv_bytes(LLAMA3_8B, **options, tp=2) == 72_000_000_000 - 8_030_261_248 - halved


def test_a_cpu_gives_a_quarter_of_its_memory_by_device() -> None:
    assert cpu_kv_bytes(host_bytes=16_000, host_devices=2) == 2000
    assert cpu_kv_bytes(host_bytes=16_000, host_devices=2, instance_devices=2) == 4000


def test_blocks_split_by_tp_down_to_one_kv_head() -> None:
    """131,072 bytes a token at TP 1, 16,384 at TP 8 and above: Llama 3 8B has 8 KV heads."""
    gib = 2**30
    assert [kv_blocks(LLAMA3_8B, gib, block_size=16, tp=tp) for tp in (1, 2, 8, 16)] == [512, 1024, 4096, 4096]


def test_latent_kv_is_on_every_device() -> None:
    # DeepSeek-V2, section 2.1.2: (512 + 64) numbers a token and layer, for all heads together.
    assert DEEPSEEK_V3.kv_bytes_per_token() == 61 * 576 * 2
    one, eight = (kv_blocks(DEEPSEEK_V3, 2**30, block_size=64, tp=tp) for tp in (1, 8))
    assert one == eight == 2**30 // (61 * 576 * 2 * 64)


def test_quantised_weights_leave_embeddings_and_activations_in_16_bits() -> None:
    layers, embeddings = 8_030_261_248 - 2 * 128_256 * 4096, 2 * 128_256 * 4096
    assert LLAMA3_8B.weight_bytes(1.0) == layers + 2 * embeddings
    options = {"memory_bytes": 80_000_000_000, "token_budget": 512, "max_seqs": 64}
    activations = activation_bytes(LLAMA3_8B, token_budget=512, max_seqs=64)
    left = gpu_kv_bytes(LLAMA3_8B, **options, weight_element_bytes=1.0)
    assert left == 72_000_000_000 - layers - 2 * embeddings - activations


def test_experts_need_activations_for_those_that_a_token_passes() -> None:
    # 8 experts of 2048 and a shared one of 2048 are as wide as the dense layers' 18432: 3 x 18432 a token.
    assert (
        activation_bytes(DEEPSEEK_V3, token_budget=100, max_seqs=1)
        == 100 * 2 * (3 * 7168 + max(4 * 128 * 192, 3 * 18432)) + 4 * 129_280
    )


# KV tokens by (TP, PP) on A100s of 80 GB, DistServe's repository (simdistserve, max_num_tokens.csv).
KV_13B = {(1, 2): 163_008, (1, 4): 356_752, (2, 1): 163_008, (2, 2): 356_752, (1, 8): 744_224}
KV_66B = {(1, 4): 78_512, (2, 2): 78_512, (4, 1): 78_496, (2, 4): 212_320, (4, 4): 479_936}


@pytest.mark.parametrize(
    ("shape", "tp", "pp", "published"),
    [(OPT_13B, *size, tokens) for size, tokens in KV_13B.items()]
    + [(OPT_66B, *size, tokens) for size, tokens in KV_66B.items()],
)
def test_stages_divide_weights_and_kv_as_a_peer_published(
    shape: ModelShape, tp: int, pp: int, published: int
) -> None:
    """Memory less activations is that of its 66,144 tokens for OPT-13B on one GPU, 819,200 B each."""
    memory = OPT_13B.weight_bytes() + 66_144 * 819_200
    left = gpu_kv_bytes(shape, memory_bytes=memory, fraction=1, token_budget=1, max_seqs=1, tp=tp, pp=pp)
    tokens = 16 * kv_blocks(shape, left, block_size=16, tp=tp, pp=pp)
    assert tokens == pytest.approx(published, rel=0.02)


def test_a_stage_holds_half_of_the_layers_and_one_matrix_of_the_vocabulary() -> None:
    """Llama-3-70B, TP 4 x PP 2: 40 of 80 layers, of which a GPU has a quarter: 10 x 4,096 B of KV a token."""
    options = {"memory_bytes": 80_000_000_000, "token_budget": 512, "max_seqs": 64, "tp": 4}
    activations = activation_bytes(LLAMA3_70B, token_budget=512, max_seqs=64, tp=4)
    matrix, norm = 128_256 * 8192, 8192
    stage = (70_553_706_496 - 2 * matrix - norm) // 2 + matrix + norm
    left = gpu_kv_bytes(LLAMA3_70B, **options, pp=2)
    assert left == 72_000_000_000 - 2 * stage // 4 - activations
    assert kv_blocks(LLAMA3_70B, left, block_size=16, tp=4, pp=2) == left // (40_960 * 16)


def test_of_stages_that_differ_the_fullest_limits() -> None:
    """DeepSeek-V3: 61 layers, of which 3 have no experts: any stage may have none of those."""
    dense = replace(DEEPSEEK_V3, layers=3)
    expert_layer = (DEEPSEEK_V3.layer_parameters() - dense.layer_parameters()) // 58
    for pp, layers in ((2, 31), (3, 21), (4, 16), (61, 1)):
        stage = fullest_stage(DEEPSEEK_V3, pp)
        assert (stage.layers, stage.layer_parameters()) == (layers, layers * expert_layer)
    assert fullest_stage(DEEPSEEK_V3, 1) is DEEPSEEK_V3
    with pytest.raises(MachineError, match="61 layers"):
        fullest_stage(DEEPSEEK_V3, 62)


def test_no_room_is_said() -> None:
    with pytest.raises(MachineError, match="no memory"):
        kv_blocks(LLAMA3_8B, -5, block_size=16)
