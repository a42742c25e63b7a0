"""The replay against a server with programmed latencies and faults, in a process of its own.

Bounds on times are those that hold however busy the machine is (a server that waits 100 ms never answers
earlier); counts are exact.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_server import Program, fake_server
from helpers.replay_traces import steady_trace

from advisor.simulation.slo import Slo
from advisor.validation.metrics import tpot_s, ttft_s
from advisor.validation.options import Cost, Options
from advisor.validation.refuse import Load
from advisor.validation.replay import Counts
from advisor.validation.result import Result
from advisor.validation.validate import validate
from engine.errors import MachineError

ROOT = Path(__file__).resolve().parents[2]
LOOSE = Slo(ttft_s=60.0, tpot_s=10.0)  # only faults miss these, and a busy machine is not a late client
FAST = Program(ttft_s=0.01, tpot_s=0.002)


class Seen:
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.costs: list[Cost] = []
        self.counts: list[Counts] = []

    def cost(self, cost: Cost) -> None:
        self.costs.append(cost)

    def tick(self, counts: Counts) -> None:
        self.counts.append(counts)


def run(
    program: Program, requests: int = 50, rate: float = 50.0, slo: Slo = LOOSE, **options: object
) -> Result:
    with fake_server(program) as url:
        trace = steady_trace(requests, rate)
        return validate(trace, url=url, slo=slo, window="all", options=Options(seed=1, **options))


def test_known_latencies_are_measured_and_pass(tmp_path: Path) -> None:
    seen = Seen()
    with fake_server(Program(ttft_s=0.1, tpot_s=0.02)) as url:
        trace = steady_trace(40, 40.0, prompt=100, output=10)
        result = validate(trace, url=url, slo=LOOSE, window="all", options=Options(seed=1), progress=seen)
    assert (result.label, result.exit_code, result.score.good) == ("PASS", 0, 40)
    colours = {gate.name: gate.colour for gate in result.gates}
    assert colours.pop("send_lag") != "red"
    assert {"arrivals", "prompt_lengths", "output_lengths", "errors", "completeness"} <= set(colours)
    assert set(colours.values()) == {"green"}
    first = [ttft_s(record) for record in result.records]
    assert min(first) >= 0.1
    assert np.median(first) < 0.2  # the stream ends at 0.28
    # The server holds each token until (index x 20 ms): the last cannot come early, the first may come late.
    assert np.median([tpot_s(record) for record in result.records]) == pytest.approx(0.02, rel=0.1)
    assert all(len(record.t_chunk) == 10 and record.n_in == 100 for record in result.records)
    assert result.tokens_per_chunk == 1
    assert all(
        record.t_sched <= record.t_send <= record.t_hdr <= record.t_first <= record.t_done
        and all(a <= b for a, b in pairwise(record.t_chunk))
        for record in result.records
    )
    (cost,) = seen.costs
    assert (cost.requests, cost.prompt_tokens, cost.output_tokens) == (40, 4000, 400)
    assert cost.duration_s == pytest.approx(39 / 40)
    assert seen.counts[-1].finished == 40
    saved = json.loads(result.save(tmp_path).read_text())
    assert saved["verdict"] == "PASS"
    assert "records" not in saved  # they have a file of their own


def test_ten_per_cent_of_errors_are_misses() -> None:
    result = run(Program(ttft_s=0.01, tpot_s=0.002, error_on=[3]), slo=LOOSE)
    assert result.score.misses == {"http_5xx": 5}
    assert (result.score.attainment, result.verdict) == (0.9, "LIKELY PASS")  # 45 of 50 prove little


def test_every_kind_of_failure_has_its_own_label() -> None:
    program = Program(
        ttft_s=0.01, tpot_s=0.002, error_on=[0], busy_on=[2], cut_on=[4], hang_on=[6], short_on=[8]
    )
    result = run(program, timeout_s=2.0)
    assert result.score.misses == {
        "broken_stream": 5, "http_429": 5, "http_5xx": 5, "timeout": 5, "wrong_length": 5,
    }  # fmt: skip
    assert result.score.attainment == 0.5
    # 5 of 30 complete streams have the wrong length: that run says nothing about the server.
    assert (result.verdict, result.exit_code) == ("INVALID", 4)
    assert {gate.name for gate in result.gates if gate.colour == "red"} - {"send_lag"} == {"output_lengths"}


def test_disjoint_misses_of_ttft_and_tpot_add_up() -> None:
    # Each target alone is kept by 90 %; both by 80 %.
    program = Program(ttft_s=0.2, tpot_s=0.02, slow_first_on=[2], slow_rest_on=[7])
    result = run(program, slo=Slo(ttft_s=1.9, tpot_s=0.19))
    assert result.score.misses == {"tpot": 5, "ttft": 5}
    assert result.score.attainment == 0.8
    assert result.verdict != "PASS"


def test_every_token_slowed_threefold_fails() -> None:
    slo = Slo(ttft_s=60.0, tpot_s=0.05)
    result = run(Program(ttft_s=0.01, tpot_s=0.06), requests=30, slo=slo)
    assert (result.verdict, result.exit_code) == ("FAIL", 1)
    assert result.score.misses == {"tpot": 30}


def test_late_sends_make_a_run_invalid_however_good_the_server() -> None:
    slo = Slo(ttft_s=2.0, tpot_s=1.0)
    late = run(FAST, requests=30, slo=slo, send_delay_s=0.2)  # 10 % of the target
    assert (late.verdict, late.exit_code, late.score.attainment) == ("INVALID", 4, 1.0)
    assert late.reason.startswith("send_lag")
    assert late.latencies.send_lag is not None
    assert late.latencies.send_lag.p50 >= 0.2
    # The delay is in the TTFT that counts, and not in the one that other tools print.
    assert late.latencies.ttft is not None
    assert late.latencies.ttft_svc is not None
    assert late.latencies.ttft.p50 - late.latencies.ttft_svc.p50 >= 0.15


def test_a_frozen_server_is_seen_from_the_scheduled_arrivals() -> None:
    """Coordinated omission: a client that waits for answers, or counts from its sends, sees one slow one."""
    freeze_s, rate, at = 1.0, 40.0, 20
    program = Program(ttft_s=0.01, tpot_s=0.001, freeze_at=at, freeze_s=freeze_s)
    records = run(program, requests=80, rate=rate).records
    frozen_from = records[at].t_send
    assert frozen_from is not None
    during = [r for r in records if frozen_from < r.t_sched < frozen_from + freeze_s]
    assert len(during) in (39, 40)  # rate x freeze
    # Requests went out at their times, whatever the server did.
    assert sum(r.t_send < frozen_from + freeze_s for r in during) >= 36
    # Each waited at least for what was left of the freeze: the delays spread over 0..1 s, 0.5 s in the mean.
    for r in during:
        assert ttft_s(r) >= frozen_from + freeze_s - r.t_sched
    assert np.mean([ttft_s(r) for r in during]) >= freeze_s / 2 * 0.95


def test_packed_chunks_leave_tpot_alone_and_are_reported() -> None:
    result = run(Program(ttft_s=0.02, tpot_s=0.02, tokens_per_chunk=2), requests=20)
    assert result.tokens_per_chunk == 2
    assert result.score.good == 20
    # 8 tokens in 4 chunks, at (1, 3, 5, 7) x 20 ms: (120 ms) / 7 by the definition, not / 3.
    assert np.median([tpot_s(record) for record in result.records]) == pytest.approx(0.120 / 7, rel=0.1)


def test_a_server_that_mostly_fails_is_left_alone() -> None:
    result = run(Program(error_on=[0, 1, 2, 3, 4, 5, 6]), requests=300, rate=100.0)
    assert (result.end, result.verdict) == ("aborted", "INVALID")
    assert result.score.requests == 300
    assert result.score.misses["unsent"] > 100


def test_lengths_over_the_context_are_refused_or_scaled() -> None:
    program = Program(ttft_s=0.01, tpot_s=0.002, max_model_len=60)
    with pytest.raises(MachineError, match=r"100\.0%"):
        run(program, requests=10)
    result = run(program, requests=10, fit=frozenset({"lengths"}))
    assert result.label == "LIKELY PASS (scaled: not your traffic)"  # ten requests prove little
    assert {(record.want_in, record.n_in) for record in result.records} == {(51, 51)}  # 64 x 58 // 72


def test_load_over_the_limit_is_refused_or_stretched() -> None:
    twice = Load(utilisation=2.0, length_s=1.0)
    with pytest.raises(MachineError, match=r"2\.00 times"):
        run(FAST, requests=10, load=lambda _: twice)
    result = run(FAST, requests=10, load=lambda _: twice, fit=frozenset({"rate"}))
    assert result.label == "LIKELY PASS (scaled: not your traffic)"  # ten requests prove little
    assert result.records[-1].t_sched == pytest.approx(2 * 9 / 50)


def test_a_slow_collection_of_garbage_delays_the_start_not_the_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc.collect", lambda: time.sleep(1.0))
    result = run(FAST, requests=5)
    assert result.latencies.send_lag is not None
    assert result.latencies.send_lag.max < 0.5  # 0.8 and more where the clock starts before the collection


def test_no_server_and_a_server_that_refuses_the_form_are_errors_with_a_hint() -> None:
    with pytest.raises(MachineError, match="no engine answers") as caught:
        validate(steady_trace(3, 1.0), url="http://127.0.0.1:9", slo=LOOSE, window="all")
    assert caught.value.hint == "advise launch"
    with pytest.raises(MachineError, match="takes no form of request"):
        run(Program(refuse=True), requests=3)


def test_ctrl_c_gives_what_came_back_so_far_marked() -> None:
    code = (
        "import sys\n"
        "from helpers.replay_traces import steady_trace\n"
        "from advisor.simulation.slo import Slo\n"
        "from advisor.validation.options import Options, Silent\n"
        "from advisor.validation.validate import validate\n"
        "class Talk(Silent):\n"
        "    def tick(self, counts):\n"
        "        print('tick', flush=True)\n"
        "result = validate(steady_trace(600, 20.0), url=sys.argv[1], slo=Slo(), window='all',\n"
        "                  options=Options(seed=1), progress=Talk())\n"
        "print(result.end, result.verdict, result.exit_code, len(result.records), result.score.good > 5)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    with (
        fake_server(FAST) as url,
        subprocess.Popen(
            [sys.executable, "-c", code, url], env=env, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "tick\n"
        process.send_signal(signal.SIGINT)
        last = process.stdout.read().splitlines()[-1]
    assert last == "interrupted INVALID 130 600 True"
