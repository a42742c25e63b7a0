"""The LiteLLM callback, told what litellm tells it; with litellm itself in tests/readers."""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from advisor.logs.recorder import LiteLLMRecorder

CANARY = "canary-7f3a"
START = datetime.datetime(2026, 10, 5, 9, 0, 0, tzinfo=datetime.UTC)
USAGE = {"prompt_tokens": 40, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 16}}


def call(content: str = "word " * 40, **more: Any) -> dict[str, Any]:
    """The keyword arguments of a callback."""
    return {
        "call_type": "acompletion",
        "model": "m",
        "messages": [{"role": "user", "content": content}],
        "litellm_params": {"metadata": {"user_api_key_hash": CANARY, "session_id": f"{CANARY}-1"}},
        "optional_params": {},
        **more,
    }


def tell(recorder: LiteLLMRecorder, kwargs: dict[str, Any], usage: Any = USAGE, seconds: float = 2.0) -> None:
    end = START + datetime.timedelta(seconds=seconds)
    asyncio.run(recorder.async_log_success_event(kwargs, {"usage": usage}, START, end))


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_call_becomes_a_row(tmp_path: Path) -> None:
    recorder = LiteLLMRecorder(tmp_path / "trace.jsonl")
    first = START + datetime.timedelta(seconds=0.5)
    tell(recorder, call(stream=True, completion_start_time=first))
    tell(recorder, call(completion_start_time=START + datetime.timedelta(seconds=2)))
    recorder.writer.close()
    streamed, whole = rows(tmp_path / "trace.jsonl")
    assert streamed["timestamp"] == START.timestamp() * 1e3
    assert (streamed["input_length"], streamed["output_length"], streamed["cached_tokens"]) == (40, 7, 16)
    assert (streamed["ttft_s"], streamed["e2e_s"]) == (0.5, 2.0)
    assert "ttft_s" not in whole  # litellm puts the end there
    assert streamed["hash_ids"] == whole["hash_ids"] == [0, 1]
    assert streamed["client"] == whole["client"]
    assert CANARY not in (tmp_path / "trace.jsonl").read_text()


def test_usage_objects_of_litellm_have_attributes(tmp_path: Path) -> None:
    recorder = LiteLLMRecorder(tmp_path / "trace.jsonl")
    response = SimpleNamespace(usage=SimpleNamespace(model_dump=lambda: USAGE))
    recorder.log_success_event(call(), response, START, START)
    recorder.writer.close()
    assert rows(tmp_path / "trace.jsonl")[0]["input_length"] == 40


def test_messages_are_taken_as_they_are_now(tmp_path: Path) -> None:
    """A caller goes on to append the answer to its list."""
    recorder = LiteLLMRecorder(tmp_path / "trace.jsonl")
    kwargs = call()
    tell(recorder, kwargs, {})
    kwargs["messages"].append({"role": "assistant", "content": "x" * 4000})
    recorder.writer.close()
    (row,) = rows(tmp_path / "trace.jsonl")
    assert row["input_length"] == pytest.approx(len("user\n" + "word " * 40) / 4, abs=1)
    assert str(row["token_basis"]) == "bytes, about 4.00 a token"


def test_what_never_reached_an_engine_is_no_request(tmp_path: Path) -> None:
    recorder = LiteLLMRecorder(tmp_path / "trace.jsonl")
    tell(recorder, call(cache_hit=True))
    tell(recorder, call(call_type="aembedding"))
    asyncio.run(recorder.async_log_failure_event(call(), None, START, START))
    recorder.writer.close()
    assert recorder.writer.counts == {
        "answered from LiteLLM's response cache": 1,
        "failed before the first token": 1,
    }
    assert not list(tmp_path.iterdir())


def test_redacted_messages_have_unknown_content(tmp_path: Path) -> None:
    recorder = LiteLLMRecorder(tmp_path / "trace.jsonl")
    for _ in range(2):
        tell(recorder, call("redacted-by-litellm"))
    recorder.writer.close()
    assert [row.get("hash_ids") for row in rows(tmp_path / "trace.jsonl")] == [None, None]


@pytest.mark.parametrize("kwargs", [{}, {"messages": 3}, {"messages": [CANARY]}, {"litellm_params": CANARY}])
def test_odd_calls_raise_nothing(
    tmp_path: Path, kwargs: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    recorder = LiteLLMRecorder(tmp_path / "trace.jsonl")
    for start in (START, None, CANARY):
        recorder.log_success_event(kwargs, object(), start, start)
    recorder.log_failure_event(kwargs, None, START, START)
    recorder.writer.close()
    assert recorder.writer.counts
    assert CANARY not in caplog.text + str(recorder.writer.counts)
    assert not any(CANARY in path.read_text() for path in tmp_path.iterdir())


def test_it_is_a_custom_logger_where_litellm_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """litellm calls the methods of nothing else."""

    class CustomLogger:
        def __init__(self) -> None:
            self.made = True

        def log_pre_api_call(self) -> None: ...

    assert "litellm" not in sys.modules
    module = ModuleType("litellm.integrations.custom_logger")
    module.CustomLogger = CustomLogger  # type: ignore[attr-defined]
    for name in ("litellm", "litellm.integrations"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)

    class Own(LiteLLMRecorder):
        pass

    for kind in (LiteLLMRecorder, Own):
        recorder = kind(tmp_path / "trace.jsonl")
        assert isinstance(recorder, CustomLogger)
        assert isinstance(recorder, kind)
        assert recorder.made
        tell(recorder, call())
        recorder.writer.close()
    assert len(list(tmp_path.iterdir())) == 2
