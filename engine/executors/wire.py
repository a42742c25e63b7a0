"""What goes between rank 0 and the other ranks of an instance: one configuration, then Steps.

Frames are a four-byte length and msgpack, over the pipes of a child process. No pickle; torch-free, so that a
rank can be pinned before torch is imported.
"""

from __future__ import annotations

import struct
from typing import IO

import msgspec

from engine.step import Step

_LENGTH = struct.Struct(">I")


class RankConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one rank needs in order to run Steps.

    `device` is `cpu` or `cuda:N`. `cores` are the operating system's numbers of those to pin to, empty: not
    pinned. `num_blocks` counts the trash block. `dummy`: random weights. `rendezvous`: a file for the ranks to
    find each other by, empty for one rank. `shared`: KV lies in memory that others can map; `memory_fd`, which
    the rank inherits, is an empty file for it.
    """

    folder: str
    dtype: str
    device: str = "cpu"
    rank: int = 0
    ranks: int = 1
    threads: int = 1
    cores: tuple[int, ...] = ()
    num_blocks: int
    block_size: int
    max_seqs: int = 64
    cuda_graphs: bool = True
    dummy: bool = False
    rendezvous: str = ""
    shared: bool = False
    memory_fd: int | None = None


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says once its weights are loaded; an `error` where they could not be.

    `handle` opens its KV pool where that is on a GPU and shared.
    """

    weight_bytes: int = 0
    handle: bytes = b""
    error: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_steps = msgspec.msgpack.Decoder(Step)
_configs = msgspec.msgpack.Decoder(RankConfig)
_reports = msgspec.msgpack.Decoder(RankReport)


def send(pipe: IO[bytes], message: RankConfig | RankReport | Step) -> None:
    """Write one message. Raises OSError where nobody reads."""
    body = _encode(message)
    pipe.write(_LENGTH.pack(len(body)) + body)
    pipe.flush()


def receive_config(pipe: IO[bytes]) -> RankConfig | None:
    """The next message, a configuration; None at the end of the pipe."""
    body = _frame(pipe)
    return None if body is None else _configs.decode(body)


def receive_report(pipe: IO[bytes]) -> RankReport | None:
    """The next message, a report; None at the end of the pipe."""
    body = _frame(pipe)
    return None if body is None else _reports.decode(body)


def receive_step(pipe: IO[bytes]) -> Step | None:
    """The next message, a Step; None at the end of the pipe."""
    body = _frame(pipe)
    return None if body is None else _steps.decode(body)


def _frame(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = pipe.read(length)
    return body if len(body) == length else None
