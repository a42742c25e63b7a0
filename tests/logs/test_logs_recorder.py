"""The recorder writes what a service was asked, without a word of it, and never gets in the service's way."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from helpers.logs import WordEncoder, token_hit_rate, write_lines
from helpers.recorded import CANARY, CHAT, ask, chat, event, rows, service
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from advisor.logs.read import read
from advisor.logs.recorder import Recorder
from advisor.logs.recorder.exchange import Exchange


def test_two_hundred_chats_with_a_system_prompt_are_read_with_their_sharing(tmp_path: Path) -> None:
    """Words are tokens here, all of 6 letters and a space, so that the hit rate can be counted by hand."""
    system = " ".join(f"s{i:05}" for i in range(328))
    _, recorder = service(tmp_path / "trace.jsonl")
    chats = []
    for i in range(200):
        question = " ".join(f"q{i:02}{j:03}" for j in range(72))
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        chats.append({"model": "m", "messages": messages})
    ask(recorder, *chats)
    assert recorder.writer.counts == {"recorded": 200}
    trace = read([tmp_path / "trace.jsonl"])
    assert len(trace) == 200
    assert trace.prompt_tokens.tolist() == [400] * 200
    assert trace.output_tokens.tolist() == [3] * 200
    assert trace.blocks is not None
    assert trace.blocks.size == 16
    # 199 of 200 requests find 328 of their 400 tokens, which are 20 full blocks of 16.
    assert token_hit_rate(trace) == pytest.approx(199 / 200 * 320 / 400)
    assert np.all(np.diff(trace.arrival_s) > 0)


def test_a_growing_conversation_keeps_its_prefix(tmp_path: Path) -> None:
    _, recorder = service(tmp_path / "trace.jsonl")
    messages: list[dict[str, str]] = []
    bodies = []
    for turn in range(5):
        messages.append({"role": "user", "content": " ".join(f"u{turn}{i:04}" for i in range(160))})
        bodies.append(json.dumps({"model": "m", "messages": messages}).encode())
        messages.append({"role": "assistant", "content": " ".join(f"a{turn}{i:04}" for i in range(160))})
    ask(recorder, *bodies)
    paths = [row["hash_ids"] for row in rows(tmp_path / "trace.jsonl")]
    for before, after in itertools.pairwise(paths):
        assert after[: len(before)] == before
        assert len(after) - len(before) == 20  # 320 words


def test_with_a_tokenizer_blocks_are_exact(tmp_path: Path) -> None:
    """The same 40 tokens in front of two prompts are two blocks of 16, whatever their bytes."""
    shared = " ".join(["a"] * 20 + ["longerword"] * 20)
    _, recorder = service(tmp_path / "trace.jsonl", tokenizer=WordEncoder())
    ask(recorder, chat(f"{shared} {'x ' * 20}"), chat(f"{shared} {'y ' * 20}"))
    one, other = rows(tmp_path / "trace.jsonl")
    assert len(one["hash_ids"]) == 60 // 16
    assert one["hash_ids"][:2] == other["hash_ids"][:2]
    assert one["hash_ids"][2] != other["hash_ids"][2]


def test_what_a_chat_template_refuses_is_found_on_bytes(tmp_path: Path) -> None:
    _, recorder = service(tmp_path / "trace.jsonl", tokenizer=WordEncoder())
    body = {"model": "m", "messages": [{"role": "narrator", "content": "word " * 40}]}
    ask(recorder, body, body)
    one, other = rows(tmp_path / "trace.jsonl")
    assert one["hash_ids"] == other["hash_ids"] == [0, 1]


@pytest.mark.parametrize("include_usage", [True, False])
def test_streams(tmp_path: Path, include_usage: bool) -> None:
    _, recorder = service(tmp_path / "trace.jsonl")
    body = chat("a b c d", stream=True, stream_options={"include_usage": include_usage})
    (response,) = ask(recorder, body)
    assert "[DONE]" in response.text
    (row,) = rows(tmp_path / "trace.jsonl")
    # The first event has a role and no token; 20 ms later comes the first word.
    assert 0.02 <= row["ttft_s"] <= row["e2e_s"]
    if include_usage:
        assert (row["input_length"], row["output_length"], row["token_basis"]) == (4, 3, "usage")
    else:
        assert "output_length" not in row  # events are not tokens
        assert str(row["token_basis"]) == "bytes, about 4.00 a token"


def test_a_request_passes_unchanged(tmp_path: Path) -> None:
    app, recorder = service(tmp_path / "trace.jsonl")
    body = chat("a b", stream=True, stream_options={"include_usage": True})
    (through,) = ask(recorder, body)

    async def bare() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.post(CHAT, json=body)

    direct = asyncio.run(bare())
    assert through.content == direct.content
    assert through.headers == direct.headers
    assert through.status_code == direct.status_code


def test_other_requests_leave_no_row(tmp_path: Path) -> None:
    _, recorder = service(tmp_path / "trace.jsonl")

    async def send() -> None:
        transport = httpx2.ASGITransport(app=recorder)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            assert (await client.get("/health")).text == "up"
            assert (await client.post("/v1/embeddings", json={})).status_code == 404

    asyncio.run(send())
    recorder.writer.close()
    assert recorder.writer.counts == {}
    assert list(tmp_path.iterdir()) == []


def test_failures_are_counted_not_recorded(tmp_path: Path) -> None:
    async def refuse(request: Request) -> Response:
        return JSONResponse({"error": {"message": CANARY}}, status_code=429)

    async def break_down(request: Request) -> Response:
        raise RuntimeError(CANARY)

    for number, handler in enumerate((refuse, break_down)):
        path = tmp_path / f"{number}.jsonl"
        _, recorder = service(path, handler)
        (response,) = ask(recorder, chat(CANARY))
        assert response.status_code in (429, 500)
        assert recorder.writer.counts == {"failed before the first token": 1}
        assert not path.exists()


def test_a_stream_that_the_client_leaves_is_aborted(tmp_path: Path) -> None:
    """Straight through ASGI: the client takes two events and is gone."""
    recorder = service(tmp_path / "trace.jsonl")[1]
    left = asyncio.Event()
    requests = [{"type": "http.request", "body": json.dumps(chat("a b c d", stream=True)).encode()}]

    async def receive() -> dict[str, Any]:
        if requests:
            return requests.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if b'"one"' in message.get("body", b""):
            left.set()
            await asyncio.sleep(0.01)
            raise OSError("gone")

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b"", "asgi": {}}

    asyncio.run(recorder(scope, receive, send))
    recorder.writer.close()
    (row,) = rows(tmp_path / "trace.jsonl")
    assert row["status"] == "aborted"
    assert "output_length" not in row
    assert row["ttft_s"] > 0


def test_a_large_request_keeps_its_counts(tmp_path: Path) -> None:
    _, recorder = service(tmp_path / "trace.jsonl", most_body_bytes=1000)
    ask(recorder, chat("word " * 500))
    (row,) = rows(tmp_path / "trace.jsonl")
    assert row["input_length"] == 500
    assert "hash_ids" not in row  # unknown, not unshared
    trace = read([tmp_path / "trace.jsonl"])
    assert trace.blocks is None


def test_concurrent_requests_leave_whole_rows(tmp_path: Path) -> None:
    _, recorder = service(tmp_path / "trace.jsonl")

    async def send() -> None:
        transport = httpx2.ASGITransport(app=recorder)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            options = {"stream": True, "stream_options": {"include_usage": True}}
            bodies = [chat(f"q{i} " * (i + 1), **(options if i % 2 else {})) for i in range(100)]
            await asyncio.gather(*(client.post(CHAT, json=body) for body in bodies))

    asyncio.run(send())
    recorder.writer.close()
    assert sorted(row["input_length"] for row in rows(tmp_path / "trace.jsonl")) == list(range(1, 101))


def test_no_word_and_no_name_leaves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, recorder = service(tmp_path / "trace.jsonl")
    keys = {"authorization": f"Bearer {CANARY}", "x-session-id": f"{CANARY}-session"}
    bodies: list[Any] = [chat(f"{CANARY}-{i} " * 30, user=CANARY, metadata={"a": CANARY}) for i in range(40)]
    bodies += [f'{{"model": "{CANARY}"'.encode(), json.dumps([CANARY]).encode()]
    with caplog.at_level(logging.DEBUG, "advise.recorder"):
        ask(recorder, *bodies, headers=keys)
    text = (tmp_path / "trace.jsonl").read_text()
    assert len(text.splitlines()) == 40
    assert CANARY not in text
    assert CANARY not in caplog.text + str(recorder.writer.counts)
    assert stat.S_IMODE((tmp_path / "trace.jsonl").stat().st_mode) == 0o600
    trace = read([tmp_path / "trace.jsonl"])
    assert trace.client is not None
    assert trace.session is not None
    assert len(trace.client.names) == len(trace.session.names) == 1


def test_keys_are_digests_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits in memory for its turn is no key."""
    _, recorder = service(tmp_path / "trace.jsonl")
    seen: list[Exchange] = []
    monkeypatch.setattr(recorder.writer, "put", seen.append)
    ask(recorder, chat("a b"), headers={"authorization": f"Bearer {CANARY}", "x-session-id": CANARY})
    assert type(seen[0].client) is type(seen[0].session) is int
    assert CANARY not in repr(seen[0])


def test_a_recorder_that_breaks_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, recorder = service(tmp_path / "trace.jsonl")

    def fail(*_: object) -> None:
        raise ValueError(CANARY)

    monkeypatch.setattr("advisor.logs.recorder.rows.find_prompt", fail)
    responses = ask(recorder, *[chat("a b")] * 3)
    assert [response.status_code for response in responses] == [200] * 3
    assert recorder.writer.counts == {"error: ValueError": 3}
    assert caplog.text.count("not recorded") == 1
    assert CANARY not in caplog.text


@pytest.mark.parametrize("name", ["_take_request", "_take_answer", "_exchange"])
def test_a_watch_that_breaks_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    _, recorder = service(tmp_path / "trace.jsonl")

    def fail(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(f"advisor.logs.recorder.asgi._Watch.{name}", fail)
    (response,) = ask(recorder, chat("a b", stream=True))
    assert response.status_code == 200
    assert "[DONE]" in response.text
    assert recorder.writer.counts["error: ValueError"] >= 1


def test_a_disk_that_cannot_be_written_costs_rows_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    _, recorder = service(tmp_path / "file" / "trace.jsonl")
    (response,) = ask(recorder, chat("a b"))
    assert response.status_code == 200
    assert recorder.writer.counts["not written"] == 1


def test_every_run_has_ids_of_its_own(tmp_path: Path) -> None:
    """Two runs of a service number from 0; read together, equal numbers are not equal prompts."""
    for text in ("abcdefg " * 64, "hijklmn " * 64):
        _, recorder = service(tmp_path / "trace.jsonl")
        ask(recorder, chat(text))
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["trace-1.jsonl", "trace.jsonl"]
    one, other = (rows(file)[0] for file in files)
    assert one["hash_ids"] == other["hash_ids"]
    assert one["scope"] != other["scope"]
    trace = read(files)
    assert token_hit_rate(trace) == 0


def test_a_long_stream_is_kept_in_part(tmp_path: Path) -> None:
    """Its usage is in the last event, megabytes after the first."""

    async def talk(request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            for _ in range(3000):
                yield event({"choices": [{"delta": {"content": "x" * 500}}]})
            yield event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3000}})

        return StreamingResponse(events(), media_type="text/event-stream")

    _, recorder = service(tmp_path / "trace.jsonl", talk)
    ask(recorder, chat("a b"))
    (row,) = rows(tmp_path / "trace.jsonl")
    assert (row["input_length"], row["output_length"]) == (7, 3000)


def test_a_long_stream_that_counts_its_prompt_first(tmp_path: Path) -> None:
    """Anthropic's way: the prompt in the first event, the output in the last."""

    async def talk(request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            yield event({"type": "message_start", "message": {"usage": {"input_tokens": 9}}})
            for _ in range(3000):
                yield event({"type": "content_block_delta", "delta": {"text": "x" * 500}})
            yield event({"type": "message_delta", "usage": {"output_tokens": 3000}})

        return StreamingResponse(events(), media_type="text/event-stream")

    _, recorder = service(tmp_path / "trace.jsonl", talk)
    ask(recorder, chat("a b"))
    (row,) = rows(tmp_path / "trace.jsonl")
    assert (row["input_length"], row["output_length"]) == (9, 3000)


def test_the_recorder_starts_nothing_before_the_first_request(tmp_path: Path) -> None:
    recorder = Recorder(service(tmp_path / "trace.jsonl")[0])
    recorder.writer.close()
    assert not list(tmp_path.iterdir())


def test_shutdown_writes_what_waits(tmp_path: Path) -> None:
    _, recorder = service(tmp_path / "trace.jsonl")

    async def run() -> None:
        incoming: asyncio.Queue[Any] = asyncio.Queue()
        outgoing: asyncio.Queue[Any] = asyncio.Queue()
        life = asyncio.create_task(recorder({"type": "lifespan", "asgi": {}}, incoming.get, outgoing.put))
        await incoming.put({"type": "lifespan.startup"})
        assert (await outgoing.get())["type"] == "lifespan.startup.complete"
        transport = httpx2.ASGITransport(app=recorder)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            await client.post(CHAT, json=chat("a b"))
        await incoming.put({"type": "lifespan.shutdown"})
        await life

    asyncio.run(run())
    assert len(rows(tmp_path / "trace.jsonl")) == 1
    assert not any(thread.name == "advise-recorder" for thread in threading.enumerate())


def test_the_file_is_read_beside_other_lines(tmp_path: Path) -> None:
    """A half-written last line, as a killed process leaves it, costs that line."""
    _, recorder = service(tmp_path / "trace.jsonl")
    ask(recorder, chat("a b"), chat("c d"))
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    path = write_lines(tmp_path / "cut.jsonl", [*lines, lines[0][:40]])
    assert len(read([path])) == 2
