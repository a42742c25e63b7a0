"""Processes that read pieces of a log: what they start from, what they are given, and what they answer.

A process gets the setup once, then pieces, and answers each with its harvests: numbers, names and counts, no
text. The processes themselves are `children`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from advisor.children import Children
from advisor.logs.csv_rows import CsvPiece
from advisor.logs.parse import Parsed, Parser, Setup
from advisor.logs.pieces import Piece
from advisor.logs.text import TextReader, Unit


@dataclass(frozen=True, slots=True, repr=False)
class Job:
    """One piece for a process. `source` is the number of its file, `text` says that its lines are not JSON."""

    piece: Piece | CsvPiece
    source: int
    text: bool


class Workers(Children[Job, Parsed]):
    """Processes that read pieces of one log. Leaving the context ends them; an error ends them at once."""

    def __init__(self, setup: Setup, unit: Unit, count: int) -> None:
        hint = "free some memory, or read a part of the log: --log-share 1/8"
        super().__init__(_reader, (setup, unit), count, purpose="reads the log", hint=hint)


def _reader(start: tuple[Setup, Unit]) -> Callable[[Job], Parsed]:
    setup, unit = start
    text = TextReader(None, setup.options.block_size, setup.key)
    text.use(unit)
    parser = Parser(setup, text)
    return lambda job: parser.read_piece(job.piece, job.source, text=job.text)
