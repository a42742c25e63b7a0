"""Requests with latency targets of their own: which class each is in, and how each class does.

Owns `--class FIELD=VALUE:ttft=..,tpot=..,tbt=..,attainment=..` and the scores by class. Targets that a class
does not name are the run's. A request is of the first class that it fits, in the order of the flags; one that
fits none is of the others, and keeps the run's targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import Field, ValidationError

from advisor.logs.trace import Labels, Trace
from advisor.simulation.slo import Slo
from advisor.units import parse_seconds
from advisor.validation.metrics import Score, score
from advisor.validation.record import Record
from advisor.validation.statistics import Evidence, evidence
from advisor.workload.model import Report
from engine.errors import InputError

FIELDS = ("route", "client", "model", "session")
OTHERS = "others"
_TARGETS = ("ttft", "tpot", "tbt", "attainment")
_LIFTED = "none"
_EXAMPLE = "--class route=/v1/completions:ttft=5s,tpot=200ms,attainment=0.8"


class ClassScore(Report):
    """One class of the requests of a run."""

    name: str
    slo: Slo
    own_targets: bool = Field(description="whether it has targets of its own (--class), not the run's")
    share: float = Field(description="of the requests")
    score: Score
    evidence: Evidence | None = Field(None, description="what its misses prove about its own attainment target")


@dataclass(frozen=True, slots=True)
class ClassTarget:
    """One `--class`. `named`: the targets it names, by the fields of Slo; None lifts a target of the run's."""

    field: str
    value: str
    named: tuple[tuple[str, float | None], ...]

    @property
    def name(self) -> str:
        """`FIELD=VALUE`: the class as the user put it."""
        return f"{self.field}={self.value}"

    def slo(self, run: Slo) -> Slo:
        """Its targets: the run's, but for those it names."""
        return run.model_copy(update=dict(self.named))


def parse_class(text: str) -> ClassTarget:
    """A class as the flag has it; `tbt=none` lifts a target. Values may hold `=` and `:`. Raises InputError."""
    who, colon, targets = text.rpartition(":")
    field, equals, value = (part.strip() for part in who.partition("="))
    if not colon or not equals or not value or not targets.strip():
        raise InputError(f"--class {text!r} is not FIELD=VALUE:TARGETS", hint=_EXAMPLE)
    if field not in FIELDS:
        raise InputError(
            f"--class field {field!r} is not known", why=f"it is one of {', '.join(FIELDS)}", hint=_EXAMPLE
        )
    named: dict[str, float | None] = {}
    for part in targets.split(","):
        name, _, quantity = (piece.strip() for piece in part.partition("="))
        if name not in _TARGETS or not quantity:
            why = f"a target is one of {', '.join(_TARGETS)}, and has a value"
            raise InputError(f"--class target {part.strip()!r} is not understood", why=why, hint=_EXAMPLE)
        key = name if name == "attainment" else f"{name}_s"
        if key in named:
            raise InputError(f"--class {field}={value} names {name} twice", hint=_EXAMPLE)
        named[key] = _quantity(name, quantity)
    return ClassTarget(field, value, tuple(named.items()))


def parse_classes(texts: Sequence[str]) -> tuple[ClassTarget, ...]:
    """All `--class` flags. Raises InputError, also where two are of the same requests."""
    targets = tuple(parse_class(text) for text in texts)
    names = [target.name for target in targets]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--class {name} is given twice", hint=f"--class {name}:ttft=5s,tpot=200ms")
    return targets


def assign(trace: Trace, targets: Sequence[ClassTarget]) -> list[str | None]:
    """The class of every row, by name; None: none of them. [requests]

    Raises InputError where the log does not tell the field, or nowhere has the value.
    """
    of_row: list[str | None] = [None] * len(trace)
    for target in reversed(targets):
        labels = _labels(trace, target)
        code = labels.names.index(target.value)
        for row in (labels.codes == code).nonzero()[0].tolist():
            of_row[row] = target.name
    return of_row


def slos(targets: Sequence[ClassTarget], run: Slo) -> dict[str, Slo]:
    """The targets of every class by its name, for `metrics.score(..., of_class=...)`."""
    return {target.name: target.slo(run) for target in targets}


def by_class(
    records: Sequence[Record], run: Slo, targets: Sequence[ClassTarget], window_s: float
) -> tuple[ClassScore, ...]:
    """How each class does, the worst first: by attainment minus its own target. Empty without classes.

    Goes by `slo_class` of the records; a class that has no request in the run has no score.
    """
    own = slos(targets, run)
    groups: dict[str, list[Record]] = {name: [] for name in (*own, OTHERS)} if own else {}
    for record in records if groups else ():
        groups[record.slo_class if record.slo_class in own else OTHERS].append(record)
    scores = [
        _score(name, group, own.get(name, run), name in own, len(group) / len(records), window_s)
        for name, group in groups.items()
        if group
    ]
    return tuple(sorted(scores, key=lambda one: one.score.attainment - one.slo.attainment))


def _score(
    name: str, records: Sequence[Record], slo: Slo, own_targets: bool, share: float, window_s: float
) -> ClassScore:
    reached = score(records, slo, window_s)
    return ClassScore(
        name=name,
        slo=slo,
        own_targets=own_targets,
        share=share,
        score=reached,
        evidence=evidence(reached.good, reached.requests, slo.attainment),
    )


def _labels(trace: Trace, target: ClassTarget) -> Labels:
    labels: Labels | None = getattr(trace, target.field)
    if labels is None or not labels.names:
        raise InputError(
            f"--class {target.name} cannot be told apart",
            why=f"the log has no {target.field} of its requests",
            hint=f"leave --class out, or give the log's field: advise analyze LOG --map {target.field}=FIELD",
        )
    if target.value not in labels.names:
        near = get_close_matches(target.value, labels.names, n=1, cutoff=0.0)
        raise InputError(
            f"--class {target.name}: no request has this {target.field}",
            hint=f"--class {target.field}={near[0]}:ttft=5s",
        )
    return labels


def _quantity(name: str, text: str) -> float | None:
    if text == _LIFTED and name != "attainment":
        return None
    try:
        value: Any = float(text) if name == "attainment" else parse_seconds(text, f"--class {name}")
        Slo(**{name if name == "attainment" else f"{name}_s": value})
    except (ValueError, ValidationError):
        kind = "a share above 0, up to 1" if name == "attainment" else "a time above 0"
        raise InputError(f"--class {name}={text} is not {kind}", hint=_EXAMPLE) from None
    return float(value)
