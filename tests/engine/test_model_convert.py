"""GGUF files to folders: weights bit for bit, tokenizers word for word, and what is refused."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from helpers.tiny_gguf import write_tiny_gguf
from helpers.tiny_model import FAMILIES, LLAMA, write_tiny_model
from safetensors.torch import load_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.convert import Gguf, write_tokenizer, write_weights
from engine.errors import InputError
from engine.model.load import load_model
from engine.model.supported import rope_settings, supported_model
from engine.text import Tokenizer as EngineTokenizer

CORPUS = ["the cat sat on the mat in 2024, don't it?", "naïve café 12 34 567 <eot>", "a\n\n  b\r\n\tc"] * 3
SPLITS = {
    "smollm": [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)],
    "gpt-2": [pre_tokenizers.ByteLevel(False)],
    # Llama 3 and Qwen 2 as their own tokenizer.json files write them.
    "llama-bpe": [
        pre_tokenizers.Split(
            Regex(
                "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
            ),
            "isolated",
        ),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ],
    "qwen2": [
        pre_tokenizers.Split(
            Regex(
                "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
            ),
            "isolated",
        ),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ],
}


def trained(pre: str, size: int = 320) -> Tokenizer:
    """A small byte-level BPE with one special token, trained on a few lines.

    It learns GPT-2's words whatever `pre` is, digit pairs among them, so that other splitters have merges to
    keep apart.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(SPLITS["gpt-2"])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken("<eot>", normalized=False)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(SPLITS[pre])
    return tokenizer


def converted(path: Path, folder: Path) -> Path:
    source = Gguf(path)
    write_tokenizer(source, folder)
    write_weights(source, folder)
    return folder


@pytest.mark.parametrize("family", ["llama", "llama, biases", "qwen2", "qwen3"])
def test_a_float_file_gives_back_every_weight(family: str, tmp_path: Path) -> None:
    """GGUF stores q and k rows permuted for Llama only; bf16 rounding is torch's."""
    config = FAMILIES[family]
    original = write_tiny_model(tmp_path / "original", config)
    path = write_tiny_gguf(tmp_path / "tiny.gguf", original, tokenizer=trained("smollm"))
    folder = converted(path, tmp_path / "folder")
    ours, theirs = load_file(folder / "model.safetensors"), load_file(original / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor.float().bfloat16()), name
    kept = json.loads((folder / "config.json").read_text())
    written = {key: config[key] for key in config if key not in ("bos_token_id", "vocab_size")}
    assert {key: kept[key] for key in written} == written
    load_model(write_vocabulary(folder, original), torch.float32)


def write_vocabulary(folder: Path, original: Path) -> Path:
    """The tiny model has fewer embeddings than the tokenizer has tokens; give the config the model's count."""
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] = json.loads((original / "config.json").read_text())["vocab_size"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_matrices_come_out_as_ggml_defines_them(kind: str, tmp_path: Path) -> None:
    config = LLAMA | {"hidden_size": 192, "intermediate_size": 128}
    original = write_tiny_model(tmp_path / "original", config)
    path = write_tiny_gguf(tmp_path / "tiny.gguf", original, tokenizer=trained("smollm"), kind=kind)
    ours = load_file(converted(path, tmp_path / "folder") / "model.safetensors")
    theirs = load_file(original / "model.safetensors")
    matrix = theirs["model.layers.1.mlp.up_proj.weight"].float().numpy()
    chosen = gguf.GGMLQuantizationType[kind]
    expected = gguf.dequantize(gguf.quantize(matrix, chosen), chosen).astype(np.float32)
    assert torch.equal(ours["model.layers.1.mlp.up_proj.weight"], torch.from_numpy(expected).bfloat16())
    # Rotary rows too must be near the original: a wrong row order is off by the size of the weights.
    for part in ("q", "k"):
        name = f"model.layers.0.self_attn.{part}_proj.weight"
        assert (ours[name].double() - theirs[name]).abs().mean() < 0.15 * theirs[name].abs().mean()


@pytest.mark.parametrize("pre", SPLITS)
def test_tokenizers_survive(pre: str, tmp_path: Path) -> None:
    tokenizer = trained(pre)
    original = write_tiny_model(tmp_path / "original")
    path = write_tiny_gguf(
        tmp_path / "tiny.gguf",
        original,
        tokenizer=tokenizer,
        pre=pre,
        special={"<eot>": gguf.TokenType.CONTROL},
        chat_template="{{ messages }}",
        add_bos_token=False,
    )
    write_tokenizer(Gguf(path), tmp_path / "folder")
    ours = EngineTokenizer.load(tmp_path / "folder")
    texts = [*CORPUS, "1234567 89", "THE <eot> cat'S", "日本 é\u0301", " \n x  "]
    if pre != "llama-bpe":  # Llama 3 takes whole words of the vocabulary first, whatever the merges
        assert [ours.encode(text) for text in texts] == [tokenizer.encode(text).ids for text in texts]
    assert [ours.decode(ours.encode(text), skip_special=False) for text in texts] == texts
    assert ours.special_ids == {tokenizer.token_to_id("<eot>")}
    assert ours.eos_token_ids == {2}
    assert ours.has_chat_template


def test_beginning_of_sequence_as_the_file_says(tmp_path: Path) -> None:
    original = write_tiny_model(tmp_path / "original")
    path = write_tiny_gguf(
        tmp_path / "tiny.gguf",
        original,
        tokenizer=trained("smollm"),
        special={"<eot>": gguf.TokenType.CONTROL},
        add_bos_token=True,
        bos_token_id=0,
    )
    write_tokenizer(Gguf(path), tmp_path / "folder")
    assert EngineTokenizer.load(tmp_path / "folder").encode("a")[0] == 0


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"pre": "deepseek-llm"}, "word splitter 'deepseek-llm'"),
        ({"tokenizer_model": "t5"}, "its tokenizer is 't5', not one of gpt2, llama"),
        ({"rope_scaling_type": gguf.RopeScalingType.YARN}, "rotary scaling 'yarn'"),
    ],
)
def test_what_would_answer_wrongly_is_refused(
    metadata: dict[str, object], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = write_tiny_model(tmp_path / "original")
    if "tokenizer_model" in metadata:
        value = metadata.pop("tokenizer_model")
        add = gguf.GGUFWriter.add_tokenizer_model
        monkeypatch.setattr(gguf.GGUFWriter, "add_tokenizer_model", lambda self, _: add(self, value))
    path = write_tiny_gguf(tmp_path / "tiny.gguf", original, tokenizer=trained("smollm"), **metadata)
    with pytest.raises(InputError) as caught:
        write_tokenizer(Gguf(path), tmp_path / "folder")
    assert why in str(caught.value.why)
    assert not (tmp_path / "folder" / "config.json").exists()


def test_linear_scaling_and_windows_are_carried_over(tmp_path: Path) -> None:
    original = write_tiny_model(tmp_path / "original")
    path = write_tiny_gguf(
        tmp_path / "tiny.gguf",
        original,
        tokenizer=trained("smollm"),
        rope_scaling_type=gguf.RopeScalingType.LINEAR,
        rope_scaling_factor=4.0,
        sliding_window=40,
    )
    write_tokenizer(Gguf(path), tmp_path / "folder")
    found = supported_model(tmp_path / "folder")
    assert found.architecture == "MistralForCausalLM"
    assert found.windows == (40, 40)
    assert rope_settings(found.config) == ("linear", {"rope_type": "linear", "factor": 4.0})


def test_one_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "part.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InputError) as caught:
        Gguf(tmp_path / "part.gguf")
    assert "one of 3 parts" in str(caught.value.why)


def test_embeddings_beyond_the_tokens_count(tmp_path: Path) -> None:
    """Qwen pads its embeddings; the config must have their number, or the weights do not fit."""
    original = write_tiny_model(tmp_path / "original", LLAMA | {"vocab_size": 384})
    path = write_tiny_gguf(tmp_path / "tiny.gguf", original, tokenizer=trained("smollm"))
    folder = converted(path, tmp_path / "folder")
    assert load_model(folder, torch.float32).shape.vocab == 384


def test_an_unknown_kind_of_number_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    config = LLAMA | {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 16}
    original = write_tiny_model(tmp_path / "original", config)
    path = write_tiny_gguf(tmp_path / "tiny.gguf", original, tokenizer=trained("smollm"), kind="TQ1_0")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(InputError) as caught:
        write_weights(Gguf(path), folder)
    assert "TQ1_0" in str(caught.value.why)
    assert list(folder.iterdir()) == []


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InputError, match="cannot use this GGUF file"):
        Gguf(path)


def test_not_gguf_at_all(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUX" + bytes(64))
    with pytest.raises(InputError, match="not a usable GGUF file"):
        Gguf(tmp_path / "x.gguf")


def test_two_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    original = write_tiny_model(tmp_path / "original")
    path = write_tiny_gguf(tmp_path / "tiny.gguf", original, tokenizer=trained("smollm"))
    alone = converted(path, tmp_path / "alone")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: converted(path, tmp_path / "folder"), range(4)))

    def digests(folder: Path) -> dict[str, str]:
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}

    assert digests(tmp_path / "folder") == digests(alone)


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InputError) as caught:
        write_tokenizer(Gguf(path), tmp_path / "folder")
    assert caught.value.why == "it lacks tokenizer.ggml.tokens"
