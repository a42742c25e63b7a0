"""The KV pool of one instance as bytes: all its ranks', by block and position, whoever computes in it.

Owns the order of bytes on the way: rank by rank, layer by layer, keys before values, positions in order, in
pieces of at most `PIECE_BYTES`. Knows nothing of requests, leases or sockets.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engine.transfer.layout import KvLayout, Transport
from engine.transfer.memory import Memory, close_all

PIECE_BYTES = 1 << 18
"""Between two pieces a copy looks whether it is to stop. Ours."""

Bytes = npt.NDArray[np.uint8]
_Slots = npt.NDArray[Any]  # each element is the bytes of a block in one plane: one layer's keys, or values


@dataclass(frozen=True, slots=True)
class Offer:
    """What another process on this host needs to reach this memory: file descriptors, or device handles."""

    num_blocks: int
    fds: tuple[int, ...] = ()
    handles: tuple[bytes, ...] = ()


class Pages(Protocol):
    """KV of all ranks of one instance. Position p of a block list is in `blocks[p // block_size]`.

    `start` is a multiple of the block size. Everything is byte-exact, by position.
    """

    @property
    def layout(self) -> KvLayout:
        """How it lies in memory."""
        ...

    @property
    def transports(self) -> tuple[Transport, ...]:
        """What can move this memory on this system, best first."""
        ...

    def read(self, blocks: Sequence[int], start: int, stop: int) -> Iterator[memoryview]:
        """The bytes of positions `start` to `stop`, in pieces; each is good until the next."""
        ...

    def write(
        self, blocks: Sequence[int], start: int, stop: int, pieces: Iterable[memoryview]
    ) -> Generator[int]:
        """Write positions `start` to `stop` from what `read` gave, and zero the rest of the last block.

        Yields the bytes of each piece. Once it ends, or is closed, nothing writes for it any more.
        """
        ...

    def copy(
        self, source: Pages, theirs: Sequence[int], ours: Sequence[int], start: int, stop: int
    ) -> Generator[int]:
        """As `write`, from memory that `reach` opened."""
        ...

    def offer(self) -> Offer:
        """How another process can reach this memory; its descriptors stay ours."""
        ...

    def reach(self, offer: Offer) -> Pages:
        """Another process's memory of the same layout, to read from; takes over the descriptors.

        Raises ValueError where it is not what the layout says.
        """
        ...

    def close(self) -> None:
        """Let go of the memory."""
        ...


class HostPages:
    """`Pages` in host memory, one `Memory` a rank."""

    def __init__(self, layout: KvLayout, memories: Sequence[Memory]) -> None:
        self._layout = layout
        self._memories = tuple(memories)
        planes = 2 * layout.layers
        self._slots: list[_Slots] = []
        for memory in self._memories:
            block = np.dtype((np.void, layout.block_bytes))
            self._slots.append(np.frombuffer(memory.buffer, block).reshape(planes, -1))
        self._num_blocks: int = self._slots[0].shape[1]

    @classmethod
    def create(cls, layout: KvLayout, num_blocks: int) -> HostPages:
        """Fresh memory for all ranks in this process, zeroed."""
        size = pool_bytes(layout, num_blocks)
        return cls(layout, [Memory.create(size) for _ in range(layout.ranks)])

    @property
    def layout(self) -> KvLayout:
        """See `Pages.layout`."""
        return self._layout

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the trash block included."""
        return self._num_blocks

    @property
    def transports(self) -> tuple[Transport, ...]:
        """See `Pages.transports`."""
        mapped = all(memory.fd is not None for memory in self._memories)
        return ("shared_memory", "tcp") if mapped else ("tcp",)

    def array(self, rank: int) -> Bytes:
        """The pool of a rank: bytes [layers, 2, blocks, block_size, slot_bytes], a view."""
        one = self._layout
        shape = (one.layers, 2, self._num_blocks, one.block_size, one.slot_bytes)
        return self._slots[rank].view(np.uint8).reshape(shape)

    def read(self, blocks: Sequence[int], start: int, stop: int) -> Iterator[memoryview]:
        """See `Pages.read`."""
        for plane, run, size in self._pieces(blocks, start, stop):
            yield plane[run].view(np.uint8)[:size].data

    def write(
        self, blocks: Sequence[int], start: int, stop: int, pieces: Iterable[memoryview]
    ) -> Generator[int]:
        """See `Pages.write`."""
        for (plane, run, size), piece in zip(self._pieces(blocks, start, stop), pieces, strict=True):
            if size % self._layout.block_bytes:
                whole = bytearray(len(run) * self._layout.block_bytes)
                whole[:size] = piece
                plane[run] = np.frombuffer(whole, plane.dtype)
            else:
                plane[run] = np.frombuffer(piece, plane.dtype)
            yield size

    def copy(
        self, source: Pages, theirs: Sequence[int], ours: Sequence[int], start: int, stop: int
    ) -> Generator[int]:
        """See `Pages.copy`."""
        return self.write(ours, start, stop, source.read(theirs, start, stop))

    def offer(self) -> Offer:
        """See `Pages.offer`."""
        fds = tuple(memory.fd for memory in self._memories if memory.fd is not None)
        return Offer(self._num_blocks, fds)

    def reach(self, offer: Offer) -> HostPages:
        """See `Pages.reach`."""
        memories: list[Memory] = []
        fds = list(offer.fds)
        try:
            while fds:
                memories.append(Memory.open(fds.pop(0)))
            size = pool_bytes(self._layout, offer.num_blocks)
            if [len(memory.buffer) for memory in memories] != [size] * self._layout.ranks:
                raise ValueError("memory of another size than its layout says")
            return HostPages(self._layout, memories)
        except BaseException:
            close_all(fds)
            for memory in memories:
                memory.close()
            raise

    def close(self) -> None:
        """See `Pages.close`."""
        self._slots.clear()
        for memory in self._memories:
            memory.close()

    def _pieces(
        self, blocks: Sequence[int], start: int, stop: int
    ) -> Iterator[tuple[_Slots, npt.NDArray[np.intp], int]]:
        """A plane, the blocks of a piece in it, and the bytes of the piece's positions."""
        used = np.array(used_blocks(self._layout, self._num_blocks, blocks, start, stop), np.intp)
        runs = [(used[first:last], size) for first, last, size in _runs(self._layout, stop - start)]
        for rank in self._slots:
            for plane in rank:
                for run, size in runs:
                    yield plane, run, size


def pool_bytes(layout: KvLayout, num_blocks: int) -> int:
    """Bytes of one rank's pool."""
    return 2 * layout.layers * num_blocks * layout.block_bytes


def used_blocks(layout: KvLayout, num_blocks: int, blocks: Sequence[int], start: int, stop: int) -> list[int]:
    """Those of `blocks` that hold positions `start` to `stop`. Raises ValueError where that cannot be."""
    size = layout.block_size
    used = list(blocks[start // size : -(-stop // size)])
    if start % size or not 0 <= start < stop <= start + len(used) * size:
        raise ValueError(f"positions {start} to {stop} of {len(blocks)} blocks")
    if min(used) < 0 or max(used) >= num_blocks:
        raise ValueError("a block that is not of this pool")
    return used


def piece_sizes(layout: KvLayout, start: int, stop: int) -> list[int]:
    """The bytes of every piece of positions `start` to `stop`, in order."""
    return [size for _, _, size in _runs(layout, stop - start)] * (layout.ranks * 2 * layout.layers)


def _runs(layout: KvLayout, tokens: int) -> list[tuple[int, int, int]]:
    """Blocks [first, last) of those used that make a piece in each plane, and the bytes of its positions."""
    size, blocks = layout.block_size, -(-tokens // layout.block_size)
    step = max(1, PIECE_BYTES // layout.block_bytes)
    return [
        (
            first,
            min(first + step, blocks),
            (min((first + step) * size, tokens) - first * size) * layout.slot_bytes,
        )
        for first in range(0, blocks, step)
    ]


def checksum(
    pages: Pages, blocks: Sequence[int], start: int, stop: int, progress: Callable[[], object] = lambda: None
) -> int:
    """CRC-32 of positions `start` to `stop` in the order of `read`; `progress` is called between pieces."""
    crc = 0
    for piece in pages.read(blocks, start, stop):
        crc = zlib.crc32(piece, crc)
        progress()
    return crc
