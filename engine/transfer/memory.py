"""Host memory that other processes can map: a sealed memfd on Linux, elsewhere memory of this process alone.

A memfd has no name: it is reached only through a descriptor that was handed over, and is gone with the last
process that holds it. Its size is sealed, so that nobody who maps it can be made to fault by a truncation.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Iterable

_SEALS = 0
if sys.platform == "linux":
    import fcntl

    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Memory:
    """Mapped memory, `buffer`, zero at first; pages are taken from the machine as they are touched.

    `fd` None: no other process can map it. Kept mapped, after `close` too, by whatever still looks into it.
    """

    def __init__(self, buffer: mmap.mmap, fd: int | None) -> None:
        self.buffer = buffer
        self.fd = fd

    @classmethod
    def create(cls, size: int, fd: int | None = None) -> Memory:
        """`size` bytes; in the empty memfd `fd`, which then is this object's, or in a new one."""
        if fd is None:
            fd = new_fd()
        if fd is None:
            return cls(mmap.mmap(-1, size), None)
        try:
            os.ftruncate(fd, size)
            if sys.platform == "linux":
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls(mmap.mmap(fd, size), fd)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def open(cls, fd: int, *, writable: bool = False) -> Memory:
        """What another process created; takes over `fd`. Raises ValueError where its size is not sealed."""
        try:
            if sys.platform != "linux" or fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ValueError("memory whose size is not sealed")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return cls(mmap.mmap(fd, os.fstat(fd).st_size, access=access), fd)
        except OSError as error:
            os.close(fd)
            raise ValueError(f"not memory of ours: {error.strerror}") from None
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Give up the descriptor, and the mapping where nothing looks into it. Idempotent."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        with contextlib.suppress(BufferError):
            self.buffer.close()


def new_fd() -> int | None:
    """An empty memfd, not inherited by children unless passed on; None where the system has none."""
    if sys.platform != "linux":
        return None
    return os.memfd_create("advise-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
