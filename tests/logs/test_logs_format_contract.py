"""What every format must keep to, whoever wrote it: run on one good record of each."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from advisor.logs.formats import FORMATS, choose_format
from advisor.logs.formats.base import Format
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, UnusableError

NOW = 1_700_000_000
SAMPLES: dict[str, dict[str, Any]] = {
    "advise-trace": {
        "timestamp": 0, "input_length": 20, "output_length": 2, "hash_ids": [0], "block_size": 16,
        "scope": "global",
    },
    "mooncake": {"timestamp": 0, "input_length": 1100, "output_length": 2, "hash_ids": [0, 1, 2]},
    "azure": {"TIMESTAMP": "2023-11-16 18:17:03.9799600", "ContextTokens": "4808", "GeneratedTokens": "10"},
    "lmcache": {"timestamp": NOW * 10**6, "input": "a b", "output": "c", "session_id": "s"},
    "openai": {"ts": NOW, "request": {"model": "m", "prompt": "a b"}},
    "generic": {"ts": NOW, "prompt_tokens": 5},
}  # fmt: skip
JUNK: list[object] = [None, True, -1, 1.5, 10**30, float("nan"), "", "x", "\ud800", [], [None], {}, {"a": [{}]}]


def test_every_format_has_a_sample() -> None:
    assert [kind.name for kind in FORMATS] == list(SAMPLES)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
class TestFormat:
    def test_its_rows_are_recognised_as_its_own(self, kind: type[Format]) -> None:
        row = SAMPLES[kind.name]
        assert choose_format([row], ReadOptions()) is kind
        assert choose_format([row, row, {"damaged": 1}], ReadOptions()) is kind
        assert choose_format([{"nothing": "known"}], ReadOptions()) is None

    def test_a_row_becomes_a_record(self, kind: type[Format]) -> None:
        row = SAMPLES[kind.name]
        reader = kind([row], ReadOptions())
        (record,) = reader.parse(row)
        assert isinstance(record, Record)
        assert record.arrival_ns is not None
        assert record.prompt_tokens > 0 or record.prompt is not None

    def test_it_says_what_it_assumed(self, kind: type[Format]) -> None:
        row = SAMPLES[kind.name]
        reader = kind([row], ReadOptions())
        list(reader.parse(row))
        basis = reader.basis()
        assert basis.clock is not None
        assert basis.arrival
        assert basis.tokens
        assert all(entry.path and entry.why and entry.how_to_get for entry in reader.cannot_tell)

    def test_junk_in_any_field_is_unusable_or_read_never_a_crash(self, kind: type[Format]) -> None:
        row = SAMPLES[kind.name]
        for name in row:
            for value in JUNK:
                for damaged in ({**row, name: value}, {key: row[key] for key in row if key != name}):
                    for sample in ([row], [damaged]):
                        with contextlib.suppress(UnusableError):
                            for record in kind(sample, ReadOptions()).parse(damaged):
                                assert record.prompt_tokens >= -1
