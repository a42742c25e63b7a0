"""The rules, one file an idea: small pure functions of explicit numbers that return a Finding or nothing."""

from __future__ import annotations

from types import ModuleType

from advisor.advice.rules import budget, capacity, data_quality, hosted, prefix, prompts, risks, split
from advisor.advice.rules.rule import Rule

_IDEAS: tuple[ModuleType, ...] = (prefix, budget, split, capacity, prompts, hosted, risks, data_quality)

ALL_RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in sorted(
        (value for module in _IDEAS for value in vars(module).values() if isinstance(value, Rule)),
        key=lambda rule: rule.code,
    )
}
