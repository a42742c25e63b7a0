"""A Rule: the fixed part of a finding, written once beside the function that checks its condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from advisor.advice.finding import Evidence, Finding
from advisor.workload.model import PromptPlace


@dataclass(frozen=True, slots=True)
class Rule:
    """`condition` is what fires it, with its thresholds; `basis` the papers, or `ours` with the number."""

    code: str
    title: str
    condition: str
    basis: tuple[str, ...]

    def found(
        self,
        verdict: Literal["do", "check", "off"],
        evidence: Evidence,
        *,
        saving: str | None = None,
        next: str | None = None,  # noqa: A002 - the name in the JSON contract
        examples: tuple[PromptPlace, ...] = (),
    ) -> Finding:
        """The finding of this rule; floats in the evidence are rounded to six significant digits."""
        rounded = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in evidence.items()}
        return Finding(
            code=self.code,
            title=self.title,
            verdict=verdict,
            evidence=rounded,
            basis=self.basis,
            saving=saving,
            next=next,
            examples=examples,
        )
