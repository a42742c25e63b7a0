"""The request log: one JSON line a request that has ended, in the form of a saved Trace, without text.

    {"timestamp":1764587323123.4,"input_length":120,"output_length":32,"hash_ids":[0,1,2,3,4,5,6],
     "rounding":"floor","block_size":16,"scope":"run-5f3a9c01","model":"...","route":"/v1/completions",
     "session":"run-5f3a9c01-0","status":"ok","cached_tokens":96,"ttft_s":0.041,"e2e_s":1.3}

`advise analyze FILE` reads it. Times are milliseconds since 1970; lengths and latencies are the engine's own.
`hash_ids` are ordinals of the prompt's full blocks of 16 tokens, whatever the engine's block: equal ids mean
equal tokens and equal tokens before. They are numbered by a digest whose random key never leaves the process,
so that a file says which prompts share, and nothing of what they say. A restart appends under another `scope`:
between runs nothing is known to be shared. What was used least recently is forgotten and numbered anew: a
prefix that comes back may look new, never a new one shared.

Lines are made and written by a thread of their own, so that neither long prompts nor a slow disk hold tokens
back; a row is in the file moments after its request has ended. What cannot be written is counted, never raised.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import secrets
import stat
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engine.errors import InputError
from engine.recent import RecentMap

BLOCK_TOKENS = 16
MOST_BLOCKS = 1 << 19
"""Blocks that are remembered, or at least half as many: 8 million tokens, about 70 MB (ours)."""
MOST_SESSIONS = 100_000
MOST_WAITING = 10_000
"""Requests that may wait to be written; more are left out and counted (ours)."""
_KEY_BYTES, _DIGEST_BYTES = 16, 8
_TURN = 64  # blocks between two chances for the router's own thread
_log = logging.getLogger(__name__)


class Ended(NamedTuple):
    """One request that is over. None: not known, or never was.

    `arrived_s` is of the log's clock; `outputs` are tokens. `session` is the client's own name, of which only
    an ordinal is written. `status`: ok, aborted, error, or an HTTP status.
    """

    prompt: Sequence[int]
    namespace: str
    arrived_s: float
    status: str
    outputs: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    route: str | None = None
    session: str | None = None


class Ordinals:
    """Numbers keys in order of first use, and remembers about the `most` that were used last."""

    def __init__(self, most: int) -> None:
        self._known = RecentMap[bytes](most)
        self._next = 0

    def __len__(self) -> int:
        return len(self._known)

    def of(self, keys: Iterable[bytes]) -> list[int]:
        """The ordinals of a chain of keys; all behind the first new one are new."""
        chain = list(keys)
        found = self._known.leading(chain)
        new = range(self._next, self._next + len(chain) - len(found))
        self._known.put(chain[len(found) :], new)
        self._next = new.stop
        return [*found, *new]


class Rows:
    """Makes the rows of one run of a server of `model`. `wall_s`: time since 1970 at zero of the clock."""

    def __init__(self, model: str, *, wall_s: float, most_blocks: int = MOST_BLOCKS) -> None:
        self.scope = f"run-{secrets.token_hex(4)}"
        self._model = model
        self._wall_s = wall_s
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._blocks = Ordinals(most_blocks)
        self._sessions = Ordinals(MOST_SESSIONS)

    def make(self, one: Ended) -> dict[str, Any]:
        """The row of a request; what is not known has no key."""
        row = {
            "timestamp": round((self._wall_s + one.arrived_s) * 1e3, 3),
            "input_length": len(one.prompt),
            "output_length": one.outputs,
            "hash_ids": self._blocks.of(self._digests(one)),
            "rounding": "floor",
            "block_size": BLOCK_TOKENS,
            "scope": self.scope,
            "model": self._model,
            "route": one.route,
            "session": self._session(one.session),
            "status": one.status,
            "cached_tokens": one.cached_tokens,
            "ttft_s": _rounded(one.ttft_s),
            "e2e_s": _rounded(one.e2e_s),
        }
        return {name: value for name, value in row.items() if value is not None}

    def _digests(self, one: Ended) -> Iterable[bytes]:
        """A digest for each full block, of its tokens and of all before, under the run's key."""
        chain = hashlib.blake2b(one.namespace.encode() + b"\0", key=self._key, digest_size=_DIGEST_BYTES)
        tokens = array("I", one.prompt)
        for number in range(len(tokens) // BLOCK_TOKENS):
            chain.update(tokens[number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS])
            if number % _TURN == _TURN - 1:
                time.sleep(0)  # gives up the interpreter's lock: the router's own thread goes first
            yield chain.digest()

    def _session(self, name: str | None) -> str | None:
        if name is None:
            return None
        digest = hashlib.blake2b(name.encode("utf-8", "replace"), key=self._key, digest_size=_DIGEST_BYTES)
        return f"{self.scope}-{self._sessions.of([digest.digest()])[0]}"


class RequestLog:
    """Appends to `path`, which only its owner may read, until `close`. Raises InputError where it cannot.

    `clock` is that of `Ended.arrived_s`, seconds; `wall` the time since 1970, asked once.
    """

    def __init__(
        self,
        path: Path,
        model: str,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
        most_blocks: int = MOST_BLOCKS,
    ) -> None:
        self.counts: Counter[str] = Counter()  # written, and lost
        self._rows = Rows(model, wall_s=wall() - clock(), most_blocks=most_blocks)
        self._encode = msgspec.json.Encoder().encode
        self._descriptor, self._torn = _opened(path)
        self._queue: queue.Queue[Ended | None] = queue.Queue(MOST_WAITING)
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="request-log", daemon=True)
        self._thread.start()

    def put(self, one: Ended) -> None:
        """Have a row written. Never waits, never raises."""
        try:
            self._queue.put_nowait(one)
        except queue.Full:
            self._lose("the disk is too slow")

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left, for so long at most, and close the file. Idempotent."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while (one := self._queue.get()) is not None:
            try:
                self._write(self._encode(self._rows.make(one)) + b"\n")
            except OSError as error:
                self._lose(error.strerror or type(error).__name__)
            except Exception as error:  # whatever it is, the server goes on
                self._lose(type(error).__name__)
            else:
                self.counts["written"] += 1
        os.close(self._descriptor)

    def _write(self, line: bytes) -> None:
        """Append a line; behind one that was cut off, on a line of its own."""
        left = memoryview(b"\n" + line if self._torn else line)
        while left:
            left = left[os.write(self._descriptor, left) :]
            self._torn = True
        self._torn = False

    def _lose(self, why: str) -> None:
        self.counts["lost"] += 1
        if self.counts["lost"] == 1:
            _log.warning("requests are served but not all of them logged: %s", why)


def _opened(path: Path) -> tuple[int, bool]:
    """The file, to append to, and whether its last line has no end: a run before this one was killed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            os.close(descriptor)
            raise InputError("cannot write the request log", where=str(path), why="it is no file", hint=_HINT)
        os.fchmod(descriptor, 0o600)
        torn = state.st_size > 0 and os.pread(descriptor, 1, state.st_size - 1) != b"\n"
    except OSError as error:
        why = error.strerror
        raise InputError("cannot write the request log", where=str(path), why=why, hint=_HINT) from None
    return descriptor, torn


_HINT = "--request-log requests.jsonl"


def _rounded(seconds: float | None) -> float | None:
    """To the microsecond, as clocks tell it."""
    return None if seconds is None else round(seconds, 6)
