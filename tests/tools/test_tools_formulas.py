"""What we say other tools would have reported, beside what their own code makes of the same raw records."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from tools.conftest import Run

from advisor.simulation.slo import Slo
from advisor.validation.elsewhere import Elsewhere, elsewhere
from advisor.validation.record import Record, Status

pytestmark = pytest.mark.tools
REQUESTS = 400
SLO = Slo(ttft_s=0.45, tpot_s=0.048)
FAILED: tuple[Status, ...] = ("http_5xx", "http_429", "timeout", "broken_stream", "unsent", "interrupted")


def run_of(seed: int) -> list[Record]:
    """A run with whatever may happen in one: new connections, roles before tokens, packed tokens, failures."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(0.1, REQUESTS))
    return [_record(rng, row, float(at)) for row, at in enumerate(due)]


def _record(rng: np.random.Generator, row: int, due: float) -> Record:
    count = int(rng.integers(1, 60))
    conn = float(rng.choice([0.0, rng.uniform(0.0005, 0.05)]))
    send = due + conn + float(rng.exponential(0.002))
    status: Status = "ok"
    if rng.random() < 0.15:
        status = FAILED[int(rng.integers(len(FAILED)))]
    elif rng.random() < 0.05:
        status = "wrong_length"
    silent = status in ("http_5xx", "http_429", "unsent")
    packed = int(rng.integers(1, 4))
    gaps = rng.gamma(3.0, 0.015, size=max(1, count // packed))
    chunks = () if silent else tuple((send + 0.2 + rng.exponential(0.15) + np.cumsum(gaps)).tolist())
    opening = chunks[0] - float(rng.choice([0.0, 0.03])) if chunks else None
    done = None if status == "unsent" else (chunks[-1] if chunks else send) + 0.002
    return Record(
        row=row, t_sched=due, want_in=100, want_out=count, status=status,
        t_send=None if status == "unsent" else send, t_conn=conn, t_any=opening, t_chunk=chunks, t_done=done,
        n_in=100, n_out=None if silent else count, n_out_source=None if silent else "usage",
    )  # fmt: skip


@pytest.mark.parametrize(("number", "tool"), list(enumerate(["vllm-bench", "aiperf", "guidellm"])))
@pytest.mark.parametrize("seed", [0, 1])
def test_the_tools_own_code_gives_the_same(
    number: int, tool: str, seed: int, tmp_path: Path, run_in: Run
) -> None:
    records = run_of(seed)
    given = {"records": [asdict(one) for one in records], "ttft_s": SLO.ttft_s, "tpot_s": SLO.tpot_s}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(given))
    theirs = run_in(tool, f"{tool.removesuffix('-bench')}_formulas.py", path)
    ours: Elsewhere = elsewhere(records, SLO)[number]
    assert theirs["requests"] == ours.requests > REQUESTS / 2
    for name, value in theirs.items():
        # 0.1 %, validation.md A11
        assert getattr(ours, name) == (None if value is None else pytest.approx(value, rel=1e-3)), name
    assert 0.1 < theirs["good_share"] < 0.9
