"""Runs tests of Triton kernels under triton's interpreter, in a child process of their own.

Triton reads TRITON_INTERPRET when it is imported and whenever a kernel is defined, and transformers imports it
in the process of other tests. So the variable is set in one child, before anything is imported there: neither
do those tests see it, nor does it matter which test is first.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def interpreted(test: Callable[..., None]) -> Callable[..., None]:
    """The test's body runs in the child; its arguments must be picklable, so no fixtures that are not."""

    @functools.wraps(test)
    def in_child(**arguments: Any) -> None:
        _child().submit(_run, test.__module__, test.__name__, arguments).result()

    return in_child


@functools.cache
def _child() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"), _prepare)


def _prepare() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    warnings.simplefilter("error")


def _run(module: str, name: str, arguments: dict[str, Any]) -> None:
    importlib.import_module(module).__dict__[name].__wrapped__(**arguments)
