"""The few calls of the CUDA runtime that moving KV takes, by ctypes: memory, IPC handles, strided copies.

Compiled, not yet executed on a GPU. Owns a stream a device beside those that steps run on. Any thread may call.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
from pathlib import Path
from typing import Protocol

from engine.errors import MachineError

HANDLE_BYTES = 64  # sizeof(cudaIpcMemHandle_t)
_LAZY_PEER_ACCESS = 1  # cudaIpcMemLazyEnablePeerAccess
_BY_ADDRESS = 4  # cudaMemcpyDefault
_NON_BLOCKING = 1  # cudaStreamNonBlocking


class Runtime(Protocol):
    """What is needed of CUDA. Pointers are addresses; pitches, widths and sizes are bytes."""

    def allocate(self, device: int, size: int) -> int:
        """Memory of its own on a device."""
        ...

    def free(self, device: int, pointer: int) -> None:
        """Give it back."""
        ...

    def export(self, device: int, pointer: int) -> bytes:
        """The handle of what `allocate` gave, for other processes."""
        ...

    def open(self, device: int, handle: bytes) -> int:
        """Another process's memory, mapped for a device of ours."""
        ...

    def close(self, device: int, pointer: int) -> None:
        """Unmap what `open` gave."""
        ...

    def copy(self, device: int, to: int, to_pitch: int, of: int, of_pitch: int, width: int, rows: int) -> None:
        """Begin to copy `rows` of `width`, between devices or to and from the host."""
        ...

    def zero(self, device: int, to: int, pitch: int, width: int, rows: int) -> None:
        """Begin to zero `rows` of `width`."""
        ...

    def wait(self, device: int) -> None:
        """Until everything that was begun on this device is done."""
        ...


class Cudart:
    """`Runtime` on the CUDA runtime library that torch has loaded. Raises MachineError where a call fails."""

    def __init__(self) -> None:
        path = _loaded("libcudart")
        if path is None:
            raise MachineError(
                "no CUDA runtime is loaded",
                why="torch was built without it, or not imported",
                hint="transport: shared_memory, or a torch built for CUDA",
            )
        self._library = ctypes.CDLL(path)
        self._library.cudaGetErrorString.restype = ctypes.c_char_p
        self._lock = threading.Lock()
        self._streams: dict[int, ctypes.c_void_p] = {}

    def allocate(self, device: int, size: int) -> int:
        """See `Runtime.allocate`."""
        pointer = ctypes.c_void_p()
        self._call(device, "cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value or 0

    def free(self, device: int, pointer: int) -> None:
        """See `Runtime.free`."""
        self._call(device, "cudaFree", ctypes.c_void_p(pointer))

    def export(self, device: int, pointer: int) -> bytes:
        """See `Runtime.export`."""
        handle = _Handle()
        self._call(device, "cudaIpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(pointer))
        return bytes(handle.reserved)

    def open(self, device: int, handle: bytes) -> int:
        """See `Runtime.open`."""
        pointer = ctypes.c_void_p()
        ours = _Handle.from_buffer_copy(handle)
        self._call(
            device, "cudaIpcOpenMemHandle", ctypes.byref(pointer), ours, ctypes.c_uint(_LAZY_PEER_ACCESS)
        )
        return pointer.value or 0

    def close(self, device: int, pointer: int) -> None:
        """See `Runtime.close`."""
        self._call(device, "cudaIpcCloseMemHandle", ctypes.c_void_p(pointer))

    def copy(self, device: int, to: int, to_pitch: int, of: int, of_pitch: int, width: int, rows: int) -> None:
        """See `Runtime.copy`."""
        self._call(
            device,
            "cudaMemcpy2DAsync",
            ctypes.c_void_p(to),
            ctypes.c_size_t(to_pitch),
            ctypes.c_void_p(of),
            *map(ctypes.c_size_t, (of_pitch, width, rows)),
            ctypes.c_int(_BY_ADDRESS),
            self._stream(device),
        )

    def zero(self, device: int, to: int, pitch: int, width: int, rows: int) -> None:
        """See `Runtime.zero`."""
        sizes = map(ctypes.c_size_t, (width, rows))
        stream = self._stream(device)
        self._call(
            device,
            "cudaMemset2DAsync",
            ctypes.c_void_p(to),
            ctypes.c_size_t(pitch),
            ctypes.c_int(0),
            *sizes,
            stream,
        )

    def wait(self, device: int) -> None:
        """See `Runtime.wait`."""
        self._call(device, "cudaStreamSynchronize", self._stream(device))

    def _stream(self, device: int) -> ctypes.c_void_p:
        with self._lock:
            if device not in self._streams:
                stream = ctypes.c_void_p()
                flags = ctypes.c_uint(_NON_BLOCKING)
                self._call(device, "cudaStreamCreateWithFlags", ctypes.byref(stream), flags)
                self._streams[device] = stream
            return self._streams[device]

    def _call(self, device: int, name: str, *arguments: object) -> None:
        """Call a function with a device as the current one: that belongs to a thread, and many may call."""
        for function, given in (("cudaSetDevice", (ctypes.c_int(device),)), (name, arguments)):
            status = getattr(self._library, function)(*given)
            if status:
                why = self._library.cudaGetErrorString(status).decode()
                raise MachineError(f"{function} failed on GPU {device}", why=why, hint="nvidia-smi")


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


def _loaded(name: str) -> str | None:
    """The path of a library that this process has mapped."""
    with contextlib.suppress(OSError):
        found = re.search(rf"\S*/{name}\S*\.so\S*", Path("/proc/self/maps").read_text(encoding="utf-8"))
        return found[0] if found else None
    return None
