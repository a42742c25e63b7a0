"""Parameters of every family, counted by transformers on models without memory (meta device)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from engine.shape import ModelShape

SIZES = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256}
LLAMA = SIZES | {"intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 128}
GPT = {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 256, "n_positions": 128}
MLA = LLAMA | {
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
    "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "num_key_value_heads": 4,
}  # fmt: skip
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA | {"head_dim": 32},
    "phi3": LLAMA | {"pad_token_id": 0},
    "gemma2": LLAMA | {"head_dim": 32},
    "gemma3_text": LLAMA | {"head_dim": 32, "tie_word_embeddings": True},
    "opt": SIZES | {"ffn_dim": 96, "max_position_embeddings": 128, "word_embed_proj_dim": 64},
    "gpt2": GPT,
    "gptj": GPT | {"rotary_dim": 8},
    "gpt_neox": SIZES | {"intermediate_size": 96, "max_position_embeddings": 128},
    "phi": SIZES | {"intermediate_size": 96, "max_position_embeddings": 128},
    "bloom": {"n_layer": 4, "hidden_size": 64, "n_head": 4, "vocab_size": 256, "seq_length": 128},
    "falcon": SIZES | {"multi_query": True, "parallel_attn": True, "bias": False},
    "falcon 40b": SIZES | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": False},
    "starcoder2": LLAMA,
    "mixtral": LLAMA | LOCAL,
    "qwen2_moe": LLAMA | MOE | {"shared_expert_intermediate_size": 80},
    "qwen3_moe": LLAMA | MOE | {"mlp_only_layers": [1], "head_dim": 32},
    "gpt_oss": LLAMA | LOCAL | {"head_dim": 32},
    "deepseek_v2": MLA | {"topk_method": "greedy"},
    "deepseek_v3": MLA,
    "llama4_text": LLAMA
    | LOCAL
    | {"intermediate_size_mlp": 112, "interleave_moe_layer_step": 2, "head_dim": 16, "pad_token_id": 0},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_that_transformers_makes(family: str) -> None:
    config = transformers.AutoConfig.for_model(family.split()[0], **FAMILIES[family])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    counted = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
    assert ModelShape.from_config(config.to_dict()).parameters == counted
