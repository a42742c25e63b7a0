"""What a validation left in a folder: the Result in `result.json`, its records in `requests.jsonl`.

Only reads. A journal may hold several replays, of a search or of an interrupted run; a Result's own is the last
one with the seed that it names.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from advisor.validation.journal import read_journal
from advisor.validation.record import Record
from advisor.validation.result import REQUESTS_NAME, RESULT_NAME, Result
from engine.errors import InputError


def read_result(folder: Path) -> tuple[Result, tuple[Record, ...]]:
    """The Result in `folder`, and its records in order of arrival; none where there is no journal.

    A torn last line of the journal is left out. Raises InputError where there is no Result, it is of another
    version, or the journal is of another replay.
    """
    result = _result(folder / RESULT_NAME)
    path = folder / REQUESTS_NAME
    if not path.exists():
        return result, ()
    seed = result.replayed.seed
    own = [part for part in read_journal(path) if part.header.seed == seed]
    if not own:
        raise InputError(
            "the requests are of another replay than the result",
            where=str(path),
            why=f"the result is of seed {seed}, which no replay in the file has",
            hint=f"advise validate {folder}",
        )
    records = sorted(own[-1].records, key=lambda record: (record.t_sched, record.row))
    return result, tuple(records)


def _result(path: Path) -> Result:
    hint = f"advise validate {path.parent}"
    try:
        return Result.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError("cannot read the result", where=str(path), why=error.strerror, hint=hint) from None
    except ValidationError as error:
        why = f"it is not of this version: {len(error.errors())} of its fields are missing, unknown or wrong"
        raise InputError("cannot read the result", where=str(path), why=why, hint=hint) from None
