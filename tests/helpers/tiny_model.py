"""A tiny random model in a Hugging-Face-style folder: weights from a seed, small enough for float64."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "num_hidden_layers": 2,
    "hidden_size": 72,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 256,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 2,
}
QWEN2 = LLAMA | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 96,
    "tie_word_embeddings": True,
}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
MISTRAL = LLAMA | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "sliding_window": 40,
}
OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "num_hidden_layers": 2,
    "hidden_size": 96,
    "word_embed_proj_dim": 96,
    "num_attention_heads": 6,
    "ffn_dim": 128,
    "vocab_size": 256,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
FAMILIES = {
    "llama": LLAMA,
    "llama, biases": LLAMA | {"attention_bias": True, "mlp_bias": True},
    "llama, tied": LLAMA | {"tie_word_embeddings": True},
    "llama, linear rope": LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama 3": LLAMA
    | {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
    "qwen2, yarn": QWEN2
    | {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    "qwen3, yarn by its numbers": QWEN3
    | {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 1.5,
        }
    },
    "mistral": MISTRAL,
    "mistral, no window": MISTRAL | {"sliding_window": None},
    "qwen2": QWEN2,
    "qwen2, windows behind": QWEN2 | {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    "qwen2, window unused": QWEN2 | {"use_sliding_window": False, "sliding_window": 24},
    "qwen3": QWEN3,
    "qwen3, windows by layer": QWEN3
    | {
        "use_sliding_window": True,
        "sliding_window": 33,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "qwen3, biases": QWEN3 | {"attention_bias": True},
    "opt": OPT,
}
"""Every supported architecture and switch, by what it is called in test names."""


def write_tiny_model(folder: Path, config: dict[str, object] = LLAMA, seed: int = 0) -> Path:
    """Write config.json and float64 safetensors; the weights are large enough that logits are far apart."""
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5
        + (1.0 if name.endswith("norm.weight") else 0.0)
        for name, shape in _shapes(config).items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def _shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    if config["model_type"] == "opt":
        return _opt_shapes(config)

    def size(key: str) -> int:
        return int(str(config[key]))

    hidden, ffn, dim = size("hidden_size"), size("intermediate_size"), size("head_dim")
    q, kv = size("num_attention_heads") * dim, size("num_key_value_heads") * dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (size("vocab_size"), hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (size("vocab_size"), hidden)
    for number in range(size("num_hidden_layers")):
        layer = f"model.layers.{number}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_proj.weight": (q, hidden),
            f"{layer}.self_attn.k_proj.weight": (kv, hidden),
            f"{layer}.self_attn.v_proj.weight": (kv, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, q),
            f"{layer}.mlp.gate_proj.weight": (ffn, hidden),
            f"{layer}.mlp.up_proj.weight": (ffn, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, ffn),
        }
        biases: dict[str, int] = {}
        if config["model_type"] == "qwen2" or config.get("attention_bias"):
            biases |= {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv}
        if config["model_type"] != "qwen2" and config.get("attention_bias"):
            biases["self_attn.o_proj"] = hidden
        if config.get("mlp_bias"):
            biases |= {"mlp.gate_proj": ffn, "mlp.up_proj": ffn, "mlp.down_proj": hidden}
        shapes |= {f"{layer}.{part}.bias": (rows,) for part, rows in biases.items()}
        if config["model_type"] == "qwen3":
            shapes |= {f"{layer}.self_attn.{part}_norm.weight": (dim,) for part in "qk"}
    return shapes


def _opt_shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    def size(key: str) -> int:
        return int(str(config[key]))

    hidden, ffn, decoder = size("hidden_size"), size("ffn_dim"), "model.decoder"
    matrices = {"fc1": (ffn, hidden), "fc2": (hidden, ffn)}
    matrices |= {f"self_attn.{part}_proj": (hidden, hidden) for part in ("q", "k", "v", "out")}
    shapes: dict[str, tuple[int, ...]] = {
        f"{decoder}.embed_tokens.weight": (size("vocab_size"), hidden),
        f"{decoder}.embed_positions.weight": (size("max_position_embeddings") + 2, hidden),
    }
    norms = [f"{decoder}.final_layer_norm"]
    for number in range(size("num_hidden_layers")):
        layer = f"{decoder}.layers.{number}"
        for name, (rows, columns) in matrices.items():
            shapes |= {f"{layer}.{name}.weight": (rows, columns), f"{layer}.{name}.bias": (rows,)}
        norms += [f"{layer}.self_attn_layer_norm", f"{layer}.final_layer_norm"]
    for norm in norms:
        shapes |= {f"{norm}.weight": (hidden,), f"{norm}.bias": (hidden,)}
    return shapes
