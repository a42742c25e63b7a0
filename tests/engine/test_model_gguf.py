"""What GGUF files hold beyond plain weights: K quantisations, SentencePiece, Llama 3's rope, and damage."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import gguf
import numpy as np
import pytest
import torch
import transformers
from helpers.tiny_gguf import tiny_writer, write_tiny_gguf, written
from helpers.tiny_model import LLAMA, write_tiny_model
from tokenizers import Tokenizer, models, pre_tokenizers

from engine.convert import Gguf, write_tokenizer, write_weights
from engine.errors import InputError
from engine.gguf_file import GgufFile
from engine.model.load import load_model
from engine.model.supported import supported_model
from engine.text import Tokenizer as EngineTokenizer

Block = tuple[bytes, list[float]]


def scales_and_minima(packed: bytes) -> list[tuple[int, int]]:
    """ggml-quants.c, get_scale_min_k4: eight pairs of six bits each in twelve bytes."""
    pairs = [(packed[j] & 63, packed[j + 4] & 63) for j in range(4)]
    for j in range(4, 8):
        low = (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4)
        pairs.append((low, (packed[j + 4] >> 4) | (packed[j] >> 6 << 4)))
    return pairs


def q4_k(random: Random) -> Block:
    """block_q4_K: d, dmin (half), 12 bytes of scales, 128 of nibbles."""
    return _k_block(random, with_fifth_bit=False)


def q5_k(random: Random) -> Block:
    """block_q5_K: as Q4_K, with 32 bytes of fifth bits before the nibbles."""
    return _k_block(random, with_fifth_bit=True)


def _k_block(random: Random, *, with_fifth_bit: bool) -> Block:
    d, low = np.float16(random.uniform(0.001, 0.01)), np.float16(random.uniform(0.001, 0.01))
    packed, fifth, nibbles = random.randbytes(12), random.randbytes(32), random.randbytes(128)
    values = []
    for index, (scale, minimum) in enumerate(scales_and_minima(packed)):
        part = nibbles[index // 2 * 32 :][:32]
        for place, byte in enumerate(part):
            number = byte >> 4 if index % 2 else byte & 15
            if with_fifth_bit:
                number += (fifth[place] >> index & 1) * 16
            values.append(float(d) * scale * number - float(low) * minimum)
    block = d.tobytes() + low.tobytes() + packed
    return block + (fifth if with_fifth_bit else b"") + nibbles, values


def q6_k(random: Random) -> Block:
    """block_q6_K: 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, d (half)."""
    low, high, scales = random.randbytes(128), random.randbytes(64), random.randbytes(16)
    d, values = np.float16(random.uniform(0.001, 0.01)), [0.0] * 256
    signed = struct.unpack("16b", scales)
    for half in range(2):
        for place in range(32):
            for quarter in range(4):
                byte = low[half * 64 + place + 32 * (quarter % 2)]
                number = (byte >> 4 if quarter >= 2 else byte & 15) | (
                    high[half * 32 + place] >> 2 * quarter & 3
                ) << 4
                scale = signed[half * 8 + place // 16 + 2 * quarter]
                values[half * 128 + quarter * 32 + place] = float(d) * scale * (number - 32)
    return low + high + scales + d.tobytes(), values


@pytest.mark.parametrize(("kind", "block"), [("Q4_K", q4_k), ("Q5_K", q5_k), ("Q6_K", q6_k)])
def test_k_quantised_blocks_are_what_ggml_s_c_code_computes(
    kind: str, block: Callable[[Random], Block], tmp_path: Path
) -> None:
    random = Random(3)
    blocks = [block(random) for _ in range(6)]
    raw = np.frombuffer(b"".join(part for part, _ in blocks), np.uint8).reshape(3, -1)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    writer.add_tensor("x", raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    source = GgufFile(written(writer, tmp_path / "k.gguf"))
    assert source.tensors["x"].shape == (3, 512)
    expected = np.array([values for _, values in blocks]).reshape(3, 512)
    np.testing.assert_allclose(source.floats(source.tensors["x"]), expected, rtol=1e-5, atol=1e-6)


PIECES = [
    ("<unk>", 0.0, gguf.TokenType.UNKNOWN),
    ("<s>", 0.0, gguf.TokenType.CONTROL),
    ("</s>", 0.0, gguf.TokenType.CONTROL),
    *((f"<0x{byte:02X}>", 0.0, gguf.TokenType.BYTE) for byte in range(256)),
]
WORDS = ["▁t", "he", "▁the", "in", "▁a", "re", "er", "▁c", "▁ca", "▁cat", "at", "▁s", "▁sat", "▁▁", "an", "and",
         "▁and", "th", "hat", "that", "▁that", "ing", "ere", "▁there"]  # fmt: skip
LETTERS = "▁etainoshrdlcumwfgypbvk.,'TH012"


def write_sentence_piece(path: Path, folder: Path, **metadata: object) -> Path:
    """Merged pieces have scores 0, -1, -2, ... in the order that training found them, letters lower ones."""
    pieces = [*PIECES]
    pieces += [(name, -float(n), gguf.TokenType.NORMAL) for n, name in enumerate([*WORDS, *LETTERS])]
    writer, _ = tiny_writer(path, folder)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([name for name, _, _ in pieces])
    writer.add_token_scores([score for _, score, _ in pieces])
    writer.add_token_types([kind for _, _, kind in pieces])
    for role, number in (("unk", 0), ("bos", 1), ("eos", 2)):
        getattr(writer, f"add_{role}_token_id")(number)
    for key, value in metadata.items():
        getattr(writer, f"add_{key}")(value)
    return written(writer, path)


def test_sentence_piece_gives_the_ids_of_transformers(tmp_path: Path) -> None:
    path = write_sentence_piece(tmp_path / "spm.gguf", write_tiny_model(tmp_path / "original"))
    write_tokenizer(Gguf(path), tmp_path / "folder")
    ours = EngineTokenizer.load(tmp_path / "folder")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="spm.gguf")
    texts = ["the cat sat there", "that  thing and   the rest. ", "THE naïve café\n日本", "a", "", "x<0x41>y"]
    for text in texts:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == text
    # SentencePiece puts its space before any text; transformers only before those that have none.
    names = [name for name, _, _ in PIECES] + WORDS + list(LETTERS)
    assert [names[number] for number in ours.encode(" a the")] == ["<s>", "▁", "▁a", "▁the"]
    assert ours.decode(ours.encode(" a the")) == " a the"
    assert ours.eos_token_ids == {2}


def test_sentence_piece_without_a_leading_space_or_bos(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "original")
    path = write_sentence_piece(tmp_path / "spm.gguf", folder, add_space_prefix=False, add_bos_token=False)
    write_tokenizer(Gguf(path), tmp_path / "folder")
    ours = EngineTokenizer.load(tmp_path / "folder")
    names = [name for name, _, _ in PIECES] + WORDS + list(LETTERS)
    assert [names[number] for number in ours.encode("the the")] == ["t", "he", "▁the"]


def bytes_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))


def llama3_factors(factor: float, original: int) -> np.ndarray:
    """llama.cpp, convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors."""
    factors = []
    for pair in range(8):
        wavelength = 2 * np.pi * 500000.0 ** (2 * pair / 16)
        if wavelength < original / 4.0:
            factors.append(1.0)
        elif wavelength > original:
            factors.append(factor)
        else:
            smooth = (original / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def with_factors(tmp_path: Path, factors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_tiny_model(tmp_path / "original", LLAMA | {"rope_theta": 500000.0})
    write = gguf.GGUFWriter.write_header_to_file

    def add_factors(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", factors)
        write(writer)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", add_factors)
    return write_tiny_gguf(tmp_path / "tiny.gguf", folder, tokenizer=bytes_tokenizer())


def test_llama_3_scaling_comes_back_from_its_factors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_factors(tmp_path, llama3_factors(32.0, 8192), monkeypatch)
    folder = tmp_path / "folder"
    write_tokenizer(Gguf(path), folder)
    write_weights(Gguf(path), folder)
    assert supported_model(folder).config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    load_model(folder, torch.float32)


def test_other_factors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_factors(tmp_path, llama3_factors(32.0, 4096), monkeypatch)
    with pytest.raises(InputError) as caught:
        write_tokenizer(Gguf(path), tmp_path / "folder")
    assert "not Llama 3's" in str(caught.value.why)


def header(
    *,
    tensors: int = 0,
    entries: int = 0,
    body: bytes = b"",
    version: int = 3,
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + body


def entry(kind: int, value: bytes, key: bytes = b"k") -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def record(shape: tuple[int, ...], kind: int = 0, offset: int = 0, name: bytes = b"t") -> bytes:
    packed = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", len(name)) + name + packed + struct.pack("<IQ", kind, offset)


HOSTILE = {
    "more entries than bytes": header(entries=2**63),
    "more tensors than bytes": header(tensors=2**63),
    "a key longer than the file": header(entries=1, body=struct.pack("<Q", 2**64 - 1)),
    "a string longer than the file": header(entries=1, body=entry(8, struct.pack("<Q", 2**62))),
    "a list longer than the file": header(entries=1, body=entry(9, struct.pack("<IQ", 0, 2**60))),
    "a list of lists": header(entries=1, body=entry(9, struct.pack("<IQ", 9, 1) + bytes(64))),
    "an unknown type": header(entries=1, body=entry(99, b"")),
    "text that is not UTF-8": header(entries=1, body=entry(8, struct.pack("<Q", 2) + b"\xff\xfe")),
    "the same entry twice": header(entries=2, body=entry(0, b"\1") * 2),
    "an alignment of nothing": header(entries=1, body=entry(4, bytes(4), b"general.alignment")),
    "dimensions that overflow": header(tensors=1, body=record((2**33, 2**33)) + bytes(64)),
    "a dimension of nothing": header(tensors=1, body=record((0, 4)) + bytes(64)),
    "no dimensions": header(tensors=1, body=record(()) + bytes(64)),
    "too many dimensions": header(tensors=1, body=record((1,) * 5) + bytes(64)),
    "a tensor beyond the end": header(tensors=1, body=record((8, 8)) + bytes(64)),
    "an offset that overflows": header(tensors=1, body=record((8,), offset=2**64 - 16) + bytes(64)),
    "an unknown kind": header(tensors=1, body=record((8,), kind=200) + bytes(64)),
    "half a block": header(tensors=1, body=record((33,), kind=8) + bytes(128)),
    "tensors over each other": header(tensors=2, body=record((8,)) + record((8,), name=b"u") + bytes(128)),
    "the same tensor twice": header(tensors=2, body=record((8,)) + record((8,), offset=32) + bytes(128)),
    "a version of the future": header(version=4),
    "the other byte order": header(version=3 << 24),
    "nothing": b"",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers_are_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(HOSTILE[case])
    with pytest.raises(InputError, match="not a usable GGUF file"):
        GgufFile(path)


def test_a_sound_header_of_the_same_making_is_read(tmp_path: Path) -> None:
    """Otherwise the cases above could all fail for one wrong byte of the test's own."""
    path = tmp_path / "sound.gguf"
    body = entry(8, struct.pack("<Q", 2) + b"ok") + record((8, 2), offset=32)
    start = len(header(tensors=1, entries=1, body=body))
    data = bytes(-start % 32 + 32) + np.arange(16, dtype=np.float32).tobytes()
    path.write_bytes(header(tensors=1, entries=1, body=body) + data)
    source = GgufFile(path)
    assert source.text("k") == "ok"
    assert source.floats(source.tensors["t"]).tolist() == np.arange(16).reshape(2, 8).tolist()


@pytest.mark.parametrize("sentence_piece", [False, True])
def test_damaged_files_give_input_errors_and_nothing_else(sentence_piece: bool, tmp_path: Path) -> None:
    """Cut anywhere, or with bytes flipped in the header: converted, or refused."""
    folder, path = write_tiny_model(tmp_path / "original"), tmp_path / "tiny.gguf"
    if sentence_piece:
        write_sentence_piece(path, folder)
    else:
        write_tiny_gguf(path, folder, tokenizer=bytes_tokenizer())
    sound, random = path.read_bytes(), Random(11)
    end_of_header = (
        min(tensor.first for tensor in Gguf(path).tensors.values()) if not sentence_piece else len(sound)
    )
    damaged = tmp_path / "damaged.gguf"
    refused = 0
    for case in range(400):
        data = bytearray(sound)
        if case < 100:
            del data[random.randrange(len(data)) :]
        else:
            for _ in range(random.choice([1, 1, 4, 64])):
                data[random.randrange(end_of_header)] = random.randrange(256)
        damaged.write_bytes(data)
        try:
            source = Gguf(damaged)
            write_tokenizer(source, tmp_path / "out")
            write_weights(source, tmp_path / "out")
            supported_model(tmp_path / "out")
        except InputError:
            refused += 1
    assert refused >= 150
