"""The driver of an instance by itself: what it does while a step runs."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from engine.config import PoolConfig
from engine.core import EngineCore
from engine.executors.emulated import EmulatedHandle
from engine.request import Request, SamplingParams
from engine.server.driver import Driver
from engine.server.messages import Add, Report, Reserve, Reserved, StartDecode, Stepped, Stop, Wire
from engine.step import Handle, Step, StepResult

PATIENCE_S = 5.0  # for what is to come at once
STEP_S = 1.0  # of an emulated step, in which the answer has to come


class Held:
    """An executor whose steps end when they are told to."""

    def __init__(self) -> None:
        self._steps: queue.SimpleQueue[tuple[Step, Future[StepResult]]] = queue.SimpleQueue()
        self._open: list[Future[StepResult]] = []

    def submit(self, step: Step) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        self._open.append(future)
        self._steps.put((step, future))
        return future

    def next(self) -> tuple[Step, Callable[[], None]]:
        """The step that runs, and how to end it."""
        step, future = self._steps.get(timeout=PATIENCE_S)
        return step, lambda: future.set_result(result_of(step))

    def close(self) -> None:
        """A test that failed leaves nobody waiting."""
        for future in self._open:
            if not future.done():
                future.set_exception(RuntimeError("given up"))


class Slept:
    """An executor whose steps take a while of the wall."""

    def submit(self, step: Step) -> Handle:
        ends_s = time.monotonic() + STEP_S
        return EmulatedHandle(result_of(step), STEP_S, ends_s, 0.0, time.sleep, time.monotonic)

    def close(self) -> None:
        """Steps end by themselves."""


def result_of(step: Step) -> StepResult:
    return StepResult(step.id, tuple(7 if row.sample else None for row in step.rows))


@contextmanager
def driven(executor: Held | Slept) -> Iterator[tuple[Driver, queue.SimpleQueue[Report]]]:
    reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
    core = EngineCore(PoolConfig(block_size=4, max_seqs=4), num_blocks=41, max_len=64)
    failures: list[BaseException] = []
    driver = Driver(core, executor, reports.put, failed=failures.append)
    driver.start()
    try:
        yield driver, reports
        assert not failures
    finally:
        driver.put(Stop())
        executor.close()
        driver.join()


def wire(name: str, output: int) -> Wire:
    return Wire.of(Request(name, tuple(range(10)), SamplingParams(max_tokens=output, ignore_eos=True)))


def heard(reports: queue.SimpleQueue[Report], kind: type[Report]) -> Report:
    while not isinstance(report := reports.get(timeout=PATIENCE_S), kind):
        pass
    return report


def test_blocks_are_reserved_while_a_step_runs_and_who_starts_to_decode_joins_behind_it() -> None:
    """The first step is never over before the answer has come."""
    executor = Held()
    with driven(executor) as (driver, reports):
        driver.put(Add(wire("here", 2), 1, 0.0))
        step, end = executor.next()
        driver.put(Reserve(wire("comes", 2), 2))
        assert heard(reports, Reserved) == Reserved("comes", 2, 0)
        assert driver.busy_s > 0
        driver.put(StartDecode("comes", 2, 5))
        end()
        assert [event.request_id for event in heard(reports, Stepped).events] == ["here"]  # type: ignore[union-attr]
        second, end = executor.next()
        assert [row.request_id for row in step.rows] == ["here"]
        assert {row.request_id for row in second.rows} == {"here", "comes"}
        end()
        ended = heard(reports, Stepped).events  # type: ignore[union-attr]
        assert {(event.request_id, event.reason) for event in ended} == {
            ("here", "length"),
            ("comes", "length"),
        }


def test_an_emulated_step_is_interrupted_by_an_order_and_not_shortened() -> None:
    with driven(Slept()) as (driver, reports):
        began = time.monotonic()
        driver.put(Add(wire("here", 1), 1, 0.0))
        driver.put(Reserve(wire("comes", 2), 2))
        time.sleep(0.05)
        driver.put(Reserve(wire("later", 2), 3))
        answers = [heard(reports, Reserved) for _ in range(2)]
        assert [one.request_id for one in answers] == ["comes", "later"]  # type: ignore[union-attr]
        assert time.monotonic() - began < STEP_S
        heard(reports, Stepped)
        assert time.monotonic() - began >= STEP_S


def test_a_driver_is_stopped_once_the_step_in_flight_is_over() -> None:
    executor = Held()
    with driven(executor) as (driver, _):
        driver.put(Add(wire("here", 2), 1, 0.0))
        _, end = executor.next()
        driver.put(Stop())
        driver._thread.join(0.2)
        assert driver._thread.is_alive()
        end()
        driver.join()
