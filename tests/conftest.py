"""Fixtures that every test package may ask for."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

# A shell that runs this in the background ignores SIGINT, and the processes under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Replay against the clock, or take the time: other work on the cores shows.
TIMED = (
    "deploy/test_deploy_rehearsed.py",
    "security/test_security_salt.py",
    "server/test_server_connections.py",
    "test_loop.py",
    "validation/test_validation_faults.py",
    "validation/test_validation_rehearsal.py",
    "validation/test_validation_replay.py",
    "validation/test_validation_roofline.py",
    "validation/test_validation_run.py",
    "validation/test_validation_session.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what measures time."""
    tests = Path(__file__).resolve().parent
    for item in items:
        if any(item.path.is_relative_to(tests / one) for one in TIMED):
            item.add_marker(pytest.mark.timed)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public traces and facts beside the checkout; tests that need it skip without it."""
    folder = Path(__file__).resolve().parent.parent.parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs ../shared, which holds the public traces")
    return folder
