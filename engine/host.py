"""What this process may use of the machine it runs on: cores and memory, within a container's limits."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def usable_cores() -> int:
    """Cores that this process may run on; one core is one device on a CPU."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _cgroup("cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def usable_memory() -> int:
    """Bytes of memory that this process may use."""
    total = _host_memory()
    limit = _cgroup("memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def _host_memory() -> int:
    if sys.platform == "win32":
        import ctypes

        kilobytes = ctypes.c_ulonglong()
        ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
        return kilobytes.value * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup(name: str) -> str:
    """A limit of the control group that we run in (version 2); empty where there is none."""
    try:
        return (Path("/sys/fs/cgroup") / name).read_text(encoding="ascii")
    except OSError:
        return ""
