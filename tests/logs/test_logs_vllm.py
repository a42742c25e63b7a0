"""vLLM's text log: its pitfalls, each as a small log, and the public reports of trouble with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from helpers.logs import WordEncoder, accounted, write_lines

from advisor.logs.formats.vllm_log import VLLM
from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.record import LINE, UnusableError
from advisor.logs.trace import Trace

API = "(APIServer pid=4021) "
PARAMS = "params: SamplingParams(n=1, max_tokens=64)"
ACCESS = 'INFO:     10.0.0.9:51408 - "POST /v1/chat/completions HTTP/1.1" '


def received(moment: str, name: str, prompt: object = None, ids: object = None) -> str:
    return (
        f"INFO {moment} [logger.py:40] Received request {name}: prompt: {prompt!r}, {PARAMS}, "
        f"prompt_token_ids: {ids}, prompt_embeds shape: None, lora_request: None."
    )


def statistics(
    moment: str, prompt: float, rate: float | None, engine: str = "Engine 000: ", writer: str = API
) -> str:
    hits = "" if rate is None else f", Prefix cache hit rate: {rate}%"
    return (
        f"{writer}INFO {moment} [loggers.py:257] {engine}Avg prompt throughput: {prompt} tokens/s, "
        "Avg generation throughput: 2.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%"
        f"{hits}"
    )


def load(folder: Path, lines: Iterable[str], block_size: int = 1) -> Trace:
    path = write_lines(folder / "vllm.log", lines)
    trace = read([path], options=ReadOptions(block_size=block_size), tokenizer=WordEncoder())
    assert accounted(trace)
    return trace


def notes(trace: Trace) -> str:
    assert trace.info is not None
    return "\n".join(trace.info.notes)


def test_prompts_in_both_quotes_with_escapes_share_their_prefix(tmp_path: Path) -> None:
    # vllm-project/vllm#12336: people scrape this line, and it fails at times.
    prompts = [
        "be kind\nit's me",
        'be kind\nsay "hi"',
        'be kind\nit\'s\t"both"',
        "be kind, params: SamplingParams(",
    ]
    trace = load(tmp_path, [received("09-14 08:00:00", f"c{i}", prompt) for i, prompt in enumerate(prompts)])
    assert trace.prompt_tokens.tolist() == [4, 4, 4, 4]
    assert trace.blocks is not None
    assert trace.blocks.row(2)[:3].tolist() == trace.blocks.row(0)[:3].tolist()  # be, kind, it's
    assert trace.blocks.row(1)[:2].tolist() == trace.blocks.row(0)[:2].tolist()
    assert trace.blocks.row(3)[1] != trace.blocks.row(0)[1]  # "kind,"


def test_token_ids_are_exact_and_win_over_text(tmp_path: Path) -> None:
    # vllm-project/vllm#42051: newer versions log ids and no text.
    trace = load(
        tmp_path,
        [
            received("09-14 08:00:00", "c0", None, [5, 6, 7]),
            received("09-14 08:00:01", "c1", "one word more than ids has", [5, 6, 9]),
        ],
    )
    assert trace.prompt_tokens.tolist() == [3, 3]
    assert trace.blocks is not None
    assert [trace.blocks.row(row).tolist() for row in range(2)] == [[0, 1, 2], [0, 1, 3]]


def test_debug_level_tells_the_prompt_in_a_line_of_its_own(tmp_path: Path) -> None:
    # vllm-project/vllm#29208, #29885, #34503: the prompt moved to DEBUG in 0.11.2.
    details = f"{API}DEBUG 09-14 08:00:00 [logger.py:49] Request c1 details: prompt: 'a b c', "
    trace = load(
        tmp_path,
        [
            details + "prompt_token_ids: None, prompt_embeds shape: None.",
            f"{API}INFO 09-14 08:00:00 [logger.py:58] Received request c1: {PARAMS}, lora_request: None.",
            f"{API}INFO 09-14 08:00:00 [async_llm.py:382] Added request c1-a8a65d16.",
        ],
    )
    assert (len(trace), trace.prompt_tokens.tolist()) == (1, [3])
    assert trace.info is not None
    assert (trace.info.items, trace.info.skipped) == (2, {"not a request": 1})


def test_deltas_are_parts_and_the_complete_answer_counts(tmp_path: Path) -> None:
    said = "INFO 09-14 08:00:02 [logger.py:71] Generated response c1"
    trace = load(
        tmp_path,
        [
            received("09-14 08:00:00", "c1", "a b"),
            f"{said} (streaming delta): output: 'x', output_token_ids: [1], finish_reason: None",
            f"{said} (streaming delta): output: ' y', output_token_ids: [2], finish_reason: None",
            f"{said} (streaming complete): output: 'x y', finish_reason: streaming_complete",  # later, no ids
        ],
    )
    assert trace.output_tokens.tolist() == [2]
    assert trace.info is not None
    assert trace.info.skipped == {"part of a streamed answer": 2}


def test_output_token_ids_are_counted(tmp_path: Path) -> None:
    said = "INFO 09-14 08:00:02 [logger.py:71] Generated response c1: output: 'x y', "
    lines = [
        received("09-14 08:00:00", "c1", "a b"),
        said + "output_token_ids: [9, 8, 7], finish_reason: length",
    ]
    assert load(tmp_path, lines).output_tokens.tolist() == [3]


@pytest.mark.parametrize("told", [True, False])
def test_prompts_cut_by_max_log_len_are_left_out(tmp_path: Path, told: bool) -> None:
    # vllm-project/vllm#3830: a cut prompt has no marker, so its length must not be taken for the prompt's.
    args = f"{API}INFO 09-14 08:00:00 [utils.py:233] non-default args: {{'model': 'm', 'max_log_len': 40}}"
    texts = [f"rule {i} " + "x" * 60 for i in range(4)]
    lines = [received("09-14 08:00:00", f"c{i}", text[:40]) for i, text in enumerate(texts)]
    lines.append(received("09-14 08:00:01", "c9", "short and whole"))
    trace = load(tmp_path, [args, *lines] if told else lines)
    assert trace.prompt_tokens.tolist() == [-1, -1, -1, -1, 3]
    assert "prompts cut short by --max-log-len, which are left out: 4" in notes(trace)


def test_pooling_requests_are_another_operation(tmp_path: Path) -> None:
    lines = [
        received("09-14 08:00:00", "c1", "a b"),
        received("09-14 08:00:00", "embd-1", "a b").replace("SamplingParams(n=1", "PoolingParams(task='embed'"),
        f"{API}INFO 09-14 08:00:00 [logger.py:58] Received request embd-2: params: PoolingParams().",
        received("09-14 08:00:00", "c2", "what are params: PoolingParams( good for?"),
    ]
    trace = load(tmp_path, lines)
    assert trace.info is not None
    assert trace.info.skipped == {"other operation than generating text": 2}
    assert trace.prompt_tokens.tolist() == [2, 6]


def test_rejected_requests_are_dropped_and_counted(tmp_path: Path) -> None:
    why = "was rejected due to a full waiting queue (log every 100 requests)"
    lines = [
        received("09-14 08:00:00", "c1", "a b"),
        f"WARNING 09-14 08:00:00 [logger.py:90] Request c1 {why}",
        received("09-14 08:00:01", "c2", "a b"),
        f"{API}{ACCESS}503 Service Unavailable",
    ]
    trace = load(tmp_path, lines)
    assert len(trace) == 1
    assert trace.info is not None
    assert trace.info.skipped == {"failed request": 1, "not a request": 1}
    assert "requests rejected for a full queue, as far as vLLM logs them: 1" in notes(trace)
    assert "HTTP answers that are errors, to requests that cannot be told: 1" in notes(trace)


def test_aborted_requests_stay(tmp_path: Path) -> None:
    lines = [received("09-14 08:00:00", "c1", "a b"), "INFO 09-14 08:00:01 [engine.py:333] Aborted request c1."]
    trace = load(tmp_path, lines)
    assert len(trace) == 1
    assert "requests whose client left early, which stay in the log: 1" in notes(trace)


@pytest.mark.parametrize(
    ("moments", "arrivals"),
    [
        (["12-31 23:59:58", "01-01 00:00:01"], [0, 3]),  # New Year
        (["02-28 23:59:59", "02-29 00:00:01"], [0, 2]),
        (["09-14 08:00:05", "09-14 08:00:03"], [0, 2]),  # API servers out of step
        (["09-14 08:00:00", "10-14 08:00:00"], [0, 30 * 86_400]),
        (["01-01 00:00:02", "12-31 23:59:58"], [0, 4]),
    ],
)
def test_times_without_a_year_count_from_the_first(
    tmp_path: Path, moments: list[str], arrivals: list[int]
) -> None:
    trace = load(tmp_path, [received(moment, f"c{i}", "a b") for i, moment in enumerate(moments)])
    assert trace.arrival_s.tolist() == arrivals
    assert trace.first_epoch_s is None


def test_a_missing_leap_day_is_said(tmp_path: Path) -> None:
    trace = load(tmp_path, [received("02-28 12:00:00", "c1", "a"), received("03-01 12:00:00", "c2", "a")])
    assert trace.arrival_s.tolist() == [0, 2 * 86_400]
    assert "29 February is empty" in notes(trace)


@pytest.mark.parametrize("moment", ["13-01 00:00:00", "02-30 00:00:00", "09-14 25:00:00"])
def test_impossible_times_are_skipped(tmp_path: Path, moment: str) -> None:
    trace = load(tmp_path, [received("09-14 08:00:00", "c1", "a"), received(moment, "c2", "a")])
    assert trace.info is not None
    assert trace.info.skipped == {"arrival time not understood": 1}


@pytest.mark.parametrize(
    "line",
    [
        received("09-14 08:00:00", "c1", "a b").replace("[logger.py:40]", "logger.py:36]"),  # up to 0.8
        "vllm-1  | " + received("09-14 08:00:00", "c1", "a b"),  # docker compose
        received("09-14 08:00:00", "c1", "a b").replace("INFO 09-14", "\x1b[32mINFO\x1b[0m \x1b[90m09-14"),
        "INFO 09-14 08:00:00 async_llm_engine.py:436] Received request c1: prompt: 'a b', prefix_pos: None,"
        f"sampling_{PARAMS}, prompt_token_ids: None, lora_request: None.",
    ],
    ids=["old head", "compose", "colours", "0.3"],
)
def test_heads_of_other_versions_and_wrappers(tmp_path: Path, line: str) -> None:
    assert load(tmp_path, [line]).prompt_tokens.tolist() == [2]


def test_a_log_without_requests_gives_sums_only(tmp_path: Path) -> None:
    # The default since 0.11: no --enable-log-requests.
    lines = [f"{API}{ACCESS}200 OK"] * 3 + [
        f"{API}INFO 09-14 08:00:00 [api_server.py:1839] vLLM API server version 0.11.0",
        f"{API}INFO:     10.0.0.9:51408 - \"GET /health HTTP/1.1\" 200 OK",
        statistics("09-14 08:00:10", 4.1, 40.0), statistics("09-14 08:00:20", 5.9, 50.0),
    ]  # fmt: skip
    trace = load(tmp_path, lines)
    assert len(trace) == 0
    assert trace.totals is not None
    assert (trace.totals.requests, trace.totals.prompt_tokens, trace.totals.output_tokens) == (3, 100, 40)
    assert trace.totals.cached_share == pytest.approx(0.5)  # the last line's, which is of all three requests
    assert trace.totals.span_s == 20.0
    assert "--enable-log-requests" in {entry.path: entry.how_to_get for entry in trace.unknown}["arrivals"]


def test_hit_rates_of_several_engines_are_weighted_with_their_prompts(tmp_path: Path) -> None:
    lines = [
        statistics("09-14 08:00:10", 10.0, 10.0), statistics("09-14 08:00:10", 30.0, 20.0, "Engine 001: "),
        statistics("09-14 08:00:20", 10.0, 40.0), statistics("09-14 08:00:20", 30.0, 80.0, "Engine 001: "),
    ]  # fmt: skip
    trace = load(tmp_path, lines)
    assert trace.totals is not None
    assert trace.totals.cached_share == pytest.approx((20 * 0.4 + 60 * 0.8) / 80)


def test_hit_rates_of_a_long_log_are_averaged(tmp_path: Path) -> None:
    requests = [f"{API}{ACCESS}200 OK"] * 1001  # more than the window of a hit rate
    lines = [*requests, statistics("09-14 08:00:10", 10.0, 40.0), statistics("09-14 08:00:20", 30.0, 80.0)]
    trace = load(tmp_path, lines)
    assert trace.totals is not None
    assert trace.totals.cached_share == pytest.approx((10 * 0.4 + 30 * 0.8) / 40)


def test_another_interval_is_seen(tmp_path: Path) -> None:
    lines = [statistics(f"09-14 08:0{minute}:00", 1.0, 0.0) for minute in range(5)]
    trace = load(tmp_path, lines)
    assert trace.totals is not None
    assert (trace.totals.prompt_tokens, trace.totals.output_tokens) == (5 * 60, 2 * 5 * 60)
    assert "prefix caching may be off" in notes(trace)


def test_sums_are_the_same_however_the_log_is_divided() -> None:
    rows = [{LINE: statistics(f"09-14 08:0{i // 6}:{i % 6}0", 1.0 + i, 10.0 * i)} for i in range(9)]
    rows += [{LINE: received("09-14 08:01:40", "c1", "a b")}, {LINE: f"{API}{ACCESS}200 OK"}]

    def parse(reader: VLLM, part: Iterable[dict[str, str]]) -> VLLM:
        for row in part:
            with contextlib.suppress(UnusableError):
                list(reader.parse(row))
        return reader

    whole = parse(VLLM(rows, ReadOptions()), rows)
    for place in (1, 4, 9):
        first = parse(VLLM(rows, ReadOptions()), rows[:place])
        first.counts += parse(VLLM(rows, ReadOptions()), rows[place:]).counts
        joined = VLLM(rows, ReadOptions())
        joined.counts.update(first.counts)
        assert joined.basis() == whole.basis()


@pytest.mark.parametrize("requests", [1, 1500])
def test_hit_rates_of_the_first_engine_stand_in_lines_of_their_own(tmp_path: Path, requests: int) -> None:
    head = "INFO 09-14 08:00:1{} metrics.py:345] "
    lines = [
        f"{head.format(0)}Avg prompt throughput: 4.0 tokens/s, Avg generation throughput: 1.0 tokens/s, "
        "Running: 1 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 0.0%, CPU KV cache: 0.0%.",
        f"{head.format(0)}Prefix cache hit rate: GPU: 25.00%, CPU: 0.00%",
    ]
    trace = load(tmp_path, lines + [ACCESS + "200 OK"] * requests)
    assert trace.totals is not None
    assert trace.totals.cached_share == pytest.approx(0.25)


def test_a_line_that_a_log_driver_split_keeps_its_request_and_no_text(tmp_path: Path) -> None:
    whole = received("09-14 08:00:00", "c1", "SECRET " * 9)
    trace = load(tmp_path, [whole[:90], whole[90:], received("09-14 08:00:01", "c2", "a b")])
    assert trace.prompt_tokens.tolist() == [-1, 2]
    assert trace.info is not None
    assert trace.info.skipped == {"not a request": 1}
    assert "prompts that break off in the middle of the line, which are left out: 1" in notes(trace)
    assert "SECRET" not in repr(trace.info)
    assert "SECRET" not in repr(trace.unknown)
