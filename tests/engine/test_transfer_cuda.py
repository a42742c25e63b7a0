"""CUDA IPC over a stand-in for the CUDA runtime in host memory: offsets, pitches, handles, waits, and frees.

What a GPU would do is not tested here: nobody has executed this on one yet.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from helpers.transfer import BLOCKS, LAYOUT, NUM_BLOCKS, OURS, SECRET, SOON_S, TOKENS, Sides, content, filled

from engine.errors import MachineError
from engine.faults import TransferFaults
from engine.transfer import cudart
from engine.transfer.cuda_ipc import CudaPages, DeviceMemory
from engine.transfer.cudart import HANDLE_BYTES, Cudart
from engine.transfer.layout import Transport
from engine.transfer.pages import HostPages, Offer, checksum, pool_bytes
from engine.transfer.puller import Puller, PullJob, PullResult

SIZE = pool_bytes(LAYOUT, NUM_BLOCKS)


@dataclass
class World:
    """All device memory of a host: by handle, who has it and where."""

    exported: dict[bytes, tuple[FakeRuntime, int]] = field(default_factory=dict)


class FakeRuntime:
    """The CUDA runtime of one process, in host memory. Copies happen at `wait`, as a stream's may.

    It takes the arguments of a `Runtime`.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.buffers: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.opened: dict[int, int] = {}  # how often
        self._begun: list[tuple[int, Callable[[], None]]] = []

    def allocate(self, device: int, size: int) -> int:  # noqa: ARG002
        buffer = ctypes.create_string_buffer(size)
        pointer = ctypes.addressof(buffer)
        self.buffers[pointer] = buffer
        return pointer

    def free(self, device: int, pointer: int) -> None:  # noqa: ARG002
        del self.buffers[pointer]

    def export(self, device: int, pointer: int) -> bytes:  # noqa: ARG002
        handle = len(self._world.exported).to_bytes(HANDLE_BYTES, "little")
        self._world.exported[handle] = (self, pointer)
        return handle

    def open(self, device: int, handle: bytes) -> int:  # noqa: ARG002
        owner, pointer = self._world.exported[handle]
        assert owner is not self, "a process cannot open its own handle"
        self.opened[pointer] = self.opened.get(pointer, 0) + 1
        return pointer

    def close(self, device: int, pointer: int) -> None:  # noqa: ARG002
        self.opened[pointer] -= 1

    def copy(self, device: int, to: int, to_pitch: int, of: int, of_pitch: int, width: int, rows: int) -> None:
        assert width <= min(to_pitch, of_pitch)

        def run() -> None:
            for row in range(rows):
                ctypes.memmove(to + row * to_pitch, of + row * of_pitch, width)

        self._begun.append((device, run))

    def zero(self, device: int, to: int, pitch: int, width: int, rows: int) -> None:
        def run() -> None:
            for row in range(rows):
                ctypes.memset(to + row * pitch, 0, width)

        self._begun.append((device, run))

    def wait(self, device: int) -> None:
        begun, self._begun = self._begun, [one for one in self._begun if one[0] != device]
        for its, run in begun:
            if its == device:
                run()

    @property
    def idle(self) -> bool:
        return not self._begun


def on_gpus(runtime: FakeRuntime, host: HostPages) -> CudaPages:
    """The same KV, rank r on GPU 3 + r."""
    memories = []
    for rank in range(LAYOUT.ranks):
        memory = DeviceMemory.create(runtime, 3 + rank, SIZE)
        ctypes.memmove(memory.pointer, host.array(rank).ctypes.data, SIZE)
        memories.append(memory)
    return CudaPages(runtime, LAYOUT, memories)


def back(pages: CudaPages) -> HostPages:
    """All of it on the host, not by the code under test."""
    host = HostPages.create(LAYOUT, NUM_BLOCKS)
    for rank, memory in enumerate(pages._memories):
        ctypes.memmove(host.array(rank).ctypes.data, memory.pointer, SIZE)
    return host


def same(one: HostPages, other: HostPages) -> bool:
    return all(np.array_equal(one.array(rank), other.array(rank)) for rank in range(LAYOUT.ranks))


@pytest.mark.parametrize(("start", "stop"), [(0, TOKENS), (400, 1000), (996, 1001), (0, 1)])
@pytest.mark.parametrize("way", ["bytes", "memory"])
def test_gpu_memory_behaves_as_host_memory_does(start: int, stop: int, way: str) -> None:
    """Whose pages are tested position by position: test_transfer_pages.py."""
    world = World()
    theirs, ours, host = filled(seed=1), filled(seed=2), filled(seed=2)
    runtime = FakeRuntime(world)
    source, target = on_gpus(FakeRuntime(world), theirs), on_gpus(runtime, ours)
    list(host.copy(theirs, BLOCKS, OURS, start, stop))
    if way == "bytes":
        pieces = (memoryview(bytes(piece)) for piece in source.read(BLOCKS, start, stop))
        moved = sum(target.write(OURS, start, stop, pieces))
    else:
        moved = sum(target.copy(target.reach(source.offer()), BLOCKS, OURS, start, stop))
    assert moved == (stop - start) * LAYOUT.bytes_per_token
    assert runtime.idle
    assert same(back(target), host)
    assert checksum(target, OURS, start, stop) == checksum(host, OURS, start, stop)


def test_a_copy_that_is_given_up_writes_nothing_afterwards() -> None:
    world = World()
    runtime = FakeRuntime(world)
    source, target = on_gpus(FakeRuntime(world), filled(seed=1)), on_gpus(runtime, filled(seed=2))
    copying = target.copy(target.reach(source.offer()), BLOCKS, OURS, 0, TOKENS)
    next(copying)
    assert not runtime.idle
    copying.close()
    assert runtime.idle


@pytest.mark.parametrize("transport", ["cuda_ipc", "tcp"])
def test_a_pull_between_gpus(tmp_path: Path, transport: Transport) -> None:
    world = World()
    theirs, ours = filled(seed=1), filled(seed=2)
    runtime = FakeRuntime(world)
    source, target = on_gpus(FakeRuntime(world), theirs), on_gpus(runtime, ours)
    sides = Sides(tmp_path, transport, theirs=source, ours=target)
    result = sides.pull(start=8)
    assert (result.ok, result.transport) == (True, transport)
    assert result.bytes == (TOKENS - 8) * LAYOUT.bytes_per_token
    assert content(back(target), OURS, 8, TOKENS) == content(theirs, BLOCKS, 8, TOKENS)
    assert sum(runtime.opened.values()) == (LAYOUT.ranks if transport == "cuda_ipc" else 0)
    sides.close()
    assert sum(runtime.opened.values()) == 0
    target.close()
    assert not runtime.buffers


def test_a_pull_that_fails_ends_once_nothing_writes_any_more(tmp_path: Path) -> None:
    """Its blocks may be freed then; copies on a GPU outlive the call that began them (vllm#56104)."""
    world = World()
    runtime = FakeRuntime(world)
    source, target = on_gpus(FakeRuntime(world), filled(seed=1)), on_gpus(runtime, filled(seed=2))
    idle: list[tuple[str, bool]] = []
    done = threading.Event()

    def note(result: PullResult) -> None:
        idle.append((result.reason, runtime.idle))
        done.set()

    with Sides(tmp_path, "cuda_ipc", theirs=source, ours=filled(seed=2)) as sides:
        puller = Puller(target, LAYOUT, secret=SECRET, done=note, faults=TransferFaults(fail=1.0))
        puller.pull(PullJob("r", 1, sides.peer, 0, TOKENS, OURS))
        assert done.wait(SOON_S)
        puller.close()
    assert idle == [("failed", True)]


def test_the_handles_of_other_ranks_are_passed_on_as_they_came() -> None:
    """Rank 0's process opens rank 1's memory; whoever pulls from both opens what rank 1 exported."""
    world = World()
    first, second, puller = (FakeRuntime(world) for _ in range(3))
    own = DeviceMemory.create(first, 0, SIZE)
    other = DeviceMemory.create(second, 1, SIZE)
    opened = DeviceMemory.open(first, 1, SIZE, other.handle)
    pages = CudaPages(first, LAYOUT, [own, opened])
    assert pages.offer() == Offer(NUM_BLOCKS, (), (own.handle, other.handle))
    target = on_gpus(puller, filled())
    reached = target.reach(pages.offer())
    assert [memory.pointer for memory in reached._memories] == [own.pointer, other.pointer]
    pages.close()
    assert (list(first.buffers), first.opened, list(second.buffers)) == (
        [],
        {other.pointer: 0},
        [other.pointer],
    )


def test_handles_that_do_not_fit_the_layout_are_refused() -> None:
    pages = on_gpus(FakeRuntime(World()), filled())
    for handles in ((), (bytes(64),), (bytes(64), bytes(63))):
        with pytest.raises(ValueError, match="handles"):
            pages.reach(Offer(NUM_BLOCKS, handles=handles))


def test_torch_reads_the_bytes_of_an_allocation_where_they_are() -> None:
    """The interface that torch asks for, as its documentation has it (version 3)."""
    memory = DeviceMemory.create(FakeRuntime(World()), 0, 1000)
    assert memory.__cuda_array_interface__ == {
        "shape": (1000,), "typestr": "|u1", "data": (memory.pointer, False), "version": 3
    }  # fmt: skip


LIBRARY = r"""
#include <string.h>
typedef struct { unsigned char reserved[64]; } handle;
static int device = -1;
static char memory[4096];
int cudaSetDevice(int d) { device = d; return d < 0; }
const char *cudaGetErrorString(int e) { return e == 2 ? "out of memory" : "other"; }
int cudaMalloc(void **p, size_t n) { if (n > sizeof memory) return 2; *p = memory; return 0; }
int cudaFree(void *p) { return p != memory; }
int cudaIpcGetMemHandle(handle *h, void *p) { memset(h, 7 + device, 64); return p != memory; }
int cudaIpcOpenMemHandle(void **p, handle h, unsigned flags) {
  for (int i = 0; i < 64; i++) if (h.reserved[i] != 7 + device) return 3;
  *p = memory; return flags != 1;
}
int cudaIpcCloseMemHandle(void *p) { return p != memory; }
int cudaStreamCreateWithFlags(void **s, unsigned flags) { *s = (void *)0x1234500000001; return flags != 1; }
int cudaStreamSynchronize(void *s) { return s != (void *)0x1234500000001; }
int cudaMemcpy2DAsync(char *d, size_t dp, const char *s, size_t sp, size_t w, size_t h, int kind,
                      void *stream) {
  for (size_t i = 0; i < h; i++) memcpy(d + i * dp, s + i * sp, w);
  return kind != 4 || stream != (void *)0x1234500000001;
}
int cudaMemset2DAsync(char *d, size_t p, int v, size_t w, size_t h, void *stream) {
  for (size_t i = 0; i < h; i++) memset(d + i * p, v, w);
  return stream != (void *)0x1234500000001;
}
"""


def test_the_calls_have_the_arguments_that_cuda_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of the same signatures (cuda_runtime_api.h), compiled here: widths, order, a whole struct."""
    source, library = tmp_path / "cudart.c", tmp_path / "libcudart_fake.so"
    source.write_text("#include <stddef.h>\n" + LIBRARY)
    compiler = next(
        (one for one in ("/usr/bin/cc", "/usr/bin/gcc", "/usr/bin/clang") if os.access(one, os.X_OK)), ""
    )
    if not compiler:
        pytest.skip("needs a C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", str(library), str(source)], check=True)
    monkeypatch.setattr(cudart, "_loaded", lambda _: str(library))
    runtime = Cudart()
    pointer = runtime.allocate(1, 4096)
    handle = runtime.export(1, pointer)
    assert handle == bytes([8]) * HANDLE_BYTES
    assert runtime.open(1, handle) == pointer
    with pytest.raises(MachineError, match="cudaIpcOpenMemHandle failed on GPU 0"):
        runtime.open(0, handle)
    rows = np.arange(60, dtype=np.uint8).reshape(3, 20)
    runtime.copy(0, pointer, 100, rows.ctypes.data, 20, 7, 3)
    runtime.zero(0, pointer + 2, 100, 2, 3)
    runtime.wait(0)
    there = np.frombuffer((ctypes.c_ubyte * 300).from_address(pointer), np.uint8).reshape(3, 100)
    expected = rows[:, :7].copy()
    expected[:, 2:4] = 0
    assert np.array_equal(there[:, :7], expected)
    assert not there[:, 7:].any()
    with pytest.raises(MachineError) as caught:
        runtime.allocate(0, 5000)
    assert caught.value.why == "out of memory"
    runtime.close(0, pointer)
    runtime.free(0, pointer)


def test_without_cuda_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudart, "_loaded", lambda _: None)
    with pytest.raises(MachineError, match="no CUDA runtime"):
        Cudart()
