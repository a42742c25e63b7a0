"""The fast part of the fault suite: real instance processes, real signals. All of it: `make test-faults`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from helpers.faults_client import client_of, open_loop
from helpers.faults_deaths import faulty_link, kill, kill_all
from helpers.faults_fleets import Spec, tiny_folder
from helpers.faults_leavers import leave
from helpers.faults_overload import deepest_queue
from helpers.faults_router import sigterm
from helpers.faults_run import Quiet, Row, Stage, quiet_run
from helpers.faults_suite import Run, Scenario, one_row, ready
from helpers.faults_watch import settled, watching

TINY = Scenario("fast", Spec("tiny", 1, 1, max_seqs=8), kill_all, requests=160, clients=16)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A split of a tiny model in float64."""
    with ready(TINY, tiny_folder(tmp_path_factory.mktemp("tiny"))) as running:
        yield running


def ran(stage: Stage, run: Run) -> Row:
    """A fault, of which no client may notice anything."""
    row = one_row(replace(TINY, run=run), stage, 0)
    assert row.clean, row
    return row


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_kill_9_of_an_instance_loses_and_doubles_no_token(stage: Stage, role: str) -> None:
    row = ran(stage, partial(kill, role=role))
    assert row.requests == 160
    # A prefill of this model is over in milliseconds: there may be none to start again.
    assert row.figures["requeued"] > 0 or role == "prefill"


def test_clients_that_leave_at_any_moment_leave_no_block_behind(stage: Stage) -> None:
    row = ran(stage, partial(leave, leavers=60))
    assert row.figures["leavers"] >= 60
    assert row.requests > 0  # and those who stay have their tokens


def test_a_corrupted_copy_is_made_again_and_no_token_is_wrong(tmp_path: Path) -> None:
    """Emulated instances: there any changed byte changes every token behind it."""
    run = partial(faulty_link, result="corrupt")
    spec = Spec("emulated", 1, 1, fault="transfer-corrupt:0.2")
    scenario = Scenario("fast", spec, run, requests=60, output=(4, 8), clients=20)
    with ready(scenario, tmp_path) as running:
        row = one_row(scenario, running, 0)
    assert row.clean, row
    assert row.figures["retries"] > 0


def test_sigterm_lets_every_stream_end_and_takes_nothing_new(tmp_path: Path) -> None:
    spec = Spec("emulated", 1, 1)
    scenario = Scenario("fast", spec, sigterm, requests=100, output=(60, 120), clients=100)
    with ready(scenario, tmp_path) as running:
        row = one_row(scenario, running, 0)
    assert row.clean, row
    assert row.figures["open"] > 50


def test_what_a_full_queue_refuses_is_told_when_to_come_again(tmp_path: Path) -> None:
    """About ten times what it can do; whoever is let in gets the tokens of the quiet run."""
    spec = Spec("emulated", colocated=1, max_seqs=4, server={"max_queued": 8})
    todo = spec.asks(100, seed=2, output=(8, 16))

    async def rush(quiet: Quiet, url: str) -> Row:
        row = Row("rush", spec.words, 0)
        async with client_of(url) as client, watching(url) as watch, deepest_queue(watch) as deepest:
            await open_loop(client, [*range(100)] * 4, quiet.todo, 400.0, seed=1)
            await settled(watch)
        row.take(client.got, quiet)
        row.figures |= {"deepest": deepest.requests, "429": sum(one.status == 429 for one in client.got)}
        return row

    with spec.start(tmp_path) as engine:
        quiet = asyncio.run(quiet_run(engine, todo, clients=4))
        row = asyncio.run(rush(quiet, engine.url))
    assert row.clean, row
    assert 0 < row.refused == row.figures["429"] < row.requests == 400
    assert 0 < row.figures["deepest"] <= 8
