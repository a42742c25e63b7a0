"""The blocks of a Trace: from numbers of logged hashes, of tokens or of bytes to chained ordinals.

Owns which rows' blocks count (the chosen ones, in order of arrival), that models and scopes never share, and
the final numbering in order of first appearance, which makes the result independent of the run's key. Lets go
of what it has used as it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from advisor.logs.chain import chain
from advisor.logs.identity import Pages
from advisor.logs.novel import novel_tokens
from advisor.logs.ordinals import Ids, merge_distinct, number, number_by_first, take_ragged
from advisor.logs.part import Content, Part, column, starts_of
from advisor.logs.token_blocks import find_byte_runs, to_token_blocks
from advisor.logs.trace import Blocks, BoolColumn, IntColumn, Labels


@dataclass(frozen=True, slots=True)
class Chosen:
    """The requests whose blocks are wanted, in order of arrival. Columns: [requests]."""

    content: IntColumn  # the row that shows the request's prompt, -1 for none
    prompt_tokens: IntColumn  # -1 where unknown
    model: Labels | None
    scope: IntColumn  # of logged ids: equal ids of different scopes are different


def read_text_blocks(parts: list[Part], chosen: Chosen, size: int) -> tuple[Blocks, IntColumn | None]:
    """The blocks of prompts read as text, and the novel tokens of each where they were read as tokens.

    Empties `parts`.
    """
    texts, sizes = [part.content for part in parts], [part.rows for part in parts]
    parts.clear()
    log = _Texts.of(texts, sizes, chosen)
    novel = None
    if log.fill is not None and log.pages is not None:
        novel = _novel(log, chosen)
        ids, starts, most = log.ids, log.starts, log.lengths // size
    elif len(log.ids):
        runs = find_byte_runs(log.ids, log.starts, log.guess)
        lengths, whole = log.lengths, log.whole
        del log
        ids, starts = to_token_blocks(runs, lengths, np.where(whole, chosen.prompt_tokens, -1), size)
        most = np.diff(starts)
    else:
        ids, starts, most = log.ids, log.starts, np.diff(log.starts)
    most = np.where(chosen.prompt_tokens < 0, most, np.minimum(most, chosen.prompt_tokens // size))
    ids, starts = take_ragged(ids, starts, np.arange(len(most)), most)
    return _blocks(size, ids, starts, "floor", "global", chosen), novel


def read_logged_blocks(
    parts: list[Part], chosen: Chosen, size: int, rounding: str, space: str
) -> Blocks | None:
    """The blocks that the log gives by ids; None where no request has any. Empties `parts`."""
    counts = np.maximum(column([part.id_counts for part in parts], [part.rows for part in parts], 0), 0)
    if rounding == "ceil" and not counts.any():  # where partial blocks count, no prompt is without one
        return None
    logged = [part.ids for part in parts]
    parts.clear()
    ids, count = number(logged)
    ids, starts = take_ragged(ids, starts_of(counts), chosen.content)
    ids, count = _apart(ids, starts, count, chosen.model, chosen.scope)
    ids = chain(_as_column(number_by_first(ids, count)), starts)
    return _blocks(size, ids, starts, rounding, space, chosen).fit(chosen.prompt_tokens)


def _blocks(size: int, ids: Ids, starts: IntColumn, rounding: str, space: str, chosen: Chosen) -> Blocks:
    known = chosen.content >= 0
    ids = number_by_first(ids, int(ids.max(initial=-1)) + 1)
    return Blocks(size, _as_column(ids), starts, rounding, space, None if known.all() else known)


def _as_column(ids: Ids) -> IntColumn:
    """Ids stay 32 bits wide where that is enough: they are most of a Trace."""
    return cast(IntColumn, ids)


@dataclass(frozen=True, slots=True, repr=False)
class _Texts:
    """The prompts of the chosen requests. Columns are of uses of blocks, of distinct blocks, or of requests."""

    ids: Ids  # [uses]
    starts: IntColumn  # [requests + 1]
    lengths: IntColumn  # [requests] tokens or bytes
    whole: BoolColumn  # [requests]
    fill: Ids | None  # [blocks]
    pages: Pages | None  # [blocks, tokens of a block]
    guess: npt.NDArray[np.uint16] | None  # [blocks]

    @classmethod
    def of(cls, texts: list[Content | None], sizes: Sequence[int], chosen: Chosen) -> _Texts:
        """Put parts together. Empties `texts`."""

        def rows(name: str, kind: npt.DTypeLike) -> Any:
            columns = [None if text is None else getattr(text, name) for text in texts]
            return column(columns, sizes, 0, kind)

        counts, lengths, whole = (rows(*each) for each in _OF_ROWS)
        found = [text for text in texts if text is not None]
        texts.clear()
        ordinals, count = merge_distinct([text.hashes for text in found])
        of_blocks = [_gather([getattr(text, name) for text in found], ordinals, count) for name in _OF_BLOCKS]
        places = [text.place for text in found]
        found.clear()
        ids = np.empty(sum(map(len, places)), dtype=ordinals[0].dtype)
        end = len(ids)
        while places:
            place = places.pop()
            ids[end - len(place) : end] = ordinals.pop()[place]
            end -= len(place)
        ids, starts = take_ragged(ids, starts_of(counts), chosen.content)
        apart, blocks = _apart(ids, starts, count, chosen.model, None)
        if apart is not ids:
            before = np.zeros(blocks, dtype=ids.dtype)
            before[apart] = ids
            of_blocks = [None if of_block is None else of_block[before] for of_block in of_blocks]
        return cls(apart, starts, lengths[chosen.content], whole[chosen.content], *of_blocks)


_OF_ROWS = (("counts", np.int64), ("lengths", np.int64), ("whole", np.bool_))
_OF_BLOCKS = ("fill", "pages", "guess")


def _novel(log: _Texts, chosen: Chosen) -> IntColumn:
    """Novel tokens of each request, at most its length; -1 where not all of its prompt is known."""
    if log.fill is None or log.pages is None:
        raise ValueError("novel tokens need token ids")
    root = np.zeros(len(chosen.content), dtype=np.int64) if chosen.model is None else chosen.model.codes
    novel = novel_tokens(log.ids, log.starts, log.fill, log.pages, root)
    tokens = chosen.prompt_tokens
    novel = np.where(tokens < 0, novel, np.minimum(novel, tokens))
    return np.where((chosen.content >= 0) & log.whole, novel, -1)


def _gather(columns: Sequence[Any], ordinals: Sequence[Ids], count: int) -> Any:
    """A column of all distinct blocks from those of the parts; the largest value where parts differ."""
    example = next((part for part in columns if part is not None), None)
    if example is None:
        return None
    whole = np.zeros((count, *example.shape[1:]), dtype=example.dtype)
    for part, ordinal in zip(columns, ordinals, strict=True):
        if part is not None:
            whole[ordinal] = np.maximum(whole[ordinal], part)
    return whole


def _apart(
    ids: Ids, starts: IntColumn, count: int, model: Labels | None, scope: IntColumn | None
) -> tuple[Ids, int]:
    """Ordinals under which equal ids of different models or scopes are different blocks."""
    lengths = np.diff(starts)
    for codes in (model.codes if model is not None and len(model.names) > 1 else None, scope):
        if codes is not None and (codes != codes[:1]).any():
            ids, count = number([np.repeat((codes + 1) * count, lengths) + ids])
    return ids, count
