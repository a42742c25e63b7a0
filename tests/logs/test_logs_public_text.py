"""Sharing in public prompts, with the embedded tokenizer, is what others measured with theirs (traces/README).

Their vocabulary is another one, so rates agree within 0.03. Block size 16 is read; larger blocks are whole
numbers of those, and chained, so their rates follow.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.embedded import embedded_folder
from helpers.logs import accounted, token_hit_rate, write_lines

from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.trace import Trace
from advisor.workload.measure import measure
from engine.text import Tokenizer

WITHIN = 0.03
SIZES = (16, 64, 512)


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return Tokenizer.load(embedded_folder())


def rates(trace: Trace) -> list[float]:
    """Token hit rates at block sizes 16, 64 and 512."""
    return [token_hit_rate(in_blocks_of(trace, size)) for size in SIZES]


def in_blocks_of(trace: Trace, size: int) -> Trace:
    """The same prompts in larger blocks: an id for the last block of 16 of each also names all before it."""
    assert trace.blocks is not None
    assert trace.blocks.size == 16
    each = size // 16
    rows = [trace.blocks.row(row)[each - 1 :: each] for row in range(len(trace))]
    starts = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
    return replace(trace, blocks=replace(trace.blocks, size=size, ids=np.concatenate(rows), starts=starts))


def read_prompts(folder: Path, rows: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> Trace:
    trace = read([write_lines(folder / "log.jsonl", rows)], tokenizer=tokenizer)
    assert accounted(trace)
    return trace


def json_lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    lines = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in lines.splitlines()]


class TestMiniSWE:
    @pytest.fixture(scope="class")
    @classmethod
    def trace(cls, shared: Path, smollm2: Tokenizer) -> Trace:
        return read([shared / "traces/lmcache-agent/miniswe"], tokenizer=smollm2)

    def test_requests_and_sessions(self, trace: Trace) -> None:
        assert trace.session is not None
        assert (len(trace), len(trace.session.names)) == (402, 20)
        assert trace.arrival_s[-1] == pytest.approx(552.13151, abs=1e-5)  # expected_stats.json
        assert (trace.output_tokens > 0).all()
        assert accounted(trace)

    def test_prefix_hits(self, trace: Trace) -> None:
        assert rates(trace) == pytest.approx([0.934, 0.931, 0.901], abs=WITHIN)
        # With this vocabulary, computed elsewhere.
        assert rates(trace) == pytest.approx([0.9348, 0.9317, 0.9019], abs=2e-4)
        assert trace.prompt_tokens.mean() == pytest.approx(6570, rel=0.15)  # code, in a smaller vocabulary

    def test_hits_that_need_another_session(self, trace: Trace) -> None:
        assert measure(trace).sharing.across_session == pytest.approx(0.001, abs=1e-3)

    def test_one_token_pages_save_a_little_more(self, trace: Trace) -> None:
        assert trace.novel_tokens is not None
        optimal = 1 - trace.novel_tokens.sum() / trace.prompt_tokens.sum()
        assert rates(trace)[0] < optimal < 0.9365  # by less than a 16-token block a request

    def test_larger_blocks_are_read_as_they_follow(
        self, trace: Trace, shared: Path, smollm2: Tokenizer
    ) -> None:
        options = ReadOptions(block_size=512)
        again = read([shared / "traces/lmcache-agent/miniswe"], options=options, tokenizer=smollm2)
        assert token_hit_rate(again) == pytest.approx(rates(trace)[2], abs=1e-12)


# Token hit rates of the same prompts in this model's chat template.
@pytest.mark.slow  # tokenizes chats one by one
def test_the_same_prompts_as_chats(shared: Path, tmp_path: Path, smollm2: Tokenizer) -> None:
    rows = [
        {"ts": row["timestamp"], "request": {"messages": [{"role": "user", "content": row["input"]}]}}
        for file in sorted((shared / "traces/lmcache-agent/miniswe").iterdir())
        for row in json_lines(file)
    ]
    trace = read_prompts(tmp_path, rows, smollm2)
    assert rates(trace) == pytest.approx([0.9343, 0.9310, 0.9015], abs=2e-4)


class TestTauBenchAirline:
    """Model calls in file order: before every assistant message, all that was said before it."""

    @pytest.fixture(scope="class")
    @classmethod
    def trace(cls, shared: Path, smollm2: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Trace:
        episodes = json.loads(
            gzip.decompress((shared / "traces/tau-bench/gpt-4o-airline.json.gz").read_bytes())
        )
        rows = []
        for number, episode in enumerate(episodes):
            said = ""
            for message in episode["traj"]:
                if message["role"] == "assistant":
                    rows.append({"prompt": said, "session_id": str(number)})
                calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
                said += f"{message['role']}: {message.get('content') or ''}{calls}\n"
        return read_prompts(tmp_path_factory.mktemp("tau"), rows, smollm2)

    def test_requests_and_sessions(self, trace: Trace) -> None:
        assert trace.session is not None
        assert (len(trace), len(trace.session.names)) == (2454, 200)
        assert trace.prompt_tokens.mean() == pytest.approx(3220, rel=0.1)

    def test_prefix_hits(self, trace: Trace) -> None:
        assert rates(trace) == pytest.approx([0.924, 0.917, 0.841], abs=WITHIN)

    def test_hits_that_need_another_session(self, trace: Trace) -> None:
        assert measure(trace).sharing.across_session == pytest.approx(0.032, abs=5e-3)


def gsm8k_with_shots(shared: Path) -> list[dict[str, str]]:
    """Every question behind the same eight answered ones."""
    rows = json_lines(shared / "traces/gsm8k/test.jsonl.gz")
    shots = "".join(f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in rows[:8])
    return [{"prompt": f"{shots}Question: {row['question']}\nAnswer:"} for row in rows]


def test_gsm8k_behind_eight_shots(shared: Path, tmp_path: Path, smollm2: Tokenizer) -> None:
    rows = [{**row, "session_id": str(number)} for number, row in enumerate(gsm8k_with_shots(shared))]
    trace = read_prompts(tmp_path, rows, smollm2)
    assert len(trace) == 1319
    assert trace.prompt_tokens.mean() == pytest.approx(1516, rel=0.1)
    assert rates(trace) == pytest.approx([0.949, 0.928, 0.675], abs=WITHIN)
    # Questions are of different people: nothing of it is in one session.
    sharing = measure(trace).sharing
    assert sharing.within_session == 0
    assert sharing.across_session == pytest.approx(0.949, abs=WITHIN)


@pytest.mark.parametrize(
    ("file", "rows", "tokens", "rate"),
    [
        ("gsm8k/test.jsonl.gz", 1319, 62, 0.000),
        ("humaneval/HumanEval.jsonl.gz", 164, 138, 0.001),
        ("mt-bench/question.jsonl", 80, 69, 0.000),
    ],
)
def test_bare_questions_share_nothing(
    shared: Path, tmp_path: Path, smollm2: Tokenizer, file: str, rows: int, tokens: int, rate: float
) -> None:
    questions = [
        {"prompt": row.get("question") or row.get("prompt") or row["turns"][0]}
        for row in json_lines(shared / "traces" / file)
    ]
    trace = read_prompts(tmp_path, questions, smollm2)
    assert len(trace) == rows
    assert trace.prompt_tokens.mean() == pytest.approx(tokens, rel=0.03)
    assert rates(trace) == pytest.approx([rate, 0, 0], abs=5e-4)


def test_aibrix_text(shared: Path, smollm2: Tokenizer) -> None:
    trace = read([shared / "traces/aibrix-sharegpt/8min_up_and_down.jsonl.gz"], tokenizer=smollm2)
    assert measure(trace).sharing.hit_rate_blocks == pytest.approx(0.052, abs=5e-3)
    assert token_hit_rate(trace) == pytest.approx(0.052, abs=5e-3)
    assert trace.info is not None
    assert trace.info.token_basis.startswith("declared")  # lengths stay those of the file
