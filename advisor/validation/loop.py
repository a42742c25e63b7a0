"""The event loop that the client runs on, and room in this process for its connections.

uvloop where it is installed (it comes with the extra `engine`): a chunk costs it less CPU time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of the fastest kind at hand."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def loop_kind(loop: asyncio.AbstractEventLoop) -> str:
    """`uvloop` or `asyncio`."""
    return "uvloop" if type(loop).__module__.startswith("uvloop") else "asyncio"


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on such a loop. Ctrl-C cancels `main`, as there."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def allow_connections() -> int | None:
    """Let this process open as many files as the system allows it at all; how many that is, where it is known.

    Many systems give 1,024 at first. An open-loop client has as many connections as requests are under way.
    """
    try:
        import resource
    except ImportError:  # not on Windows, which has no such limit
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # macOS says no to an infinite one
        return soft
    return None if hard == resource.RLIM_INFINITY else hard
