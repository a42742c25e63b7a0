"""The scenarios of the fault suite, in the order of their table. `python -m benchmarks.faults` runs them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random

from helpers.faults_client import Ask, no_excuse
from helpers.faults_deaths import (
    alone,
    chaos,
    faulty_link,
    hang,
    holders,
    kill,
    kill_all,
    kills_open_loop,
    stall,
)
from helpers.faults_fleets import Spec
from helpers.faults_leavers import leave
from helpers.faults_overload import Target, overload
from helpers.faults_router import router_killed, sigterm
from helpers.faults_run import CLIENTS, Quiet, Row, Stage, quiet_run

from advisor.deploy.local import RunningEngine

Run = Callable[[Stage, Row, Random], Coroutine[None, None, None]]


@dataclass(frozen=True)
class Scenario:
    """A line of the table: `run` happens to a running fleet, `repeats` times; `fresh`: each time to a new one.

    `clients` ask `requests` of `spec`'s model in the quiet run, whose tokens are the right ones; prompts of up
    to `longest` tokens, `output` tokens at least and at most.
    """

    name: str
    spec: Spec
    run: Run
    repeats: int = 20
    requests: int = 800
    longest: int = 120
    output: tuple[int, int] = (8, 40)
    clients: int = CLIENTS
    fresh: bool = False

    @property
    def key(self) -> str:
        """What names it in the file of results."""
        return f"{self.name}, {self.spec.words}"

    def todo(self) -> list[Ask]:
        """The same requests in every repeat."""
        return self.spec.asks(self.requests, seed=1, longest=self.longest, output=self.output)


@contextlib.contextmanager
def ready(scenario: Scenario, folder: Path, log: Path | None = None) -> Iterator[Stage]:
    """A running fleet, and the quiet run of one without a `--fault`; `folder` is the tiny model's."""
    spec = scenario.spec
    excuse = ties if spec.kind == "embedded" else no_excuse

    def quiet_of(engine: RunningEngine) -> Quiet:
        return asyncio.run(quiet_run(engine, scenario.todo(), scenario.clients, excuse))

    if spec.fault is None:
        with spec.start(folder, log=log) as engine:
            yield Stage(engine, quiet_of(engine), spec, folder, log)
        return
    with replace(spec, fault=None).start(folder, log=log) as engine:
        quiet = quiet_of(engine)
    with spec.start(folder, log=log) as engine:
        yield Stage(engine, quiet, spec, folder, log)


def rows(scenario: Scenario, repeats: Sequence[int], folder: Path, log: Path | None = None) -> Iterator[Row]:
    """Run these repeats; `folder` is the tiny model's."""
    left = list(repeats)
    while left:
        with ready(scenario, folder, log) as stage:
            usable = True
            while left and usable:
                row = one_row(scenario, stage, left.pop(0))
                usable = row.clean and not scenario.fresh
                yield row


def one_row(scenario: Scenario, stage: Stage, repeat: int) -> Row:
    """One repeat; what does not hold, or raises, is said in the row."""
    row = Row(scenario.name, scenario.spec.words, repeat, at=time.strftime("%Y-%m-%d %H:%M"))
    try:
        asyncio.run(scenario.run(stage, row, Random(f"{scenario.key} {repeat}")))
    except Exception as error:
        row.why.append(f"{type(error).__name__}: {error}")
    return row


def ties(one: Ask, tokens: Sequence[int], quiet: Sequence[int]) -> bool:
    """In float32 either token is right where the two best logits tie: the rule of helpers.greedy."""
    reference = _reference(one)
    try:
        for answer in (tokens, quiet):
            reference.excuses(answer)
    except AssertionError:
        return False
    return True


@cache
def _reference(one: Ask):  # type: ignore[no-untyped-def]
    import torch  # only where a token differs
    from helpers.greedy import reference_greedy, reference_model

    from engine.fetch import model_folder

    model = reference_model(model_folder(None, fetch=False), torch.float32)
    return reference_greedy(model, one.prompt, one.tokens)


def tiny(prefill: int, decode: int, **more: object) -> Spec:
    """A split of the tiny model."""
    return Spec("tiny", prefill, decode, **more)  # type: ignore[arg-type]


def emulated(prefill: int, decode: int, **more: object) -> Spec:
    """A split of emulated instances."""
    return Spec("emulated", prefill, decode, **more)  # type: ignore[arg-type]


EMBEDDED = Spec("embedded", 1, 1)
KILL_DECODE, KILL_PREFILL = partial(kill, role="decode"), partial(kill, role="prefill")
QUEUE = 12  # what is waited for in it has to fit into the target
TARGET = Target(ttft_s=1.0, tpot_s=0.030)

SUITE = (
    Scenario("decode instance killed", tiny(1, 1), KILL_DECODE),
    Scenario("decode instance killed", tiny(2, 2), KILL_DECODE),
    Scenario("decode instance killed", emulated(1, 1), KILL_DECODE),
    Scenario("decode instance killed", emulated(2, 2), KILL_DECODE),
    Scenario("decode instance killed", EMBEDDED, KILL_DECODE, 3, longest=110, output=(16, 16)),
    Scenario(
        "3 decode kills, open loop", tiny(1, 1), partial(kills_open_loop, role="decode"), 3, 1000, clients=64
    ),
    Scenario(
        "3 decode kills, open loop",
        emulated(2, 2),
        partial(kills_open_loop, role="decode"),
        3,
        1000,
        clients=64,
    ),
    Scenario("prefill instance killed", tiny(1, 1), KILL_PREFILL, 10),
    Scenario("prefill instance killed", tiny(2, 2), KILL_PREFILL, 10),
    Scenario("prefill instance killed", emulated(1, 1), KILL_PREFILL, 10),
    Scenario("every instance killed at once", tiny(1, 1), kill_all, 10),
    Scenario("every instance killed at once", tiny(2, 2), kill_all, 5),
    Scenario("decode instance killed, slow link", tiny(1, 1, fault="link-rate:1e6"), KILL_DECODE, 10),
    Scenario("prefill instance killed, slow link", tiny(1, 1, fault="link-rate:1e6"), KILL_PREFILL, 10),
    Scenario(
        "last decode instance killed, no restart", tiny(1, 1, server={"restart": False}), alone, 5, fresh=True
    ),
    Scenario("kills and stalls for 60 s", tiny(1, 1, fault="transfer-fail:0.05"), chaos, 3),
    Scenario("kills and stalls for 60 s", emulated(2, 2, fault="transfer-corrupt:0.05"), chaos, 3),
    Scenario("decode instance stopped for 3 s", tiny(1, 1), partial(stall, role="decode"), 3),
    Scenario("prefill instance stopped for 3 s", tiny(1, 1), partial(stall, role="prefill"), 3),
    Scenario("decode instance hangs", tiny(1, 1), partial(hang, role="decode"), 3),
    Scenario("prefill instance hangs", tiny(1, 1), partial(hang, role="prefill"), 3),
    Scenario("decode instance hangs", tiny(2, 2), partial(hang, role="decode"), 3),
    Scenario(
        "5 % of copies fail", tiny(1, 1, fault="transfer-fail:0.05"), partial(faulty_link, result="failed"), 3
    ),
    Scenario(
        "5 % of copies corrupt",
        tiny(1, 1, fault="transfer-corrupt:0.05"),
        partial(faulty_link, result="corrupt"),
        3,
    ),
    Scenario(
        "5 % of copies corrupt",
        emulated(2, 2, fault="transfer-corrupt:0.05"),
        partial(faulty_link, result="corrupt"),
        3,
    ),
    Scenario("slow link, 1 MB/s", tiny(1, 1, fault="link-rate:1e6"), partial(faulty_link, result=None), 3),
    Scenario("SIGTERM, 100 streams", tiny(1, 1), sigterm, 5, 100, output=(100, 300), clients=100, fresh=True),
    Scenario(
        "1,000 disconnects",
        tiny(1, 1, fault="link-rate:2e6", max_seqs=8),
        partial(leave, leavers=1000),
        3,
        200,
        clients=32,
    ),
    Scenario(
        "1,000 disconnects",
        Spec("tiny", colocated=1, max_seqs=8),
        partial(leave, leavers=1000),
        3,
        200,
        clients=32,
    ),
    Scenario("router killed", tiny(1, 1), router_killed, 5, 100, output=(100, 300), clients=100, fresh=True),
    Scenario(
        "each holder of a request killed",
        tiny(1, 1, fault="slow-steps:30"),
        holders,
        3,
        1,
        output=(600, 600),
        clients=1,
    ),
    Scenario(
        "three times the load",
        emulated(1, 1, max_seqs=16, server={"max_queued": QUEUE}),
        partial(overload, target=TARGET, clients=24),
        2,
        400,
        output=(16, 48),
        clients=12,
    ),
)
