"""The devices of this machine as the engine's process uses them: CPU cores to pin threads to, and CUDA GPUs.

Owns the numbering: `cpu:0` is the first core of the usable set, `cuda:0` the first GPU that torch sees. torch
is imported only where GPUs are asked for, so that a rank can pin itself before torch starts its threads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

_BFLOAT16_FROM = (8, 0)  # capability; older GPUs multiply float16 alone


@dataclass(frozen=True, slots=True)
class Gpu:
    """One CUDA GPU. `free_bytes` is what no process holds now."""

    name: str
    capability: tuple[int, int]
    free_bytes: int

    @property
    def dtype(self) -> str:
        """The numbers of `dtype: auto`."""
        return "bfloat16" if self.capability >= _BFLOAT16_FROM else "float16"


def cuda_gpus() -> tuple[Gpu, ...]:
    """The GPUs that torch can use; none where there is no driver, or torch was built without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return ()
    return tuple(
        Gpu(
            torch.cuda.get_device_name(number),
            torch.cuda.get_device_capability(number),
            torch.cuda.mem_get_info(number)[0],
        )
        for number in range(torch.cuda.device_count())
    )


def cores_of_rank(rank: int, threads: int, ranks: int = 1) -> tuple[int, ...]:
    """The system's numbers of the cores of one rank: `threads` of the usable set, after earlier ranks'.

    Empty, which means not to pin, where the system has no affinity or too few cores for `ranks`.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    usable = sorted(affinity(0)) if affinity else []
    if len(usable) < threads * ranks:
        return ()
    return tuple(usable[rank * threads : (rank + 1) * threads])


def cores_of_instance(first: int, devices: int) -> tuple[int, ...]:
    """The cores `first` to `first + devices` of the usable set, around again where there are fewer.

    Empty, which means not to pin, where the system has no affinity.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    usable = sorted(affinity(0)) if affinity else []
    return tuple(dict.fromkeys(usable[(first + n) % len(usable)] for n in range(devices))) if usable else ()


def pin_thread(cores: Sequence[int]) -> None:
    """Keep the calling thread, and the OpenMP threads that it will start, on `cores`; nothing if empty."""
    if cores:
        # A container may take a core away between the look and this call; then the threads stay free.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)
