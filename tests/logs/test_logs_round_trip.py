"""Every format, written by a writer of its own from 500 generated calls, reads back as those calls.

What the writer does not keep must be unknown in the Trace and declared so; everything else must be equal.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers.logs import accounted
from helpers.traffic import ENCODER, START_NS, Call, make_calls
from logs import writers

from advisor.logs.formats import FORMATS
from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.trace import Trace

BLOCK = 4
WRITERS: list[ModuleType] = [
    importlib.import_module(f"logs.writers.{module.name}") for module in pkgutil.iter_modules(writers.__path__)
]
LABELS = ("model", "client", "session")


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    return make_calls()


def test_every_format_has_a_writer() -> None:
    assert {kind.name for kind in FORMATS} - {"generic"} <= {writer.FORMAT for writer in WRITERS}


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__.rpartition(".")[2])
def test_reads_back(writer: ModuleType, calls: list[Call], tmp_path: Path) -> None:
    path = tmp_path / getattr(writer, "FILE", "log")
    writer.write(calls, path)
    trace = read([path], options=ReadOptions(block_size=BLOCK), tokenizer=ENCODER)
    assert trace.info is not None
    assert trace.info.format == writer.FORMAT
    assert accounted(trace)
    if hasattr(writer, "check_sums"):
        writer.check_sums(trace, calls)
        return
    wanted = [call for call in calls if call.ok and getattr(writer, "HAS", lambda _: True)(call)]
    assert len(trace) == len(wanted)
    if "arrival_s" not in writer.KEEPS:
        assert np.isnan(trace.arrival_s).all()
        wanted = match(trace, wanted, writer)
    else:
        check_arrivals(trace, wanted, writer)
    for name in writer.KEEPS - {"arrival_s", "blocks"}:
        if name in LABELS:
            check_labels(name, trace, getattr(writer, name, plain(name))(wanted))
        else:
            check_column(name, trace, wanted, getattr(writer, "TOLERANCE_S", 1e-6))
    if "blocks" in writer.KEEPS:
        tokens = getattr(writer, "tokens", lambda call: call.tokens)
        check_blocks(trace, wanted, tokens, getattr(writer, "scope", lambda _: None))
    for name in writers.EVERYTHING - writer.KEEPS:
        check_unknown(name, trace)


def match(trace: Trace, wanted: Sequence[Call], writer: ModuleType) -> list[Call]:
    """Calls in the order of a log without times: as the writer left them."""
    order: Callable[[Sequence[Call]], list[Call]] = getattr(writer, "order", list)
    return order(wanted)


def check_arrivals(trace: Trace, wanted: Sequence[Call], writer: ModuleType) -> None:
    resolution = getattr(writer, "RESOLUTION_NS", 1)
    stamps = np.array([call.arrival_ns // resolution * resolution for call in wanted])
    assert trace.arrival_s == pytest.approx((stamps - stamps[0]) / 1e9, abs=2e-6)
    if getattr(writer, "RELATIVE", False):
        assert trace.first_epoch_s is None
    else:
        assert trace.first_epoch_s == pytest.approx(stamps[0] / 1e9, abs=1e-5)
    assert stamps[0] >= START_NS


def plain(name: str) -> Callable[[Sequence[Call]], list[str | None]]:
    """The names that the calls have themselves."""
    return lambda calls: [getattr(call, name) for call in calls]


def check_labels(name: str, trace: Trace, expected: Sequence[str | None]) -> None:
    column = getattr(trace, name)
    assert column is not None, name
    assert [column.names[code] if code >= 0 else None for code in column.codes.tolist()] == expected


def check_column(name: str, trace: Trace, wanted: Sequence[Call], tolerance_s: float) -> None:
    column = getattr(trace, name)
    assert column is not None, name
    expected: dict[str, Callable[[Call], float | None]] = {
        "prompt_tokens": lambda call: call.prompt_tokens,
        "output_tokens": lambda call: call.output_tokens,
        "cached_tokens": lambda call: call.cached_tokens,
        "ttft_s": lambda call: None if call.ttft_ns is None else call.ttft_ns / 1e9,
        "e2e_s": lambda call: call.e2e_ns / 1e9,
    }
    values: list[Any] = [expected[name](call) for call in wanted]
    if name.endswith("_s"):
        seconds = [np.nan if value is None else value for value in values]
        assert column == pytest.approx(np.array(seconds), abs=tolerance_s, nan_ok=True), name
    else:
        assert column.tolist() == [-1 if value is None else value for value in values], name


def check_blocks(
    trace: Trace,
    wanted: Sequence[Call],
    tokens: Callable[[Call], Sequence[int]],
    scope: Callable[[Call], str | None],
) -> None:
    """Ids are ordinals, in order of first appearance, of a model's prefixes, counted here the slow way."""
    assert trace.blocks is not None
    size, ordinals = trace.blocks.size, dict[tuple[Any, ...], int]()
    modelled = trace.model is not None
    for row, call in enumerate(wanted):
        content = tuple(tokens(call))
        ends = range(size, len(content) + 1, size)
        if trace.blocks.rounding == "ceil" and len(content) % size:
            ends = range(size, len(content) + size, size)
        prefixes = [(scope(call), call.model if modelled else "", *content[:end]) for end in ends]
        expected = [ordinals.setdefault(prefix, len(ordinals)) for prefix in prefixes]
        assert trace.blocks.row(row).tolist() == expected, row


def check_unknown(name: str, trace: Trace) -> None:
    """A column that the format does not keep is unknown, and declared so."""
    column = getattr(trace, name)
    if name in ("prompt_tokens", "output_tokens"):
        assert (column < 0).all(), name
    elif name == "arrival_s":
        assert np.isnan(column).all()
    else:
        assert column is None, name
    path = writers.COLUMNS[name]
    declared = [entry.path for entry in trace.unknown]
    assert any(path == entry or path.startswith(entry + ".") for entry in declared), (name, declared)
    assert all(entry.why and entry.how_to_get for entry in trace.unknown)
