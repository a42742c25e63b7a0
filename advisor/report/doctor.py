"""What `advise doctor` found, a line each: a word for how bad, what was looked at, what was found, what to do.

Owns wording and layout; the findings are from advisor.validation.doctor.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.validation.doctor import EndpointReport, EnvironmentReport, Finding

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def show_environment(console: Console, report: EnvironmentReport) -> None:
    """This machine's findings."""
    _findings(console, "this machine", report.findings)


def show_endpoint(console: Console, report: EndpointReport) -> None:
    """An endpoint's findings, and the command that would use it."""
    _findings(console, report.url, report.findings)
    if not report.fails:
        console.print()
        console.print(Text(f"next    advise validate --url {report.url}"))


def _findings(console: Console, title: str, findings: Sequence[Finding]) -> None:
    console.print(Text(title, style="bold"))
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        said = Text(finding.said)
        if finding.hint is not None:
            said.append(f"\nhint: {finding.hint}", style="dim")
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), Text(finding.name), said)
    console.print(table)
