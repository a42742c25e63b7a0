"""KV in GPU memory: pools that other processes of this host open by CUDA IPC, and their copies between GPUs.

Compiled and interpreted, not yet executed on a GPU: tests run it over host memory.

A pool is one cudaMalloc of its own, outside torch's allocator: an IPC handle covers the whole allocation that a
pointer lies in, and expandable segments have none (pytorch#130890). The process that made a handle cannot open
it. Over TCP, and for checksums, KV goes through host memory. A failed call raises; nothing falls back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.transfer.cudart import HANDLE_BYTES, Runtime
from engine.transfer.layout import KvLayout, Transport
from engine.transfer.memory import Memory, close_all
from engine.transfer.pages import HostPages, Offer, Pages, pool_bytes, used_blocks


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One rank's pool on a device. `ours` says whether this process allocated it, or opened it."""

    device: int
    pointer: int
    size: int
    handle: bytes
    ours: bool

    @classmethod
    def create(cls, runtime: Runtime, device: int, size: int) -> DeviceMemory:
        """Allocate it."""
        pointer = runtime.allocate(device, size)
        return cls(device, pointer, size, runtime.export(device, pointer), ours=True)

    @classmethod
    def open(cls, runtime: Runtime, device: int, size: int, handle: bytes) -> DeviceMemory:
        """Map what another process created."""
        return cls(device, runtime.open(device, handle), size, handle, ours=False)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """For torch, to make a tensor of these bytes without a copy."""
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.pointer, False), "version": 3}


class CudaPages:
    """`Pages` on GPUs, one `DeviceMemory` a rank; those of ranks in other processes are opened."""

    def __init__(self, runtime: Runtime, layout: KvLayout, memories: Sequence[DeviceMemory]) -> None:
        self._runtime = runtime
        self._layout = layout
        self._memories = tuple(memories)
        self._plane = self._memories[0].size // (2 * layout.layers)  # bytes
        self._num_blocks = self._plane // layout.block_bytes

    @property
    def layout(self) -> KvLayout:
        """See `Pages.layout`."""
        return self._layout

    @property
    def transports(self) -> tuple[Transport, ...]:
        """See `Pages.transports`."""
        return ("cuda_ipc", "tcp")

    def read(self, blocks: Sequence[int], start: int, stop: int) -> Iterator[memoryview]:
        """See `Pages.read`: all of it goes to the host first."""
        used = self._used(blocks, start, stop)
        with _staged(self._layout, len(used)) as (host, addresses):
            self._move(used, addresses, down=True)
            yield from host.read(range(len(used)), 0, stop - start)

    def write(
        self, blocks: Sequence[int], start: int, stop: int, pieces: Iterable[memoryview]
    ) -> Generator[int]:
        """See `Pages.write`: it goes to the devices at the end."""
        used = self._used(blocks, start, stop)
        with _staged(self._layout, len(used)) as (host, addresses):
            yield from host.write(range(len(used)), 0, stop - start, pieces)
            self._move(used, addresses, down=False)

    def copy(
        self, source: Pages, theirs: Sequence[int], ours: Sequence[int], start: int, stop: int
    ) -> Generator[int]:
        """See `Pages.copy`: one copy a block and rank, over all its layers."""
        if not isinstance(source, CudaPages):
            raise TypeError("not memory that `reach` opened")
        size, left = self._layout.block_size, stop - start
        try:
            for of, to in zip(source._used(theirs, start, stop), self._used(ours, start, stop), strict=True):
                tokens = min(size, left)
                self._copy_block(source, of, to, tokens * self._layout.slot_bytes)
                left -= tokens
                yield tokens * self._layout.bytes_per_token
        finally:
            self._wait()  # whoever ends this early, too, may free the blocks then

    def offer(self) -> Offer:
        """See `Pages.offer`."""
        return Offer(self._num_blocks, handles=tuple(memory.handle for memory in self._memories))

    def reach(self, offer: Offer) -> CudaPages:
        """See `Pages.reach`."""
        close_all(offer.fds)
        if len(offer.handles) != self._layout.ranks or {*map(len, offer.handles)} != {HANDLE_BYTES}:
            raise ValueError("not the handles of this layout's ranks")
        size = pool_bytes(self._layout, offer.num_blocks)
        memories = [
            DeviceMemory.open(self._runtime, ours.device, size, handle)
            for ours, handle in zip(self._memories, offer.handles, strict=True)
        ]
        return CudaPages(self._runtime, self._layout, memories)

    def close(self) -> None:
        """See `Pages.close`."""
        memories, self._memories = self._memories, ()
        for memory in memories:
            let_go = self._runtime.free if memory.ours else self._runtime.close
            let_go(memory.device, memory.pointer)

    def _used(self, blocks: Sequence[int], start: int, stop: int) -> list[int]:
        return used_blocks(self._layout, self._num_blocks, blocks, start, stop)

    def _copy_block(self, source: CudaPages, of_block: int, to_block: int, width: int) -> None:
        """Begin to copy the first `width` bytes of a block in every plane, and to zero the rest."""
        whole, rows = self._layout.block_bytes, 2 * self._layout.layers
        for of, to in zip(source._memories, self._memories, strict=True):
            place = to.pointer + to_block * whole
            self._runtime.copy(
                to.device, place, self._plane, of.pointer + of_block * whole, source._plane, width, rows
            )
            if width < whole:
                self._runtime.zero(to.device, place + width, self._plane, whole - width, rows)

    def _move(self, blocks: Sequence[int], addresses: Sequence[int], *, down: bool) -> None:
        """Copy blocks to the host memory at `addresses`, one a rank, or from there."""
        width, rows = self._layout.block_bytes, 2 * self._layout.layers
        pitch = len(blocks) * width
        for memory, address in zip(self._memories, addresses, strict=True):
            for number, block in enumerate(blocks):
                on_host, here = (address + number * width, pitch), (memory.pointer + block * width, self._plane)
                to, of = (on_host, here) if down else (here, on_host)
                self._runtime.copy(memory.device, *to, *of, width, rows)
        self._wait()

    def _wait(self) -> None:
        for memory in self._memories:
            self._runtime.wait(memory.device)


@contextlib.contextmanager
def _staged(layout: KvLayout, num_blocks: int) -> Iterator[tuple[HostPages, list[int]]]:
    """Host memory of so many blocks, and the address of each rank's."""
    memories = [Memory.create(pool_bytes(layout, num_blocks)) for _ in range(layout.ranks)]
    host = HostPages(layout, memories)
    try:
        yield host, [host.array(rank).ctypes.data for rank in range(layout.ranks)]
    finally:
        host.close()
