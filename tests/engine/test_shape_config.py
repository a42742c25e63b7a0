"""What a config.json says beyond plain sizes: windows, experts, number formats, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import InputError
from engine.shape import Experts, ModelShape, Window

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 12, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 256,
}  # fmt: skip
LLAMA4 = {"model_type": "llama4_text", "attention_chunk_size": 8192}


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        # As the models' own config.json state it; layers of the last two by the families' defaults.
        ({"model_type": "mistral", "sliding_window": 4096}, Window(4096, 12)),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, None),
        ({"model_type": "qwen3", "sliding_window": 4096}, None),
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 6}, Window(128, 6)),
        (LLAMA4 | {"no_rope_layers": [1, 1, 1, 0] * 3}, Window(8192, 9)),
        ({"model_type": "gemma3_text", "sliding_window": 512}, Window(512, 10)),
        ({"model_type": "gemma2", "sliding_window": 4096}, Window(4096, 6)),
    ],
)
def test_windows(changes: dict[str, Any], window: Window | None) -> None:
    assert ModelShape.from_config(LLAMA | changes).window == window


@pytest.mark.parametrize(
    ("quantisation", "expected"),
    [
        (None, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1.0),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.5 + 2 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1.0),
        ({"quant_method": "mxfp4"}, 0.5 + 1 / 32),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5 + 1 / 16),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1.0),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "group_size": None}}},
            },
            1.0,
        ),
    ],
)
def test_bytes_of_quantised_weights(quantisation: dict[str, Any] | None, expected: float | None) -> None:
    config = LLAMA | ({"quantization_config": quantisation} if quantisation else {})
    assert ModelShape.from_config(config).quantised_bytes == expected


def test_the_text_half_of_a_model_that_sees() -> None:
    config = {"model_type": "llava", "vision_config": {"hidden_size": 9}, "text_config": LLAMA}
    assert ModelShape.from_config(config) == ModelShape.from_config(LLAMA)


def test_experts_in_every_second_layer() -> None:
    # Llama 4 Maverick's config.json: 128 experts of 8192 in every second layer, dense ones of 16384 between.
    config = LLAMA | {
        "model_type": "llama4_text", "num_local_experts": 128, "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    }  # fmt: skip
    shape = ModelShape.from_config(config)
    assert shape.experts == Experts(128, 1, 8192, shared_ffn=8192, dense_layers=6)
    assert shape.ffn == 16384


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "mamba2", "state_size": 128}, "state-space"),
        ({"model_type": "jamba", "attn_layer_period": 8}, "state-space"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"}, "state-space"),
        ({"model_type": "qwen3_next", "linear_num_key_heads": 16}, "linear attention"),
        (
            {"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]},
            "linear_attention",
        ),
        ({"model_type": "kimi_linear", "linear_attn_config": {"a": 1}}, "linear attention"),
        ({"model_type": "deepseek_v32", "index_topk": 2048}, "chosen tokens"),
        ({"model_type": "rwkv", "attention_hidden_size": 64}, "RWKV"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder"),
        ({"model_type": "siglip_vision_model", "image_size": 224}, "images"),
    ],
)
def test_what_sizes_cannot_describe_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(
        InputError, match=f"architecture {changes['model_type']} cannot be planned for"
    ) as caught:
        ModelShape.from_config(LLAMA | changes)
    assert reason in str(caught.value.why)
