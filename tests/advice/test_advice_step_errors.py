"""The errors that profiles/roofline.yaml states, and the issue's limits, against the public measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from advisor.advice import profiles
from benchmarks._silicon import Measured, Silicon
from benchmarks.step_times import LIMITS_S, NVLINK, order_pairs, ten_points


@pytest.fixture(scope="module")
def silicon(shared: Path) -> tuple[list[Measured], list[Measured]]:
    """Steps and served results."""
    data = Silicon(shared / "silicon")
    return list(data.steps()), list(data.served())


def percentiles(rows: list[Measured]) -> list[float]:
    """Median and P90 of the absolute relative error."""
    return [float(p) for p in np.percentile([abs(row.error) for row in rows], (50, 90))]


SERVED = {  # family, class: sources, engine, experts
    ("vllm", "blackwell"): ("inferencex-b200", "vllm", False),
    ("vllm", "moe"): ("inferencex", "vllm", True),
    ("sglang", "moe"): ("inferencex", "sglang", True),
    ("trtllm", "blackwell"): ("inferencex-b200", "trtllm", False),
    ("trtllm", "nvlink"): ("nv-gap-h100-trtllm-", "trtllm-1.0", False),
    ("trtllm", "moe"): ("", "trtllm", True),
}
STEPS = {
    ("vllm", "nvlink"): ("gptfast-a100",),
    ("trtllm-0", "nvlink"): ("trtllm09-gh200", "trtllm05-docs-a100", "trtllm05-docs-h100"),
    ("trtllm-0", "pcie"): ("trtllm09-l40s",),
    ("eager", "nvlink"): ("splitwise-a100", "distserve-fit-a100"),
}


def test_stated_errors_are_those_of_the_rows_named(silicon: tuple[list[Measured], list[Measured]]) -> None:
    steps, served = silicon
    found = {
        key: [row for row in steps if row.source in sources and not row.moe] for key, sources in STEPS.items()
    }
    for key, (source, engine, moe) in SERVED.items():
        found[key] = [
            row
            for row in served
            if row.source.startswith(source) and row.group[4].startswith(engine) and row.moe == moe
        ]
    stated = {(p.id, e.of): (e.rows, e.p50, e.p90) for p in profiles.rooflines() for e in p.errors if e.rows}
    assert stated.keys() == found.keys()
    for key, rows in found.items():
        count, p50, p90 = stated[key]
        assert len(rows) == count, key
        assert [p50, p90] == pytest.approx(percentiles(rows), abs=0.002), key


def test_built_in_steps_are_within_10_and_30_percent(silicon: tuple[list[Measured], list[Measured]]) -> None:
    p50, p90 = percentiles([row for row in silicon[0] if row.source in NVLINK and not row.moe])
    assert p50 <= 0.10
    assert p90 <= 0.30


def test_ten_points_bring_them_to_8_and_20_percent(silicon: tuple[list[Measured], list[Measured]]) -> None:
    found = ten_points([row for row in silicon[0] if row.source in NVLINK and not row.moe])
    p50, p90 = np.percentile(found, (50, 90))
    assert p50 <= 0.08
    assert p90 <= 0.20


def test_served_tpot_is_within_15_and_25_percent(silicon: tuple[list[Measured], list[Measured]]) -> None:
    rows = [row for row in silicon[1] if not row.moe and not row.source.startswith("nim")]
    p50, p90 = percentiles(rows)
    assert p50 <= 0.15
    assert p90 <= 0.25


def test_tp_is_ordered_better_than_by_either_constant_answer(
    silicon: tuple[list[Measured], list[Measured]],
) -> None:
    dense = [row for row in silicon[1] if not row.moe]
    predicted, measured = np.array([pair for limit in LIMITS_S for pair in order_pairs(dense, limit)]).T
    right, lower = (predicted == measured).mean(), measured.mean()
    assert right >= 0.85
    assert right >= max(lower, 1 - lower) + 0.10
