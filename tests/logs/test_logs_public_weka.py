"""Weka's published conversations: 30 files, and the table that others derived from all of them."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.logs import write_lines
from helpers.reading import check_lengths, leading_hits, names, unknown

from advisor.logs.read import read
from advisor.logs.trace import Trace


@pytest.fixture(scope="module")
def trace(shared: Path) -> Trace:
    """The 30 conversations that are there as files."""
    return read(sorted((shared / "traces/weka-claude-code").glob("trace_*.json.gz")))


@pytest.fixture(scope="module")
def rows(shared: Path, trace: Trace) -> list[dict[str, str]]:
    """Their rows in the table."""
    there = {name.partition("/")[0] for name in names(trace.session) if name is not None}
    assert len(there) == 30
    return [row for row in weka_table(shared) if row["trace_id"] in there]


@pytest.fixture(scope="module")
def everything(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """All 710 conversations, put back into documents."""
    path = tmp_path_factory.mktemp("weka") / "conversations.jsonl"
    return read([write_lines(path, weka_documents(shared))])


@pytest.fixture(scope="module")
def stats(shared: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared / "traces/expected_stats.json").read_text())
    return dict(found["weka-claude-code/all_requests_derived"])


def weka_table(shared: Path) -> Iterator[dict[str, str]]:
    data = gzip.decompress((shared / "traces/weka-claude-code/all_requests_derived.csv.gz").read_bytes())
    yield from csv.DictReader(io.StringIO(data.decode()))


def weka_documents(shared: Path) -> list[dict[str, Any]]:
    """Conversations as they were published, sub-agents nested: one begins where times start again at 0."""
    documents: dict[str, dict[str, Any]] = {}
    inner: list[dict[str, Any]] = []
    for row in weka_table(shared):
        document = documents.setdefault(
            row["trace_id"],
            {"id": row["trace_id"], "block_size": 64, "hash_id_scope": "local", "requests": []},
        )
        request: dict[str, Any] = {"t": float(row["t_s"]), "model": row["model"], "type": row["type"]}
        request |= {"in": int(row["in_tokens"]), "out": int(row["out_tokens"])}
        for column in ("api_time", "think_time", "ttft"):
            if row[f"{column}_s"]:
                request[column] = float(row[f"{column}_s"])
        if row["depth"] == "0":
            document["requests"].append(request)
        else:
            if request["t"] == 0.0:
                inner = []
                document["requests"].append({"type": "subagent", "t": 0.0, "requests": inner})
            inner.append(request)
    return list(documents.values())


class TestWekaConversations:
    """The 30 conversations in files, against the table that others derived from them."""

    def test_prefix_hit_is_scoped(self, trace: Trace, rows: list[dict[str, str]]) -> None:
        assert trace.blocks is not None
        hits = leading_hits(trace)
        assert hits.sum() / len(trace.blocks.ids) == pytest.approx(0.950, abs=5e-4)  # 0.991 with ids pooled
        # Per conversation. The table counts a block as seen whatever model saw it: 63 blocks in 3.3 million.
        conversation = np.array([str(name).partition("/")[0] for name in names(trace.session)])
        for name in np.unique(conversation):
            seen = sum(int(row["prefix_blocks_seen_in_trace"]) for row in rows if row["trace_id"] == name)
            assert seen - 63 <= hits[conversation == name].sum() <= seen, name

    def test_every_request(self, trace: Trace, rows: list[dict[str, str]]) -> None:
        assert trace.blocks is not None
        found = zip(
            [str(name).partition("/")[0] for name in names(trace.session)],
            names(trace.model),
            trace.prompt_tokens.tolist(),
            trace.output_tokens.tolist(),
            np.diff(trace.blocks.starts).tolist(),
            strict=True,
        )
        table = [
            (row["trace_id"], row["model"], int(row["in_tokens"]), int(row["out_tokens"]), int(row["n_blocks"]))
            for row in rows
        ]
        assert sorted(found, key=str) == sorted(table, key=str)

    def test_sub_agents_are_logged_when_they_return(self, trace: Trace) -> None:
        assert trace.info is not None
        assert any("duration_ms before its t: 25 of 25 sub-agents" in note for note in trace.info.notes)

    def test_arrivals_are_unknown(self, trace: Trace) -> None:
        assert np.isnan(trace.arrival_s).all()
        assert "arrivals" in unknown(trace)


class TestWekaTable:
    """All 710 conversations, put back into documents from the table (which has no block ids)."""

    def test_lengths(self, everything: Trace, stats: dict[str, Any]) -> None:
        check_lengths(everything.prompt_tokens, stats["prompt"])
        check_lengths(everything.output_tokens, stats["output"])

    def test_durations(self, everything: Trace, stats: dict[str, Any]) -> None:
        assert everything.e2e_s is not None
        check_lengths(everything.e2e_s[np.isfinite(everything.e2e_s)], stats["api_time_s"])
        assert everything.ttft_s is not None
        check_lengths(everything.ttft_s[np.isfinite(everything.ttft_s)], stats["ttft_s"])

    def test_think_times(self, everything: Trace, stats: dict[str, Any]) -> None:
        """The table has a 0 for the first request of each agent, which has no turn before it."""
        assert everything.think_s is not None
        assert everything.session is not None
        thought = everything.think_s[np.isfinite(everything.think_s)]
        firsts = stats["think_time_s"]["n"] - len(thought)
        assert firsts == len(everything.session.names)
        check_lengths(np.concatenate((thought, np.zeros(firsts))), stats["think_time_s"])

    def test_conversations(self, everything: Trace, stats: dict[str, Any]) -> None:
        conversations = {str(name).partition("/")[0] for name in names(everything.session)}
        assert len(conversations) == stats["traces"]
        assert everything.blocks is None
