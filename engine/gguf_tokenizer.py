"""The tokenizer inside a GGUF file, rebuilt: byte-level BPE ("gpt2"), and SentencePiece BPE ("llama").

Owns ggml's names for word splitters and token types. Numbers and names were checked by `engine.gguf_file`.
"""

from __future__ import annotations

from typing import Any

from engine.errors import InputError, MachineError
from engine.gguf_file import TOKENIZE_EXTRA, GgufFile

# Word splitters, by llama.cpp's names (`tokenizer.ggml.pre`); they differ in how digits group.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITTERS = {"llama-bpe": _WORDS % "{1,3}", "qwen2": _WORDS % ""}
_PLAIN_SPLITTERS = ("smollm", "gpt-2", "default")
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "\u2581"


def tokenizer_of(source: GgufFile) -> Any:
    """A `tokenizers.Tokenizer`. Raises InputError for kinds that are not read."""
    kind = source.text("tokenizer.ggml.model")
    builders = {"gpt2": _byte_level, "llama": _sentence_piece}
    if kind not in builders:
        raise source.unusable(f"its tokenizer is {kind!r}, not one of {', '.join(builders)}")
    try:
        return builders[kind](source)
    except ImportError as error:
        raise MachineError("cannot build a tokenizer", why=str(error), hint=TOKENIZE_EXTRA) from None
    except InputError:
        raise
    except Exception as error:  # tokenizers raises bare Exception
        raise source.unusable(f"its tokenizer is damaged: {error}") from None


def special_ids(source: GgufFile) -> dict[str, int]:
    """Token ids by role: bos, eos, unk, pad, as far as the file names them."""
    count = len(source.texts("tokenizer.ggml.tokens"))
    ids: dict[str, int] = {}
    for role, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        name = f"tokenizer.ggml.{key}_token_id"
        if source.has(name):
            ids[role] = source.whole(name, least=0)
            if ids[role] >= count:
                raise source.unusable(f"{name} is {ids[role]} of {count} tokens")
    return ids


def _byte_level(source: GgufFile) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    splitter = source.text("tokenizer.ggml.pre", "default")
    if splitter not in (*_SPLITTERS, *_PLAIN_SPLITTERS):
        raise source.unusable(f"its word splitter {splitter!r} is not known")
    names = source.texts("tokenizer.ggml.tokens")
    merges = [_pair(source, merge) for merge in source.texts("tokenizer.ggml.merges", [])]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=splitter == "llama-bpe"))
    if splitter in _SPLITTERS:
        before = [
            pre_tokenizers.Split(Regex(_SPLITTERS[splitter]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    else:
        before = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        if splitter == "smollm":
            before.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if splitter == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(before)
    tokenizer.decoder = decoders.ByteLevel()
    _add_specials(tokenizer, source, names)
    if source.flag("tokenizer.ggml.add_bos_token", splitter == "llama-bpe"):
        _prepend_bos(tokenizer, source, names)
    return tokenizer


def _sentence_piece(source: GgufFile) -> Any:
    """Pieces join by score, the highest first (SentencePiece's BPE); unknown characters become bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    names = source.texts("tokenizer.ggml.tokens")
    scores = source.numbers("tokenizer.ggml.scores")
    types = _types(source, names)
    if len(scores) != len(names):
        raise source.unusable(f"it has {len(names)} tokens and {len(scores)} scores")
    vocabulary = {name: number for number, name in enumerate(names)}
    joined = {name for name, kind in zip(names, types, strict=True) if kind in (_NORMAL, _USER_DEFINED)}
    # Pieces longer than any of a real vocabulary would only make the search for their halves quadratic.
    merges = [
        (-scores[number], number, (name[:cut], name[cut:]))
        for name, number in vocabulary.items()
        if name in joined and len(name) <= 512
        for cut in range(1, len(name))
        if name[:cut] in joined and name[cut:] in joined
    ]
    merges.sort(key=lambda merge: merge[:2])
    unknown = special_ids(source).get("unk")
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            [pair for *_, pair in merges],
            unk_token=None if unknown is None else names[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces: list[Any] = [normalizers.Replace(" ", _SPACE)]
    text: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if source.flag("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(_SPACE))
        text.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(text)
    _add_specials(tokenizer, source, names)
    if source.flag("tokenizer.ggml.add_bos_token", True):
        _prepend_bos(tokenizer, source, names)
    return tokenizer


def _pair(source: GgufFile, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise source.unusable(f"the merge {merge[:40]!r} is not two tokens")
    return left, right


def _types(source: GgufFile, names: list[str]) -> list[float]:
    types = source.numbers("tokenizer.ggml.token_type", [_NORMAL] * len(names))
    if len(types) != len(names):
        raise source.unusable(f"it has {len(names)} tokens and {len(types)} types of tokens")
    return types


def _add_specials(tokenizer: Any, source: GgufFile, names: list[str]) -> None:
    from tokenizers import AddedToken

    tokenizer.add_tokens(
        [
            AddedToken(name, special=kind in (_CONTROL, _UNKNOWN), normalized=False)
            for name, kind in zip(names, _types(source, names), strict=True)
            if kind in (_CONTROL, _UNKNOWN, _USER_DEFINED) and name
        ]
    )


def _prepend_bos(tokenizer: Any, source: GgufFile, names: list[str]) -> None:
    from tokenizers import processors

    number = special_ids(source).get("bos")
    if number is None:
        raise source.unusable("it lacks tokenizer.ggml.bos_token_id")
    bos = names[number]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, number)]
    )
