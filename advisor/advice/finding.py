"""A Finding: one piece of advice with the numbers and the source behind it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from advisor.workload.model import PromptPlace, Report

Evidence = dict[str, float | int | str | bool | None]


class Finding(Report):
    """One piece of advice.

    `verdict`: `do` is an advice to follow, `check` one that needs a measurement, a simulation or a look by a
    person, `off` says that the idea was considered and does not pay here. `basis` names paper and section, or
    `ours` where no paper states the threshold. `saving` and `next` are one sentence and one command or edit;
    `examples` are places in the log to look at, never text.
    """

    code: str = Field(pattern=r"^ADV[1-9]\d\d$")
    title: str
    verdict: Literal["do", "check", "off"]
    evidence: Evidence
    basis: tuple[str, ...] = Field(min_length=1)
    saving: str | None = None
    next: str | None = None
    examples: tuple[PromptPlace, ...] = ()
