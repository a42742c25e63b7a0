"""How the recorder makes rows: prefixes out of bytes, counts out of answers, files, threads and forks."""

from __future__ import annotations

import gzip
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.embedded import embedded_folder
from helpers.logs import token_hit_rate
from helpers.recorded import CHAT, chat, event, rows

from advisor.logs.read import read
from advisor.logs.recorder.exchange import Counts, Exchange, count_usage, read_counts
from advisor.logs.recorder.files import TraceFiles
from advisor.logs.recorder.prefix import BLOCK_TOKENS, UNIT_BYTES, PrefixIds
from advisor.logs.recorder.writer import TraceWriter
from engine.recent import RecentMap
from engine.text import Tokenizer


def test_prompts_of_token_ids_are_exact(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.jsonl")
    for last in (1, 2):
        body = json.dumps({"model": "m", "prompt": [*range(32), *[last] * 20]}).encode()
        writer.put(Exchange("/v1/completions", 0, body))
    writer.close()
    one, other = rows(tmp_path / "trace.jsonl")
    assert one["input_length"] == 52
    assert one["hash_ids"] == [0, 1, 2]
    assert other["hash_ids"] == [0, 1, 3]


def test_a_server_that_cuts_prompts_has_the_last_word(tmp_path: Path) -> None:
    """100 token ids were sent and 40 counted: two full blocks."""
    writer = TraceWriter(tmp_path / "trace.jsonl")
    body = json.dumps({"model": "m", "prompt": list(range(100))}).encode()
    writer.put(Exchange("/v1/completions", 0, body, counts=Counts(40, 1)))
    writer.close()
    (row,) = rows(tmp_path / "trace.jsonl")
    assert (row["input_length"], row["hash_ids"]) == (40, [0, 1])


def test_pictures_and_redacted_prompts_are_unknown_content(tmp_path: Path) -> None:
    """Two pictures, or two placeholders, have equal text and nothing in common."""
    writer = TraceWriter(tmp_path / "trace.jsonl")
    picture = [{"type": "text", "text": "what is this? " * 9}, {"type": "image_url", "image_url": {"url": "x"}}]
    for content in (picture, picture, "redacted-by-litellm", "redacted-by-litellm"):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
        writer.put(Exchange(CHAT, 0, body, counts=Counts(1000, 1)))
    writer.close()
    assert [row.get("hash_ids") for row in rows(tmp_path / "trace.jsonl")] == [None] * 4


def test_a_slow_thread_costs_rows_not_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.logs.recorder.writer.QUEUE_BYTES", 1000)
    writer = TraceWriter(tmp_path / "trace.jsonl")
    writer.put(Exchange(CHAT, 0, b"x" * 2000))
    writer.close()
    assert writer.counts == {"the recorder could not keep up": 1}


def test_files_end_at_their_size_and_at_midnight(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path / "trace.jsonl", most_bytes=110, daily=True)
    day = 86_400 * 10**9
    files.append({"row": "x" * 80}, 0)
    files.append({"row": "y" * 80}, 1)  # does not fit
    files.append({"row": "z"}, day - 1)
    files.append({"row": "next day"}, day)
    files.close()
    sizes = {file.name: len(rows(file)) for file in tmp_path.iterdir()}
    assert sizes == {"trace.jsonl": 1, "trace-1.jsonl": 2, "trace-2.jsonl": 1}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # what Python 3.12 says of threads and forks
def test_a_fork_records_on_its_own(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.jsonl")
    body = json.dumps(chat("a" * 64)).encode()
    writer.put(Exchange(CHAT, 0, body))
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with writer._lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)  # a thread that is in `put`, and is not in the child
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        writer.put(Exchange(CHAT, 0, body))
        writer.close()
        os._exit(0 if writer.counts == {"recorded": 1} else 1)
    done.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.close()
    scopes = [row["scope"] for file in tmp_path.iterdir() for row in rows(file)]
    assert len(set(scopes)) == 2


def test_tokens_are_where_their_text_is() -> None:
    """A dense prefix of 4 bytes a token and a thin tail of 8: the prefix is 400 tokens of both prompts."""
    ids = PrefixIds(most=10_000, secret=1)
    dense, thin = bytes(range(100)) * 16, bytes(range(100, 200)) * 16
    first, _ = ids.of("m", dense, 400, 4.0)
    assert len(first) == 400 // 16
    longer, _ = ids.of("m", dense + thin, 400 + 200, 4.0)
    assert longer[:25] == first
    assert len(longer) == 600 // 16
    assert len(set(longer)) == len(longer)
    other, _ = ids.of("m", dense + thin[::-1], 400 + 200, 4.0)
    assert other[:25] == first
    assert not set(other[25:]) & set(longer)
    # Without a count: what is known of the prefix, and for new text the ratio given.
    assert ids.of("m", dense, None, 999.0)[1] == 400
    assert ids.of("m", dense + b"?" * 1600, None, 16.0)[1] == 400 + 100


def test_blocks_found_on_bytes_share_like_blocks_of_tokens(shared: Path, tmp_path: Path) -> None:
    """Part of the public agent trace, whose prompts grow, beside its exact hit rate in blocks of 16 tokens."""
    tokenizer = Tokenizer.load(embedded_folder())
    files = sorted((shared / "traces/lmcache-agent/miniswe").glob("*.jsonl.gz"))[:8]
    exact = token_hit_rate(read(files, tokenizer=tokenizer))
    lines = [line for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    calls = sorted(map(json.loads, lines), key=lambda call: int(call["timestamp"]))
    counts = [len(ids) for ids in tokenizer.encode_batch([call["input"] for call in calls])]
    writer = TraceWriter(tmp_path / "trace.jsonl")
    for call, count in zip(calls, counts, strict=True):
        body = json.dumps({"model": "m", "prompt": call["input"]}).encode()
        writer.put(Exchange("/v1/completions", call["timestamp"] * 1000, body, counts=Counts(count, 1)))
    writer.close(60.0)
    trace = read([tmp_path / "trace.jsonl"])
    assert trace.prompt_tokens.tolist() == counts
    assert token_hit_rate(trace) == pytest.approx(exact, abs=0.015)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        # OpenAI: cached tokens are part of the prompt; Anthropic: they are not (platform documentation).
        (
            {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}},
            (100, 5, 64),
        ),
        ({"input_tokens": 9, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}}, (9, 5, 4)),
        (
            {
                "input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 64,
                "cache_creation_input_tokens": 26,
            },
            (100, 5, 64),
        ),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (None, 0, None)),  # BerriAI/litellm#37734
        ({"prompt_tokens": "7", "completion_tokens": True}, (None, None, None)),
    ],
)  # fmt: skip
def test_usage_objects(usage: dict[str, Any], counts: tuple[int | None, ...]) -> None:
    assert count_usage(usage) == counts


def test_usage_in_streams_of_other_kinds() -> None:
    responses = event(
        {"type": "response.completed", "response": {"usage": {"input_tokens": 9, "output_tokens": 4}}}
    )
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "cache_read_input_tokens": 1}}}
    anthropic = event(start) + event({"type": "message_delta", "usage": {"output_tokens": 4}})
    for text, counts in (
        (responses, (9, 4, None)),
        (anthropic, (10, 4, 1)),
        ("data: {broken\n\n", (None,) * 3),
    ):
        exchange = Exchange("/v1/messages", 0, None, answer=text.encode(), streamed=True)
        assert read_counts(exchange) == counts


def test_what_is_forgotten_may_look_new_but_never_shared() -> None:
    """Against a map that forgets nothing: equal ids only after equal prefixes, in any order of use."""
    ids = PrefixIds(most=64, secret=5)
    meaning: dict[int, bytes] = {}
    rng = np.random.default_rng(0)
    for _ in range(500):
        data = b"".join(bytes([bit]) * UNIT_BYTES for bit in rng.integers(0, 2, 12))
        tokens = 12 * BLOCK_TOKENS  # a block a unit
        found, _ = ids.of("m", data, tokens, 2.0)
        for place, number in enumerate(found, 1):
            prefix = data[: place * UNIT_BYTES]
            assert meaning.setdefault(number, prefix) == prefix
        assert len(ids) <= 64 + 12  # and the prompt at hand
    assert not set(ids.of("other model", data, tokens, 2.0)[0]) & set(ids.of("m", data, tokens, 2.0)[0])


def test_ids_are_chained_whatever_lengths_are_told() -> None:
    """One parent and one depth for every id, as `Blocks` promises, under counts that contradict each other."""
    ids = PrefixIds(most=10_000, secret=5)
    rng = np.random.default_rng(1)
    parents: dict[int, tuple[int, int]] = {}
    for _ in range(500):
        data = b"".join(bytes([bit]) * 40 for bit in rng.integers(0, 3, rng.integers(1, 12)))
        tokens = None if rng.random() < 0.3 else int(rng.integers(1, 400))
        found, length = ids.of("m", data, tokens, 4.0)
        assert len(found) <= length // BLOCK_TOKENS
        for depth, number in enumerate(found):
            parent = found[depth - 1] if depth else -1
            assert parents.setdefault(number, (depth, parent)) == (depth, parent)


def test_what_is_used_is_kept() -> None:
    recent = RecentMap[int](100)
    recent.put([-1], [7])
    for key in range(1000):
        recent.put([key], [key])
        assert recent.leading([-1]) == [7]
        assert len(recent) <= 100
    assert recent.leading([999, 0]) == [999]  # the other was long unused
