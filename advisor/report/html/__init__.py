"""One HTML file: a plan, a validation, or both, for a browser without a network.

Owns the file: how it is put together and written. No script runs in it; what it shows comes from the Analysis,
the Trace, the Result and its records. The same inputs give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from advisor.advice.analysis import Analysis
from advisor.logs.trace import Trace
from advisor.validation.record import Record
from advisor.validation.result import Result

REPORT_NAME = "report.html"


def write_report(
    path: Path,
    *,
    analysis: Analysis | None,
    trace: Trace | None,
    result: Result | None,
    records: Sequence[Record] = (),
) -> Path:
    """Write the report, readable by its owner only, and give its path. `records`: else those of the Result.

    A report is of an analysis, a validation or both; without `trace` or records their figures are absent.
    Raises ValueError where it would be of nothing.
    """
    content = render(analysis=analysis, trace=trace, result=result, records=records)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        path.chmod(0o600)  # it may have been there
        file.write(content.encode("utf-8", "backslashreplace"))
    return path


def render(
    *, analysis: Analysis | None, trace: Trace | None, result: Result | None, records: Sequence[Record] = ()
) -> str:
    """The report as text. Raises ValueError where there is nothing to report."""
    from advisor.report.html.page import page  # matplotlib and Jinja2 load with it
    from advisor.report.html.template import fill

    if analysis is None and result is None:
        raise ValueError("a report needs an analysis or a result")
    of_run = tuple(records) or (() if result is None else result.records)
    return fill(page(analysis, trace, result, tuple(record.undilated() for record in of_run)))
