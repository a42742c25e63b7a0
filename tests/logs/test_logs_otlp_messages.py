"""OpenTelemetry: where the messages of a call are, and what a length limit cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import otlp
from helpers.gateways import info, unknown
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
            False,
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
        assert trace.prompt_tokens.tolist() == [-1]
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
