"""The step log: one JSON line a step, after a header line that says what ran.

It is the calibration set of the step-time model, and the proof of what the prefix cache saved: the query tokens
computed for a request are the sum of `new` over its rows. Request ids are those of the answers; no text.

    {"engine":"advise","version":...,"model":...,"dtype":...,"device":...,"threads":...,"tp":...,"block_size":...}
    {"step":1,"seconds":0.02,"prefill":[[new,context],...],"decode_rows":8,"decode_context":4096,
     "rows":[[id,new,context],...]}

`context` counts the tokens whose KV was there before the step, `decode_context` those of all decode rows. Lines
are buffered, so that the engine loop does not wait for the disk; `flush` is called when the engine is idle and
once a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from engine import __version__
from engine.config import EngineConfig, PoolConfig
from engine.errors import InputError
from engine.server.backend import Backend
from engine.step import Step
from engine.step_time.model import StepShape

_FLUSH_EVERY_S = 1.0


def header(config: EngineConfig, pool: PoolConfig, backend: Backend) -> dict[str, Any]:
    """The first line: what runs."""
    return {
        "engine": "advise",
        "version": __version__,
        "model": config.model.name,
        "dtype": backend.dtype,
        "device": backend.device,
        "threads": backend.threads,
        "tp": backend.tp,
        "block_size": pool.block_size,
    }


class StepLog:
    """Writes the steps of one engine to a new file. Raises InputError where it cannot."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        try:
            self._file = path.open("wb", buffering=1 << 16)
        except OSError as error:
            where, why = f"--step-log {path}", error.strerror
            hint = "advise launch --step-log FILE   (in a folder that can be written)"
            raise InputError("cannot write the step log", where=where, why=why, hint=hint) from None
        self._encode = msgspec.json.Encoder().encode
        self._flushed_at = 0.0
        self._write(header)
        self._file.flush()

    def write(self, step: Step, seconds: float, now: float) -> None:
        """Record one finished step; `now` is the engine's clock, seconds."""
        shape = StepShape.of(step)
        rows = [(row.request_id, len(row.tokens), row.start) for row in step.rows]
        self._write({"step": step.id, "seconds": seconds, **shape._asdict(), "rows": rows})
        if now - self._flushed_at >= _FLUSH_EVERY_S:
            self._flushed_at = now
            self._file.flush()

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Write what is left and close the file."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(self._encode(line) + b"\n")
