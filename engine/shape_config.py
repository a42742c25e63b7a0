"""Reads a Hugging Face `config.json` into a ModelShape.

Owns the names that families give to their sizes, and what each leaves out of its file. Refuses what a
ModelShape cannot describe (state spaces, linear or sparse attention, encoders) rather than guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import InputError
from engine.shape import Experts, Latent, ModelShape, Window

Json = Mapping[str, Any]

_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "ffn": ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner"),
    "vocab": ("vocab_size",),
    "max_len": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"),
}
_PLAIN_MLP = frozenset(
    ("opt", "gpt2", "gptj", "gpt_neo", "gpt_neox", "gpt_bigcode", "bloom", "falcon", "mpt", "phi", "starcoder2")
)
# Layer norms with a bias, and biases of attention's output and the MLP, where the file has no key for them.
_BIASED = frozenset(("opt", "gpt2", "gpt_neo", "gpt_neox", "gpt_bigcode", "bloom", "phi", "starcoder2"))
_LAYER_NORM = _BIASED | {"gptj", "falcon", "mpt", "stablelm"}
_QKV_BIAS = frozenset(("qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text"))
_QK_NORM = frozenset(("qwen3", "qwen3_moe", "gemma3", "gemma3_text", "qwen3_vl_text", "qwen3_vl_moe_text"))
_ONE_NORM = frozenset(("phi", "gptj", "cohere", "cohere2"))  # attention and MLP side by side behind one norm
_FOUR_NORMS = frozenset(("gemma2", "gemma3", "gemma3_text"))
_TIED = frozenset(("opt", "gpt2", "gpt_neo", "gpt_bigcode", "bloom", "falcon", "mpt", "gemma", "gemma2",
                   "gemma3", "gemma3_text", "cohere", "cohere2", "starcoder2"))  # fmt: skip
# Keys of attention that is not attention over all tokens or a window of them, and what to call it.
_REFUSED = {
    "ssm_cfg": "state-space layers", "state_size": "state-space layers", "ssm_state_size": "state-space layers",
    "mamba_d_state": "state-space layers", "mamba_n_heads": "state-space layers",
    "hybrid_override_pattern": "state-space layers", "hybrid_layer_ids": "state-space layers",
    "attn_layer_period": "state-space layers", "layers_block_type": "state-space layers",
    "attention_hidden_size": "no attention (RWKV)", "block_types": "recurrent layers",
    "attn_type_list": "linear attention", "linear_attn_config": "linear attention",
    "linear_num_key_heads": "linear attention", "linear_key_head_dim": "linear attention",
    "full_attn_idxs": "convolution layers", "conv_L_cache": "convolution layers",
    "index_topk": "attention to chosen tokens only",
}  # fmt: skip
_LAYER_TYPES = frozenset(("full_attention", "sliding_attention", "chunked_attention"))


def shape_of_config(config: Json) -> ModelShape:
    """The sizes in the dictionary of a `config.json`; of a model with vision, those of its text half.

    Raises InputError where a size is missing or none, or the architecture is none that a ModelShape describes.
    """
    try:
        return _shape(config)
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        # The file is foreign: any of its values may be of another kind than its key says.
        raise InputError(
            "config.json makes no sense",
            why=f"{type(error).__name__}: {error}"[:200],
            hint="copy config.json again from where the model is from",
        ) from None


def _shape(config: Json) -> ModelShape:
    text = _text_half(config)
    _refuse(text)
    family = str(text.get("model_type", ""))
    sizes = {name: _size(text, name) for name in ("hidden", "layers", "heads", "vocab", "max_len")}
    latent = _latent(text)
    heads, hidden, layers = sizes["heads"], sizes["hidden"], sizes["layers"]
    biased = bool(text.get("bias", text.get("use_bias", family in _BIASED)))
    rope: Json = text.get("rope_parameters") or {}  # transformers 5 keeps rotary settings here
    rope = rope.get("full_attention") or rope
    return ModelShape(
        **sizes,
        kv_heads=_kv_heads(text, family, heads),
        head_dim=latent.nope + latent.rope if latent else int(text.get("head_dim") or hidden // heads),
        ffn=_ffn(text, family, hidden),
        rope_theta=float(text.get("rope_theta") or rope.get("rope_theta") or 10_000.0),
        norm_eps=float(text.get("rms_norm_eps", 1e-6)),
        tied_embeddings=bool(
            text.get("tie_word_embeddings", config.get("tie_word_embeddings", family in _TIED))
        ),
        qkv_bias=_qkv_bias(text, family, biased),
        qk_norm=family in _QK_NORM or bool(text.get("use_qk_norm") and family != "llama4_text"),
        gated_mlp=family not in _PLAIN_MLP,
        out_bias=biased or (bool(text.get("attention_bias")) and family not in _QKV_BIAS),
        mlp_bias=biased or bool(text.get("mlp_bias")) or family == "gptj",
        norm_vectors=_norm_vectors(text, family),
        other_parameters=_other(family, sizes),
        experts=_experts(text, family, layers),
        latent=latent,
        window=_window(text, family, layers),
        quantised_bytes=_quantised(config.get("quantization_config") or text.get("quantization_config")),
    )


def _text_half(config: Json) -> Json:
    """The part that describes the decoder of text. Raises InputError where there is none."""
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(key), Mapping):
            return config[key]  # type: ignore[no-any-return] # a JSON dictionary is not typed
    if "vision_config" in config or "image_size" in config or config.get("is_encoder_decoder"):
        kind = "an encoder and a decoder" if config.get("is_encoder_decoder") else "images, not text"
        raise _cannot(f"{_family_name(config)} cannot be planned for", f"it is a model of {kind}")
    return config


def _refuse(text: Json) -> None:
    """Raise InputError for layers that these sizes cannot describe."""
    for key, what in _REFUSED.items():
        if text.get(key):
            raise _cannot(f"{_family_name(text)} cannot be planned for", f"it has {what} (`{key}`)")
    other = set(text.get("layer_types") or ()) - _LAYER_TYPES
    if other:
        raise _cannot(
            f"{_family_name(text)} cannot be planned for", f"it has layers of {', '.join(sorted(other))}"
        )


def _family_name(config: Json) -> str:
    return f"the architecture {config.get('model_type', 'of this config.json')}"


def _cannot(message: str, why: str) -> InputError:
    return InputError(
        message, why=why, hint="a decoder-only transformer, e.g. advise analyze LOG --model llama-3.1-8b"
    )


def _size(text: Json, name: str) -> int:
    for key in _NAMES[name]:
        value = text.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31:
            return value
        if value is not None:
            raise ValueError(f"{key} is {str(value)[:40]}")
    raise InputError(
        f"config.json has no {_NAMES[name][0]}",
        why="the sizes of a decoder-only model are needed",
        hint="copy config.json again from where the model is from",
    )


def _kv_heads(text: Json, family: str, heads: int) -> int:
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    if family == "falcon" and not text.get("new_decoder_architecture"):
        return heads
    return next((int(text[key]) for key in _NAMES["kv_heads"] if text.get(key)), heads)


def _ffn(text: Json, family: str, hidden: int) -> int:
    if family == "llama4_text":
        return int(text.get("intermediate_size_mlp") or text["intermediate_size"])
    if family == "mpt":
        return int(text.get("expansion_ratio", 4)) * hidden
    found = next((int(text[key]) for key in _NAMES["ffn"] if text.get(key)), None)
    if found is None and family in _PLAIN_MLP:
        return 4 * hidden  # what these families have where the file does not say
    return _size(text, "ffn") if found is None else found


def _qkv_bias(text: Json, family: str, biased: bool) -> bool:
    return family in _QKV_BIAS or biased or bool(text.get("attention_bias") or text.get("qkv_bias"))


def _norm_vectors(text: Json, family: str) -> int:
    if family in _FOUR_NORMS:
        return 4
    one = family in _ONE_NORM
    if family == "falcon":
        one = bool(text.get("parallel_attn", True)) and not text.get("new_decoder_architecture")
    return (1 if one else 2) * (2 if family in _LAYER_NORM else 1)


def _other(family: str, sizes: Mapping[str, int]) -> int:
    """Learned positions, a norm behind the embedding, biases of the last norm and of the head, sinks."""
    hidden, total = sizes["hidden"], 0
    if family in ("gpt2", "gpt_neo", "gpt_bigcode", "opt"):
        total += (sizes["max_len"] + 2 * (family == "opt")) * hidden
    if family == "bloom":
        total += 2 * hidden
    if family in _LAYER_NORM:
        total += hidden
    if family in ("gptj", "phi"):
        total += sizes["vocab"]
    if family == "gpt_oss":
        total += sizes["layers"] * sizes["heads"]
    return total


def _experts(text: Json, family: str, layers: int) -> Experts | None:
    count = next(
        (int(text[k]) for k in ("num_local_experts", "n_routed_experts", "num_experts") if text.get(k)), 0
    )
    if count < 2:
        return None
    keys = ("num_experts_per_tok", "experts_per_token", "moe_topk", "top_k")
    active = next((int(text[k]) for k in keys if isinstance(text.get(k), int)), None)
    if active is None:
        raise InputError(
            "config.json has no num_experts_per_tok",
            why="it has experts",
            hint="copy config.json again from where the model is from",
        )
    ffn = int(text.get("moe_intermediate_size") or _size(text, "ffn"))
    shared = int(text.get("shared_expert_intermediate_size") or 0)
    shared = shared or int(text.get("n_shared_experts") or family == "llama4_text") * ffn
    return Experts(
        count,
        active,
        ffn,
        shared,
        _dense_layers(text, layers),
        bias=family == "gpt_oss",
        gated_share=family == "qwen2_moe",
    )


def _dense_layers(text: Json, layers: int) -> int:
    if text.get("moe_layers"):
        return layers - len(text["moe_layers"])
    step = int(text.get("interleave_moe_layer_step") or text.get("decoder_sparse_step") or 1)
    first = int(text.get("first_k_dense_replace") or 0)
    return max(first, layers - layers // step) + len(text.get("mlp_only_layers") or ())


def _latent(text: Json) -> Latent | None:
    if not text.get("kv_lora_rank"):
        return None
    rank = text.get("q_lora_rank")
    return Latent(
        int(text["kv_lora_rank"]),
        int(rank) if rank else None,
        *(int(text[key]) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")),
    )


def _window(text: Json, family: str, layers: int) -> Window | None:
    size = text.get("sliding_window") or text.get("attention_chunk_size")
    # Qwen's files name a window that is unused unless they say so.
    if not size or not text.get("use_sliding_window", family not in ("qwen2", "qwen3")):
        return None
    if text.get("layer_types"):
        count = sum(kind != "full_attention" for kind in text["layer_types"])
    elif text.get("no_rope_layers"):
        count = sum(bool(rotary) for rotary in text["no_rope_layers"])  # Llama 4: full layers have no positions
    else:
        default = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "llama4_text": 4}
        every = int(
            text.get("sliding_window_pattern") or text.get("_sliding_window_pattern") or default.get(family, 0)
        )
        count = layers - layers // every if every else layers - int(text.get("max_window_layers") or 0)
    return Window(int(size), count) if count > 0 else None


def _quantised(quantisation: Json | None) -> float | None:
    """Bytes a weight, scales included, of a `quantization_config`; None where there is none to read."""
    if not quantisation:
        return None
    method = str(quantisation.get("quant_method", "")).lower()
    if method == "compressed-tensors":
        groups = list((quantisation.get("config_groups") or {}).values())
        weights = (groups[0].get("weights") if groups else None) or {}
        return _bits(weights.get("num_bits"), weights.get("group_size"), 2)
    if method == "modelopt":
        algorithm = str(quantisation.get("quant_algo", "")).upper()
        return {"FP8": 1.0, "NVFP4": _bits(4, 16, 1)}.get(algorithm)
    if method == "bitsandbytes":
        return _bits(4, 64, 1) if quantisation.get("load_in_4bit") else 1.0
    if method == "mxfp4":
        return _bits(4, 32, 1)
    if method in ("fp8", "fbgemm_fp8"):
        return 1.0
    return _bits(quantisation.get("bits", quantisation.get("w_bit")), quantisation.get("group_size"), 2)


def _bits(bits: int | None, group: int | None, scale_bytes: int) -> float | None:
    """Bytes a weight of `bits` with a scale of `scale_bytes` for every `group` weights."""
    if not bits:
        return None
    return bits / 8 + (scale_bytes / group if group and group > 0 else 0.0)
