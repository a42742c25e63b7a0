"""The recorder writes what a service was asked, without a word of it, and never gets in the service's way."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from helpers.embedded import embedded_folder
from helpers.logs import WordEncoder, token_hit_rate, write_lines
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from advisor.logs.read import read
from advisor.logs.recorder import Recorder
from advisor.logs.recorder.exchange import Counts, Exchange, count_usage, read_counts
from advisor.logs.recorder.files import TraceFiles
from advisor.logs.recorder.prefix import BLOCK_TOKENS, UNIT_BYTES, PrefixIds, RecentMap
from advisor.logs.recorder.writer import TraceWriter
from engine.text import Tokenizer

CANARY = "canary-7f3a"
CHAT = "/v1/chat/completions"
Handler = Callable[[Request], Any]


def words_of(body: dict[str, Any]) -> int:
    return sum(len(message["content"].split()) for message in body["messages"])


async def answer(request: Request) -> Response:
    """A chat completion whose usage counts words; a stream where asked, with usage where asked."""
    body = await request.json()
    usage = {"prompt_tokens": words_of(body), "completion_tokens": 3, "total_tokens": words_of(body) + 3}
    if not body.get("stream"):
        message = {"role": "assistant", "content": f"{CANARY} one two"}
        return JSONResponse({"model": body["model"], "choices": [{"message": message}], "usage": usage})

    async def events() -> AsyncIterator[str]:
        yield _event({"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": None})
        await asyncio.sleep(0.02)
        for word in (CANARY, "one", "two"):
            yield _event({"choices": [{"delta": {"content": word}}], "usage": None})
        if (body.get("stream_options") or {}).get("include_usage"):
            yield _event({"choices": [], "usage": usage})
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def _event(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"


def service(path: Path, handler: Handler = answer, **options: Any) -> tuple[Starlette, Recorder]:
    """The application behind a recorder, with the recorder."""
    app = Starlette(routes=[Route(CHAT, handler, methods=["POST"]), Route("/health", lambda _: Response("up"))])
    recorder = Recorder(app, path, **options)
    return app, recorder


def ask(recorder: Recorder, *bodies: Any, headers: dict[str, str] | None = None) -> list[httpx2.Response]:
    """Send requests one after another, and close the recorder."""

    async def send() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(app=recorder, raise_app_exceptions=False)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            return [
                await client.post(
                    CHAT, content=body if isinstance(body, bytes) else json.dumps(body), headers=headers
                )
                for body in bodies
            ]

    responses = asyncio.run(send())
    recorder.writer.close()
    return responses


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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


def test_prompts_of_token_ids_are_exact(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.jsonl")
    for last in (1, 2):
        body = json.dumps({"model": "m", "prompt": [*range(32), *[last] * 20]}).encode()
        writer.put(Exchange("/v1/completions", 0, body))
    writer.close()
    one, other = rows(tmp_path / "trace.jsonl")
    assert one["input_length"] == 52
    assert one["hash_ids"] == [0, 1, 2]
    assert other["hash_ids"] == [0, 1, 3]


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


def test_pictures_and_redacted_prompts_are_unknown_content(tmp_path: Path) -> None:
    """Two pictures, or two placeholders, have equal text and nothing in common."""
    writer = TraceWriter(tmp_path / "trace.jsonl")
    picture = [{"type": "text", "text": "what is this? " * 9}, {"type": "image_url", "image_url": {"url": "x"}}]
    for content in (picture, picture, "redacted-by-litellm", "redacted-by-litellm"):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
        writer.put(Exchange(CHAT, 0, body, counts=Counts(1000, 1)))
    writer.close()
    assert [row.get("hash_ids") for row in rows(tmp_path / "trace.jsonl")] == [None] * 4


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


def test_a_slow_thread_costs_rows_not_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.logs.recorder.writer.QUEUE_BYTES", 1000)
    writer = TraceWriter(tmp_path / "trace.jsonl")
    writer.put(Exchange(CHAT, 0, b"x" * 2000))
    writer.close()
    assert writer.counts == {"the recorder could not keep up": 1}


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


def test_files_end_at_their_size_and_at_midnight(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path / "trace.jsonl", most_bytes=110, daily=True)
    day = 86_400 * 10**9
    files.append({"row": "x" * 80}, 0)
    files.append({"row": "y" * 80}, 1)  # does not fit
    files.append({"row": "z"}, day - 1)
    files.append({"row": "next day"}, day)
    files.close()
    sizes = {file.name: len(rows(file)) for file in tmp_path.iterdir()}
    assert sizes == {"trace.jsonl": 1, "trace-1.jsonl": 2, "trace-2.jsonl": 1}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # what Python 3.12 says of threads and forks
def test_a_fork_records_on_its_own(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.jsonl")
    body = json.dumps(chat("a" * 64)).encode()
    writer.put(Exchange(CHAT, 0, body))
    child = os.fork()
    if child == 0:
        writer.put(Exchange(CHAT, 0, body))
        writer.close()
        os._exit(0 if writer.counts == {"recorded": 1} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.close()
    scopes = [row["scope"] for file in tmp_path.iterdir() for row in rows(file)]
    assert len(set(scopes)) == 2


def test_tokens_are_where_their_text_is() -> None:
    """A dense prefix of 4 bytes a token and a thin tail of 8: the prefix is 400 tokens of both prompts."""
    ids = PrefixIds(most=10_000, secret=1)
    dense, thin = bytes(range(100)) * 16, bytes(range(100, 200)) * 16
    first, _ = ids.of("m", dense, 400, 4.0)
    assert len(first) == 400 // 16
    longer, _ = ids.of("m", dense + thin, 400 + 200, 4.0)
    assert longer[:25] == first
    assert len(longer) == 600 // 16
    assert len(set(longer)) == len(longer)
    other, _ = ids.of("m", dense + thin[::-1], 400 + 200, 4.0)
    assert other[:25] == first
    assert not set(other[25:]) & set(longer)
    # Without a count: what is known of the prefix, and for new text the ratio given.
    assert ids.of("m", dense, None, 999.0)[1] == 400
    assert ids.of("m", dense + b"?" * 1600, None, 16.0)[1] == 400 + 100


def test_blocks_found_on_bytes_share_like_blocks_of_tokens(shared: Path, tmp_path: Path) -> None:
    """Part of the public agent trace, whose prompts grow, beside its exact hit rate in blocks of 16 tokens."""
    tokenizer = Tokenizer.load(embedded_folder())
    files = sorted((shared / "traces/lmcache-agent/miniswe").glob("*.jsonl.gz"))[:8]
    exact = token_hit_rate(read(files, tokenizer=tokenizer))
    lines = [line for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    calls = sorted(map(json.loads, lines), key=lambda call: int(call["timestamp"]))
    counts = [len(ids) for ids in tokenizer.encode_batch([call["input"] for call in calls])]
    writer = TraceWriter(tmp_path / "trace.jsonl")
    for call, count in zip(calls, counts, strict=True):
        body = json.dumps({"model": "m", "prompt": call["input"]}).encode()
        writer.put(Exchange("/v1/completions", call["timestamp"] * 1000, body, counts=Counts(count, 1)))
    writer.close(60.0)
    trace = read([tmp_path / "trace.jsonl"])
    assert trace.prompt_tokens.tolist() == counts
    assert token_hit_rate(trace) == pytest.approx(exact, abs=0.015)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        # OpenAI: cached tokens are part of the prompt; Anthropic: they are not (platform documentation).
        (
            {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}},
            (100, 5, 64),
        ),
        ({"input_tokens": 9, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}}, (9, 5, 4)),
        (
            {
                "input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 64,
                "cache_creation_input_tokens": 26,
            },
            (100, 5, 64),
        ),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (None, 0, None)),  # BerriAI/litellm#37734
        ({"prompt_tokens": "7", "completion_tokens": True}, (None, None, None)),
    ],
)  # fmt: skip
def test_usage_objects(usage: dict[str, Any], counts: tuple[int | None, ...]) -> None:
    assert count_usage(usage) == counts


def test_usage_in_streams_of_other_kinds() -> None:
    responses = _event(
        {"type": "response.completed", "response": {"usage": {"input_tokens": 9, "output_tokens": 4}}}
    )
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "cache_read_input_tokens": 1}}}
    anthropic = _event(start) + _event({"type": "message_delta", "usage": {"output_tokens": 4}})
    for text, counts in (
        (responses, (9, 4, None)),
        (anthropic, (10, 4, 1)),
        ("data: {broken\n\n", (None,) * 3),
    ):
        exchange = Exchange("/v1/messages", 0, None, answer=text.encode(), streamed=True)
        assert read_counts(exchange) == counts


def test_a_long_stream_is_kept_in_part(tmp_path: Path) -> None:
    """Its usage is in the last event, megabytes after the first."""

    async def talk(request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            for _ in range(3000):
                yield _event({"choices": [{"delta": {"content": "x" * 500}}]})
            yield _event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3000}})

        return StreamingResponse(events(), media_type="text/event-stream")

    _, recorder = service(tmp_path / "trace.jsonl", talk)
    ask(recorder, chat("a b"))
    (row,) = rows(tmp_path / "trace.jsonl")
    assert (row["input_length"], row["output_length"]) == (7, 3000)


def test_what_is_forgotten_may_look_new_but_never_shared() -> None:
    """Against a map that forgets nothing: equal ids only after equal prefixes, in any order of use."""
    ids = PrefixIds(most=64, secret=5)
    meaning: dict[int, bytes] = {}
    rng = np.random.default_rng(0)
    for _ in range(500):
        data = b"".join(bytes([bit]) * UNIT_BYTES for bit in rng.integers(0, 2, 12))
        tokens = 12 * BLOCK_TOKENS  # a block a unit
        found, _ = ids.of("m", data, tokens, 2.0)
        for place, number in enumerate(found, 1):
            prefix = data[: place * UNIT_BYTES]
            assert meaning.setdefault(number, prefix) == prefix
        assert len(ids) <= 64 + 12  # and the prompt at hand
    assert not set(ids.of("other model", data, tokens, 2.0)[0]) & set(ids.of("m", data, tokens, 2.0)[0])


def test_ids_are_chained_whatever_lengths_are_told() -> None:
    """One parent and one depth for every id, as `Blocks` promises, under counts that contradict each other."""
    ids = PrefixIds(most=10_000, secret=5)
    rng = np.random.default_rng(1)
    parents: dict[int, tuple[int, int]] = {}
    for _ in range(500):
        data = b"".join(bytes([bit]) * 40 for bit in rng.integers(0, 3, rng.integers(1, 12)))
        tokens = None if rng.random() < 0.3 else int(rng.integers(1, 400))
        found, length = ids.of("m", data, tokens, 4.0)
        assert len(found) <= length // BLOCK_TOKENS
        for depth, number in enumerate(found):
            parent = found[depth - 1] if depth else -1
            assert parents.setdefault(number, (depth, parent)) == (depth, parent)


def test_what_is_used_is_kept() -> None:
    recent = RecentMap(100)
    recent.put([-1], [7])
    for key in range(1000):
        recent.put([key], [key])
        assert recent.leading([-1]) == [7]
        assert len(recent) <= 100
    assert recent.leading([999, 0]) == [999]  # the other was long unused


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


def test_the_file_is_read_beside_other_lines(tmp_path: Path) -> None:
    """A half-written last line, as a killed process leaves it, costs that line."""
    _, recorder = service(tmp_path / "trace.jsonl")
    ask(recorder, chat("a b"), chat("c d"))
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    path = write_lines(tmp_path / "cut.jsonl", [*lines, lines[0][:40]])
    assert len(read([path])) == 2
