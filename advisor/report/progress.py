"""How far a long job is: a bar on a terminal, lines elsewhere. Always on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

Advance = Callable[[float, float], None]


class Watching(NamedTuple):
    """`reading(done, total)`, in any unit; `simulating(part, requests)` after each simulation."""

    reading: Advance
    simulating: Callable[[str, int], None]


@contextmanager
def progress(console: Console, title: str) -> Iterator[Advance]:
    """Yield `advance(done, total)`, in any unit; calls may come as often as they like."""
    if console.is_terminal:
        with _bar(console) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    yield _Lines(console, title)


@contextmanager
def watching(console: Console) -> Iterator[Watching]:
    """Reading, then simulating: nobody knows beforehand how many requests a search will simulate."""
    if not console.is_terminal:
        yield Watching(_Lines(console, "reading"), _Parts(lambda text: console.print(text, highlight=False)))
        return
    with _bar(console) as bar:
        task = bar.add_task("reading", total=None)
        parts = _Parts(None, lambda text: bar.update(task, description=text, completed=0, total=None))
        yield Watching(lambda done, total: bar.update(task, completed=done, total=total), parts)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


class _Lines:
    """Prints `title: 30 %` when a tenth is passed."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title, self._tenths = console, title, 0

    def __call__(self, done: float, total: float) -> None:
        tenths = int(10 * done / total) if total else 10
        if tenths > self._tenths:
            self._tenths = tenths
            self._console.print(f"{self._title}: {tenths * 10} %", highlight=False)


class _Parts:
    """Tells of every part as it starts, or with every simulation, and the requests simulated so far."""

    def __init__(
        self, on_part: Callable[[str], None] | None, on_each: Callable[[str], None] | None = None
    ) -> None:
        self._on_part, self._on_each, self._part, self._requests = on_part, on_each, "", 0

    def __call__(self, part: str, requests: int) -> None:
        self._requests += requests
        text = f"simulating, {part}: {self._requests:,} requests so far"
        if self._on_part is not None and part != self._part:
            self._on_part(text)
        if self._on_each is not None:
            self._on_each(text)
        self._part = part
