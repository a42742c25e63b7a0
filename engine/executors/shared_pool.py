"""The KV pool in memory that others can reach: host memory on a CPU, a CUDA allocation of its own on a GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from engine.executors.wire import RankConfig, RankReport
from engine.transfer.cuda_ipc import CudaPages, DeviceMemory
from engine.transfer.cudart import Cudart
from engine.transfer.layout import KvLayout
from engine.transfer.memory import Memory
from engine.transfer.pages import HostPages, Pages, pool_bytes

PoolMemory = Memory | DeviceMemory


def create_memory(config: RankConfig, layout: KvLayout) -> PoolMemory:
    """Memory for the pool of one rank, on its device."""
    size = pool_bytes(layout, config.num_blocks)
    device = torch.device(config.device)
    if device.type == "cpu":
        return Memory.create(size, config.memory_fd)
    return DeviceMemory.create(Cudart(), device.index, size)


def as_tensor(memory: PoolMemory, dtype: torch.dtype) -> torch.Tensor:
    """All of it as numbers, without a copy."""
    if isinstance(memory, Memory):
        return torch.frombuffer(memory.buffer, dtype=dtype)
    return torch.as_tensor(memory, device=f"cuda:{memory.device}").view(dtype)


def pages_of(
    own: PoolMemory, layout: KvLayout, configs: Sequence[RankConfig], reports: Sequence[RankReport]
) -> Pages:
    """The pools of all ranks, reached from rank 0's process, which has its `own`; the others have reported."""
    if isinstance(own, Memory):
        fds = [config.memory_fd for config in configs if config.memory_fd is not None]
        return HostPages(layout, [own, *(Memory.open(os.dup(fd), writable=True) for fd in fds)])
    runtime = Cudart()
    others = [
        DeviceMemory.open(runtime, own.device + rank, own.size, report.handle)
        for rank, report in enumerate(reports, start=1)
    ]
    return CudaPages(runtime, layout, [own, *others])
