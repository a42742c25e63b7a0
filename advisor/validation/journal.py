"""The journal of a replay, `requests.jsonl`: one header, then one line a request as it ends. Only ever added
to.

Owns the file. Every line is written whole and handed to the system at once, so that after a kill -9 all but
the line being written is there; a torn last line is left out when the file is read. Holds times and counts,
never text. A run that goes on where an earlier one was interrupted adds a header of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from advisor.validation.record import Record
from advisor.validation.search import Probe
from engine.errors import InputError

FORMAT_VERSION = "1"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What was replayed: enough to know whether a run can go on, and to compute every figure again."""

    format_version: str = FORMAT_VERSION
    url: str
    model: str
    traffic_digest: str  # SHA-256 of the requests of the window: arrivals, lengths, blocks
    window: str
    from_s: float
    length_s: float
    seed: int
    factor: float  # of the log's rate
    turns: str
    cache: str
    slo: dict[str, Any]
    start_unix_s: float
    stage: str = ""  # of a search: what the rate was tried for
    search_digest: str = ""  # of a search: of the window at the log's own rate


class Part(msgspec.Struct, frozen=True):
    """One run: its header and the records that have an outcome, in the order in which they ended.

    `probe`: what a search made of it; None: it is no probe, or did not come to its end.
    """

    header: Header
    records: tuple[Record, ...]
    probe: Probe | None = None


class Journal:
    """Appends to the file. `with Journal(path) as journal`; a failure to write is an error of the machine."""

    def __init__(self, path: Path, *, fresh: bool = True) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if fresh else 0)
        self._descriptor = os.open(path, flags, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def begin(self, header: Header) -> None:
        """A run begins."""
        self._line(msgspec.json.encode({"run": header}))

    def add(self, record: Record) -> None:
        """One request has an outcome. A few tens of microseconds: it runs between sends."""
        also = msgspec.json.encode({"t_first": record.t_first, "t_last": record.t_last})
        self._line(msgspec.json.encode(record)[:-1] + b"," + also[1:])

    def add_all(self, records: Sequence[Record]) -> None:
        """Several at once."""
        for record in records:
            self.add(record)

    def judged(self, probe: Probe) -> None:
        """The run was a probe of a search, and this is what came of it."""
        self._line(b'{"probe":' + probe.model_dump_json().encode() + b"}")

    def _line(self, line: bytes) -> None:
        os.write(self._descriptor, line + b"\n")


_FIELDS = frozenset(one.name for one in fields(Record))


def read_journal(path: Path) -> tuple[Part, ...]:
    """The runs in the file, in order. Raises InputError for what is no journal; a torn end is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        why = error.strerror
        raise InputError("cannot read the requests", where=str(path), why=why, hint="advise validate") from None
    found: list[_Found] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            _take(msgspec.json.decode(line, type=dict[str, Any]), found)
        except (msgspec.MsgspecError, ValueError, TypeError, IndexError) as error:
            if number == len(lines):
                break  # a last line without its end: the process was killed while it wrote
            why = str(error).splitlines()[0]
            where = f"{path}:{number}"
            raise InputError(
                "this is no record of a replay", where=where, why=why, hint="advise validate"
            ) from None
    return tuple(Part(one.header, tuple(one.records), one.probe) for one in found)


@dataclass
class _Found:
    """A run as far as it has been read."""

    header: Header
    records: list[Record] = field(default_factory=list)
    probe: Probe | None = None


def _take(row: dict[str, Any], found: list[_Found]) -> None:
    """One line: a run begins, a request has ended, or a run was judged."""
    if "run" in row:
        found.append(_Found(msgspec.convert(row["run"], Header)))
    elif "probe" in row:
        found[-1].probe = Probe.model_validate(row["probe"])
    else:
        known = {name: value for name, value in row.items() if name in _FIELDS}
        found[-1].records.append(msgspec.convert(known, Record))


def moved(record: Record, offset_s: float) -> Record:
    """The record of a run that began `offset_s` into the window, on the clock of the window's start."""

    def later(time_s: float | None) -> float | None:
        return None if time_s is None else time_s + offset_s

    return replace(
        record,
        t_sched=record.t_sched + offset_s,
        t_send=later(record.t_send),
        t_hdr=later(record.t_hdr),
        t_any=later(record.t_any),
        t_chunk=tuple(stamp + offset_s for stamp in record.t_chunk),
        t_done=later(record.t_done),
    )
