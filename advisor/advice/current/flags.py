"""Reading a list of arguments, or a mapping of a config file, against one stack's table of flags.

Owns names (dashes and underscores, `--no-`, unique beginnings) and how many words a flag takes. Does not know
what a setting means, and never keeps the value of a flag that is not a knob.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from advisor.advice.current.model import TITLES, Stack, Unknown
from advisor.advice.current.secret import shown_name, without_userinfo
from advisor.advice.current.values import NUMBER, Given, Knob, convert
from engine.errors import InputError

Arity = Literal["bool", "one", "many"]


@dataclass(frozen=True, slots=True)
class Table:
    """The flags of one stack: knobs by flag, and the arity of all the others that are known."""

    stack: Stack
    knobs: Mapping[str, Knob]
    known: Mapping[str, Arity]
    positional: bool = False  # the first word without a flag is the model
    negated: bool = False  # --no-x turns a switch off

    @property
    def names(self) -> tuple[str, ...]:
        """Every known name, without dashes in front."""
        return (*self.knobs, *self.known)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The knobs that were given, by name, and the names of everything else."""

    given: dict[str, Given] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    notes: tuple[str, ...] = ()

    def over(self, other: Parsed) -> Parsed:
        """Both, where this one wins."""
        return Parsed(
            {**other.given, **self.given},
            tuple(dict.fromkeys((*self.ignored, *other.ignored))),
            tuple(dict.fromkeys((*self.unknown, *other.unknown))),
            tuple(dict.fromkeys((*self.notes, *other.notes))),
        )


@cache
def _known() -> dict[str, dict[str, list[str]]]:
    text = Path(__file__).with_name("known_flags.yaml").read_text(encoding="utf-8")
    return {name: {k: str(v).split() for k, v in kinds.items()} for name, kinds in yaml.safe_load(text).items()}


def table(
    stack: Stack,
    knobs: Sequence[Knob],
    sections: Sequence[str],
    *,
    positional: bool = False,
    negated: bool = False,
) -> Table:
    """A stack's table: its knobs, and the known flags of `sections` of known_flags.yaml."""
    by_flag = {flag: knob for knob in knobs for flag in knob.flags}
    arities: dict[str, Arity] = {"bool": "bool", "one": "one", "many": "many", "keys": "one"}
    known = {
        canonical(name): arities[kind]
        for section in sections
        for kind, names in _known()[section].items()
        for name in names
        if canonical(name) not in by_flag
    }
    return Table(stack, by_flag, known, positional, negated)


def canonical(flag: str) -> str:
    """A flag or key in the table's form: no leading `--`, dashes for underscores; `-tp` keeps its dash."""
    return flag.removeprefix("--").replace("_", "-")


def is_flag(word: str) -> bool:
    """Whether a word starts a flag; a negative number does not."""
    return len(word) > 1 and word[0] == "-" and not NUMBER.fullmatch(word)


def nearest(name: str, names: Iterable[str], prefix: str = "--") -> tuple[str, ...]:
    """Up to three known names near `name`, as they would be written."""
    near = difflib.get_close_matches(name.lstrip("-")[:80], [n for n in names if n[0] != "-"], n=3, cutoff=0.6)
    return tuple(prefix + n for n in near)


def parse_words(table: Table, words: Sequence[str]) -> Parsed:
    """The flags in `words`. Raises InputError on a knob without a value or with one that is none."""
    reader = _Words(table, list(words))
    while reader.left:
        reader.step()
    return Parsed(
        reader.given, tuple(dict.fromkeys(reader.ignored)), tuple(reader.unknown), tuple(reader.notes)
    )


class _Words:
    """The state of one pass over the words of a command."""

    def __init__(self, table: Table, words: list[str]) -> None:
        self.left = words[::-1]
        self.given: dict[str, Given] = {}
        self.ignored: list[str] = []
        self.unknown: list[Unknown] = []
        self.notes: list[str] = []
        self._table = table
        self._model_seen = False

    def step(self) -> None:
        word = self.left.pop()
        if not is_flag(word):
            self._positional(word)
            return
        flag, equals, inline = word.partition("=")
        if word[1] != "-" and word[:2] in self._table.known and canonical(flag) not in self._table.knobs:
            flag, equals, inline = word[:2], word[2:], word[2:]  # -O3
        found = self._find(canonical(flag.split(".")[0]))
        values = [inline] if equals else []
        if found is None:
            if not equals:
                self._take(1)
            if word != "--":
                self.unknown.append(Unknown(shown_name(flag), nearest(canonical(flag), self._table.names)))
            return
        name, off = found
        knob = self._table.knobs.get(name)
        if knob is None:
            self._ignore(flag, self._table.known[name], bool(equals))
        elif knob.kind == "switch":
            self.given[knob.name] = Given(not off, flag)
            self._refuse_truth(flag, values or self.left[-1:])
        else:
            values = values or self._take(1)
            if not values:
                raise InputError(
                    f"{flag} has no value", why=f"{TITLES[self._table.stack]} wants one", hint=f"{flag} VALUE"
                )
            self.given[knob.name] = self._given(knob, flag, values[0])

    def _given(self, knob: Knob, flag: str, value: str) -> Given:
        name, dot, key = flag.partition(".")
        if not dot or knob.kind != "json":
            return convert(self._table.stack, knob, value, flag)
        # vLLM: one key of a JSON argument, --kv-transfer-config.kv_role kv_producer.
        before = self.given[knob.name].json if knob.name in self.given else {}
        return Given(None, name, {**before, key: value})

    def _positional(self, word: str) -> None:
        if self._table.positional and not self._model_seen and "model" not in self.given:
            self._model_seen = True
            self.given["model"] = Given(without_userinfo(word), "the first word")
        elif word.strip():
            self.notes.append("a word that belongs to no flag was not understood")

    def _find(self, name: str) -> tuple[str, bool] | None:
        """The known name that `name` means, and whether it is turned off."""
        positive = name.removeprefix("no-")
        if self._table.negated and positive != name and self._plain(name) is None:
            found = self._plain(positive)
            return (found, True) if found and self._is_switch(found) else None
        found = self._plain(name)
        return (found, False) if found else None

    def _plain(self, name: str) -> str | None:
        if name in self._table.knobs or name in self._table.known:
            return name
        # argparse takes a beginning that only one flag has.
        starts = (
            [n for n in self._table.names if n.startswith(name)] if len(name) >= 4 and name[0] != "-" else []
        )
        return starts[0] if len(starts) == 1 else None

    def _is_switch(self, name: str) -> bool:
        knob = self._table.knobs.get(name)
        return knob.kind == "switch" if knob else self._table.known[name] == "bool"

    def _ignore(self, flag: str, arity: Arity, inline: bool) -> None:
        self.ignored.append(flag)
        if not inline and arity != "bool":
            self._take(1 if arity == "one" else len(self.left))

    def _take(self, most: int) -> list[str]:
        taken: list[str] = []
        while self.left and len(taken) < most and not is_flag(self.left[-1]):
            taken.append(self.left.pop())
        return taken

    def _refuse_truth(self, flag: str, values: list[str]) -> None:
        if values and values[0].lower() in ("true", "false"):
            hint = f"--no-{canonical(flag)}" if self._table.negated and values[0].lower() == "false" else flag
            why = f"in {TITLES[self._table.stack]} it takes no value: naming it turns it on"
            raise InputError(f"{flag} {values[0].lower()} is not understood", why=why, hint=f"write {hint}")


def parse_mapping(table: Table, values: Mapping[Any, Any], where: str) -> Parsed:
    """The keys of a config file. Raises InputError as `parse_words` does."""
    given: dict[str, Given] = {}
    ignored, unknown = [], []
    for key, value in values.items():
        name, by = canonical(str(key)), f"{where}: {shown_name(str(key))}"
        off = table.negated and name not in table.names and name.startswith("no-") and value is True
        knob = table.knobs.get(name.removeprefix("no-") if off else name)
        if knob is not None and value is not None:
            given[knob.name] = Given(False, by) if off else convert(table.stack, knob, value, by)
        elif knob is None and name not in table.known:
            unknown.append(Unknown(shown_name(str(key)), nearest(name, table.names, "")))
        else:
            ignored.append(shown_name(str(key)))
    return Parsed(given, tuple(ignored), tuple(unknown))
