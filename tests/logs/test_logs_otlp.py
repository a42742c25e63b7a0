"""OpenTelemetry: which spans are calls, which are one call, where messages are, what a limit cut."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import otlp
from helpers.gateways import cached, info, said, unknown
from helpers.logs import WordEncoder, read_lines
from helpers.traffic import START_NS

from advisor.logs.trace import Trace

MESSAGES = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello there"}]
TOKENS = 6  # four words, and one for each role
PARTS = [
    {"role": entry["role"], "parts": [{"type": "text", "content": entry["content"]}]} for entry in MESSAGES
]
TRACE = "5b8efff798038103d269b633813fc60c"


def trace_of(folder: Path, *rows: dict[str, Any], tokenizer: bool = False) -> Trace:
    trace = read_lines(folder, rows, tokenizer=WordEncoder() if tokenizer else None)
    info(trace)
    return trace


def content(folder: Path, items: dict[str, object], **changes: Any) -> int:
    """Tokens of the prompt that a span with these attributes has, -1 without a prompt."""
    trace = trace_of(folder, otlp.batch(otlp.chat("a", None, more=items, **changes)), tokenizer=True)
    return int(trace.prompt_tokens[0])


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


class TestMessages:
    @pytest.mark.parametrize(
        "items",
        [
            {"gen_ai.input.messages": json.dumps(PARTS)},
            {"gen_ai.input.messages": PARTS},
            {"gen_ai.input.messages": json.dumps(MESSAGES)},  # content instead of parts, as some write
            {
                "gen_ai.system_instructions": '[{"type": "text", "content": "be kind"}]',
                "gen_ai.input.messages": PARTS[1:],
            },
            {
                "gen_ai.prompt.0.role": "system", "gen_ai.prompt.0.content": "be kind",
                "gen_ai.prompt.1.role": "user", "gen_ai.prompt.1.content": "hello there",
            },
            {"gen_ai.prompt": json.dumps(MESSAGES)},
            {
                "llm.input_messages.0.message.role": "system",
                "llm.input_messages.0.message.content": "be kind",
                "llm.input_messages.1.message.role": "user",
                "llm.input_messages.1.message.contents.0.message_content.type": "text",
                "llm.input_messages.1.message.contents.0.message_content.text": "hello there",
                "input.value": "something longer that says the same thing again",
            },
            {"input.value": json.dumps({"model": "m", "messages": MESSAGES})},
        ],
        ids=["json", "structured", "content", "instructions", "indexed", "old", "openinference", "input.value"],
    )  # fmt: skip
    def test_in_attributes(self, tmp_path: Path, items: dict[str, object]) -> None:
        assert content(tmp_path, items) == TOKENS

    @pytest.mark.parametrize(
        "events",
        [
            [("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps(MESSAGES)})],
            [
                (f"gen_ai.{entry['role']}.message", {"gen_ai.event.content": json.dumps(entry)})
                for entry in MESSAGES
            ],
            [("gen_ai.client.inference.operation.details", {"gen_ai.input.messages": PARTS})],
        ],
        ids=["one", "each", "details"],
    )
    def test_in_span_events(self, tmp_path: Path, events: list[tuple[str, dict[str, object]]]) -> None:
        said = [otlp.event(name, START_NS, items) for name, items in events]
        assert content(tmp_path, {}, events=said) == TOKENS

    @pytest.mark.parametrize("early", [False, True], ids=["after the span", "before the span"])
    def test_in_log_events(self, tmp_path: Path, early: bool) -> None:
        records = [
            otlp.log(f"gen_ai.{entry['role']}.message", START_NS, {}, body=entry, span_id="a", trace=TRACE)
            for entry in MESSAGES
        ]
        rows = [otlp.batch(otlp.chat("a", None)), otlp.logs(*records)]
        trace = trace_of(tmp_path, *(rows[::-1] if early else rows), tokenizer=True)
        assert (trace.prompt_tokens.tolist(), trace.first_epoch_s) == ([TOKENS], START_NS / 1e9)

    @pytest.mark.parametrize(
        "early",
        [
            pytest.param(
                False, marks=pytest.mark.xfail(strict=True, reason="counted lengths win over logged ones")
            ),
            True,
        ],
        ids=["after the span", "before the span"],
    )
    def test_logged_counts_win(self, tmp_path: Path, early: bool) -> None:
        choice = {"message": {"role": "assistant", "content": "three words here"}}
        records = [
            otlp.log("gen_ai.user.message", START_NS, {}, body=MESSAGES[1], span_id="a", trace=TRACE),
            otlp.log("gen_ai.choice", START_NS, {}, body=choice, span_id="a", trace=TRACE),
        ]
        rows = [otlp.batch(otlp.chat("a")), otlp.logs(*records)]
        trace = trace_of(tmp_path, *(rows[::-1] if early else rows), tokenizer=True)
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41], [17])

    def test_in_a_log_without_spans(self, tmp_path: Path) -> None:
        """The event of a call has its counts too; it comes at the end."""
        items = {
            "gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.input.messages": PARTS,
            "gen_ai.usage.input_tokens": 41, "gen_ai.usage.output_tokens": 17,
        }  # fmt: skip
        name = "gen_ai.client.inference.operation.details"
        record = otlp.log(name, START_NS, items, span_id="a", trace=TRACE)
        other = otlp.log("db.query", START_NS, {}, span_id="a", trace=TRACE)
        trace = trace_of(tmp_path, otlp.logs(record, other), tokenizer=True)
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41], [17])
        assert info(trace).arrival_basis.startswith("time of the event, at the end of a call")
        assert info(trace).skipped == {"not a request": 1}
        assert "latency.e2e_s" in unknown(trace)

    def test_of_a_call_that_a_proxy_saw_first(self, tmp_path: Path) -> None:
        """The proxy's span comes first and names the request, the SDK's events find it all the same."""
        record = otlp.log("gen_ai.user.message", START_NS, {}, body=MESSAGES[1], span_id="a", trace=TRACE)
        inner = otlp.chat("d", None, at=0.1, until=1.9, parent="a")
        rows = [otlp.batch(inner), otlp.batch(otlp.chat("a", None)), otlp.logs(record)]
        trace = trace_of(tmp_path, *rows, tokenizer=True)
        assert trace.prompt_tokens.tolist() == [3]

    def test_index_keys_are_numbers(self, tmp_path: Path) -> None:
        """As text, 10 would come before 2, and prompts would share less or more than they do."""
        rows = []
        for call, last in enumerate(("x", "y")):
            items: dict[str, object] = {}
            for place in [*range(12)][::-1]:
                items[f"llm.input_messages.{place}.message.role"] = "user"
                items[f"llm.input_messages.{place}.message.content"] = f"w{place}" if place < 11 else last
            items["openinference.span.kind"] = "LLM"
            rows.append(
                otlp.batch(otlp.chat(f"s{call}", None, at=float(call), more=dict(sorted(items.items()))))
            )
        trace = read_lines(tmp_path, rows, tokenizer=WordEncoder())
        assert trace.novel_tokens is not None
        assert (trace.prompt_tokens.tolist(), trace.novel_tokens.tolist()) == (
            [24, 24],
            [24, 1],
        )  # the last word

    def test_tools_go_first(self, tmp_path: Path) -> None:
        tools = [{"type": "function", "function": {"name": "find"}}]
        words = len(json.dumps(tools[0]).split())
        prompts = {"gen_ai.input.messages": json.dumps(PARTS)}
        assert content(tmp_path, prompts | {"gen_ai.tool.definitions": json.dumps(tools)}) == TOKENS + words
        flat = {"llm.tools.0.tool.json_schema": json.dumps(tools[0])}
        assert content(tmp_path, prompts | flat) == TOKENS + words

    def test_media_are_no_text(self, tmp_path: Path) -> None:
        parts = [*PARTS[1]["parts"], {"type": "blob", "modality": "image", "content": "AAAA AAAA"}]
        trace = trace_of(
            tmp_path,
            otlp.batch(
                otlp.chat("a", None, more={"gen_ai.input.messages": [{"role": "user", "parts": parts}]})
            ),
            tokenizer=True,
        )
        assert trace.prompt_tokens.tolist() == [3]
        assert any("pictures" in note for note in info(trace).notes)

    @pytest.mark.parametrize(
        "items",
        [
            {"gen_ai.input.messages": "[]"},
            {
                "llm.input_messages.0.message.role": "user",
                "llm.input_messages.0.message.content": "__REDACTED__",
            },
            {"input.value": "__REDACTED__"},
            {"gen_ai.input.messages": '["a", "b"]'},
        ],
    )
    def test_what_was_taken_out_is_unknown(self, tmp_path: Path, items: dict[str, object]) -> None:
        assert content(tmp_path, items) == -1

    def test_events_without_content(self, tmp_path: Path) -> None:
        """Without content capture there are still events, of roles alone."""
        record = otlp.log("gen_ai.user.message", START_NS, {}, body={"role": "user"}, span_id="a", trace=TRACE)
        trace = trace_of(tmp_path, otlp.batch(otlp.chat("a")), otlp.logs(record), tokenizer=True)
        assert (len(trace), trace.blocks) == (1, None)
        assert "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT" in unknown(trace)["sharing"]


class TestCutMessages:
    def test_json_that_stops(self, tmp_path: Path) -> None:
        text = json.dumps(PARTS)
        whole, cut = (
            otlp.chat(name, more={"gen_ai.input.messages": text[:end]}) for name, end in (("a", 999), ("b", 90))
        )
        trace = trace_of(tmp_path, otlp.batch(whole, cut), tokenizer=True)
        assert trace.blocks is not None
        assert trace.blocks.known is not None
        assert trace.blocks.known.tolist() == [True, False]
        assert "prompts that an attribute limit cut, so of unknown content: 1" in info(trace).notes

    def test_texts_that_are_all_as_long_as_the_limit(self, tmp_path: Path) -> None:
        """Three different texts of 100 characters, none longer: they were cut there, without a mark."""
        rows = []
        for place, start in enumerate(("one", "two", "three", "short")):
            text = start if start == "short" else f"{start} {'word ' * 40}"[:100]
            items = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": text}
            rows.append(otlp.batch(otlp.chat(f"s{place}", at=float(place), more=items)))
        trace = trace_of(tmp_path, *rows, tokenizer=True)
        assert trace.blocks is not None
        assert trace.blocks.known is not None
        assert trace.blocks.known.tolist() == [False, False, False, True]

    def test_nothing_left(self, tmp_path: Path) -> None:
        trace = trace_of(tmp_path, otlp.batch(otlp.chat("a", more={"gen_ai.input.messages": '[{"role": "us'})))
        assert "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT" in unknown(trace)["sharing"]


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
