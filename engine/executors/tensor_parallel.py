"""Tensor parallelism: the collectives between ranks, and the child processes that ranks above 0 are.

    starting (weights load) -> joined (every rank is in the group) -> closed
                                                                   -> a rank died: `on_death`, once

Rank 0 sits in the server's process: it plans, sends each Step down a pipe to every other rank, and samples. The
others run the same Steps in the same order, decide nothing and read no clock, so ranks cannot drift apart
(sglang#27221). A rank ends when its pipe does, so none outlives its parent.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import distributed
from torch.distributed.distributed_c10d import Store

import engine
from engine.errors import MachineError
from engine.executors.wire import RankConfig, RankReport, receive_report, send
from engine.step import Step

GROUP_TIMEOUT = timedelta(seconds=30)
"""For joining, and for one collective: ranks are at most a layer apart. Ours."""

_HOME = str(Path(engine.__path__[0]).parent)  # where this `engine` was imported from
_LEAVE_S = 5.0  # what a rank gets to end by itself


class GroupCollective:
    """`Collective` over torch.distributed: NCCL between GPUs, gloo on loopback between processes on a CPU.

    Calls fail until `join`. A rank that is gone makes them raise RuntimeError: at once on gloo, whose
    connections break, after `GROUP_TIMEOUT` on NCCL.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank = rank
        self.ranks = ranks

    def join(self, rendezvous: str, device: str) -> None:
        """Meet the other ranks at the file `rendezvous`; returns when all are there."""
        store = distributed.FileStore(rendezvous, self.ranks)  # type: ignore[attr-defined]
        store.set_timeout(GROUP_TIMEOUT)
        self._group = (_gloo if device == "cpu" else _nccl)(store, self.rank, self.ranks)
        self.sum(torch.zeros(1, device=device))

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """See `Collective.sum`; in place where `x` is contiguous."""
        x = x.contiguous()
        self._group.allreduce([x]).wait()
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor | None:
        """See `Collective.gather`."""
        x = x.contiguous()
        options = distributed.GatherOptions()
        options.rootRank = 0
        if self.rank:
            self._group.gather([], [x], options).wait()
            return None
        parts = [torch.empty_like(x) for _ in range(self.ranks)]
        self._group.gather([parts], [x], options).wait()
        return torch.cat(parts, dim=-1)


# Made directly and not by `init_process_group`, whose groups are the whole process's. Any: torch's stubs do not
# know what the two have in common.


def _gloo(store: Store, rank: int, ranks: int) -> Any:
    options = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    # By name it would be whatever interface the host's name resolves to, open to the network.
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = GROUP_TIMEOUT
    return distributed.ProcessGroupGloo(store, rank, ranks, options)


def _nccl(store: Store, rank: int, ranks: int) -> Any:
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # where it would listen by itself: every interface
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = GROUP_TIMEOUT
    return distributed.ProcessGroupNCCL(store, rank, ranks, options)


class RankProcesses:
    """The ranks above 0 as child processes of this one. `on_death` is called, from a thread, when one dies."""

    def __init__(self, configs: Sequence[RankConfig], on_death: Callable[[MachineError], None]) -> None:
        self._on_death = on_death
        self._closing = False
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for config in configs:
                self._processes.append(_start(config))
        except BaseException:
            self.close()
            raise
        for rank, process in enumerate(self._processes, start=1):
            thread = threading.Thread(
                target=self._watch, args=(rank, process), name=f"rank-{rank}-watch", daemon=True
            )
            thread.start()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, of rank 1 first."""
        return tuple(process.pid for process in self._processes)

    def loaded(self) -> tuple[RankReport, ...]:
        """Wait until every rank has its weights. Raises MachineError where one could not load them."""
        found = []
        for rank, process in enumerate(self._processes, start=1):
            report = receive_report(cast(IO[bytes], process.stdout))
            if report is None:
                raise _died(rank, process.wait())
            if report.error is not None:
                raise MachineError(
                    f"rank {rank} could not load the model",
                    why=report.error,
                    hint="the reason above says what to mend; tp: 1 takes no ranks",
                )
            found.append(report)
        return tuple(found)

    def send(self, step: Step) -> None:
        """Hand a Step to every rank. Raises MachineError where one is gone."""
        for rank, process in enumerate(self._processes, start=1):
            try:
                send(cast(IO[bytes], process.stdin), step)
            except OSError:
                raise _died(rank, process.wait()) from None

    def death(self, wait_s: float) -> MachineError | None:
        """The error of a rank that is dead, or dies within `wait_s`; None where all live."""
        end = time.monotonic() + wait_s
        while True:
            for rank, process in enumerate(self._processes, start=1):
                if (status := process.poll()) is not None:
                    return _died(rank, status)
            if time.monotonic() >= end:
                return None
            time.sleep(0.01)

    def close(self) -> None:
        """End them: the end of the pipe tells them to; SIGKILL for one that does not listen."""
        self._closing = True
        for process in self._processes:
            with contextlib.suppress(OSError):
                cast(IO[bytes], process.stdin).close()
        for process in self._processes:
            try:
                process.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            cast(IO[bytes], process.stdout).close()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if not self._closing:
            self._on_death(_died(rank, status))


def _start(config: RankConfig) -> subprocess.Popen[bytes]:
    # -P keeps the current folder off the import path: a folder named `engine` there must not be what runs.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "engine.executors.rank"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=() if config.memory_fd is None else (config.memory_fd,),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([_HOME, os.environ.get("PYTHONPATH", "")])},
    )
    with contextlib.suppress(OSError):  # it is dead already; `loaded` says so
        send(cast(IO[bytes], process.stdin), config)
    return process


def _died(rank: int, status: int) -> MachineError:
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    return MachineError(
        f"rank {rank} of the tensor-parallel group died ({how})",
        why="the others cannot go on without its share of the model",
        hint="advise launch",
    )


@contextlib.contextmanager
def rendezvous_file() -> Iterator[str]:
    """A path that only this user can reach, for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="advise-ranks-") as folder:  # mode 0700
        yield str(Path(folder) / "store")
