"""Server-sent events: however the bytes are cut, the same events come out."""

from __future__ import annotations

import msgspec
import pytest

from advisor.validation.sse import EventReader

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
    with pytest.raises(msgspec.DecodeError):
        list(EventReader().feed(b"data: {oops}\n"))
