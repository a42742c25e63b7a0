"""OpenTelemetry: which spans are calls, which are one call, what their counts and times are."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from helpers import otlp
from helpers.gateways import cached, info, said, unknown
from helpers.logs import read_lines
from helpers.traffic import START_NS

from advisor.logs.trace import Trace


def trace_of(folder: Path, *rows: dict[str, Any]) -> Trace:
    trace = read_lines(folder, rows)
    info(trace)
    return trace


class TestWhatIsACall:
    @pytest.mark.parametrize(
        "items",
        [
            {"gen_ai.operation.name": "text_completion"},
            {"gen_ai.operation.name": "generate_content"},
            {"gen_ai.operation.name": "chat.completions"},  # Semantic Kernel
            {"gen_ai.operation.name": None, "llm.request.type": "chat"},  # OpenLLMetry
            {"gen_ai.operation.name": None, "openinference.span.kind": "LLM"},
            {"gen_ai.operation.name": None},  # usage alone, as Vercel's SDK has it
        ],
    )
    def test_calls(self, tmp_path: Path, items: dict[str, object]) -> None:
        trace = trace_of(tmp_path, otlp.batch(otlp.chat("a", more=items)))
        assert (trace.prompt_tokens.tolist(), info(trace).skipped) == ([41], {})

    @pytest.mark.parametrize(
        ("items", "reason"),
        [
            ({"gen_ai.operation.name": "embeddings"}, "other operation than generating text"),
            (
                {"llm.request.type": "rerank", "gen_ai.operation.name": None},
                "other operation than generating text",
            ),
            ({"openinference.span.kind": "EMBEDDING"}, "other operation than generating text"),
            ({"gen_ai.operation.name": "invoke_agent"}, "not a request"),
            ({"gen_ai.operation.name": "execute_tool"}, "not a request"),
            ({"openinference.span.kind": "CHAIN"}, "not a request"),
            ({"openinference.span.kind": "AGENT"}, "not a request"),
            ({"traceloop.span.kind": "workflow", "gen_ai.operation.name": None}, "not a request"),
        ],
    )
    def test_others(self, tmp_path: Path, items: dict[str, object], reason: str) -> None:
        """They repeat the totals of the calls below them, so only the calls count."""
        trace = trace_of(tmp_path, otlp.batch(otlp.chat("a", parent="b"), otlp.chat("b", more=items)))
        assert (len(trace), info(trace).skipped) == (1, {reason: 1})

    def test_transport_and_metrics_are_counted(self, tmp_path: Path) -> None:
        rows = [otlp.batch(otlp.chat("a"), otlp.http("c", "a")), {"resourceMetrics": []}, {"resourceSpans": []}]
        trace = trace_of(tmp_path, *rows)
        assert info(trace).skipped == {"not a request": 3}

    @pytest.mark.parametrize("code", [2, "STATUS_CODE_ERROR"])
    def test_failures(self, tmp_path: Path, code: object) -> None:
        failed = otlp.chat("b", None) | {"status": {"code": code, "message": "may quote the prompt"}}
        named = otlp.chat("c", None, more={"error.type": "timeout"})
        cut = otlp.chat("d", (41, 5), at=3.0, more={"error.type": "timeout"})  # it had begun to answer
        trace = trace_of(tmp_path, otlp.batch(otlp.chat("a"), failed, named, cut))
        assert info(trace).skipped == {"failed request": 2}
        assert [said(trace.status, row) for row in (0, 1)] == ["ok", "timeout"]

    def test_counts_that_are_missing_stay_unknown(self, tmp_path: Path) -> None:
        """A stream without include_usage has none, and some instrumentations then write 0."""
        trace = trace_of(tmp_path, otlp.batch(otlp.chat("a", None), otlp.chat("b", (0, 0), at=1.0)))
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([-1, -1], [-1, -1])
        assert "include_usage" in unknown(trace)["lengths.prompt"]


class TestOneCallOfSeveralSpans:
    def spans(self, usage: tuple[int, int] | None = (41, 17)) -> list[dict[str, Any]]:
        """An SDK's call from 0 to 2 s, HTTP, and what the proxy says of the same call."""
        outer = otlp.chat("a", usage, more={"gen_ai.response.time_to_first_chunk": 0.5})
        inner = otlp.chat("d", at=0.1, until=1.9, parent="c", more={"gen_ai.response.time_to_first_chunk": 0.3})
        return [outer, otlp.http("b", "a"), otlp.http("c", "b"), inner]

    @pytest.mark.parametrize("usage", [(41, 17), None], ids=["same usage", "one without"])
    @pytest.mark.parametrize("order", [(3, 2, 1, 0), (0, 1, 2, 3), (3, 0, 1, 2), (0, 3, 2, 1)])
    def test_proxy_and_sdk(self, tmp_path: Path, usage: tuple[int, int] | None, order: tuple[int, ...]) -> None:
        """Both, in one batch: one request with the times of the outer."""
        spans = self.spans(usage)
        trace = trace_of(tmp_path, otlp.batch(*(spans[place] for place in order)))
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41], [17])
        assert (trace.first_epoch_s, float(trace.e2e_s[0])) == (START_NS / 1e9, 2.0)  # type: ignore[index]
        assert float(trace.ttft_s[0]) == 0.5  # type: ignore[index]
        assert info(trace).skipped == {"not a request": 2}
        assert "counted once: 1" in " ".join(info(trace).notes)

    @pytest.mark.parametrize("order", [(3, 2, 1, 0), (1, 0, 2, 3), (0, 1, 2, 3), (2, 1, 0, 3)])
    def test_in_batches_of_their_own(self, tmp_path: Path, order: tuple[int, ...]) -> None:
        """Within a process spans end, and are exported, from the inside out."""
        spans = self.spans()
        trace = trace_of(tmp_path, *(otlp.batch(spans[place]) for place in order))
        assert trace.prompt_tokens.tolist() == [41]

    @pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
    def test_one_response_id_suffices(self, tmp_path: Path, order: tuple[int, ...]) -> None:
        """However the counts differ, and in whatever order, in whatever batch they come."""
        named = {"gen_ai.response.id": "chatcmpl-1"}
        spans = self.spans()
        spans[0] = otlp.chat("a", (9, 17), more=named)
        spans[3] = otlp.chat("d", at=0.1, until=1.9, parent="c", more=named)
        trace = trace_of(tmp_path, *(otlp.batch(spans[place]) for place in order))
        assert (len(trace), float(trace.e2e_s[0])) == (1, 2.0)  # type: ignore[index]

    @pytest.mark.parametrize("turned", [False, True])
    def test_vllm_behind_an_sdk(self, tmp_path: Path, turned: bool) -> None:
        """The engine's request id is the response id that the client saw."""
        sdk = otlp.chat("a", more={"gen_ai.response.id": "chatcmpl-1", "gen_ai.conversation.id": "s"})
        items = {"gen_ai.request.id": "chatcmpl-1", "gen_ai.usage.prompt_tokens": 41, "gen_ai.latency.e2e": 1.5}
        engine = otlp.span("llm_request", START_NS + 10**8, START_NS + 10**9, items, span_id="e", parent="z")
        spans = [sdk, engine]
        trace = trace_of(tmp_path, *(otlp.batch(span) for span in (spans[::-1] if turned else spans)))
        assert (trace.prompt_tokens.tolist(), said(trace.session)) == ([41], "s")
        assert float(trace.e2e_s[0]) == 2.0  # type: ignore[index]

    def test_a_span_that_sums_up_calls(self, tmp_path: Path) -> None:
        calls = [
            otlp.chat(name, (10, 2), at=at, until=at + 0.5, parent="w") for name, at in (("a", 0), ("b", 1))
        ]
        wrapper = otlp.chat("w", (20, 4))
        trace = trace_of(tmp_path, otlp.batch(*calls), otlp.batch(wrapper))
        assert trace.prompt_tokens.tolist() == [10, 10]
        assert info(trace).skipped == {"span that sums up the calls below it": 1}

    @pytest.mark.parametrize(("usage", "at"), [((41, 18), 0.5), ((41, 17), 2.5)], ids=["other usage", "later"])
    def test_calls_that_are_not_one(self, tmp_path: Path, usage: tuple[int, int], at: float) -> None:
        """A child with other counts; a turn whose parent is the turn before."""
        inner = otlp.chat("b", usage, at=at, until=at + 1, parent="a")
        trace = trace_of(tmp_path, otlp.batch(inner), otlp.batch(otlp.chat("a")))
        assert trace.prompt_tokens.tolist() == [41, 41]

    def test_equal_calls_side_by_side_are_several(self, tmp_path: Path) -> None:
        calls = [otlp.chat(name, parent="agent") for name in "abc"]
        agent = otlp.chat("agent", more={"gen_ai.operation.name": "invoke_agent"})
        assert len(trace_of(tmp_path, otlp.batch(*calls, agent))) == 3

    def test_a_batch_that_is_delivered_twice(self, tmp_path: Path) -> None:
        row = otlp.batch(otlp.chat("a"), otlp.chat("b", at=1.0))
        assert len(trace_of(tmp_path, row, row)) == 2


@pytest.mark.parametrize(
    ("items", "total"),
    [
        ({"gen_ai.usage.cache_read.input_tokens": 32}, 41),  # included, as the conventions have it
        ({"gen_ai.usage.cache_read_input_tokens": 32, "gen_ai.usage.input_tokens": 9}, 41),
        ({"gen_ai.usage.cache_read.input_tokens": 4, "gen_ai.usage.cache_write.input_tokens": 40}, 85),
        ({"gen_ai.usage.cache_read.input_tokens": 4, "gen_ai.usage.total_tokens": 41 + 4 + 17}, 45),
        ({"gen_ai.usage.cache_read.input_tokens": 4, "gen_ai.usage.total_tokens": 41 + 17}, 41),
    ],
    ids=["inside", "apart, older", "written", "by the total", "inside, by the total"],
)
def test_cached_tokens_in_or_out_of_the_prompt(tmp_path: Path, items: dict[str, object], total: int) -> None:
    """open-telemetry/semantic-conventions#3163, pydantic/logfire#1812: instrumentations differ."""
    trace = trace_of(tmp_path, otlp.batch(otlp.chat("a", more=items)))
    assert trace.prompt_tokens.tolist() == [total]
    assert cached(trace)[0] in (4, 32)
    assert any("were added: 1" in note for note in info(trace).notes) == (
        total != 41 or items.get("gen_ai.usage.input_tokens") == 9
    )


def test_the_first_token_is_an_event_in_openinference(tmp_path: Path) -> None:
    events = [otlp.event("First Token Stream Event", START_NS + 250_000_000, {})]
    trace = trace_of(
        tmp_path, otlp.batch(otlp.chat("a", more={"openinference.span.kind": "LLM"}, events=events))
    )
    assert trace.ttft_s is not None
    assert trace.ttft_s.tolist() == [0.25]


def test_a_damaged_end_costs_the_latency_only(tmp_path: Path) -> None:
    rows = [otlp.batch(otlp.chat("a"), otlp.chat("b") | {"endTimeUnixNano": "never"})]
    trace = trace_of(tmp_path, *rows)
    assert trace.e2e_s is not None
    assert sorted(trace.e2e_s.tolist())[0] == 2.0
    assert len(trace) == 2


def test_spans_as_the_console_exporter_prints_them(tmp_path: Path) -> None:
    row = {
        "name": "chat m",
        "context": {"trace_id": "0x5b", "span_id": "0xee", "trace_state": "[]"},
        "parent_id": None,
        "start_time": "2026-09-14T08:00:00.120000Z",
        "end_time": "2026-09-14T08:00:01.500000Z",
        "status": {"status_code": "UNSET"},
        "attributes": {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 41},
        "events": [],
    }
    trace = trace_of(tmp_path, row)
    assert (trace.prompt_tokens.tolist(), trace.first_epoch_s) == ([41], 1_789_372_800.12)
    assert trace.e2e_s is not None
    assert trace.e2e_s.tolist() == [1.38]
