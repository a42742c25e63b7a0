"""Parquet as JSON lines, so that everything after it reads one kind of row.

Owns the few conversions: timestamps become ISO texts, maps become objects, bytes become text. Rows are
converted a batch at a time; a file is read where it lies, standard input is held in memory. Needs the extra
`[parquet]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from advisor.logs.record import UnusableError
from engine.errors import MachineError

MAGIC = b"PAR1"
STREAM_BYTES = 256 << 20  # of a Parquet file that has no path
_BATCH_ROWS = 256  # prompts may be long


def parquet_lines(
    path: Path | None, stream: IO[bytes], size: int, progress: Callable[[int], None]
) -> Iterator[bytes]:
    """The rows as chunks of JSON lines, from `path` or, without one, from `stream`.

    `progress` hears of shares of `size`, the bytes that were not counted yet. Raises MachineError without
    pyarrow, UnusableError where the file is damaged.
    """
    try:
        import pyarrow.parquet as pq
    except ImportError:
        why, hint = "Parquet needs pyarrow, which is not installed", "pip install 'advise[parquet]'"
        raise MachineError("cannot read Parquet", why=why, hint=hint) from None
    import pyarrow as pa

    source: Any = path if path is not None else pa.BufferReader(_whole(stream))
    # Times become ISO texts; those of nanoseconds are pandas' own, which print all their digits.
    encode = msgspec.json.Encoder(decimal_format="number", enc_hook=str).encode
    try:
        with pq.ParquetFile(source) as file:
            rows = max(1, file.metadata.num_rows)
            for batch in file.iter_batches(_BATCH_ROWS):
                columns = [_plain(column) for column in batch.columns]
                records = (
                    dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)
                )
                yield b"".join(encode(record) + b"\n" for record in records)
                progress(size * batch.num_rows // rows)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UnusableError("Parquet file is damaged or in a form that is not read") from error


def _whole(stream: IO[bytes]) -> bytes:
    data = stream.read(STREAM_BYTES + 1)
    if len(data) > STREAM_BYTES:
        raise UnusableError(f"Parquet over {STREAM_BYTES >> 20} MiB on standard input; give it as a file")
    return data


def _plain(column: Any) -> list[Any]:
    """The values of a column as JSON has them."""
    import pyarrow as pa

    types, kind = pa.types, column.type
    if types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    values: list[Any] = column.to_pylist()
    if types.is_map(kind):
        return [
            None if value is None else {str(_text(key)): _text(item) for key, item in value} for value in values
        ]
    return list(map(_text, values)) if types.is_binary(kind) or types.is_large_binary(kind) else values


def _text(value: Any) -> Any:
    """Text of bytes, as ClickHouse writes texts; anything else as it is."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
