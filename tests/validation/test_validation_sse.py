"""Server-sent events: however the bytes are cut, the same events come out."""

from __future__ import annotations

import pytest

from advisor.validation.exchange import Exchange
from advisor.validation.sse import EventReader, StreamError

# The forms of OpenAI's API reference and of vLLM: a token with its id, one with text only, ids whose text is
# not complete yet, the end of the generation, the usage, a comment, a blank choice list.
STREAM = (
    b": keep alive\r\n\r\n"
    b'data: {"id":"x","choices":[{"index":0,"text":"\xc3\xa9","token_ids":[5],"finish_reason":null}]}\r\n\r\n'
    b'data: {"choices":[{"text":"two"}],"usage":null}\n\n'
    b'data:{"choices":[{"text":"","token_ids":[6,7]}]}\n\n'
    b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,'
    b'"prompt_tokens_details":{"cached_tokens":8}}}\n\n'
    b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("step", [1, 2, 7, 50, len(STREAM)])
def test_events_do_not_depend_on_how_the_bytes_come(step: int) -> None:
    reader = EventReader()
    events = [
        event for start in range(0, len(STREAM), step) for event in reader.feed(STREAM[start : start + step])
    ]
    assert [event.tokens for event in events] == [1, 1, 2, 0, 0]
    assert [event.has_token_ids for event in events] == [True, False, True, False, False]
    assert events[3].finish_reason == "length"
    usage = events[4].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (9, 4, 8)
    assert reader.done


def test_a_stream_that_was_cut_is_not_done_and_garbage_is_an_error() -> None:
    reader = EventReader()
    assert len(list(reader.feed(STREAM[:-9]))) == 5
    assert not reader.done
    for garbage in (b"{oops}", b"[1]", b'{"choices": 3}', b'{"a":' * 5000, b'{"choices":[{"text":"\xff"}]}'):
        with pytest.raises(StreamError):
            list(EventReader().feed(b"data: " + garbage + b"\n"))


def test_an_event_without_an_end_is_not_kept_for_ever() -> None:
    reader = EventReader()
    list(reader.feed(b"data: " + b"x" * 2**23))
    with pytest.raises(StreamError):
        list(reader.feed(b"x" * 2**23))


# What chats send: OpenAI's API reference, vLLM's and SGLang's reasoning fields, tool calls in parts.
@pytest.mark.parametrize(
    ("delta", "tokens"),
    [
        (b'{"role":"assistant"}', 0),
        (b'{"role":"assistant","content":""}', 0),
        (b'{"role":"assistant","content":null,"tool_calls":null}', 0),
        (b"{}", 0),
        (b'{"content":"a"}', 1),
        (b'{"content":" "}', 1),
        (b'{"reasoning_content":"hm"}', 1),
        (b'{"reasoning":"hm","content":null}', 1),
        (b'{"refusal":"I"}', 1),
        (b'{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a"}}]}', 1),
        (b'{"tool_calls":[]}', 0),
        (b'{"content":[{"type":"text","text":"a"}]}', 1),
    ],
)
def test_what_of_a_chat_is_a_token(delta: bytes, tokens: int) -> None:
    data = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":' + delta + b"}]}\n\n"
    (event,) = EventReader().feed(data)
    assert event.tokens == tokens
    assert event.choices
    assert not event.has_token_ids


def test_the_first_chunk_with_a_choice_and_the_first_with_a_token() -> None:
    exchange = Exchange(0, b"", due_ns=0, want_in=1, want_out=2)
    stream = [
        b'{"choices":[],"prompt_filter_results":[]}',
        b'{"choices":[{"delta":{"role":"assistant","content":""}}]}',
        b'{"choices":[{"delta":{"content":"a"}}]}',
        b'{"choices":[{"delta":{"content":"b"},"finish_reason":"length"}]}',
        b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}',
    ]
    for at_s, payload in enumerate(stream, 1):
        for event in EventReader().feed(b"data: " + payload + b"\n"):
            exchange.take(event, at_s * 10**9)
    record = exchange.record(0)
    assert (record.t_any, record.t_chunk, record.finish_reason) == (2.0, (3.0, 4.0), "length")
    assert (record.n_in, record.n_out, record.n_out_source, record.n_cached) == (5, 2, "usage", None)
