"""The pitfalls of logs, one small log each, with the answer that a person works out by hand.

 1 s, ms, us, ns and strings of digits      13 pictures in prompts
 2 naive times, clock changes, no year      14 redacted and truncated prompts
 3 the clock's tick and gaps of zero        15 tool definitions outside of the messages
 4 unsorted rows and merged shards          16 dynamic text early in the system prompt
 5 rows logged at the end                   17 scope, size and rounding of block ids; 64 bits
 6 missing output or first token            18 duplicate records
 7 streaming deltas and partial usage       19 sampled logs
 8 retries, fallbacks and hedges            20 files: empty, BOM, CRLF, half a line, gzip, several values
 9 failures with zero tokens                21 embeddings, moderation, health checks, warm-up
10 cached tokens in or out of the prompt    22 several models in one file
11 parent spans that repeat their children  23 idle nights inside the window
12 JSON in strings, reprs, CSV quotes       24 secrets
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import otlp
from helpers.gateways import info, said
from helpers.logs import WordEncoder, read_lines, write_lines
from helpers.reading import blocks, names, notes
from helpers.traffic import START_NS

from advisor.analyze import AnalyzeOptions, analyze
from advisor.cli import run
from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.trace import Trace
from advisor.workload.measure import measure

NOW = 1_789_372_800  # 2026-09-14 08:00:00 UTC
WORDS = WordEncoder()
ONE = ReadOptions(block_size=1)


def row(at: float = 0.0, **fields: Any) -> dict[str, Any]:
    """A request of ten tokens, so many seconds after the start."""
    return {"ts": NOW + at, "prompt_tokens": 10, "completion_tokens": 2} | fields


def chat(*texts: str, **fields: Any) -> dict[str, Any]:
    """A request with a system prompt and questions; each message is one token more than it has words."""
    roles = ["system", *["user"] * (len(texts) - 1)]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    return {"ts": NOW, "request": {"messages": messages}} | fields


def in_text(folder: Path, rows: list[Any], **options: Any) -> Trace:
    """The trace, in blocks of one word."""
    return read_lines(folder, rows, options=ReadOptions(block_size=1, **options), tokenizer=WORDS)


def shared(trace: Trace, one: int = 0, other: int = 1) -> int:
    """Leading tokens that two requests share."""
    first, second = blocks(trace)[one], blocks(trace)[other]
    return next(
        (place for place, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
        min(len(first), len(second)),
    )


def test_pitfall_01_units_of_times(tmp_path: Path) -> None:
    each = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    for scale in each.values():
        for kind in (int, str):
            stamps = [kind(NOW * scale), kind((NOW + 3) * scale)]
            trace = read_lines(tmp_path, [row(ts=stamp) for stamp in stamps])
            assert (trace.first_epoch_s, trace.arrival_s.tolist()) == (NOW, [0, 3])
    mixed = [NOW, (NOW + 1) * 10**3, str((NOW + 2) * 10**6), (NOW + 3) * 10**9]
    assert read_lines(tmp_path, [row(ts=stamp) for stamp in mixed]).arrival_s.tolist() == [0, 1, 2, 3]
    relative = read_lines(tmp_path, [row(ts=stamp) for stamp in (0, 7.5, 3600.25)])
    assert "relative times: 60 minutes at 0.00 requests/s; --time-unit corrects it" in info(relative).notes


def test_pitfall_02_naive_times(tmp_path: Path) -> None:
    def gap(*stamps: str) -> float:
        trace = read_lines(tmp_path, [row(ts=s) for s in stamps], options=ReadOptions(tz="Europe/Berlin"))
        assert "times without a zone are read as Europe/Berlin" in notes(trace)
        return float(trace.arrival_s[-1])

    assert gap("2026-10-25 01:30:00", "2026-10-25 04:30:00") == 4 * 3600  # the hour from 2 to 3 comes twice
    assert gap("2026-03-29 01:59:00", "2026-03-29 03:01:00") == 120  # ... and here never
    line = "INFO {} [logger.py:49] Received request c{}: params: SamplingParams(n=1), lora_request: None."
    log = [line.format("12-31 23:59:59", 1), line.format("01-01 00:00:01", 2)]  # vLLM writes no year
    trace = read_lines(tmp_path, log)
    assert (trace.arrival_s.tolist(), trace.first_epoch_s) == ([0, 2], None)


def test_pitfall_03_tick(tmp_path: Path) -> None:
    """A Poisson process at Mooncake's rate, on its clock of 3 s: CV 3.04 (logs.md A3); the truth is 1."""
    at = np.cumsum(np.random.default_rng(1).exponential(1 / 3.401, 12_000))
    trace = read_lines(tmp_path, [row(float(stamp)) for stamp in at // 3 * 3])
    arrivals = measure(trace).arrivals
    assert arrivals.tick_s == 3
    assert arrivals.cv == pytest.approx(3.04, abs=0.03)
    assert arrivals.cv_spread == pytest.approx(1.0, abs=0.02)
    assert arrivals.on_off_share is None  # gaps of zero are the clock's, not bursts


def test_pitfall_04_unsorted_rows_and_shards(tmp_path: Path) -> None:
    write_lines(tmp_path / "shard-1", [row(5, prompt_tokens=3), row(0, prompt_tokens=1)])
    write_lines(tmp_path / "shard-2", [row(2, prompt_tokens=2), row(9, prompt_tokens=4)])
    for paths in ([tmp_path], [tmp_path / "shard-2", tmp_path / "shard-1"]):
        trace = read(paths)
        assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist()) == ([0, 2, 5, 9], [1, 2, 3, 4])


def test_pitfall_05_logged_at_the_end(tmp_path: Path) -> None:
    ends = [(10.0, 10_000), (10.1, 100), (10.2, 5_200)]  # together at the end, five seconds apart before
    rows = [
        {"end_time": NOW + end, "latency_ms": latency, "prompt_tokens": i + 1}
        for i, (end, latency) in enumerate(ends)
    ]
    trace = read_lines(tmp_path, rows)
    assert trace.arrival_s == pytest.approx([0, 5, 10])
    assert trace.prompt_tokens.tolist() == [1, 3, 2]
    assert info(trace).arrival_basis == "end_time less the latency where logged, seconds since 1970"


def test_pitfall_06_missing_output_and_first_token(tmp_path: Path) -> None:
    rows = [row(0, ttft_ms=500), row(1, completion_tokens=None), row(2, completion_tokens=4, ttft_ms=None)]
    trace = read_lines(tmp_path, rows)
    assert trace.output_tokens.tolist() == [2, -1, 4]
    assert trace.ttft_s is not None
    np.testing.assert_array_equal(trace.ttft_s, [0.5, np.nan, np.nan])
    workload = measure(trace)
    assert workload.lengths.output is not None
    assert workload.lengths.output.mean == 3  # of those that are known
    assert workload.latency.ttft_s is not None
    assert workload.latency.ttft_s.mean == 0.5


def test_pitfall_07_streaming_deltas(tmp_path: Path) -> None:
    def chunk(at: float, delta: str, usage: dict[str, int] | None = None) -> dict[str, Any]:
        body = {"id": "c1", "object": "chat.completion.chunk", "choices": [{"delta": {"content": delta}}]}
        return {"ts": NOW + at, "response": body | {"usage": usage}}

    usage = {"prompt_tokens": 41, "completion_tokens": 3}
    rows = [chunk(0, "Open"), chunk(0.5, " Sett"), chunk(1, "ings"), chunk(1.5, "", usage), row(7)]
    trace = read_lines(tmp_path, rows)
    assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist()) == ([0, 7], [41, 10])
    assert trace.output_tokens.tolist() == [3, 2]
    assert info(trace).items == 2  # four rows tell of one


def test_pitfall_08_retries_fallbacks_hedges(tmp_path: Path) -> None:
    def attempt(name: str, at: int, model: str, tokens: tuple[int, int], status: str) -> dict[str, Any]:
        return {
            "request_id": name, "call_type": "acompletion", "startTime": f"2026-09-14T08:00:0{at}.000Z",
            "endTime": f"2026-09-14T08:00:0{at}.900Z", "model": model, "model_group": "chat", "spend": 0.0,
            "prompt_tokens": tokens[0], "completion_tokens": tokens[1], "session_id": "one call",
            "status": status, "custom_llm_provider": "openai", "api_key": "k", "cache_hit": "False",
        }  # fmt: skip

    rows = [
        attempt("a", 0, "m", (0, 0), "failure"),
        attempt("b", 1, "m", (0, 0), "failure"),  # the retry
        attempt("c", 2, "other", (41, 17), "success"),  # the fallback
        attempt("d", 3, "m", (41, 17), "success"),  # a hedge that lost was computed too
    ]
    trace = read_lines(tmp_path, rows)
    assert (trace.arrival_s.tolist(), info(trace).skipped) == ([0, 1], {"failed request": 2})
    assert names(trace.session) == ["one call"] * 2


def test_pitfall_09_failures_with_zero_tokens(tmp_path: Path) -> None:
    path = tmp_path / "BurstGPT.csv"
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    path.write_text(head + "5,ChatGPT,41,17,58,API log\n6,GPT-4,0,0,0,API log\n9,ChatGPT,300,0,300,API log\n")
    trace = read([path])
    assert info(trace).skipped == {"failed request": 2}  # without output, the last is one, too
    lengths = measure(trace).lengths
    assert lengths.prompt is not None
    assert lengths.prompt.mean == 41


def test_pitfall_10_cached_tokens_in_or_out(tmp_path: Path) -> None:
    inside = {"prompt_tokens": 41, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 32}}
    outside = {"input_tokens": 9, "output_tokens": 2, "cache_read_input_tokens": 32}
    rule = "rows that count cached tokens apart from the prompt, so they were added: 1"
    for usage, shown in ((inside, False), (outside, True)):
        trace = read_lines(tmp_path, [{"ts": NOW, "usage": usage}])
        assert trace.cached_tokens is not None
        assert (trace.prompt_tokens.tolist(), trace.cached_tokens.tolist()) == ([41], [32])
        assert (rule in info(trace).notes) == shown


def test_pitfall_11_parent_spans(tmp_path: Path) -> None:
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.usage.input_tokens": 90}
    spans = [
        otlp.span("invoke_agent", START_NS, START_NS + 9 * 10**9, agent, span_id="a0"),
        otlp.chat("a1", (41, 17), at=1, until=3, parent="a0"),
        otlp.chat("a2", (49, 5), at=4, until=6, parent="a0"),
    ]
    trace = read_lines(tmp_path, [otlp.batch(*spans)])
    assert trace.prompt_tokens.tolist() == [41, 49]
    assert sum(info(trace).skipped.values()) == 1


def test_pitfall_12_json_in_strings_reprs_and_quotes(tmp_path: Path) -> None:
    """One question with both quotes and a new line, as four loggers write it: seven words, in two messages."""
    question = 'Where\'s the "badge"?'
    messages = [{"role": "system", "content": "Be\nbrief"}, {"role": "user", "content": question}]
    text = json.dumps(messages)
    contents = {
        "object": json.dumps({"ts": NOW, "request": {"messages": messages}}),
        "text": json.dumps({"ts": NOW, "request": json.dumps({"messages": text})}),
        "csv": 'ts,messages,completion_tokens\n{},"{}",2\n'.format(NOW, text.replace('"', '""')),
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        trace = read([tmp_path / name], options=ONE, tokenizer=WORDS)
        assert trace.prompt_tokens.tolist() == [7], name
    rendered = f"<system> Be\nbrief <user> {question}"
    line = f"INFO 09-14 08:00:00 [logger.py:40] Received request c1: prompt: {rendered!r}, params: "
    line += "SamplingParams(n=1), prompt_token_ids: None, prompt_embeds shape: None, lora_request: None."
    assert "\\'" in line
    trace = read_lines(tmp_path, [line], options=ONE, tokenizer=WORDS)
    assert trace.prompt_tokens.tolist() == [7]


def test_pitfall_13_pictures(tmp_path: Path) -> None:
    def with_picture(data: str) -> dict[str, Any]:
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        content = [{"type": "text", "text": "what is this"}, picture, {"type": "text", "text": "in one word"}]
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": content}]
        return {"ts": NOW, "request": {"messages": messages}, "usage": {"prompt_tokens": 1105}}

    trace = in_text(tmp_path, [with_picture(data * 4000) for data in "ABA"])
    assert trace.prompt_tokens.tolist() == [1105] * 3  # the count has the picture
    # Two messages of two and three words before the picture; what stands behind another one is not the same.
    assert (shared(trace, 0, 1), shared(trace, 0, 2)) == (3 + 4, 3 + 4 + 1 + 3)
    assert any(note.startswith("prompts with pictures or other media") for note in info(trace).notes)
    uncounted = with_picture("A") | {"usage": None}
    assert in_text(tmp_path, [uncounted]).prompt_tokens.tolist() == [-1]


def test_pitfall_14_redacted_and_truncated_prompts(tmp_path: Path) -> None:
    rows = [
        {"id": name, "call_type": "acompletion", "startTime": NOW, "endTime": NOW + 1, "prompt_tokens": 500,
         "completion_tokens": 2, "messages": "redacted-by-litellm", "response": "redacted-by-litellm",
         "metadata": {}, "model_parameters": {}, "status": "success", "error_information": None}
        for name in ("a", "b")
    ]  # fmt: skip
    trace = in_text(tmp_path, rows)
    assert (len(trace), trace.blocks) == (2, None)  # not two equal prompts
    assert "sharing" in {entry.path for entry in trace.unknown}
    head, tails = "w " * 512, ("x " * 512, "y " * 512)  # SGLang keeps 1,024 characters of both ends
    line = (
        "[2026-09-14 08:00:00] Finish: obj=GenerateReqInput(rid='{}', text={!r} ... {!r}), out={{'meta_info': "
    )
    line += "{{'id': 'd', 'finish_reason': {{'type': 'stop'}}, 'prompt_tokens': 3000, 'completion_tokens': 9, "
    line += "'e2e_latency': 0.5}}}}"
    trace = in_text(tmp_path, [line.format(name, head, tail) for name, tail in zip("ab", tails, strict=True)])
    assert trace.prompt_tokens.tolist() == [3000, 3000]
    assert shared(trace) <= 512
    same = in_text(tmp_path, [line.format(name, head, tails[0]) for name in "ab"])
    assert shared(same) <= 512  # the middle may differ


def test_pitfall_15_tools_outside_of_the_messages(tmp_path: Path) -> None:
    def call(tool: str) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": tool}}]
        return {"ts": NOW, "request": {"messages": [{"role": "user", "content": "go on"}], "tools": tools}}

    trace = in_text(tmp_path, [call("search"), call("delete"), call("search")])
    # {"type": "function", "function": {"name": is four words; the name and all after it differ.
    assert (shared(trace, 0, 1), shared(trace, 0, 2)) == (4, 5 + 3)


def test_pitfall_16_dynamic_text_early(tmp_path: Path) -> None:
    rules = " ".join(f"rule{i}" for i in range(400))
    rows = [chat(f"Now it is {at} o'clock. {rules}", f"question {at}", ts=NOW + at) for at in range(60)]
    path = write_lines(tmp_path / "log.jsonl", rows)
    analysis, _ = analyze([path], AnalyzeOptions(plan=False))
    (finding,) = [finding for finding in analysis.findings if finding.code == "ADV502"]
    assert analysis.sharing.hit_rate_tokens is not None
    assert analysis.sharing.hit_rate_tokens < 0.05
    assert analysis.layout is not None
    assert analysis.layout.hit_rate_reordered > 0.9
    first, second = finding.examples
    assert first.char == second.char
    assert (first.file, first.line) != (second.file, second.line)
    opening = "Now it is "
    assert len(opening) <= first.char <= len(opening) + len("<|im_start|>system\n") + 2


def test_pitfall_17_block_ids(tmp_path: Path) -> None:
    def conversation(name: str) -> dict[str, Any]:
        request = {
            "t": 0.0,
            "type": "n",
            "model": "m",
            "in": 130,
            "out": 2,
            "hash_ids": [1, 2],
            "api_time": 1.0,
        }
        return {"id": name, "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": [request]}

    weka = read_lines(tmp_path, [conversation("a"), conversation("b")])
    assert weka.blocks is not None
    assert (blocks(weka), weka.blocks.rounding) == (
        [[0, 1], [2, 3]],
        "floor",
    )  # local ids mean nothing elsewhere
    mooncake = read_lines(
        tmp_path,
        [
            {"timestamp": at, "input_length": 1025, "output_length": 1, "hash_ids": [7, 8, at]}
            for at in (0, 1000)
        ],
    )
    assert mooncake.blocks is not None
    assert (mooncake.blocks.size, mooncake.blocks.rounding) == (512, "ceil")  # 1,025 tokens, three blocks
    near = [2**64 - 1, 2**64 - 2, 2**53, 2**53 + 1, 2**32, 0]  # equal as 32-bit or floating-point numbers
    dynamo = [
        {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": NOW * 1000,
         "request": {"request_id": str(hash_id), "input_tokens": 64, "output_tokens": 1,
                     "request_received_ms": NOW * 1000, "replay": {
                         "trace_block_size": 64, "input_length": 64, "input_sequence_hashes": [hash_id]}}}
        for hash_id in near
    ]  # fmt: skip
    assert blocks(read_lines(tmp_path, dynamo)) == [[0], [1], [2], [3], [4], [5]]


def test_pitfall_18_duplicate_records(tmp_path: Path) -> None:
    at = np.random.default_rng(2).uniform(0, 3600, 60).round(6)
    rows = [row(float(stamp), prompt_tokens=20 + number) for number, stamp in enumerate(at)]
    later = row(float(at[1]) + 2, prompt_tokens=21)  # asked again, which is no copy
    duplicates = measure(read_lines(tmp_path, [*rows, rows[1], rows[1], later])).sharing.duplicates
    assert duplicates is not None
    assert duplicates.requests == 2


def test_pitfall_19_sampled_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of every prompt was in the cache, and the log, one request of many, shows no one who brought it.

    All but 15 of 32 tokens of 64: less than a block may be shared without being seen.
    """
    rows = [
        {"timestamp": at * 1000, "input_length": 64, "output_length": 9, "block_size": 16, "scope": "global",
         "hash_ids": list(range(4 * at, 4 * at + 4)), "cached_tokens": 32}
        for at in range(50)
    ]  # fmt: skip
    sharing = measure(read_lines(tmp_path, rows)).sharing
    assert (sharing.hit_rate_tokens, sharing.cached_share) == (0, 0.5)
    assert sharing.unexplained_share == pytest.approx((32 - 15) / 64)
    assert run(["analyze", str(tmp_path / "log.jsonl"), "--no-plan", "--json"]) == 0
    assert "ADV905" in {finding["code"] for finding in json.loads(capsys.readouterr().out)["findings"]}


def test_pitfall_20_files(tmp_path: Path) -> None:
    one, two = json.dumps(row(0)).encode(), json.dumps(row(1)).encode()
    contents = {
        "plain": (one + b"\n" + two, {}),
        "blank lines": (b"\n\n" + one + b"\n \n" + two + b"\n\n", {}),
        "BOM": (b"\xef\xbb\xbf" + one + b"\n" + two, {}),
        "CRLF": (one + b"\r\n" + two + b"\r\n", {}),
        "half-written": (one + b"\n" + two + b"\n" + two[: len(two) // 2], {"invalid JSON": 1}),
        "gzip": (gzip.compress(one + b"\n" + two), {}),
        "gzip in parts": (gzip.compress(one + b"\n") + gzip.compress(two), {}),
        "concatenated": (one + two, {}),
        "array": (b"[" + one + b", " + two + b"]", {}),
        "array on lines": (b"[\n  " + one + b",\n  " + two + b"\n]\n", {}),
    }
    for name, (content, skipped) in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        (tmp_path / "empty").touch()
        trace = read([path, tmp_path / "empty"])
        assert (len(trace), info(trace).skipped) == (2, skipped), name


def test_pitfall_21_other_operations(tmp_path: Path) -> None:
    rows = [
        row(0, path="/v1/chat/completions"),
        row(1, path="/v1/embeddings", completion_tokens=0),
        row(2, path="/v1/moderations", completion_tokens=0),
        row(3, path="/health", completion_tokens=0),
        row(4, model="text-embedding-3-large", completion_tokens=0),
        row(5, path="/v1/chat/completions", user_agent="kube-probe/1.30"),
        row(6, path="/v1/chat/completions", phase="warmup"),
    ]
    trace = read_lines(tmp_path, rows)
    assert trace.arrival_s.tolist() == [0]
    assert info(trace).skipped == {"other operation than generating text": 5, "warm-up": 1}


def test_pitfall_22_several_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four calls with one prompt of 20 tokens, of two models by turns: each has seen it once before."""
    rows = [row(at, model="ab"[at % 2], prompt=list(range(20)), prompt_tokens=20) for at in range(4)]
    path = write_lines(tmp_path / "log.jsonl", [*rows, row(9, model="a", prompt=[5, 6], prompt_tokens=2)])
    trace = read([path])
    assert blocks(trace) == [[0], [1], [0], [1], []]
    assert run(["analyze", str(path), "--no-plan", "--json"]) == 0
    log = json.loads(capsys.readouterr().out)["log"]
    assert [(model["name"], model["requests"]) for model in log["models"]] == [("a", 3), ("b", 2)]
    assert log["requests"] == 3  # those of the largest


def test_pitfall_23_idle_nights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three days with a request a minute from 8 to 20 o'clock: half of the hours are idle."""
    rows = [row(day * 86_400 + minute * 60) for day in range(3) for minute in range(12 * 60)]
    workload = measure(read_lines(tmp_path, [*rows, row(3 * 86_400)]))
    assert workload.drift is not None
    assert workload.drift.window_s == 3600
    assert workload.drift.idle_share == pytest.approx(0.5)
    assert workload.arrivals.rate_rps == pytest.approx(2161 / (3 * 86_400))
    assert run(["analyze", str(tmp_path / "log.jsonl"), "--no-plan", "--json"]) == 0
    findings = {finding["code"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert "--rate 2.00x" in findings["ADV908"]["next"]  # a request a minute while there is traffic


def test_pitfall_24_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    canary = "sk-proj-9f8e7d6c5b4a"
    rows = [
        chat(f"the key is {canary}", f"{canary} {at}", ts=NOW + at, user=canary, session_id=f"{canary}-{at}",
             headers={"authorization": f"Bearer {canary}"}, error=f"no such key: {canary}",
             response={"choices": [{"message": {"content": canary}}]}, usage={"completion_tokens": 3})
        for at in range(9)
    ]  # fmt: skip
    path = write_lines(tmp_path / "log.jsonl", [*rows, f"{{{canary}", json.dumps({"ts": canary})])
    assert run(["analyze", str(path), "--no-plan"]) == 0
    assert run(["analyze", str(path), "--no-plan", "--json"]) == 0
    printed = capsys.readouterr()
    assert "9 requests" in printed.out
    assert canary not in printed.out + printed.err
    assert said(read([path]).status) == "error"  # not its message
