"""Parquet: the rows of a JSON lines log give the same Trace; types that JSON lacks; damage; no pyarrow."""

from __future__ import annotations

import builtins
import datetime
import decimal
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.logs import read_lines
from helpers.traffic import ENCODER, make_calls
from logs.writers import langfuse_blob, langsmith

from advisor.logs.read import read
from advisor.logs.trace import Trace
from engine.errors import InputError, MachineError

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")


def write(path: Path, columns: Mapping[str, Any], **keywords: Any) -> Path:
    pq.write_table(pa.table(dict(columns)), path, **keywords)
    return path


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: pa.array([row.get(name) for row in rows]) for name in rows[0]}


def summary(trace: Trace) -> tuple[Any, ...]:
    """All that a reading says, but for the file."""
    assert trace.blocks is not None
    assert trace.info is not None
    labels = [
        None if each is None else (each.names, each.codes.tolist()) for each in (trace.model, trace.client)
    ]
    numbers = [trace.arrival_s, trace.prompt_tokens, trace.output_tokens, trace.cached_tokens, trace.ttft_s]
    shown = [None if column is None else [str(value) for value in column] for column in numbers]
    return shown, labels, trace.blocks.ids.tolist(), trace.first_epoch_s, trace.info, trace.unknown


def test_langsmiths_bulk_export_reads_like_its_json(tmp_path: Path) -> None:
    """Objects are JSON texts there and times are timestamps."""
    rows = langsmith.rows(make_calls(300))
    nested = ("inputs", "outputs", "extra", "events")
    flat = [row | {name: json.dumps(row[name]) for name in nested} for row in rows]
    columns = columns_of(flat)
    for name in ("start_time", "end_time", "first_token_time"):
        stamps = [row[name] and datetime.datetime.fromisoformat(row[name]) for row in rows]
        columns[name] = pa.array(stamps, pa.timestamp("us"))
    path = write(tmp_path / "runs.parquet", columns, row_group_size=100)
    assert summary(read([path], tokenizer=ENCODER)) == summary(read_lines(tmp_path, rows, tokenizer=ENCODER))


def test_langfuses_export_reads_like_its_json(tmp_path: Path) -> None:
    """ClickHouse writes usage as maps, times in UTC and texts as bytes."""
    rows = langfuse_blob.rows(make_calls(300))
    columns = columns_of([row | {"usage_details": None} for row in rows])
    usage = [[(name.encode(), count) for name, count in row["usage_details"].items()] for row in rows]
    columns["usage_details"] = pa.array(usage, pa.map_(pa.binary(), pa.uint64()))
    columns["input"] = pa.array([row["input"].encode() for row in rows], pa.binary())
    for name in ("start_time", "end_time", "completion_start_time"):
        stamps = [row[name] and datetime.datetime.fromisoformat(f"{row[name]}+00:00") for row in rows]
        columns[name] = pa.array(stamps, pa.timestamp("ms", tz="UTC"))
    path = write(tmp_path / "observations.parquet", columns)
    assert summary(read([path], tokenizer=ENCODER)) == summary(read_lines(tmp_path, rows, tokenizer=ENCODER))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_timestamps_are_read_in_their_unit_and_zone(tmp_path: Path, unit: str, zone: str | None) -> None:
    stamp = datetime.datetime(2026, 9, 14, 8, tzinfo=None if zone is None else datetime.UTC)
    columns = {
        "ts": pa.array([stamp, stamp + datetime.timedelta(seconds=2)], pa.timestamp(unit, tz=zone)),
        "prompt_tokens": pa.array([5, 6]),
    }
    trace = read([write(tmp_path / "log.parquet", columns)])
    assert trace.first_epoch_s == 1789372800.0
    assert trace.arrival_s.tolist() == [0.0, 2.0]


def test_nanoseconds_are_kept(tmp_path: Path) -> None:
    stamps = pa.array([1_789_372_800_000_000_100, 1_789_372_800_000_000_350], pa.timestamp("ns", tz="UTC"))
    trace = read([write(tmp_path / "log.parquet", {"ts": stamps, "prompt_tokens": pa.array([5, 6])})])
    assert trace.arrival_s.tolist() == [0.0, 2.5e-7]


def test_types_that_json_lacks_are_read(tmp_path: Path) -> None:
    columns = {
        "ts": pa.array([1_700_000_000, 1_700_000_001]),
        "prompt_tokens": pa.array([decimal.Decimal("5"), None], pa.decimal128(9, 0)),
        "completion_tokens": pa.array([7, 2**40], pa.uint64()),
        "model": pa.array([b"m", b"m"]).dictionary_encode(),
        "latency_s": pa.array([1.5, float("nan")]),
        "usage": pa.array([{"cached_tokens": 3}, {"cached_tokens": None}]),
        "day": pa.array([datetime.date(2026, 9, 14)] * 2),
        "length": pa.array([datetime.timedelta(seconds=1)] * 2),
        "raw": pa.array([b"\xff", None], pa.large_binary()),
    }
    trace = read([write(tmp_path / "log.parquet", columns)])
    assert trace.cached_tokens is not None
    assert trace.model is not None
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([5], [7])
    assert (trace.cached_tokens.tolist(), trace.model.names) == ([3], ("m",))
    assert trace.info is not None
    assert sum(trace.info.skipped.values()) == 1


def test_a_file_without_its_suffix_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    columns = {"ts": pa.array([1_700_000_000]), "prompt_tokens": pa.array([5])}
    assert len(read([write(tmp_path / "log", columns)])) == 1


def test_standard_input_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"ts": pa.array([1_700_000_000, 1_700_000_001]), "prompt_tokens": pa.array([5, 6])}
    with write(tmp_path / "log.parquet", columns).open("rb") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert read(["-"]).prompt_tokens.tolist() == [5, 6]


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path) -> None:
    columns = {
        "ts": pa.array([1_700_000_000 + row for row in range(1000)]),
        "prompt_tokens": pa.array([5] * 1000),
    }
    path = write(tmp_path / "log.parquet", columns)
    told: list[tuple[int, int]] = []
    read([path], progress=lambda done, total: told.append((done, total)))
    size = path.stat().st_size
    assert {total for _, total in told} == {size}
    assert max(done for done, _ in told) <= size


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_damaged_file_is_a_counted_loss(tmp_path: Path, keep: float) -> None:
    columns = {"ts": pa.array(list(range(1000))), "prompt_tokens": pa.array([5] * 1000)}
    path = write(tmp_path / "log.parquet", columns)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(InputError) as caught:
        read([path])
    assert "Parquet file is damaged" in str(caught.value.why)


def test_without_pyarrow_the_hint_is_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "log.parquet", {"ts": pa.array([1])})
    real = builtins.__import__

    def without(name: str, *rest: Any, **keywords: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MachineError) as caught:
        read([path])
    assert (caught.value.exit_code, caught.value.hint) == (3, "pip install 'advise[parquet]'")
