"""A tiny random Llama or Qwen in a Hugging-Face-style folder: weights from a seed, small enough for float64."""

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


def write_tiny_model(folder: Path, config: dict[str, object] = LLAMA, seed: int = 0) -> Path:
    """Write config.json and float64 safetensors; the weights are large enough that logits are far apart."""
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5
        + (1.0 if "norm" in name else 0.0)
        for name, shape in _shapes(config).items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def _shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
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
        if config["model_type"] == "qwen2":
            biases = {"q": q, "k": kv, "v": kv}
            shapes |= {f"{layer}.self_attn.{part}_proj.bias": (rows,) for part, rows in biases.items()}
        if config["model_type"] == "qwen3":
            shapes |= {f"{layer}.self_attn.{part}_norm.weight": (dim,) for part in "qk"}
    return shapes
