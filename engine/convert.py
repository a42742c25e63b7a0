"""GGUF to a Hugging-Face-style folder: tokenizer, config and bf16 weights, with numpy and no torch.

Owns the reading of GGUF files. A folder fills up in two parts that can be asked for apart, `write_tokenizer`
(all that analysis needs) and `write_weights`; every file appears in one rename, so that two processes may
convert at once. `config.json` is written last of its part and marks it complete. It never downloads and never
prints.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from engine.errors import InputError, MachineError

TOKENIZE_EXTRA = "pip install 'advise[tokenize]'"

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_QUANTISATIONS = frozenset({"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"})
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
# Word splitters, by llama.cpp's names (`tokenizer.ggml.pre`); they differ in how digits group.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITTERS = {"llama-bpe": _WORDS % "{1,3}", "qwen2": _WORDS % ""}
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4


class Gguf:
    """One open GGUF file: its metadata by key, and its tensors."""

    def __init__(self, path: Path) -> None:
        try:
            import gguf
        except ImportError as error:
            raise MachineError("cannot read GGUF files", why=str(error), hint=TOKENIZE_EXTRA) from None
        try:
            self._reader = gguf.GGUFReader(str(path))
        except (ValueError, IndexError, OSError) as error:
            raise InputError("not a usable GGUF file", where=str(path), why=str(error)) from None
        self._dequantize: Callable[..., npt.NDArray[np.float32]] = gguf.dequantize
        self.path = path
        self.architecture = str(self.value("general.architecture"))
        if self.architecture not in _CLASSES:
            raise self.unusable(f"architecture {self.architecture!r} is not one of {', '.join(_CLASSES)}")

    def value(self, key: str, default: Any = None) -> Any:
        """A metadata value: str, number, or list; `default` where the file lacks it."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def required(self, key: str) -> Any:
        """A metadata value that the file must have."""
        value = self.value(key)
        if value is None:
            raise self.unusable(f"it lacks {key}")
        return value

    def size(self, key: str) -> Any:
        """A required value of the architecture, such as `block_count`."""
        return self.required(f"{self.architecture}.{key}")

    def tensors(self) -> list[Any]:
        """gguf's tensor records, in file order."""
        return list(self._reader.tensors)

    def floats(self, tensor: Any) -> npt.NDArray[np.float32]:
        """A tensor's values, rows first."""
        kind = tensor.tensor_type
        if kind.name not in _QUANTISATIONS:
            raise self.unusable(f"{tensor.name} is {kind.name}, not one of {', '.join(sorted(_QUANTISATIONS))}")
        return self._dequantize(tensor.data, kind).astype(np.float32, copy=False)

    def unusable(self, why: str) -> InputError:
        """The error for a file that is sound but not for us."""
        return InputError(
            "cannot use this GGUF file",
            where=str(self.path),
            why=why,
            hint="--model FOLDER with the model's safetensors",
        )


def write_tokenizer(source: Gguf, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and config.json (last) into `folder`."""
    tokenizer = _tokenizer(source)
    names: list[str] = source.required("tokenizer.ggml.tokens")
    config = _config(source, len(names))
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {role: source.value(f"tokenizer.ggml.{key}_token_id") for role, key in roles.items()}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": names[number] for role, number in ids.items() if number is not None},
        "chat_template": source.value("tokenizer.chat_template"),
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    config |= {"bos_token_id": ids["bos"], "eos_token_id": ids["eos"]}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("tokenizer.json", tokenizer.to_str()),
        ("tokenizer_config.json", json.dumps(tokenizer_config, ensure_ascii=False, indent=2)),
        ("config.json", json.dumps(config, indent=2)),
    ):
        with _appearing(folder / name) as file:
            file.write(text.encode())


def write_weights(source: Gguf, folder: Path) -> None:
    """Write model.safetensors (bf16, Hugging Face names, rows of q and k in half-rotation order) into `folder`.

    Streams tensor by tensor, so that it needs memory for one; safetensors' own writer wants them all at once.
    """
    tensors = {_hugging_face_name(source, tensor.name): tensor for tensor in source.tensors()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        shape = [int(size) for size in reversed(tensor.shape)]
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with _appearing(folder / "model.safetensors") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, tensor in tensors.items():
            values = source.floats(tensor)
            if source.architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
                values = _half_rotation_rows(values, source.size("embedding_length"), source)
            file.write(_bfloat16(values).tobytes())


def _tokenizer(source: Gguf) -> Any:
    """A `tokenizers.Tokenizer` with the file's byte-level BPE."""
    try:
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    except ImportError as error:
        raise MachineError("cannot build a tokenizer", why=str(error), hint=TOKENIZE_EXTRA) from None
    kind, splitter = source.value("tokenizer.ggml.model"), source.value("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise source.unusable(f"its tokenizer is {kind!r}, only byte-level BPE ('gpt2') is read")
    names: list[str] = source.required("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in source.value("tokenizer.ggml.merges", [])]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=splitter == "llama-bpe"))
    if splitter in _SPLITTERS:
        before = [
            pre_tokenizers.Split(Regex(_SPLITTERS[splitter]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    elif splitter in ("smollm", "gpt-2", "default"):
        before = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        if splitter == "smollm":
            before.insert(0, pre_tokenizers.Digits(individual_digits=True))
    else:
        raise source.unusable(f"its word splitter {splitter!r} is not known")
    if splitter == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(before)
    tokenizer.decoder = decoders.ByteLevel()
    types = source.value("tokenizer.ggml.token_type", [_NORMAL] * len(names))
    added = [
        AddedToken(name, special=kind == _CONTROL, normalized=False)
        for name, kind in zip(names, types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    if source.value("tokenizer.ggml.add_bos_token", splitter == "llama-bpe"):
        _prepend_bos(tokenizer, names[source.value("tokenizer.ggml.bos_token_id")])
    return tokenizer


def _prepend_bos(tokenizer: Any, bos: str) -> None:
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )


def _config(source: Gguf, vocabulary: int) -> dict[str, Any]:
    """config.json in transformers' terms."""
    heads = int(source.size("attention.head_count"))
    hidden = int(source.size("embedding_length"))
    tensors = {tensor.name for tensor in source.tensors()}
    if "rope_freqs.weight" in tensors or source.value(f"{source.architecture}.rope.scaling.type"):
        raise source.unusable("scaled rotary embeddings are read from safetensors folders only")
    return {
        "architectures": [_CLASSES[source.architecture]],
        "model_type": source.architecture,
        "hidden_act": "silu",
        "num_hidden_layers": int(source.size("block_count")),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": int(source.value(f"{source.architecture}.attention.head_count_kv", heads)),
        "head_dim": int(source.value(f"{source.architecture}.attention.key_length", hidden // heads)),
        "intermediate_size": int(source.size("feed_forward_length")),
        "vocab_size": vocabulary,
        "max_position_embeddings": int(source.size("context_length")),
        "rope_theta": float(source.value(f"{source.architecture}.rope.freq_base", 10000.0)),
        # The file holds a float32; its shortest decimal is the number that was meant.
        "rms_norm_eps": float(str(np.float32(source.size("attention.layer_norm_rms_epsilon")))),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "torch_dtype": "bfloat16",
    }


def _hugging_face_name(source: Gguf, name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_TENSORS:
        return f"{_TOP_TENSORS[stem]}.{kind}"
    prefix, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if prefix != "blk" or part not in _LAYER_TENSORS:
        raise source.unusable(f"it holds a tensor that this engine has no place for, {name}")
    return f"model.layers.{layer}.{_LAYER_TENSORS[part]}.{kind}"


def _half_rotation_rows(values: npt.NDArray[np.float32], hidden: int, source: Gguf) -> npt.NDArray[np.float32]:
    """Undo GGUF's row order for interleaved rotary: rows (pair, half) of each head back to (half, pair)."""
    rows = values.shape[0]
    head_dim = int(
        source.value("llama.attention.key_length", hidden // int(source.size("attention.head_count")))
    )
    paired = values.reshape(rows // head_dim, head_dim // 2, 2, -1)
    return paired.swapaxes(1, 2).reshape(rows, -1)


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
