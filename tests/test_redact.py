"""`advise redact`: the file that is written, and what is said about it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.logs import write_lines

from advisor.advice.resolve import TargetOptions
from advisor.analyze import AnalyzeOptions
from advisor.logs.read import read
from advisor.redact import Effect, Redacted, RedactOptions, describe, redact
from engine.errors import InputError

CANARY = "canary-7f3a"
TARGET = TargetOptions(model="llama-3.1-8b", gpu="h100-sxm", gpus=8, ttft_s=10.0, tpot_s=0.1)


def mooncake_slice(shared: Path, folder: Path, rows: int = 2000) -> Path:
    lines = gzip.decompress((shared / "traces/mooncake/conversation_trace.jsonl.gz").read_bytes()).splitlines()
    return write_lines(folder / "log.jsonl", lines[:rows])


def log_of(folder: Path, models: dict[str, int]) -> Path:
    rows: list[dict[str, Any]] = [
        {"ts": 1_700_000_000 + place, "prompt": list(range(40)), "model": model, "user": CANARY,
         "path": f"/{CANARY}", "session_id": f"{CANARY}-{place}", "usage": {"completion_tokens": 3}}
        for place, model in enumerate(name for name, count in models.items() for _ in range(count))
    ]  # fmt: skip
    return write_lines(folder / "log.jsonl", rows)


def text_of(redacted: Redacted) -> str:
    return "\n".join(describe(redacted))


@pytest.mark.parametrize("block_size", [None, 512])
def test_share_safe_prints_its_effect_on_the_advice(
    shared: Path, tmp_path: Path, block_size: int | None
) -> None:
    """C5: the same recommendation from the redacted trace."""
    log = mooncake_slice(shared, tmp_path)
    options = RedactOptions(
        tmp_path / "trace.jsonl", AnalyzeOptions(target=TARGET), block_size=block_size, share_safe=True
    )
    redacted = redact([log], options)
    assert redacted.requests == 2000
    effects = {effect.name: effect for effect in redacted.effects}
    for name in ("prompt tokens, mean", "requests/s", "prompt tokens reused"):
        before, after = (
            float(text.rstrip("%").replace(",", "")) for text in (effects[name].before, effects[name].after)
        )
        assert after == pytest.approx(before, rel=0.01)
    assert effects["plan"].before != "none"
    assert not [effect for effect in redacted.effects if effect.changed]
    assert "the advice is the same" in text_of(redacted)


def test_the_target_is_the_same_though_the_model_is_not_named(tmp_path: Path) -> None:
    rows = [
        {
            "timestamp": 500 * i,
            "input_length": 900,
            "output_length": 90,
            "model": "llama-3.1-8b",
            "hash_ids": [0, i + 1],
        }
        | {"block_size": 512, "scope": "global"}
        for i in range(200)
    ]
    log = write_lines(tmp_path / "log.jsonl", rows)
    target = TargetOptions(gpu="h100-sxm", gpus=1, ttft_s=1.0, tpot_s=0.1)
    redacted = redact(
        [log], RedactOptions(tmp_path / "trace.jsonl", AnalyzeOptions(target=target), share_safe=True)
    )
    assert "llama" not in (tmp_path / "trace.jsonl").read_text()
    (plan,) = [effect for effect in redacted.effects if effect.name == "plan"]
    assert plan.before == plan.after != "none"


def test_what_coarse_lengths_do_to_short_prompts_is_said(tmp_path: Path) -> None:
    """Prompts of 9 tokens become 16: the figures say so, by hand."""
    rows = [
        {"timestamp": 100 * i, "input_length": 9, "output_length": 9, "hash_ids": [0, 1, i + 2]}
        | {"block_size": 4, "scope": "global"}
        for i in range(200)
    ]
    log = write_lines(tmp_path / "log.jsonl", rows)
    redacted = redact([log], RedactOptions(tmp_path / "trace.jsonl", share_safe=True))
    effects = {effect.name: (effect.before, effect.after) for effect in redacted.effects}
    assert effects["prompt tokens, mean"] == ("9.0", "16.0")
    assert effects["prompt tokens reused"] == ("88.4%", "49.8%")  # 199 of 200 find 8 tokens: of 9, then of 16


def test_a_change_of_the_advice_is_said(tmp_path: Path) -> None:
    effects = (Effect("requests", "7", "7"), Effect("ADV101", "do", "off", changed=True))
    text = text_of(Redacted(tmp_path / "trace.jsonl", 7, {}, (), effects))
    assert "ADV101     do   off   changed" in text
    assert "advice that changed: 1" in text


def test_other_tools_get_the_largest_model(tmp_path: Path) -> None:
    log = log_of(tmp_path, {"small": 2, "large": 5})
    redacted = redact([log], RedactOptions(tmp_path / "trace.jsonl", block_size=16))
    assert redacted.requests == 5
    assert list(redacted.left_out.values()) == [2]
    assert "--where model=NAME" in text_of(redacted)
    # 4 of 5 prompts find 2 blocks of 16 of their 40 tokens.
    assert "in blocks of 16 tokens 64.0%, in blocks of 16 64.0%" in text_of(redacted)
    own = redact([log], RedactOptions(tmp_path / "own.jsonl"))
    assert own.requests == 7


def test_no_name_is_in_the_file_or_on_the_screen(tmp_path: Path) -> None:
    log = log_of(tmp_path, {CANARY: 7})
    for share_safe in (True, False):
        for block_size in (None, 32):
            options = RedactOptions(tmp_path / "trace.jsonl", block_size=block_size, share_safe=share_safe)
            text = text_of(redact([log], options)) + options.out.read_text()
            if share_safe or block_size:  # our own form names models
                assert CANARY not in text
            assert f"{CANARY}-" not in text
            assert f"/{CANARY}" not in text


def test_same_log_same_bytes(tmp_path: Path) -> None:
    rows = [
        {"ts": 1_700_000_000 + i, "prompt": list(range(i % 7 * 8)) or [1], "user": f"u{i % 3}"}
        for i in range(50)
    ]
    log = write_lines(tmp_path / "log.jsonl", rows)
    for share_safe in (True, False):
        written = []
        for name in ("one.jsonl", "two.jsonl"):
            redact([log], RedactOptions(tmp_path / name, share_safe=share_safe))
            written.append((tmp_path / name).read_bytes())
        assert written[0] == written[1]


def test_the_trace_is_analyzed_like_the_log(tmp_path: Path) -> None:
    log = log_of(tmp_path, {"m": 6})
    redact([log], RedactOptions(tmp_path / "trace.jsonl"))
    one, other = read([log]), read([tmp_path / "trace.jsonl"])
    assert one.blocks is not None
    assert other.blocks is not None
    assert one.blocks.ids.tolist() == other.blocks.ids.tolist()
    assert "advise analyze" in describe(redact([log], RedactOptions(tmp_path / "again.jsonl")))[-1]


def test_text_is_read_in_blocks_that_add_up(tmp_path: Path) -> None:
    """Blocks of 24 tokens are not made of 16, so the text is read in blocks of 24."""
    log = log_of(tmp_path, {"m": 2})
    redact([log], RedactOptions(tmp_path / "trace.jsonl", block_size=24))
    rows = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert [row["hash_ids"] for row in rows] == [[0, 1], [0, 2]]


@pytest.mark.parametrize("block_size", [0, -16])
def test_odd_block_sizes_are_refused(tmp_path: Path, block_size: int) -> None:
    with pytest.raises(InputError, match="--block-size"):
        redact([log_of(tmp_path, {"m": 2})], RedactOptions(tmp_path / "trace.jsonl", block_size=block_size))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write the trace"):
        redact([log_of(tmp_path, {"m": 2})], RedactOptions(tmp_path / "nowhere" / "trace.jsonl"))
