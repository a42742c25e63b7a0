"""The form for other tools shares what the prompts share; a trace that is safe to share tells less."""

from __future__ import annotations

import json
import random
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.logs import WordEncoder, read_lines, token_hit_rate

from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.redact import combine_blocks, save_standard, standard_form
from advisor.logs.save import save
from advisor.logs.share_safe import dropped, share_safe
from advisor.logs.trace import Blocks, Labels, Trace
from engine.errors import InputError

Tokens = tuple[int, ...]


def make_prompts(seed: int, count: int = 120) -> list[Tokens]:
    """Prompts that go on from each other at any length, some of them asked again."""
    rng = random.Random(seed)
    prompts: list[Tokens] = [()]
    for _ in range(count):
        base = rng.choice(prompts)
        cut = base[: rng.randrange(len(base) + 1)] if rng.random() < 0.5 else base
        new = tuple(rng.randrange(10**6) for _ in range(rng.choice((0, 1, 7, 8, 16, 33, 90))))
        prompts.append(cut + new or (1,))
    return prompts[1:]


def as_blocks(prompts: list[Tokens], size: int, rounding: str) -> Blocks:
    """Chained ids by definition: a number for every distinct prefix."""
    numbers: dict[Tokens, int] = {}
    paths = []
    for tokens in prompts:
        stop = len(tokens) + size - 1 if rounding == "ceil" else len(tokens)
        ends = [min(end, len(tokens)) for end in range(size, stop + 1, size)]
        paths.append([numbers.setdefault(tokens[:end], len(numbers)) for end in ends])
    starts = np.cumsum([0] + [len(path) for path in paths])
    return Blocks(size, np.array([number for path in paths for number in path]), starts, rounding)


def engine_hits(prompts: list[Tokens], size: int) -> list[int]:
    """Blocks of each prompt that an engine finds: full ones only, after equal tokens, in an earlier prompt."""
    seen: set[Tokens] = set()
    hits = []
    for tokens in prompts:
        prefixes = [tokens[:end] for end in range(size, len(tokens) + 1, size)]
        hits.append(next((n for n, prefix in enumerate(prefixes) if prefix not in seen), len(prefixes)))
        seen.update(prefixes)
    return hits


def trace_hits(blocks: Blocks, lengths: list[int]) -> list[int]:
    """The same from ids: the leading full blocks whose id an earlier row had."""
    seen: set[int] = set()
    hits = []
    for row, length in enumerate(lengths):
        ids = blocks.row(row).tolist()
        full = ids[: length // blocks.size]
        hits.append(next((n for n, number in enumerate(full) if number not in seen), len(full)))
        seen.update(ids)
    return hits


@pytest.mark.parametrize("rounding", ["floor", "ceil"])
@pytest.mark.parametrize(("small", "large"), [(8, 8), (8, 32), (1, 16), (16, 48)])
@pytest.mark.parametrize("seed", range(3))
def test_combined_blocks_hit_as_in_an_engine(seed: int, small: int, large: int, rounding: str) -> None:
    prompts = make_prompts(seed)
    lengths = [len(tokens) for tokens in prompts]
    combined = combine_blocks(as_blocks(prompts, small, rounding), np.array(lengths), large)
    hits = engine_hits(prompts, large)
    assert sum(hits) > 20
    assert trace_hits(combined, lengths) == hits


@pytest.mark.parametrize("rounding", ["floor", "ceil"])
def test_every_id_is_one_length_at_one_place(rounding: str) -> None:
    """What AIPerf and GuideLLM ask of ids, and what `Blocks` promises: ai-dynamo/aiperf#1219."""
    prompts = make_prompts(3, count=400)
    lengths = [len(tokens) for tokens in prompts]
    combined = combine_blocks(as_blocks(prompts, 8, rounding), np.array(lengths), 32)
    meaning: dict[int, tuple[int, int, int]] = {}
    for row, length in enumerate(lengths):
        ids = combined.row(row).tolist()
        assert len(ids) == -(-length // 32)
        for place, number in enumerate(ids):
            size = min(32, length - 32 * place)
            parent = ids[place - 1] if place else -1
            assert meaning.setdefault(number, (size, place, parent)) == (size, place, parent)
    assert sorted(meaning) == list(range(len(meaning)))


def test_equal_tails_share_an_id_where_the_log_shows_that_they_are_equal() -> None:
    a, b = tuple(range(40)), tuple(range(40, 85))
    prompts = [a, a, a + b, a + b, a + b[:24]]
    lengths = np.array([len(tokens) for tokens in prompts])
    ceil = combine_blocks(as_blocks(prompts, 8, "ceil"), lengths, 32)
    tails = [ceil.row(row).tolist()[-1] for row in range(5)]
    assert tails[0] == tails[1] != tails[2] == tails[3]
    floor = combine_blocks(as_blocks(prompts, 8, "floor"), lengths, 32)
    tails = [floor.row(row).tolist()[-1] for row in range(5)]
    assert tails[0] == tails[1]  # 40 tokens are 5 whole small blocks
    assert tails[2] != tails[3]  # of 85 the last 5 are in no block of the log


def test_an_id_that_is_partial_here_and_full_there_becomes_two() -> None:
    source = Blocks(512, np.array([7, 8, 7, 8, 9]), np.array([0, 2, 5]))
    combined = combine_blocks(source, np.array([600, 1100]), 512)
    assert combined.row(0).tolist() == [0, 1]
    assert combined.row(1).tolist() == [0, 2, 3]


def test_ids_that_the_log_cut_off_are_new_content() -> None:
    """Two prompts of 100 tokens with ids for their first 32 only."""
    source = Blocks(16, np.array([0, 1, 0, 1]), np.array([0, 2, 4]), "floor")
    combined = combine_blocks(source, np.array([100, 100]), 32)
    assert combined.row(0).tolist() == [0, 1, 2, 3]
    assert combined.row(1).tolist() == [0, 4, 5, 6]


def test_a_text_log_in_the_form_for_other_tools(tmp_path: Path) -> None:
    shared = "a " * 40
    log = [
        {"ts": 1_700_000_000.2504, "prompt": f"{shared} b c d", "model": "m", "user": "alice", "status": 200,
         "usage": {"completion_tokens": 5}},
        {"ts": 1_700_000_000, "prompt": f"{shared} e", "model": "m", "user": "bob",
         "usage": {"completion_tokens": 7}},
    ]  # fmt: skip
    trace = read_lines(tmp_path, log, tokenizer=WordEncoder())
    standard = standard_form(trace, 32)
    assert standard.left_out == {}
    path = tmp_path / "trace.jsonl"
    save_standard(standard.trace, path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"timestamp": 0, "input_length": 41, "output_length": 7, "hash_ids": [0, 1]},
        {"timestamp": 250, "input_length": 43, "output_length": 5, "hash_ids": [0, 2]},
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_other_tools_cannot_take_is_left_out_and_counted() -> None:
    blocks = Blocks(
        16, np.arange(4), np.array([0, 1, 2, 3, 4, 4]), "floor", known=np.array([1, 1, 1, 1, 0]) > 0
    )
    trace = Trace(
        arrival_s=np.array([np.nan, 1.0, 2.0, 3.5, 4.0]),
        prompt_tokens=np.array([20, -1, 20, 20, 20]),
        output_tokens=np.array([5, 5, -1, 5, 5]),
        blocks=blocks,
    )
    standard = standard_form(trace, 16)
    assert standard.left_out == {
        "no arrival time": 1,
        "prompt length unknown": 1,
        "output length unknown": 1,
        "prompt content unknown": 1,
    }
    assert standard.trace.arrival_s.tolist() == [0.0]
    with pytest.raises(InputError, match="no request that other tools can replay") as caught:
        standard_form(trace.take(np.array([0, 1, 2, 4])), 16)
    assert "1 x output length unknown" in str(caught.value.why)


def test_a_log_without_sharing_has_no_ids(tmp_path: Path) -> None:
    """Not ids of their own: that would say that nothing is shared."""
    log = [
        {"ts": 1, "prompt_tokens": 5, "completion_tokens": 2},
        {"ts": 2, "prompt_tokens": 7, "completion_tokens": 2},
    ]
    path = tmp_path / "trace.jsonl"
    save_standard(standard_form(read_lines(tmp_path, log), 512).trace, path)
    assert all("hash_ids" not in json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize(("own", "wanted", "hint"), [(16, 40, "32"), (512, 16, "512"), (64, 500, "512")])
def test_blocks_that_do_not_add_up_are_refused(own: int, wanted: int, hint: str) -> None:
    trace = Trace(np.zeros(1), np.array([600]), np.array([1]), Blocks(own, np.arange(1), np.array([0, 1])))
    with pytest.raises(InputError) as caught:
        standard_form(trace, wanted)
    assert caught.value.hint == f"--block-size {hint}"


def test_mooncake_stays_mooncake(shared: Path, tmp_path: Path) -> None:
    """12,031 requests of 12,035 and 343 tokens (FAST'25, Table 2), and the block hit rate of the file."""
    trace = read([shared / "traces/mooncake/conversation_trace.jsonl.gz"])
    save_standard(standard_form(trace, 512).trace, tmp_path / "trace.jsonl")
    again = read([tmp_path / "trace.jsonl"])
    assert again.info is not None
    assert again.info.format == "mooncake"
    assert len(again) == 12_031
    assert again.prompt_tokens.mean() == pytest.approx(12_035, abs=0.5)
    assert again.output_tokens.mean() == pytest.approx(343, abs=0.5)
    assert again.blocks is not None
    assert trace.blocks is not None
    lengths = trace.prompt_tokens.tolist()
    hits = trace_hits(again.blocks, lengths)
    assert hits == trace_hits(trace.blocks, lengths)
    # 38.2 % of full blocks (shared/reference/logs.md, A3.4).
    assert sum(hits) / sum(length // 512 for length in lengths) == pytest.approx(0.382, abs=0.0005)


def test_lengths_and_times_are_coarse() -> None:
    trace = Trace(
        arrival_s=np.array([0.0, 0.049, 0.051, 12.34]),
        prompt_tokens=np.array([1, 23, 24, -1]),
        output_tokens=np.array([7, 16, 0, 1000]),
    )
    safe = share_safe(trace)
    assert safe.arrival_s == pytest.approx([0.0, 0.0, 0.1, 12.3])
    assert safe.prompt_tokens.tolist() == [16, 16, 32, -1]
    assert safe.output_tokens.tolist() == [16, 16, 0, 1008]


def labels(*counts: int) -> Labels:
    """Names in order, each with so many rows."""
    names = tuple(f"name-{place}" for place in range(len(counts)))
    return Labels(names, np.repeat(np.arange(len(counts)), counts))


def counts_of(labels: Labels | None) -> list[int]:
    assert labels is not None
    assert not any("name-" in name for name in labels.names)
    return np.bincount(labels.codes[labels.codes >= 0], minlength=len(labels.names)).tolist()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((9, 3, 8, 2), (9, 8, 5)),  # 3 and 2 become one
        ((9, 3, 8), (9, 11)),  # 3 alone is too few: the rarest other joins it
        ((9, 8), (9, 8)),
        ((3, 3), (6,)),
        ((9, 1), (10,)),
    ],
)
def test_rare_names_are_one(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    rows = sum(before)
    trace = Trace(np.arange(rows) * 1.0, np.full(rows, 16), np.full(rows, 16), client=labels(*before))
    assert counts_of(share_safe(trace).client) == list(after)


def test_too_few_to_name_at_all() -> None:
    trace = Trace(np.arange(4.0), np.full(4, 16), np.full(4, 16), client=labels(2, 2), session=labels(1, 3))
    assert share_safe(trace).client is None
    assert share_safe(trace).session is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, 9, 2, 2, 3, 3), (9, 6, 6)),  # 2 + 2 + 2, then 3 + 3; the 9 stands for itself
        ((4, 4, 4), (12,)),  # 4 + 4, and what is left over joins them
        ((9, 1), (10,)),
    ],
)
def test_short_sessions_stand_together(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    rows = sum(before)
    trace = Trace(np.arange(rows) * 1.0, np.full(rows, 16), np.full(rows, 16), session=labels(*before))
    assert sorted(counts_of(share_safe(trace).session)) == sorted(after)


@pytest.mark.parametrize("rounding", ["floor", "ceil"])
@pytest.mark.parametrize("size", [8, 10, 16, 512])
def test_coarse_prompts_have_room_for_their_blocks(tmp_path: Path, rounding: str, size: int) -> None:
    """The written file is read back whole, in both forms."""
    prompts = make_prompts(1)
    rows = len(prompts)
    trace = Trace(
        np.arange(rows) * 0.33,
        np.array([len(tokens) for tokens in prompts]),
        np.full(rows, 20),
        as_blocks(prompts, size, rounding),
    )
    safe = share_safe(trace)
    save(safe, tmp_path / "own.jsonl")
    save_standard(standard_form(safe, size).trace, tmp_path / "other.jsonl")
    for name in ("own.jsonl", "other.jsonl"):
        again = read([tmp_path / name], options=ReadOptions(time_unit="ms"))
        assert again.info is not None
        assert again.info.skipped == {}
        assert len(again) == rows
    assert safe.blocks is not None
    assert trace.blocks is not None
    for row in range(rows):  # nothing but a tail is lost
        kept = safe.blocks.row(row).tolist()
        assert kept == trace.blocks.row(row).tolist()[: len(kept)]
        assert len(trace.blocks.row(row)) - len(kept) <= 1 + 8 // size


def test_the_rest_is_dropped(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"ts": 1_700_000_000 + i, "prompt": "a b", "model": "acme-secret", "user": "alice",
         "session_id": f"s{i}", "path": "/tenant/alice", "status": "odd-status", "ttft_s": 0.25, "e2e_s": 1.5,
         "usage": {"completion_tokens": 3, "cached_tokens": 1}}
        for i in range(6)
    ]  # fmt: skip
    trace = read_lines(tmp_path, rows, options=ReadOptions(block_size=2), tokenizer=WordEncoder())
    assert dropped(trace) == ("status", "cached_tokens", "novel_tokens", "ttft_s", "e2e_s")
    save(share_safe(trace), tmp_path / "trace.jsonl")
    text = (tmp_path / "trace.jsonl").read_text()
    assert not any(name in text for name in ("acme", "alice", "odd", "17000", "0.25", "1.5", "cached", "ttft"))
    first = json.loads(text.splitlines()[0])
    assert first.keys() == {
        "timestamp", "input_length", "output_length", "hash_ids", "rounding", "block_size", "scope", "model",
        "route", "client", "session",
    }  # fmt: skip


def test_coarse_sharing_is_the_same_sharing(shared: Path) -> None:
    trace = read([shared / "traces/mooncake/conversation_trace.jsonl.gz"])
    safe = share_safe(trace)
    assert token_hit_rate(safe) == pytest.approx(token_hit_rate(trace), abs=0.001)
    assert safe.prompt_tokens.mean() == pytest.approx(trace.prompt_tokens.mean(), abs=1)
    assert safe.prompt_tokens.min() >= 16
