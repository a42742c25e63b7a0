"""The request log: what `analyze` reads in it is what was sent; rows of every end; nothing but ordinals."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from helpers.server import FAKE_PROGRAM, LONG, client, eventually, leave_open, metrics
from helpers.workload_traces import chain, make_trace

from advisor.deploy.local import RunningEngine, start_engine
from advisor.logs.read import read
from advisor.workload.measure import measure
from engine.config import EngineConfig, ModelConfig, PoolConfig, ServerConfig
from engine.errors import InputError
from engine.request_log import BLOCK_TOKENS, Ended, Ordinals, RequestLog, Rows

Row = dict[str, Any]


@contextmanager
def logged(path: Path, behaviour: str = "plain", **server: Any) -> Iterator[RunningEngine]:
    """A fake engine that keeps the log; its blocks are not those of the log."""
    config = EngineConfig(
        pools=(PoolConfig(block_size=32),),
        model=ModelConfig(name="fake", path=behaviour),
        server=ServerConfig(**{"port": 0, "drain_s": 5.0, **server}),
    )
    with start_engine(config, program=FAKE_PROGRAM, request_log=path, timeout_s=60) as engine:
        yield engine


def rows_of(path: Path) -> list[Row]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines() if line]


def wait_for(path: Path, count: int) -> list[Row]:
    eventually(lambda: len(rows_of(path)) >= count, f"{count} rows")
    return rows_of(path)


def ended(prompt: Sequence[int], **fields: Any) -> Ended:
    return Ended(prompt, fields.pop("namespace", "m"), fields.pop("arrived_s", 0.0), "ok", **fields)


def test_analyze_reads_what_a_direct_measurement_of_the_same_requests_gives(tmp_path: Path) -> None:
    random, path = Random(0), tmp_path / "requests.jsonl"
    # Ten documents of 64 tokens, each asked about four times with 40 tokens of its own.
    documents = [[random.randrange(1, 256) for _ in range(64)] for _ in range(10)]
    prompts = [documents[n % 10] + [random.randrange(1, 256) for _ in range(40)] for n in range(40)]
    outputs = [3 + n % 5 for n in range(40)]
    answers, took_s, began = [], [], time.time()
    with logged(path) as engine, client(engine) as http:
        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            fields = {"prompt": prompt, "max_tokens": output, "ignore_eos": True, "stream": number % 2 == 1}
            before = time.monotonic()
            answers.append(http.post("/v1/completions", json=fields))
            took_s.append(time.monotonic() - before)
    over = time.time()
    assert [answer.status_code for answer in answers] == [200] * 40

    trace = read([path])
    assert trace.info is not None
    assert (trace.info.format, trace.info.skipped) == ("advise-trace", {})
    assert trace.prompt_tokens.tolist() == [104] * 40
    assert trace.output_tokens.tolist() == outputs
    assert trace.first_epoch_s is not None
    assert began <= trace.first_epoch_s <= trace.first_epoch_s + trace.arrival_s[-1] <= over
    assert trace.ttft_s is not None
    assert trace.e2e_s is not None
    assert all(trace.ttft_s > 0)
    assert all(trace.e2e_s >= trace.ttft_s)
    assert all(mine <= seen for mine, seen in zip(trace.e2e_s.tolist(), took_s, strict=True))
    usages = [a.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers[::2]]
    assert trace.cached_tokens is not None
    assert trace.cached_tokens.tolist()[::2] == usages
    assert sum(usages) > 0

    paths = [[tuple(prompt[at : at + 16]) for at in range(0, len(prompt) // 16 * 16, 16)] for prompt in prompts]
    numbers = {block: n for n, block in enumerate(sorted({one for row in paths for one in row}))}
    sent = make_trace(
        [104] * 40, outputs, blocks=chain([[numbers[one] for one in row] for row in paths]), size=16
    )
    direct, found = measure(sent).sharing, measure(trace).sharing
    # 30 of 40 requests find the 64 tokens of their document, 4 of 6 blocks.
    assert found.hit_rate_tokens == direct.hit_rate_tokens == pytest.approx(30 * 64 / (40 * 104))
    assert found.hit_rate_blocks == direct.hit_rate_blocks
    assert [p.hit_rate_tokens for p in found.capacity_curve] == [
        p.hit_rate_tokens for p in direct.capacity_curve
    ]


def test_every_end_of_a_request_has_a_row(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with logged(path, "sleep:0.05", max_queued=1) as engine, client(engine) as http:
        chat = {"messages": [{"role": "user", "content": "hello there, this is a chat"}], "max_tokens": 2}
        with client(engine, **{"x-session-id": "Alice's session"}) as named:
            assert named.post("/v1/chat/completions", json=chat).status_code == 200
            assert (
                named.post("/v1/completions", json={"prompt": "abc", "n": 2, "max_tokens": 1}).status_code
                == 400
            )
        assert rows_of(path) == wait_for(path, 1)  # a refusal for what it asks is none of the traffic's
        leaver = leave_open(engine.url, **LONG)
        eventually(lambda: metrics(http)["advise_requests_running"] == 1, "it runs")
        leaver.close()
        wait_for(path, 2)
    chatted, left = rows_of(path)
    assert (chatted["status"], chatted["route"], chatted["output_length"]) == ("ok", "/v1/chat/completions", 2)
    assert chatted["session"] == f"{chatted['scope']}-0"
    assert (left["status"], left["route"], left["input_length"]) == ("aborted", "/v1/completions", 100)
    assert 0 < left["output_length"] < LONG["max_tokens"]
    assert "session" not in left
    assert b"Alice" not in path.read_bytes()


def test_what_a_full_queue_or_a_failed_engine_refuses_is_in_the_log_too(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with logged(path, "sleep:0.2", max_queued=1) as engine, client(engine) as http:
        # One step runs; behind it one waits, and the third finds the queue full.
        sockets = [leave_open(engine.url, **LONG) for _ in range(8)]
        eventually(lambda: any(row["status"] == "429" for row in rows_of(path)), "a refusal")
        assert http.get("/metrics").status_code == 200
        for one in sockets:
            one.close()
    refused = [row for row in rows_of(path) if row["status"] == "429"]
    assert refused
    assert len(rows_of(path)) == 8
    for row in refused:
        assert row["input_length"] == 100
        assert len(row["hash_ids"]) == 100 // BLOCK_TOKENS
        assert not {"output_length", "ttft_s", "e2e_s", "cached_tokens"} & row.keys()


def test_rows_outlive_a_kill_and_a_restart_goes_on_behind_them(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    ask = {"prompt": list(range(1, 65)), "max_tokens": 2}
    with logged(path) as engine, client(engine) as http:
        for _ in range(3):
            http.post("/v1/completions", json=ask)
        wait_for(path, 3)
        os.kill(engine.info.pid, signal.SIGKILL)
        engine.wait(10)
    with path.open("ab") as file:
        file.write(b'{"timestamp":17')  # a line that a kill or a full disk cut off
    with logged(path) as engine, client(engine) as http:
        http.post("/v1/completions", json=ask)
    trace = read([path])
    assert len(trace) == 4
    assert trace.info is not None
    assert sum(trace.info.skipped.values()) == 1
    # The key is gone: what the two runs share is unknown, and counted as new.
    assert measure(trace).sharing.hit_rate_tokens == pytest.approx(2 * 64 / (4 * 64))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_is_for_its_owner_and_has_ordinals_alone(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.touch(0o644)
    log = RequestLog(path, "model", clock=lambda: 0.0, wall=lambda: 1.7e9)
    canary = [424_242_424] * 48
    log.put(ended(canary, session="canary-session", arrived_s=1.5))
    log.put(ended([1] * 16 + canary))
    log.close()
    first, second = rows_of(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (first["timestamp"], second["timestamp"]) == (1_700_000_001_500.0, 1_700_000_000_000.0)
    assert (first["hash_ids"], second["hash_ids"]) == ([0, 1, 2], [3, 4, 5, 6])
    assert b"canary" not in path.read_bytes()
    assert b"424242424" not in path.read_bytes()


def test_a_block_is_its_tokens_all_before_it_and_who_may_share() -> None:
    rows = Rows("m", wall_s=0.0)

    def ids(prompt: Sequence[int], namespace: str = "m") -> list[int]:
        return list(rows.make(ended(prompt, namespace=namespace))["hash_ids"])

    one, two = list(range(16)), list(range(100, 116))
    assert ids(one + two) == [0, 1]
    assert ids(two + one) == [2, 3]  # the same blocks, but not behind the same
    assert ids(one + two + two[:15]) == [0, 1]  # a partial block has no id
    assert ids(one, namespace="salted") == [4]
    assert Rows("m", wall_s=0.0).scope != rows.scope


def test_memory_is_bounded_and_what_returns_late_looks_new_never_shared() -> None:
    """Against a map that forgets nothing: an id stands for one chain for ever, and few chains are new twice."""
    random, most = Random(3), 64
    ordinals = Ordinals(most)
    meaning: dict[int, tuple[int, ...]] = {}
    before: dict[tuple[int, ...], int] = {}
    again = 0
    for _ in range(3000):
        # Twenty documents; a few are asked for all the time, most hardly ever.
        path = tuple([min(int(random.expovariate(0.5)), 19)] + [random.randrange(2) for _ in range(3)])
        keys = [path[: n + 1] for n in range(4)]
        found = ordinals.of(repr(key).encode() for key in keys)
        assert len(ordinals) <= most + len(keys)
        for key, ordinal in zip(keys, found, strict=True):
            assert meaning.setdefault(ordinal, key) == key
        known = [before.get(key) == ordinal for key, ordinal in zip(keys, found, strict=True)]
        assert known == sorted(known, reverse=True)  # behind what is new everything is
        again += sum(key in before and not same for key, same in zip(keys, known, strict=True))
        before.update(zip(keys, found, strict=True))
    assert 0 < again < 6000  # of 12,000


def test_a_disk_that_fails_costs_rows_and_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "requests.jsonl"
    log, write = RequestLog(path, "m", clock=lambda: 0.0), os.write

    def full(descriptor: int, data: Any) -> int:
        """A line is cut off, then there is no room for the rest of it, and later there is."""
        if path.stat().st_size == 0:
            return write(descriptor, data[:10])
        monkeypatch.setattr(os, "write", write)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for number in range(3):
        log.put(ended([number]))
    log.close()
    assert log.counts == {"lost": 1, "written": 2}
    assert len(read([path])) == 2


@pytest.mark.parametrize("place", ["folder", "none/requests.jsonl"])
def test_a_place_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError) as refused:
        RequestLog(tmp_path / place, "m", clock=lambda: 0.0)
    assert refused.value.where == str(tmp_path / place)
    with pytest.raises(InputError, match="request log"), logged(tmp_path / place):
        pass
