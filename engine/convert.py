"""GGUF to a Hugging-Face-style folder: tokenizer, config and bf16 weights, with numpy and no torch.

Owns the names of GGUF's tensors and sizes. A folder fills up in two parts that can be asked for apart,
`write_tokenizer` (all that analysis needs) and `write_weights`; every file appears in one rename, so that two
processes may convert at once. `config.json` is written last of its part and marks it complete. It never
downloads and never prints.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from engine.gguf_file import GgufFile, GgufTensor
from engine.gguf_tokenizer import special_ids, tokenizer_of
from engine.progress import Progress, Tenths

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_TOP_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROTARY_FACTORS = "rope_freqs.weight"
# Llama 3.1's and 3.2's own; GGUF keeps the factors that come of them, not these numbers.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_PERMUTED = ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")


class Gguf(GgufFile):
    """An open GGUF file of an architecture that is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.architecture = self.text("general.architecture")
        if self.architecture not in _CLASSES:
            raise self.unusable(f"architecture {self.architecture[:80]!r} is not one of {', '.join(_CLASSES)}")
        parts = self.whole("split.count", 1, least=0)
        if parts > 1:
            raise self.unusable(f"it is one of {parts} parts of a model; gguf-split --merge joins them")

    def size(self, key: str, default: int | None = None) -> int:
        """A count of the architecture, such as `block_count`."""
        return self.whole(f"{self.architecture}.{key}", default)

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        heads = self.size("attention.head_count")
        return self.size("attention.key_length", max(1, self.size("embedding_length") // heads))


def write_tokenizer(source: Gguf, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and config.json (last) into `folder`."""
    tokenizer = tokenizer_of(source)
    names, ids = source.texts("tokenizer.ggml.tokens"), special_ids(source)
    config = _config(source, len(names))
    template = source.text("tokenizer.chat_template", "") or None
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": names[number] for role, number in ids.items()},
        "chat_template": template,
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    config |= {"bos_token_id": ids.get("bos"), "eos_token_id": ids.get("eos")}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("tokenizer.json", tokenizer.to_str()),
        ("tokenizer_config.json", json.dumps(tokenizer_config, ensure_ascii=False, indent=2)),
        ("config.json", json.dumps(config, indent=2)),
    ):
        with _appearing(folder / name) as file:
            file.write(text.encode())


def write_weights(source: Gguf, folder: Path, progress: Progress | None = None) -> None:
    """Write model.safetensors (bf16, Hugging Face names, rows of q and k in half-rotation order) into `folder`.

    Streams tensor by tensor, so that it needs memory for one; safetensors' own writer wants them all at once.
    """
    tensors = {
        _hugging_face_name(source, name): tensor
        for name, tensor in source.tensors.items()
        if name != _ROTARY_FACTORS
    }
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + 2 * tensor.elements
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    tenths = Tenths("converting", end, progress)
    with _appearing(folder / "model.safetensors") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, tensor in tensors.items():
            values = source.floats(tensor)
            if source.architecture == "llama" and name.endswith(_PERMUTED):
                values = _half_rotation_rows(values, tensor, source)
            file.write(_bfloat16(values).tobytes())
            tenths.add(2 * tensor.elements)


def _config(source: Gguf, vocabulary: int) -> dict[str, Any]:
    """config.json in transformers' terms."""
    prefix, heads = source.architecture, source.size("attention.head_count")
    embeddings = source.tensors.get("token_embd.weight")
    theta = float(source.number(f"{prefix}.rope.freq_base", 10000.0, least=1, most=1e12))
    epsilon = source.number(f"{prefix}.attention.layer_norm_rms_epsilon", most=1)
    config = {
        "architectures": [_CLASSES[prefix]],
        "model_type": prefix,
        "hidden_act": "silu",
        "num_hidden_layers": source.size("block_count"),
        "hidden_size": source.size("embedding_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": source.size("attention.head_count_kv", heads),
        "head_dim": source.head_dim,
        "intermediate_size": source.size("feed_forward_length"),
        # Some models have more embeddings than their tokenizer has tokens.
        "vocab_size": max(vocabulary, embeddings.shape[0] if embeddings else 0),
        "max_position_embeddings": source.size("context_length"),
        "rope_theta": theta,
        # The file holds a float32; its shortest decimal is the number that was meant.
        "rms_norm_eps": float(str(np.float32(epsilon))),
        "tie_word_embeddings": "output.weight" not in source.tensors,
        "attention_bias": "blk.0.attn_q.bias" in source.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in source.tensors,
        "torch_dtype": "bfloat16",
    }
    scaling = _rope_scaling(source, theta)
    if scaling is not None:
        config["rope_scaling"] = scaling
    window = source.whole(f"{prefix}.attention.sliding_window", 0, least=0)
    if prefix == "llama" and window:
        config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    return config


def _rope_scaling(source: Gguf, theta: float) -> dict[str, Any] | None:
    kind = source.text(f"{source.architecture}.rope.scaling.type", "none")
    factors = source.tensors.get(_ROTARY_FACTORS)
    if kind == "linear" and factors is None:
        factor = source.number(f"{source.architecture}.rope.scaling.factor", least=1e-6, most=1e6)
        return {"rope_type": "linear", "factor": float(factor)}
    if kind != "none":
        raise source.unusable(f"rotary scaling {kind[:40]!r} is read from safetensors folders only")
    return None if factors is None else _llama3_scaling(source, factors, theta)


def _llama3_scaling(source: Gguf, tensor: GgufTensor, theta: float) -> dict[str, Any]:
    """Llama 3's settings, if they give the file's factors: by how much each pair's frequency is divided."""
    found = source.floats(tensor).ravel()
    factor = float(found.max())
    pairs = np.arange(0, source.head_dim, 2) / source.head_dim
    turns = _LLAMA3["original_max_position_embeddings"] * theta**-pairs / (2 * math.pi)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    blend = ((turns - low) / (high - low)).clip(0, 1)
    if factor <= 0 or found.shape != pairs.shape:
        raise source.unusable(f"{_ROTARY_FACTORS} does not fit its heads")
    if not np.allclose(found, 1 / ((1 - blend) / factor + blend), rtol=1e-4, atol=0):
        raise source.unusable("its rotary scaling is not Llama 3's; it is read from safetensors folders only")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _hugging_face_name(source: Gguf, name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_TENSORS:
        return f"{_TOP_TENSORS[stem]}.{kind}"
    prefix, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if prefix != "blk" or part not in _LAYER_TENSORS:
        raise source.unusable(f"it holds a tensor that this engine has no place for, {name[:80]}")
    return f"model.layers.{layer}.{_LAYER_TENSORS[part]}.{kind}"


def _half_rotation_rows(
    values: npt.NDArray[np.float32], tensor: GgufTensor, source: Gguf
) -> npt.NDArray[np.float32]:
    """Undo GGUF's row order for interleaved rotary: rows (pair, half) of each head back to (half, pair)."""
    rows, head_dim = tensor.shape[0], source.head_dim
    if rows % head_dim or head_dim % 2:
        raise source.unusable(f"{tensor.name[:80]} has {rows} rows for heads of {head_dim}")
    paired = values.reshape(rows // head_dim, head_dim // 2, 2, -1)
    return paired.swapaxes(1, 2).reshape(tensor.shape)


def _bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to the nearest bfloat16, ties to even; weights are finite."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)


@contextmanager
def _appearing(path: Path) -> Iterator[IO[bytes]]:
    """A file that shows up at `path` complete, or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
