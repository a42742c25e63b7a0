"""Sharing measured on bytes: as the exact measure has it on public texts, and what it says of itself."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.embedded import embedded_folder
from helpers.logs import WordEncoder, read_lines, token_hit_rate, write_lines

from advisor.logs.canonical import canonical_bytes
from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.record import Prompt
from advisor.logs.token_blocks import find_byte_runs, to_token_blocks
from advisor.logs.trace import Trace
from engine.errors import MachineError
from engine.text import Tokenizer

NOW = 1_700_000_000
MESSAGES = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
Prompts = list[dict[str, Any]]


def packed(path: Path) -> Iterator[Any]:
    return map(json.loads, gzip.decompress(path.read_bytes()).splitlines())


def miniswe(shared: Path) -> Prompts:
    rows = [row for file in sorted((shared / "traces/lmcache-agent/miniswe").iterdir()) for row in packed(file)]
    return [{"prompt": row["input"]} for row in sorted(rows, key=lambda row: row["timestamp"])]


def tau_bench(shared: Path) -> Prompts:
    """The calls of the first 60 of 200 episodes, as chats with their tool calls."""
    episodes = json.loads(gzip.decompress((shared / "traces/tau-bench/gpt-4o-airline.json.gz").read_bytes()))
    prompts: Prompts = []
    for episode in episodes[:60]:
        said: list[dict[str, Any]] = []
        for message in episode["traj"]:
            if message["role"] == "assistant" and said:
                prompts.append({"messages": list(said)})
            said.append({key: value for key, value in message.items() if value is not None})
    return prompts


def gsm8k(shared: Path, shots: int) -> Prompts:
    """README of the traces: eight fixed shots give 0.949 at block 16 with another vocabulary."""
    rows = list(packed(shared / "traces/gsm8k/test.jsonl.gz"))
    front = "".join(f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in rows[:shots])
    return [{"prompt": f"{front}Question: {row['question']}\nAnswer:"} for row in rows[shots:]]


def aibrix(shared: Path) -> Prompts:
    rows = packed(shared / "traces/aibrix-sharegpt/8min_up_and_down.jsonl.gz")
    return [{"prompt": request["prompt"]} for row in rows for request in row["requests"] if request["prompt"]]


TRACES = {
    "miniswe": miniswe,
    "tau-bench": tau_bench,
    "gsm8k, 8 shots": lambda shared: gsm8k(shared, 8),
    "gsm8k, bare": lambda shared: gsm8k(shared, 0),
    "humaneval": lambda shared: [
        {"prompt": row["prompt"]} for row in packed(shared / "traces/humaneval/HumanEval.jsonl.gz")
    ],
    "mt-bench": lambda shared: [
        {"prompt": json.loads(line)["turns"][0]}
        for line in (shared / "traces/mt-bench/question.jsonl").read_text().splitlines()
    ],
    "aibrix": aibrix,
}


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return Tokenizer.load(embedded_folder())


@pytest.mark.parametrize("name", TRACES)
def test_public_texts_within_a_point_and_a_half(
    shared: Path, tmp_path: Path, smollm2: Tokenizer, name: str
) -> None:
    rows = [{"ts": NOW + i, **prompt} for i, prompt in enumerate(TRACES[name](shared))]
    exact = read_lines(tmp_path, rows, tokenizer=smollm2)
    counted = [
        {**row, "prompt_tokens": count} for row, count in zip(rows, exact.prompt_tokens.tolist(), strict=True)
    ]
    scaled = read_lines(tmp_path, counted)
    assert scaled.prompt_tokens.tolist() == exact.prompt_tokens.tolist()
    assert token_hit_rate(scaled) == pytest.approx(token_hit_rate(exact), abs=0.015)
    guessed = read_lines(tmp_path, rows)
    assert (guessed.prompt_tokens == -1).all()
    assert block_hit_rate(guessed) == pytest.approx(block_hit_rate(exact), abs=0.015)


def block_hit_rate(trace: Trace) -> float:
    """Blocks seen in an earlier row over all full blocks."""
    assert trace.blocks is not None
    ids = trace.blocks.ids
    row = np.repeat(np.arange(len(trace)), np.diff(trace.blocks.starts))
    first = np.full(int(ids.max(initial=-1)) + 1, len(trace))
    np.minimum.at(first, ids, row)
    return float(np.mean(first[ids] < row)) if len(ids) else 0.0


def blocks_of(prompts: Sequence[str], tokens: Sequence[int], size: int = 16) -> list[list[int]]:
    """Token blocks of plain prompts, by a tree of dicts."""
    nodes: dict[tuple[int, str], int] = {}
    starts, ids = [0], []
    for prompt in prompts:
        node = -1
        for start in range(0, len(prompt) - 63, 64):
            node = nodes.setdefault((node, prompt[start : start + 64]), len(nodes))
            ids.append(node)
        starts.append(len(ids))
    runs = find_byte_runs(np.array(ids), np.array(starts), np.full(len(nodes), 256, dtype=np.uint16))
    lengths = np.array([len(prompt) for prompt in prompts])
    found, where = to_token_blocks(runs, lengths, np.array(tokens), size)
    return [part.tolist() for part in np.split(found, where[1:-1])]


def text(name: str, count: int) -> str:
    """Text of so many bytes that shares no block with text of another name."""
    return (name * count)[:count]


class TestTokenBlocks:
    def test_a_later_turn_shares_exactly_the_logged_tokens_of_the_turn_before(self) -> None:
        first, second = text("a", 6400), text("a", 6400) + text("b", 640)
        one, two = blocks_of([first, second], [800, 1200])
        assert one == list(range(50))  # 800 tokens, although 6,400 bytes would usually be 1,600
        assert two == list(range(75))  # and the 400 tokens of the new text, at 640 bytes

    def test_a_system_prompt_is_worth_what_the_shortest_question_leaves_of_its_count(self) -> None:
        system = text("s", 3200)  # 1,000 tokens, three times as dense as the questions
        questions = [text(name, count) for name, count in (("x", 640), ("y", 64), ("z", 1280))]
        tokens = [1000 + len(question) // 10 for question in questions]
        rows = blocks_of([system + question for question in questions], tokens)
        shared = len(set(rows[0]) & set(rows[1]) & set(rows[2]))
        assert shared * 16 == pytest.approx(1000, abs=16)
        assert [len(row) for row in rows] == [count // 16 for count in tokens]

    def test_no_more_tokens_than_bytes_whatever_a_damaged_row_says(self) -> None:
        (row,) = blocks_of([text("a", 640)], [10**9])
        assert len(row) <= 640 // 16 + 2

    def test_a_count_below_that_of_its_beginning_does_not_take_blocks_back(self) -> None:
        one, two = blocks_of([text("a", 640), text("a", 640) + text("b", 640)], [160, 16])
        assert one == list(range(10))
        assert two[: len(one)] == one

    def test_without_counts_words_tell_how_many(self) -> None:
        (row,) = blocks_of([text("a", 6400)], [-1])
        assert row == list(range(100))  # 256 / 16 tokens a block, as guessed above

    @pytest.mark.parametrize("size", [1, 8, 16, 64, 512])
    def test_every_size_of_block_covers_the_prompt(self, size: int) -> None:
        tokens = 1600
        (row,) = blocks_of([text("a", 6400)], [tokens], size)
        assert row == list(range(tokens // size))


def test_tools_then_roles_and_contents_make_the_bytes() -> None:
    tools = [{"name": "search"}]
    chat = Prompt(messages=MESSAGES, tools=tools)
    longer = Prompt(messages=[*MESSAGES, {"role": "assistant", "content": "hi"}], tools=tools)
    assert canonical_bytes(longer).startswith(canonical_bytes(chat))
    assert canonical_bytes(chat).index(b"search") < canonical_bytes(chat).index(b"be kind")
    assert canonical_bytes(Prompt(messages=MESSAGES)) != canonical_bytes(chat)
    assert canonical_bytes(Prompt(text="h\u00e9 \ud800")) == b"h\xc3\xa9 ?"
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}
    assert canonical_bytes(Prompt(messages=[call])) != canonical_bytes(
        Prompt(messages=[{**call, "tool_calls": []}])
    )


class TestWhatItSays:
    def test_with_logged_counts(self, tmp_path: Path) -> None:
        trace = read_lines(tmp_path, [{"ts": NOW, "messages": MESSAGES, "prompt_tokens": 12}])
        assert trace.info is not None
        assert (trace.info.token_basis, trace.info.prefix_basis) == (
            "logged counts",
            "bytes of the prompts, 64 a block, scaled with logged counts",
        )
        assert [(entry.path, entry.how_to_get) for entry in trace.unknown] == [
            ("sharing.hit_rate_optimal", "--tokenizer NAME")
        ]
        assert trace.novel_tokens is None

    def test_without_logged_counts_lengths_stay_unknown(self, tmp_path: Path) -> None:
        rows = [
            {"ts": NOW + i, "messages": MESSAGES, "response": {"choices": [{"text": "hi"}]}} for i in range(2)
        ]
        trace = read_lines(tmp_path, rows)
        assert trace.info is not None
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([-1, -1], [-1, -1])
        assert (trace.info.token_basis, trace.info.prefix_basis) == (
            "none: prompt lengths need --tokenizer NAME",
            "bytes of the prompts, 64 a block, scaled by their words",
        )
        paths = [entry.path for entry in trace.unknown]
        assert paths == ["sharing.hit_rate_optimal", "lengths.prompt", "lengths.output"]

    def test_a_log_without_text_says_nothing_of_text(self, tmp_path: Path) -> None:
        trace = read_lines(tmp_path, [{"ts": NOW, "prompt_tokens": 5}])
        assert trace.info is not None
        assert trace.unknown == ()
        assert "bytes" not in "".join(trace.info.notes) + str(trace.info.prefix_basis)

    def test_models_do_not_share(self, tmp_path: Path) -> None:
        rows = [{"ts": NOW + i, "model": model, "prompt": "a b" * 100} for i, model in enumerate("xyx")]
        trace = read_lines(tmp_path, rows)
        assert trace.blocks is not None
        first, other, again = (set(trace.blocks.row(row).tolist()) for row in range(3))
        assert first
        assert not first & other
        assert first == again

    def test_token_ids_beside_text_are_counted(self, tmp_path: Path) -> None:
        rows = [{"ts": NOW, "prompt": "a b"}, {"ts": NOW + 1, "prompt": list(range(64))}]
        trace = read_lines(tmp_path, rows)
        assert trace.blocks is not None
        assert trace.prompt_tokens.tolist() == [-1, 64]
        assert len(trace.blocks.row(1)) == 4


class TestWhenBytesAreRead:
    ROWS = ({"ts": NOW, "prompt": "a b c d"},)

    def units(self, trace: Trace) -> str:
        assert trace.info is not None
        return str(trace.info.prefix_basis).split()[0]

    def test_a_small_log_is_tokenized(self, tmp_path: Path) -> None:
        assert self.units(read_lines(tmp_path, self.ROWS, tokenizer=WordEncoder())) == "text"

    @pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
    def test_a_large_log_only_if_that_was_asked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Any
    ) -> None:
        monkeypatch.setattr(reading_module(), "LARGE_BYTES", 100)
        rows = [{"ts": NOW + i, "prompt": "a b c d"} for i in range(4)]
        path = write_lines(tmp_path / "log", rows)
        path.write_bytes(pack(path.read_bytes()))
        assert self.units(read([path], tokenizer=WordEncoder())) == "bytes"
        options = ReadOptions(text="tokens")
        assert self.units(read([path], options=options, tokenizer=WordEncoder())) == "text"

    def test_large_standard_input(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading_module(), "LARGE_BYTES", 100)
        path = write_lines(tmp_path / "log", [{"ts": NOW + i, "prompt": "a b c d"} for i in range(4)])
        with path.open() as file:
            monkeypatch.setattr("sys.stdin", file)
            trace = read(["-"], tokenizer=WordEncoder())
        assert (len(trace), self.units(trace)) == (4, "bytes")

    def test_on_request(self, tmp_path: Path) -> None:
        options = ReadOptions(text="bytes")
        assert self.units(read_lines(tmp_path, self.ROWS, options=options, tokenizer=WordEncoder())) == "bytes"

    def test_when_no_tokenizer_can_be_loaded(self, tmp_path: Path) -> None:
        trace = read_lines(tmp_path, self.ROWS, tokenizer=Missing())
        assert trace.info is not None
        assert self.units(trace) == "bytes"
        assert any("the model is not here" in note for note in trace.info.notes)

    def test_but_not_when_tokens_were_asked_for(self, tmp_path: Path) -> None:
        with pytest.raises(MachineError, match="the model is not here"):
            read_lines(tmp_path, self.ROWS, options=ReadOptions(text="tokens"), tokenizer=Missing())


def reading_module() -> Any:
    """The module, which the package's function of the same name hides."""
    import sys

    return sys.modules["advisor.logs.read"]


class Missing:
    """A tokenizer that is loaded on first use, and is not there."""

    def __getattr__(self, name: str) -> Any:
        raise MachineError("the model is not here")
