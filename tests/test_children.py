"""Child processes: answers in order, whoever works; nothing left behind, and no value in an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import handlers

from advisor.children import Children
from engine.errors import MachineError

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
CANARY = "a canary"
ENDLESS = """
import itertools
from advisor.children import Children
from helpers.handlers import times
with Children(times, 2, 2, purpose="counts", hint="") as children:
    for answer in children.map(itertools.count()):
        if answer == 20:
            print(*(process.pid for process in children.processes), flush=True)
"""


def start(factory: Callable[[Any], Callable[[Any], Any]], setup: object, count: int = 2) -> Children[Any, Any]:
    return Children(factory, setup, count, purpose="counts", hint="count less")


class TestAnswers:
    @pytest.mark.parametrize("count", [0, 1, 2, 3])
    def test_are_those_of_the_jobs_in_order_whoever_works(self, count: int) -> None:
        with start(handlers.times, 3, count) as children:
            assert len(children.processes) == (count if count > 1 else 0)
            assert list(children.map(range(50))) == [3 * job for job in range(50)]
            assert list(children.map(range(5))) == [0, 3, 6, 9, 12]
            assert list(children.map([])) == []

    def test_are_worked_out_by_all_processes_and_not_by_this_one(self) -> None:
        with start(handlers.which, None) as children:
            assert set(children.map(range(100))) == {process.pid for process in children.processes}
        with start(handlers.which, None, 1) as here:
            assert set(here.map(range(3))) == {os.getpid()}

    @pytest.mark.parametrize("count", [1, 2])
    def test_take_few_jobs_before_they_are_needed(self, count: int) -> None:
        taken: list[int] = []

        def jobs() -> Iterator[int]:
            for job in range(1000):
                taken.append(job)
                yield job

        with start(handlers.times, 1, count) as children:
            answers = children.map(jobs())
            for wanted in range(20):
                assert next(answers) == wanted
                assert len(taken) <= wanted + 1 + 2 * count

    def test_a_search_may_stop_early_and_go_on_with_other_jobs(self) -> None:
        with start(handlers.times, 2) as children:
            for _ in range(3):
                answers = children.map(range(1000))
                assert next(answers) == 0
            assert list(children.map(range(10))) == list(range(0, 20, 2))

    def test_nobody_waits_for_are_not_worked_out(self, tmp_path: Path) -> None:
        with start(handlers.marking, tmp_path) as children:
            answers = children.map(range(1000))
            assert next(answers) == 0
            del answers
            (tmp_path / "go").touch()
            assert list(children.map([2000, 2001])) == [2000, 2001]
        assert {path.name for path in tmp_path.iterdir()} == {"go", "0", "1", "2", "2000", "2001"}

    def test_larger_than_any_pipe(self) -> None:
        with start(handlers.times, 2) as children:
            assert list(children.map([b"ab" * 1_000_000] * 5)) == [b"ab" * 2_000_000] * 5

    def test_are_not_disturbed_by_what_a_handler_prints(self, capfd: pytest.CaptureFixture[str]) -> None:
        with start(handlers.noisy, None) as children:
            assert list(children.map(range(10))) == list(range(10))
        out, err = capfd.readouterr()
        assert out == ""
        assert "and one below Python" in err

    def test_go_on_where_a_terminal_interrupts_all_processes(self) -> None:
        """The parent decides what an interrupt means."""
        with start(handlers.interrupted, None) as children:
            assert list(children.map(range(10))) == list(range(10))


class TestErrors:
    @pytest.mark.skipif(sys.platform == "win32", reason="signals")
    def test_a_process_that_is_killed_is_named_with_its_signal(self) -> None:
        with (
            start(handlers.suicidal, None) as children,
            pytest.raises(MachineError, match=r"^a process that counts ended early$") as caught,
        ):
            list(children.map(range(5)))
        assert (caught.value.why, caught.value.hint) == ("it was ended by signal 9", "count less")

    def test_a_process_that_ends_is_named_with_its_code(self) -> None:
        with start(handlers.suicidal, 7) as children, pytest.raises(MachineError) as caught:
            list(children.map(range(5)))
        assert caught.value.why == "it ended with code 7"

    def test_a_process_killed_before_its_first_job(self) -> None:
        with start(handlers.times, 2) as children:
            for process in children.processes:
                process.kill()
                process.wait()
            with pytest.raises(MachineError, match="a process that counts ended early"):
                next(children.map([b"x" * 1_000_000]))

    def test_a_failing_job_is_told_by_kind_and_place_and_the_process_goes_on(self) -> None:
        place = r"^LookupError in a process that counts: handlers\.py:\d+ < children\.py:\d+"
        with start(handlers.failing, CANARY) as children:
            for _ in range(5):
                with pytest.raises(RuntimeError, match=place) as caught:
                    list(children.map([1, 2, 3]))
                assert CANARY not in str(caught.value)
                assert (caught.value.__cause__, caught.value.__context__) == (None, None)
            assert list(children.map([1, 3, 5])) == [1, 3, 5]

    @pytest.mark.parametrize(
        ("factory", "setup", "job", "kind"),
        [
            (handlers.broken, CANARY * 1_000_000, 1, "EOFError"),
            (handlers.broken, CANARY, CANARY * 1_000_000, "EOFError"),
            (handlers.times, handlers.Unloadable(), 1, "ValueError"),
            (handlers.times, 2, handlers.Unloadable(), "ValueError"),
            (handlers.unanswerable, None, 1, "TypeError"),
        ],
        ids=["factory", "factory with a large job", "setup", "job", "answer"],
    )
    def test_whatever_else_fails_is_told_so_too(
        self, capfd: pytest.CaptureFixture[str], factory: Any, setup: object, job: object, kind: str
    ) -> None:
        failed = pytest.raises(RuntimeError, match=f"^{kind} in a process that counts: .*children")
        with start(factory, setup) as children, failed as caught:
            list(children.map([job]))
        assert CANARY not in str(caught.value) + "".join(capfd.readouterr())

    def test_a_system_without_processes_is_an_error_that_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", str(ROOT / "no such program"))
        with pytest.raises(MachineError, match="cannot start a process that counts"):
            start(handlers.times, 2)


class TestEnds:
    def test_none_is_left_after_work_or_after_an_error(self) -> None:
        with start(handlers.times, 2) as children:
            list(children.map(range(5)))
        assert [process.returncode for process in children.processes] == [0, 0]
        with pytest.raises(KeyboardInterrupt), start(handlers.times, 2) as children:
            raise KeyboardInterrupt(next(children.map(range(1000))))
        assert all(process.returncode not in (None, 0) for process in children.processes)

    @pytest.mark.skipif(sys.platform == "win32", reason="signals")
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_none_outlives_its_parent(self, tmp_path: Path, number: int) -> None:
        script = tmp_path / "script.py"
        script.write_text(ENDLESS)
        run = subprocess.Popen(
            [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT,
            start_new_session=True,
        )  # fmt: skip
        assert run.stdout is not None
        children = [int(part) for part in run.stdout.readline().split()]
        assert len(children) == 2
        if number == signal.SIGINT:
            os.killpg(run.pid, number)  # as a terminal does
        else:
            run.kill()
        _, said = run.communicate(timeout=30)
        assert (b"KeyboardInterrupt" in said) == (number == signal.SIGINT)
        assert said.count(b"Traceback") <= 1
        assert eventually(lambda: not any(alive(child) for child in children))

    def test_a_script_without_a_main_guard_runs_once(self, tmp_path: Path) -> None:
        """Where a library starts processes by importing the caller's program again, this never ends."""
        script = tmp_path / "script.py"
        script.write_text(
            "from advisor.children import Children\nfrom helpers.handlers import times\n"
            "with Children(times, 2, 2, purpose='counts', hint='') as children:\n"
            "    print(list(children.map(range(5))))\n"
        )
        run = subprocess.run(
            [sys.executable, "-P", script], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        assert (run.stdout, run.stderr) == ("[0, 2, 4, 6, 8]\n", "")


def alive(process: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(test: Callable[[], bool]) -> bool:
    """Whether the test passes within half a minute."""
    for _ in range(300):
        if test():
            return True
        time.sleep(0.1)
    return False
