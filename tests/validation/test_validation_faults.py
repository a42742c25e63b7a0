"""Faults of a launched fleet: what is parsed and refused and counted, and signals to real processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from helpers.fake_server import Program, fake_server
from helpers.faults_fleets import Spec
from helpers.replay_traces import steady_trace

from advisor.advice.plan import Loss
from advisor.deploy.local import RunningEngine
from advisor.simulation.slo import Slo
from advisor.validation.client import open_client
from advisor.validation.faults import (
    FaultReport,
    FaultSeen,
    FaultSpec,
    Strike,
    inject,
    middle_s,
    parse_fault,
    report,
)
from advisor.validation.record import Record
from advisor.validation.replay import Due, Replay, replay
from advisor.validation.window import select
from engine.config import EngineConfig, PoolConfig
from engine.errors import InputError, MachineError

SPLIT = EngineConfig(pools=(PoolConfig(role="prefill"), PoolConfig(role="decode")))
WHOLE = EngineConfig(pools=(PoolConfig(role="colocated", count=2),))
LOOSE = Slo(ttft_s=60.0, tpot_s=10.0)


@pytest.mark.parametrize(
    ("text", "config", "spec"),
    [
        ("decode-kill", SPLIT, FaultSpec("decode-kill", "decode")),
        ("decode-kill", WHOLE, FaultSpec("decode-kill", "colocated")),
        ("prefill-kill", SPLIT, FaultSpec("prefill-kill", "prefill")),
        ("pause", WHOLE, FaultSpec("pause", "colocated", pause_s=3.0)),
        ("pause:500ms", SPLIT, FaultSpec("pause", "decode", pause_s=0.5)),
        ("slow-link", SPLIT, FaultSpec("slow-link", engine_fault="slow-link:10")),
        ("slow-link:4", SPLIT, FaultSpec("slow-link", engine_fault="slow-link:4")),
        ("slow-steps:3", WHOLE, FaultSpec("slow-steps", engine_fault="slow-steps:3")),
        ("transfer-corrupt:0.05", SPLIT, FaultSpec("transfer-corrupt", engine_fault="transfer-corrupt:0.05")),
    ],
)
def test_what_a_fault_asks_for(text: str, config: EngineConfig, spec: FaultSpec) -> None:
    assert parse_fault(text, config) == spec


@pytest.mark.parametrize(
    ("text", "config", "why"),
    [
        ("prefill-kill", WHOLE, "not split"),
        ("slow-link:10", WHOLE, "not split"),
        ("transfer-fail:0.1", WHOLE, "not split"),
        ("decode-kill:3", SPLIT, "prefill-kill"),
        ("router-kill", SPLIT, "decode-kill; prefill-kill; pause[:SECONDS]"),
        ("slow-link:0.5", SPLIT, "slow-link: 1 to 1000"),
        ("slow-steps", SPLIT, "slow-steps: 1 to 100"),
    ],
)
def test_faults_without_a_target_are_refused(text: str, config: EngineConfig, why: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_fault(text, config)
    assert why in str(refused.value.why)
    assert str(refused.value.hint)


def test_a_pause_for_ever_is_refused() -> None:
    for text in ("pause:0", "pause:2h"):
        with pytest.raises(InputError, match="pause"):
            parse_fault(text, WHOLE)


def record(due_s: float, done_s: float | None, *, ttft_s: float = 0.1, **fields: Any) -> Record:
    """A request of two tokens that is due and done then."""
    chunks = () if done_s is None else (due_s + ttft_s, done_s)
    values = {"status": "ok", "n_out": 2, "slo_class": None} | fields
    return Record(0, due_s, 10, 2, t_send=due_s, t_chunk=chunks, t_done=done_s, **values)


def test_the_cost_is_that_of_the_requests_it_hit() -> None:
    """Struck at 10 s, whole again at 14 s, on a clock whose zero is at 100 s; targets of 1 s and 1 s."""
    slo = Slo(ttft_s=1.0, tpot_s=1.0)
    records = [
        record(1, 2),  # over before
        record(8, 9.99),  # over before, and slow between its tokens: a miss of the others
        record(8.5, 10.01),  # in flight, and slow
        record(9.5, 10.4),  # in flight, and good
        record(12, 12.9),  # due meanwhile, good
        record(13.9, 16, ttft_s=1.5),  # due meanwhile, late
        record(13.95, None, status="broken_stream"),  # lost
        record(14.05, 14.5),  # after it
        record(15, None, status="unsent"),  # no outcome: a miss, but not lost
    ]
    seen = FaultSeen("decode-0", at_ns=110_000_000_000, back_ns=114_000_000_000)
    loss = Loss(
        role="decode", left=0, at_s=0, down_s=5, caught_up_s=9, requests=5, attainment=0.25,
        attainment_without=1, rerun=3, dropped=0, attainment_of_all=0.9,
    )  # fmt: skip
    spec = parse_fault("decode-kill", SPLIT)
    found = report(spec, seen, records, slo, loss, start_ns=100_000_000_000)
    assert found == FaultReport(
        kind="decode-kill", target="decode-0", at_s=10.0, back_s=14.0, requests=5, attainment=2 / 5,
        attainment_without=2 / 4, lost=1, predicted_attainment=0.25,
    )  # fmt: skip
    half = report(spec, seen, records, slo, start_ns=100_000_000_000, time_scale=2.0)
    assert (half.at_s, half.back_s, half.predicted_attainment) == (5.0, 7.0, None)
    # Another kind, or a loss of another role, is not what the plan has simulated.
    assert report(parse_fault("pause", SPLIT), seen, records, slo, loss).predicted_attainment is None
    assert report(parse_fault("decode-kill", WHOLE), seen, records, slo, loss).predicted_attainment is None
    # Never whole again: all that was due later is hit.
    never = report(
        spec, FaultSeen("decode-0", 110_000_000_000, None, "degraded"), records, slo, start_ns=100_000_000_000
    )
    assert (never.back_s, never.requests, never.said) == (None, 7, "degraded")
    # A fault that lasts hits everything.
    lasting = report(parse_fault("slow-steps:3", WHOLE), FaultSeen("every instance"), records, slo)
    assert (lasting.at_s, lasting.requests, lasting.attainment, lasting.attainment_without) == (
        None,
        9,
        4 / 9,
        None,
    )


def test_a_class_is_judged_by_its_own_targets() -> None:
    records = [record(1, 2.5, slo_class="batch"), record(1, 2.5)]
    seen, spec = FaultSeen("decode-0", 0, 3_000_000_000), parse_fault("pause", SPLIT)
    slo = Slo(ttft_s=1.0, tpot_s=1.0)
    assert report(spec, seen, records, slo).attainment == 0.0
    assert report(spec, seen, records, slo, targets={"batch": LOOSE}).attainment == 0.5


def test_the_middle_is_that_of_the_requests_and_on_the_endpoints_clock() -> None:
    window = select(steady_trace(11, 10.0), "all")  # 0 to 1 s
    assert middle_s(window) == pytest.approx(0.5)
    assert middle_s(window, 4.0) == pytest.approx(2.0)
    late = select(steady_trace(21, 10.0), "1..3", warm_up_s=0.5)  # 1.0 to 2.0 s, and half a second before
    assert middle_s(late) == pytest.approx(0.5 + 0.5)


def body(number: int, output: int) -> bytes:
    prompt = [1 + (number * 7 + place) % 200 for place in range(48)]
    fields = {"prompt": prompt, "max_tokens": output, "ignore_eos": True, "stream": True}
    return msgspec.json.encode(fields | {"stream_options": {"include_usage": True}, "return_token_ids": True})


async def under(
    engine: RunningEngine, spec: FaultSpec, *, seconds: float, rate: float, output: int
) -> tuple[Replay, FaultSeen, dict[str, Any]]:
    """A replay with the fault in its middle, and what /health said as soon as the fleet was whole."""

    async def strike() -> tuple[FaultSeen, dict[str, Any]]:
        seen = await inject(spec, engine.url, engine.info.pids, seconds / 2)
        return seen, await asyncio.to_thread(lambda: httpx2.get(f"{engine.url}/health").json())

    schedule = [Due(n, n / rate, body(n, output), 48, output) for n in range(round(seconds * rate))]
    async with open_client(engine.url, "/v1/completions", api_key=None, timeout_s=60) as client:
        striking = asyncio.create_task(strike())
        return await replay(schedule, client, tick=lambda _: None), *(await striking)


def state_of(pid: int) -> str:
    """As the kernel puts it: R, S, T (stopped), Z."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    ("fleet", "fault", "role"),
    [
        ({"prefill": 1, "decode": 1}, "decode-kill", "decode"),
        pytest.param({"prefill": 1, "decode": 1}, "prefill-kill", "prefill", marks=pytest.mark.slow),
        ({"colocated": 2}, "decode-kill", "colocated"),
    ],
)
def test_a_killed_instance_costs_time_and_no_request(
    tmp_path: Path, fleet: dict[str, int], fault: str, role: str
) -> None:
    with Spec("emulated", **fleet).start(tmp_path) as engine:
        spec = parse_fault(fault, EngineConfig(pools=tuple(PoolConfig(role=one) for one in fleet)))
        outcome, seen, health = asyncio.run(under(engine, spec, seconds=1.5, rate=40, output=20))
        killed = engine.info.pids[seen.target]
        assert all(one["state"] == "up" and one["pid"] != killed for one in health["instances"])
        with pytest.raises((FileNotFoundError, ProcessLookupError)):
            state_of(killed)
    assert (seen.target, seen.said) == (f"{role}-0", None)
    found = report(spec, seen, outcome.records, LOOSE, start_ns=outcome.start_ns)
    assert (found.lost, found.attainment, found.attainment_without) == (0, 1.0, 1.0)
    assert all(one.n_out == one.want_out for one in outcome.records)
    assert found.at_s is not None
    assert found.back_s is not None
    assert 0.5 < found.at_s < found.back_s
    # By hand: open at the strike, or sent until the fleet was whole.
    open_then = sum(
        one.t_done > found.at_s and one.t_sched < found.back_s for one in outcome.records if one.t_done
    )
    assert found.requests == open_then
    assert 0 < found.requests < len(outcome.records) == 60


@pytest.mark.slow
def test_a_paused_instance_goes_on_and_nobody_takes_it_for_dead(tmp_path: Path) -> None:
    with Spec("emulated", colocated=1).start(tmp_path) as engine:
        spec = parse_fault("pause:0.6s", WHOLE)
        outcome, seen, health = asyncio.run(under(engine, spec, seconds=2.0, rate=20, output=10))
        assert state_of(engine.info.pids["colocated-0"]) != "T"
        assert health["instances"][0]["restarts"] == 0
    assert seen.at_ns is not None
    assert seen.back_ns is not None
    assert seen.back_ns - seen.at_ns >= 0.6e9
    found = report(spec, seen, outcome.records, Slo(ttft_s=0.3, tpot_s=0.2), start_ns=outcome.start_ns)
    assert found.lost == 0
    assert found.attainment is not None
    # Who came in the first half of the pause cannot have a first token within 0.3 s.
    late = [one for one in outcome.records if found.at_s < one.t_sched < found.at_s + 0.25]
    assert late
    assert all(one.t_first - one.t_sched > 0.3 for one in late if one.t_first)
    assert found.attainment < 1.0


def test_who_is_interrupted_leaves_no_process_stopped(tmp_path: Path) -> None:
    async def interrupted(engine: RunningEngine) -> None:
        pid = engine.info.pids["colocated-0"]
        striking = asyncio.create_task(
            inject(parse_fault("pause:30s", WHOLE), engine.url, engine.info.pids, 0.0)
        )
        while state_of(pid) != "T":
            await asyncio.sleep(0.01)
        striking.cancel()
        await asyncio.gather(striking, return_exceptions=True)
        assert state_of(pid) != "T"

    with Spec("emulated", colocated=1).start(tmp_path) as engine:
        asyncio.run(asyncio.wait_for(interrupted(engine), 20))


@pytest.mark.slow
def test_a_fleet_that_is_not_whole_again_is_said_to_be_degraded(tmp_path: Path) -> None:
    with Spec("emulated", 1, 1, server={"restart": False}).start(tmp_path) as engine:
        outcome, seen, health = asyncio.run(
            under(engine, parse_fault("decode-kill", SPLIT), seconds=1.0, rate=20, output=10)
        )
    assert (seen.back_ns, seen.said, health["degraded"]) == (None, "decode-0 is lost, degraded", True)
    assert all(one.status == "ok" for one in outcome.records)  # the prefill side serves on


def test_no_process_that_was_not_launched_here_is_struck() -> None:
    """Somebody else's fleet tells of an instance, which nobody here has launched."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        instance = {"name": "decode-0", "role": "decode", "state": "up", "pid": process.pid}
        health = {"status": "ready", "degraded": False, "instances": [instance]}
        try:
            with (
                fake_server(Program(health=health)) as url,
                pytest.raises(MachineError, match="no decode instance"),
            ):
                asyncio.run(inject(parse_fault("decode-kill", SPLIT), url, {"router": 1}, 0.0, patience_s=0.1))
            assert process.poll() is None
        finally:
            process.kill()


def test_a_strike_reports_what_it_saw_and_nothing_where_it_never_came() -> None:
    strike = Strike(parse_fault("slow-link", SPLIT), "http://127.0.0.1:1", {})
    records = [record(0, 1)]
    assert strike.report(records, LOOSE, start_ns=0, time_scale=1.0) is None
    asyncio.run(strike(select(steady_trace(4, 10.0), "all"), 1.0))
    found = strike.report(records, LOOSE, start_ns=0, time_scale=1.0)
    assert found is not None
    assert (found.kind, found.target, found.at_s, found.requests) == ("slow-link", "every copy of KV", None, 1)


@pytest.mark.slow
def test_a_slow_link_makes_copies_take_longer(tmp_path: Path) -> None:
    """A modelled link, 25 GB/s and 1 ms: 48 tokens of 131,072 bytes take 1.25 ms, 300 times that 0.375 s."""

    async def between(engine: RunningEngine) -> list[float]:
        """The copy lies between the first token and the second."""
        async with open_client(engine.url, "/v1/completions", api_key=None, timeout_s=60) as client:
            schedule = [Due(n, n * 0.6, body(n, 4), 48, 4) for n in range(3)]
            records = (await replay(schedule, client, tick=lambda _: None)).records
        assert all(one.status == "ok" for one in records)
        return [one.t_chunk[1] - one.t_chunk[0] for one in records]

    fault = parse_fault("slow-link:300", SPLIT).engine_fault
    with Spec("emulated", 1, 1, fault=fault).start(tmp_path) as engine:
        assert min(asyncio.run(between(engine))) >= 0.375
