"""A sample of a log's prompts with their text, for what cannot be measured once it is dropped.

Reads the start of the log again, up to a bound in characters; the prompts of the most frequent model there, in
order of arrival, become numbers in `layout` and are forgotten.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from advisor.logs.canonical import canonical_bytes
from advisor.logs.layout import Layout, Place, Sample, measure_layout
from advisor.logs.options import ReadOptions
from advisor.logs.recognise import SAMPLE_ROWS, first_rows, recognise
from advisor.logs.record import Record, UnusableError
from advisor.logs.rows import read_rows
from advisor.logs.selection import Selection
from advisor.logs.source import Meter, find_sources, read_chunks
from advisor.logs.text import TextEncoder

CHARACTERS = 4_000_000  # of prompts in the sample
_EXCERPT = 60  # characters on each side of a place
_ROWS_PER_PROMPT = 50  # read without finding one: the log has no text


def sample_layout(
    paths: Sequence[str | Path],
    options: ReadOptions,
    encoder: TextEncoder | None,
) -> Layout | None:
    """The prompt layout of a log, in tokens where an encoder is given, else in bytes.

    None where it shows no text, or the beginnings of fewer than two sessions, or is standard input, which
    cannot be read again.
    """
    if any(str(path) == "-" for path in paths):
        return None
    found = _largest_model(list(_prompts(paths, options)))
    if not found:  # an encoder may load when it is asked
        return None
    found.sort(key=lambda item: item[0].arrival_ns or 0)
    contents = [canonical_bytes(record.prompt) for record, _ in found if record.prompt is not None]
    texts = [content.decode() for content in contents]
    units: Sequence[Sequence[int]] = contents if encoder is None else encoder.encode_batch(texts)
    samples = [
        Sample(text, unit, record.session, file, line)
        for (record, (file, line)), text, unit in zip(found, texts, units, strict=True)
    ]
    return measure_layout(samples, "bytes" if encoder is None else "tokens")


def excerpts(paths: Sequence[str | Path], options: ReadOptions, places: Sequence[Place]) -> list[str]:
    """The text of prompts around places of `sample_layout`, for a terminal; "" for what is no longer there."""
    wanted = {(place.file, place.line): place.char for place in places}
    found: dict[tuple[str, int], str] = {}
    for record, at in _prompts(paths, options):
        if at in wanted and at not in found and record.prompt is not None:
            text, char = canonical_bytes(record.prompt).decode(), wanted[at]
            start, stop = max(0, char - _EXCERPT), char + _EXCERPT
            found[at] = f"{'...' if start else ''}{text[start:stop]}{'...' if stop < len(text) else ''}"
    return [found.get((place.file, place.line), "") for place in places]


_Found = tuple[Record, tuple[str, int]]  # with its file and line


def _prompts(paths: Sequence[str | Path], options: ReadOptions) -> Iterator[_Found]:
    """Requests with the text of their prompt, in the order of the log, up to `CHARACTERS`."""
    characters = prompts = 0
    for rows, (file, number, record) in enumerate(_records(paths, options)):
        prompt = record.prompt
        if prompt is not None and prompt.tokens is None and not prompt.cut and prompt.size:
            prompts += 1
            characters += prompt.size
            yield record, (file, number)
        if characters >= CHARACTERS or rows > SAMPLE_ROWS + _ROWS_PER_PROMPT * prompts:
            return


def _records(paths: Sequence[str | Path], options: ReadOptions) -> Iterator[tuple[str, int, Record]]:
    """The selected requests of the log's first format, with file and line."""
    kind = reader = selection = None
    sources = find_sources(paths)
    meter = Meter(sources, None)
    for source in sources:
        rows = read_rows(read_chunks(source, meter))
        found = recognise(first_rows(rows), options)
        if found.kind is None or found.kind is not (kind or found.kind):
            continue
        if reader is None or selection is None:
            kind, reader = found.kind, found.kind(found.sample, options)
            selection = Selection(options, reader.basis().clock)
        for number, content, _ in itertools.chain(found.head, rows):
            if isinstance(content, UnusableError):
                continue
            with contextlib.suppress(UnusableError):
                for item in reader.parse(content):
                    if isinstance(item, Record) and selection.check(item, f"{source.name}:{number}") is None:
                        yield source.name, number, item


def _largest_model(found: list[_Found]) -> list[_Found]:
    counts = Counter(record.model for record, _ in found)
    return [item for item in found if item[0].model == max(counts, key=counts.__getitem__)]
