"""Messages of a chat: what is taken as it is equals what the long way makes of it."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from advisor.logs.messages import as_message, as_messages
from advisor.logs.prompts import find_prompt

Item = dict[str, Any]

texts = st.sampled_from(["", "hi", "[redacted]", "h\u00e9", "\ud800"])
parts = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    st.fixed_dictionaries({"type": st.just("image_url"), "image_url": texts}),
    st.fixed_dictionaries({"type": st.just("tool_use"), "name": texts, "input": st.just({"a": 1})}),
)
roles = st.sampled_from(["system", "user", "assistant"]) | st.sampled_from(
    ["developer", "model", "function", "tool", "User", "", None, 1, ["user"]]
)
contents = texts | st.none() | st.integers() | parts | st.lists(parts, max_size=2)
plain = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": texts})
bare = st.fixed_dictionaries({"role": roles, "content": contents})
full = st.fixed_dictionaries(
    {},
    optional={
        "role": roles,
        "content": contents,
        "name": texts | st.none(),
        "parts": st.lists(parts, max_size=2),
        "type": st.sampled_from(["message", "reasoning", "function_call", "function_call_output", None]),
        "output": texts,
        "tool_calls": st.just([{"id": "1", "function": {"name": "f"}}]) | st.none(),
    },
)


@given(st.lists(plain | bare | full, max_size=5))
def test_each_item_says_what_it_says_alone_by_the_long_way(items: list[Item]) -> None:
    one_by_one = [as_message(item) for item in items]
    assert as_messages(items) == ([message for message, _ in one_by_one], any(media for _, media in one_by_one))


@given(st.lists(plain, min_size=1, max_size=4), st.integers(0, 4))
def test_one_item_that_is_with_the_server_leaves_the_prompt_unknown(items: list[Item], place: int) -> None:
    items.insert(place, {"type": "item_reference", "id": "1"})
    assert as_messages(items) is None
    assert find_prompt({"input": items}) is None


@given(st.lists(plain, min_size=1, max_size=4))
@example([{"role": "user", "content": ""}, {"role": "user", "content": "[redacted]"}])
def test_a_chat_is_unknown_only_where_all_that_it_says_was_taken_out(items: list[Item]) -> None:
    said = {item["content"] for item in items} - {""}
    assert (find_prompt({"messages": items}) is None) == (said == {"[redacted]"})
