"""The formats that are recognised, the most particular first.

Add one: a class as `base.Format` says in a file of its own, and its place in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.logs.formats.azure import Azure
from advisor.logs.formats.base import Format
from advisor.logs.formats.generic import Generic
from advisor.logs.formats.lmcache import LMCache
from advisor.logs.formats.mooncake import Mooncake
from advisor.logs.formats.openai import OpenAI
from advisor.logs.formats.saved import SavedTrace
from advisor.logs.options import ReadOptions
from advisor.logs.record import Row
from engine.errors import InputError

FORMATS: tuple[type[Format], ...] = (SavedTrace, Mooncake, Azure, LMCache, OpenAI, Generic)


def choose_format(sample: Sequence[Row], options: ReadOptions) -> type[Format] | None:
    """The format of a file's first rows; None where no one knows them. `--format` and `--map` decide first."""
    if options.format is not None:
        for kind in FORMATS:
            if kind.name == options.format:
                return kind
        names = ", ".join(kind.name for kind in FORMATS)
        raise InputError(f"--format {options.format!r} is not known", hint=f"use one of {names}")
    if options.field_map:
        return OpenAI if OpenAI.detect(sample) else Generic
    return next((kind for kind in FORMATS if kind.detect(sample)), None)
