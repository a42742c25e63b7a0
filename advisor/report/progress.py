"""How far a long job is: a bar on a terminal, a line per 10 % elsewhere. Always on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

Advance = Callable[[float, float], None]


@contextmanager
def progress(console: Console, title: str) -> Iterator[Advance]:
    """Yield `advance(done, total)`, in any unit; calls may come as often as they like."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    yield _Lines(console, title)


class _Lines:
    """Prints `title: 30 %` when a tenth is passed."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title, self._tenths = console, title, 0

    def __call__(self, done: float, total: float) -> None:
        tenths = int(10 * done / total) if total else 10
        if tenths > self._tenths:
            self._tenths = tenths
            self._console.print(f"{self._title}: {tenths * 10} %", highlight=False)
