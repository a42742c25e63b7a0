"""A tiny GGUF file of a folder from `tiny_model`, with rows permuted as llama.cpp's converter does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute."""
    shape = weights.shape
    return weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def write_tiny_gguf(
    path: Path,
    folder: Path,
    *,
    tokenizer: Tokenizer,
    pre: str = "smollm",
    kind: str = "F32",
    special: dict[str, int] | None = None,
    **metadata: Any,
) -> Path:
    """Write `folder`'s model and `tokenizer` (byte-level BPE); matrices as `kind`. `special`: token -> type."""
    writer, config = tiny_writer(path, folder)
    bpe = json.loads(tokenizer.to_str())["model"]
    tokens = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([(special or {}).get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in bpe["merges"]])
    writer.add_eos_token_id(2)
    for key, value in metadata.items():
        getattr(writer, f"add_{key}")(value)
    for name, values in load_file(folder / "model.safetensors").items():
        _add(writer, name, values.astype(np.float32), config, kind)
    return written(writer, path)


def tiny_writer(path: Path, folder: Path) -> tuple[gguf.GGUFWriter, dict[str, Any]]:
    """A writer that has the sizes of `folder`'s config, and that config."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, config["model_type"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    return writer, config


def written(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Write everything and close; returns `path`."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, config: dict[str, Any], kind: str) -> None:
    if config["model_type"] == "llama" and "q_proj" in name:
        values = permute(values, config["num_attention_heads"])
    if config["model_type"] == "llama" and "k_proj" in name:
        values = permute(values, config["num_key_value_heads"])
    stem, _, suffix = name.rpartition(".")
    prefix = ""
    if stem.startswith("model.layers."):
        _, _, layer, stem = stem.split(".", 3)
        prefix = f"blk.{layer}."
    chosen = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else kind]
    writer.add_tensor(
        f"{prefix}{NAMES[stem]}.{suffix}",
        gguf.quantize(values, chosen),
        raw_dtype=None if chosen.name in ("F32", "F16") else chosen,
    )
