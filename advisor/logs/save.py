"""Saving a Trace as `trace.jsonl`: Mooncake's keys, one row a request, no text.

Every row has `timestamp` (milliseconds after the first arrival, to the nanosecond; null without times),
`input_length` (null where unknown), `block_size` and `scope` (null where the log gave no sharing);
`output_length` and `hash_ids` where known. `rounding` says whether a partial last block has an id (`ceil`,
Mooncake's way) or not (`floor`, all traces made from text). Names of models, ordinals of routes, clients and
sessions, statuses and what the log measured follow. A row in front has the `totals` of a log that gives sums.
Wall-clock time and names of clients, sessions and routes never leave. Same Trace, same bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from advisor.logs.trace import Trace
from engine.errors import InputError

_NAMED = ("model", "status")
_ORDINALS = ("route", "client", "session")
_COUNTS = ("novel_tokens", "cached_tokens")
_SECONDS = ("think_s", "ttft_s", "e2e_s")


def save(trace: Trace, path: str | Path) -> None:
    """Write the Trace; only its owner may read the file. `read` gives it back, but for what never leaves."""
    write_rows(path, _rows(trace))


def write_rows(path: str | Path, rows: Iterable[dict[str, Any]]) -> None:
    """JSON lines that only their owner may read; the file appears when it is complete.

    Raises InputError where the place cannot be written to.
    """
    temporary = Path(path).with_name(Path(path).name + ".part")
    encode = msgspec.json.Encoder().encode
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            for row in rows:
                file.write(encode(row) + b"\n")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        why = error.strerror
        raise InputError("cannot write the trace", where=str(path), why=why, hint="-o FILE") from None


def _rows(trace: Trace) -> Iterator[dict[str, Any]]:
    if trace.totals is not None:
        yield {"totals": {name: value for name, value in asdict(trace.totals).items() if value is not None}}
    extras = list(_extras(trace))
    arrivals, prompts, outputs = (
        column.tolist() for column in (trace.arrival_s, trace.prompt_tokens, trace.output_tokens)
    )
    for index in range(len(trace)):
        length = prompts[index] if prompts[index] >= 0 else None
        row: dict[str, Any] = {"timestamp": _milliseconds(arrivals[index]), "input_length": length}
        if outputs[index] >= 0:
            row["output_length"] = outputs[index]
        if trace.blocks is not None:
            if trace.blocks.known is None or trace.blocks.known[index]:
                row["hash_ids"] = trace.blocks.row(index).tolist()
            row["rounding"] = trace.blocks.rounding
        row["block_size"] = None if trace.blocks is None else trace.blocks.size
        row["scope"] = None if trace.blocks is None else trace.blocks.scope
        for name, value in extras:
            if (cell := value(index)) is not None:
                row[name] = cell
        yield row


def _milliseconds(seconds: float) -> int | float | None:
    if math.isnan(seconds):
        return None
    exact = round(seconds * 1e3, 6)
    return int(exact) if exact.is_integer() else exact


def _extras(trace: Trace) -> Iterator[tuple[str, Callable[[int], Any]]]:
    """The optional columns that the Trace has, each with a look-up that gives None where a row has no value."""
    for name in (*_NAMED, *_ORDINALS):
        if (labels := getattr(trace, name)) is not None:
            names = list(labels.names) if name in _NAMED else list(range(len(labels.names)))
            yield name, _pick([names[code] if code >= 0 else None for code in labels.codes.tolist()])
    for name in _COUNTS:
        if (column := getattr(trace, name)) is not None:
            yield name, _pick([value if value >= 0 else None for value in column.tolist()])
    for name in _SECONDS:
        if (column := getattr(trace, name)) is not None:
            yield (
                name,
                _pick(
                    [
                        None if gone else value
                        for value, gone in zip(column.tolist(), np.isnan(column), strict=True)
                    ]
                ),
            )


def _pick(values: list[Any]) -> Callable[[int], Any]:
    return values.__getitem__
