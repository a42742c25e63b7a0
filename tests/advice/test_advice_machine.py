"""What is found on a machine, with a driver's answers played."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from advisor.advice.machine import detect_machine


class Driver(ModuleType):
    """A pynvml whose devices have the given names."""

    def __init__(self, *names: str) -> None:
        super().__init__("pynvml")
        self.names = names
        self.open = False

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        self.open = True

    def nvmlShutdown(self) -> None:  # noqa: N802 - the library's name
        self.open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - the library's name
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - the library's name
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802 - the library's name
        return self.names[handle]


def test_gpus_are_found_by_the_drivers_names(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "NVIDIA Quadro K600")
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    machine = detect_machine()
    assert machine.gpus == ("h100-sxm", "h100-sxm")
    assert machine.gpu_names[2] == "NVIDIA Quadro K600"  # named, but not planned with
    assert not driver.open


def test_a_broken_driver_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver("NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(driver, "nvmlInit", lambda: 1 / 0)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    machine = detect_machine()
    assert machine.gpus == ()
    assert machine.cores >= 1
    assert machine.memory_bytes > 2**28
