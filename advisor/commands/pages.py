"""The HTML report: of an analysis as it is written, and again from what the commands left in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import InputError

if TYPE_CHECKING:
    from advisor.advice.analysis import Analysis
    from advisor.logs.trace import Trace
    from advisor.validation.record import Record
    from advisor.validation.result import Result


def write_analysis_page(folder: Path, analysis: Analysis, trace: Trace) -> Path:
    """Write the report of an analysis into `folder`. Raises InputError where it cannot be written."""
    return _write(None, folder, analysis, trace)


def write_page(folder: Path, path: Path | None = None) -> Path:
    """Write the report of what `folder` holds, a plan, a validation or both, to `path` (None: into the folder).

    Raises InputError where there is neither, or one of the files cannot be read or written.
    """
    from advisor.advice.drift import load_analysis
    from advisor.deploy.files import PLAN, TRACE
    from advisor.logs.read import read
    from advisor.validation.result import RESULT_NAME
    from advisor.validation.saved import read_result

    planned, validated = (folder / PLAN).exists(), (folder / RESULT_NAME).exists()
    if not planned and not validated:
        why = f"it holds neither {PLAN} nor {RESULT_NAME}"
        raise InputError("there is nothing to report", where=str(folder), why=why, hint="advise analyze LOG")
    analysis = load_analysis(folder) if planned else None
    trace = read([folder / TRACE]) if (folder / TRACE).exists() else None
    return _write(path, folder, analysis, trace, *(read_result(folder) if validated else ()))


def _write(
    path: Path | None,
    folder: Path,
    analysis: Analysis | None,
    trace: Trace | None,
    result: Result | None = None,
    records: Sequence[Record] = (),
) -> Path:
    from advisor.report.html import REPORT_NAME, write_report

    path = path or folder / REPORT_NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_report(path, analysis=analysis, trace=trace, result=result, records=records)
    except OSError as error:
        hint = "advise report --out FILE"
        raise InputError("cannot write the report", where=str(path), why=error.strerror, hint=hint) from None
