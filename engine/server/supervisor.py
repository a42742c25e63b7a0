"""The instances of a fleet as child processes: started, watched, killed, started again.

    starting -> up -> down -> starting ...            lost: it failed to start too often, or may not restart

Owns the processes and their channels. An instance is dead when its end of the channel or its process ends, and
when nothing was heard of it for HUNG_S, or one step has run for STUCK_S: then it is killed, since whoever does
not answer must not be able to write either. It hands on nothing of an instance behind its death, and decides
nothing about requests: the front does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence

import msgspec

from engine.config import EngineConfig
from engine.errors import AdviseError, InputError, MachineError
from engine.server.channel import RouterChannel
from engine.server.instances import Listener, Member
from engine.server.messages import Beat, Failed, Order, Probed, Ready, Report, Start, Stop
from engine.transfer.layout import mismatch

HUNG_S = 8.0
"""Ours: longer than any pause of a process that still lives (SGLang misses two beats of 2 s and more)."""
STUCK_S = 120.0
"""Ours: no step of a sane token budget takes that long; a collective or a kernel that never returns does."""
WATCH_S = 0.25
START_TRIES = 3
_LEAVE_S = 5.0  # what an instance gets to end by itself
_LAST_WORDS_S = 0.5  # and one that has closed its channel
_log = logging.getLogger(__name__)

INSTANCE_PROGRAM = (sys.executable, "-P", "-m", "engine.server.instance")


def starts_of(config: EngineConfig, common: Start) -> list[Start]:
    """The Start of every instance, in the order of the pools."""
    starts: list[Start] = []
    first = 0
    numbers: dict[str, int] = {}
    for at, pool in enumerate(config.pools):
        for _ in range(pool.count):
            number = numbers[pool.role] = numbers.get(pool.role, -1) + 1
            name = f"{pool.role}-{number}"
            starts.append(
                msgspec.structs.replace(common, pool=at, index=len(starts), name=name, first_device=first)
            )
            first += pool.devices_per_instance
    if len(starts) > 1 and common.step_log is not None:
        starts = [msgspec.structs.replace(one, step_log=f"{one.step_log}.{one.name}") for one in starts]
    return starts


class Supervisor:
    """All instances of one launch. `clock` in seconds; used in one event loop."""

    def __init__(
        self,
        starts: Sequence[Start],
        *,
        program: Sequence[str] = INSTANCE_PROGRAM,
        restart: bool = True,
        clock: Callable[[], float],
    ) -> None:
        self.members = [Member(start) for start in starts]
        self._program = program
        self._restart = restart
        self._clock = clock
        self._listener: Listener | None = None
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._dtype: asyncio.Future[str] | None = None
        self._up: asyncio.Event | None = None

    async def start(self, listener: Listener) -> None:
        """Start all of them; returns when all are up. Raises the error of one that cannot start."""
        self._listener = listener
        self._dtype = asyncio.get_running_loop().create_future()
        self._up = asyncio.Event()
        first, *others = self.members
        if first.start.dtype != "auto":
            self._dtype.set_result(first.start.dtype)
        self._spawn(first)
        if others:
            # Each would find its own of `auto`, and KV of different numbers cannot be handed over.
            await self._wait_for(self._dtype)
            for member in others:
                self._spawn(member)
        while any(member.state != "up" for member in self.members):
            self._raise_lost()
            self._up.clear()
            await self._up.wait()
        self._task(self._watch())

    def send(self, index: int, order: Order) -> None:
        """Queue an order for an instance; nothing happens where it is dead, which is heard of soon."""
        channel = self.members[index].channel
        if channel is not None:
            channel.send(order)

    async def stop(self) -> None:
        """Let every instance finish its step and end; SIGKILL for those that do not."""
        self._closing = True
        for index in range(len(self.members)):
            self.send(index, Stop())
        processes = [member.process for member in self.members if member.process is not None]
        await asyncio.gather(*(_reap(process, _LEAVE_S) for process in processes))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _spawn(self, member: Member) -> None:
        if self._dtype is not None and self._dtype.done():
            member.start = msgspec.structs.replace(member.start, dtype=self._dtype.result())
        ours, theirs = socket.socketpair()
        with theirs:
            member.process = subprocess.Popen(self._program, stdin=theirs.fileno(), stdout=sys.stderr)
        member.state, member.info, member.peer, member.channel = "starting", None, None, None
        member.heard_at, member.busy_s = self._clock(), 0.0
        self._task(self._follow(member, ours))

    async def _follow(self, member: Member, end: socket.socket) -> None:
        """One life of an instance: start it, hand on what it says, and notice its end."""
        member.channel = channel = await RouterChannel.over(end)
        channel.send(member.start)
        failure: AdviseError | None = None
        while (report := await _next(channel)) is not None:
            member.heard_at = self._clock()
            if isinstance(report, Failed):
                failure = _error(report)
            elif isinstance(report, Probed):
                if self._dtype is not None and not self._dtype.done():
                    self._dtype.set_result(report.dtype)
            elif isinstance(report, Ready):
                failure = self._came_up(member, report)
                if failure is not None:
                    break
            else:
                if isinstance(report, Beat):
                    member.busy_s, member.cpu_s = report.busy_s, report.cpu_s
                if self._listener is not None:
                    self._listener.heard(member.start.index, report)
        channel.close()
        await self._died(member, failure)

    def _came_up(self, member: Member, ready: Ready) -> AdviseError | None:
        """Take an instance in, unless its KV does not fit the others'."""
        for other in self.members:
            if other.peer is not None and ready.peer is not None and other is not member:
                why = mismatch(ready.peer.layout, other.peer.layout)
                if why is not None:
                    hint = "give all pools the same model, dtype and block_size"
                    return MachineError(f"{member.name} does not fit {other.name}", why=why, hint=hint)
        member.info, member.peer = ready.info, ready.peer
        member.state, member.failed_starts = "up", 0
        if self._listener is not None:
            self._listener.came_up(member.start.index)
        self._changed()
        return None

    async def _died(self, member: Member, failure: AdviseError | None) -> None:
        """Everything that follows from the end of a process."""
        process, was_up = member.process, member.state == "up"
        member.channel = None
        if process is None:
            return
        status = await _reap(process, _LAST_WORDS_S)
        member.cpu_before_s, member.cpu_s = member.cpu_before_s + member.cpu_s, 0.0
        member.state = "down"
        if self._closing:
            return
        member.error = failure or _death(member.name, status)
        _log.error("%s (pid %d) ended: %s", member.name, process.pid, member.error.message)
        if was_up and self._listener is not None:
            self._listener.went_down(member.start.index)
        self._after(member, was_up=was_up)

    def _after(self, member: Member, *, was_up: bool) -> None:
        """Start it again, or count it lost."""
        member.failed_starts += not was_up
        first_time = member.restarts == 0 and not was_up
        if self._restart and not first_time and member.failed_starts < START_TRIES:
            member.restarts += 1
            member.start = msgspec.structs.replace(member.start, epoch=member.start.epoch + 1)
            self._spawn(member)
        else:
            member.state = "lost"
            if self._dtype is not None and not self._dtype.done():
                self._dtype.set_exception(member.error or _death(member.name, 0))
            if all(one.state == "lost" for one in self.members) and self._listener is not None:
                self._listener.all_lost(member.error or _death(member.name, 0))
        self._changed()

    async def _watch(self) -> None:
        """Kill who does not answer."""
        while True:
            await asyncio.sleep(WATCH_S)
            now = self._clock()
            for member in self.members:
                if member.state == "up" and member.process is not None:
                    silent = now - member.heard_at
                    if silent > HUNG_S or member.busy_s > STUCK_S:
                        what = f"silent for {silent:.0f} s" if silent > HUNG_S else "stuck in a step"
                        _log.error("%s (pid %d) is %s: killed", member.name, member.process.pid, what)
                        _kill(member.process)

    def _raise_lost(self) -> None:
        for member in self.members:
            if member.state == "lost":
                raise member.error or _death(member.name, 0)

    async def _wait_for(self, dtype: asyncio.Future[str]) -> None:
        with contextlib.suppress(AdviseError):
            await asyncio.shield(dtype)
        self._raise_lost()

    def _changed(self) -> None:
        if self._up is not None:
            self._up.set()


async def _next(channel: RouterChannel) -> Report | None:
    try:
        return await channel.receive()
    except (ValueError, msgspec.DecodeError):
        _log.exception("an instance said something unintelligible")
        return None


async def _reap(process: subprocess.Popen[bytes], patience_s: float) -> int:
    """Its exit status; SIGKILL if it does not end by itself."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            while (status := process.poll()) is None:
                await asyncio.sleep(0.005)
            return status
    _kill(process)
    return await asyncio.to_thread(process.wait)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


def _error(words: Failed) -> AdviseError:
    kinds = {InputError.exit_code: InputError, MachineError.exit_code: MachineError}
    kind = kinds.get(words.exit_code, AdviseError)
    return kind(words.message, where=words.where, why=words.why, hint=words.hint)


def _death(name: str, status: int) -> AdviseError:
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    return MachineError(f"{name} died ({how})", hint="advise launch")
