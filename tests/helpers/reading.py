"""What a Trace holds in plain lists, for tests that compare it with what a person reads in a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from advisor.logs.trace import IntColumn, Labels, Trace


def names(labels: Labels | None) -> list[str | None]:
    """The name of every row, None where it has none."""
    assert labels is not None
    return [labels.names[code] if code >= 0 else None for code in labels.codes.tolist()]


def blocks(trace: Trace) -> list[list[int]]:
    """The block ids of every row."""
    assert trace.blocks is not None
    return [trace.blocks.row(row).tolist() for row in range(len(trace))]


def notes(trace: Trace) -> str:
    """All assumptions in one text."""
    assert trace.info is not None
    return "; ".join(trace.info.notes)


def unknown(trace: Trace) -> set[str]:
    """The paths that the log cannot fill."""
    return {entry.path for entry in trace.unknown}


def check_lengths(column: npt.NDArray[Any], stats: Mapping[str, float]) -> None:
    """That a column has the statistics of expected_stats.json."""
    assert len(column) == stats["n"]
    assert (column.min(), column.max()) == (stats["min"], stats["max"])
    assert column.mean() == pytest.approx(stats["mean"], abs=1e-3)
    percentiles = [stats["p50"], stats["p90"], stats["p99"]]
    assert np.percentile(column, (50, 90, 99)) == pytest.approx(percentiles, abs=0.05)


def leading_hits(trace: Trace) -> IntColumn:
    """Leading blocks of each row that an earlier row had."""
    seen: set[int] = set()
    hits = []
    for ids in blocks(trace):
        hits.append(next((place for place, block in enumerate(ids) if block not in seen), len(ids)))
        seen.update(ids)
    return np.array(hits, dtype=np.int64)
