"""What this machine has: NVIDIA GPUs, cores and memory. It looks, it changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.advice import profiles
from advisor.advice.host import HostCosts
from engine.errors import InputError
from engine.host import usable_cores, usable_memory


@dataclass(frozen=True, slots=True)
class Machine:
    """`gpus` are profile ids, one a device; `gpu_names` the driver's names; `memory_bytes` what we may use."""

    cores: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    gpu_names: tuple[str, ...] = ()
    host: HostCosts | None = None  # as measured here; None: not measured, or not to be used


def detect_machine() -> Machine:
    """Look at this machine. A missing or broken driver counts as no GPU; unknown GPUs are named, not used."""
    names = _nvidia_names()
    return Machine(usable_cores(), usable_memory(), tuple(g for g in map(_profile, names) if g), names)


def _nvidia_names() -> tuple[str, ...]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, no library, no permission: all mean no usable GPU
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return tuple(str(pynvml.nvmlDeviceGetName(h)) for h in handles)
    finally:
        pynvml.nvmlShutdown()


def _profile(name: str) -> str | None:
    try:
        return profiles.gpu(name).id
    except InputError:
        return None
