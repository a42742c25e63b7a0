"""Prompt identity while recording: chained block ids out of a map of bounded size, and no tokenizer.

A prompt is cut into units of bytes; a unit's key covers its bytes and everything before them, under a secret
that lives in this process only. How many tokens a prefix has is a property of its text: the first request that
brings a stretch of new text says it, by its counted length, and it stands for all that share the stretch. So
blocks are of tokens, and equal prefixes have equal blocks.

Keys never leave, ids are ordinals. What was not used for long is forgotten and numbered anew when it returns: a
shared prefix may then look new, never a new one shared.
"""

from __future__ import annotations

import time

import numpy as np

from advisor.logs.trace import IntColumn
from engine.recent import RecentMap

BLOCK_TOKENS = 16
UNIT_BYTES = 32
_SCALE = 16  # token counts are kept in sixteenths of a token
_BLOCK = BLOCK_TOKENS * _SCALE
_TURN = 64  # units


class PrefixIds:
    """Gives equal prefixes equal ids. `most` is how many units of bytes it remembers."""

    def __init__(self, most: int, secret: int) -> None:
        self._units = RecentMap[int](most)  # key -> first block of the unit, and the tokens up to its end
        self._secret = secret
        self._next = 0

    def __len__(self) -> int:
        return len(self._units)

    def of(self, root: str, data: bytes, tokens: int | None, bytes_per_token: float) -> tuple[list[int], int]:
        """Ids of a prompt's full blocks, and its length in tokens: the one given, or an estimate.

        Prompts with different roots never share. `bytes_per_token` is for new text of unknown length.
        """
        keys = self._keys(root, data)
        units = np.array(self._units.leading(keys), dtype=np.int64)
        known = len(units)
        firsts, ends = units >> 32, units & 0xFFFFFFFF
        start = int(ends[-1]) if known else 0
        new_bytes = len(data) - known * UNIT_BYTES
        if tokens is None:
            tokens = max(1, round(start / _SCALE + new_bytes / bytes_per_token))
        if known < len(keys):
            # A block belongs to the unit in which it ends; new tokens are spread evenly over new bytes.
            new = max(0, tokens * _SCALE - start)
            new_ends = start + new * UNIT_BYTES * np.arange(1, len(keys) - known + 1) // new_bytes
            blocks = new_ends // _BLOCK - start // _BLOCK
            new_firsts = self._next + np.concatenate(([0], blocks[:-1]))
            self._next += int(blocks[-1])
            self._units.put(keys[known:], (new_firsts << 32 | new_ends).tolist())
            firsts, ends = np.concatenate((firsts, new_firsts)), np.concatenate((ends, new_ends))
        return _list_blocks(firsts, ends)[: tokens // BLOCK_TOKENS], tokens

    def _keys(self, root: str, data: bytes) -> list[int]:
        """The keys of the full units.

        `hash` of bytes is SipHash with a key of this process, and the chain starts at a secret: 64 bits are
        enough for ids that are compared within one process.
        """
        key = hash((self._secret, root))
        keys: list[int] = []
        for turn in range(0, len(data) - UNIT_BYTES + 1, _TURN * UNIT_BYTES):
            stop = min(turn + _TURN * UNIT_BYTES, len(data) - UNIT_BYTES + 1)
            for start in range(turn, stop, UNIT_BYTES):
                key = hash((key, data[start : start + UNIT_BYTES]))
                keys.append(key)
            time.sleep(0)  # gives up the interpreter's lock: the service's own thread goes first
        return keys


def _list_blocks(firsts: IntColumn, ends: IntColumn) -> list[int]:
    """The blocks of units in a row: those that end in each are numbered on from its first."""
    done = ends // _BLOCK
    counts = np.diff(done, prepend=0)
    ids: list[int] = (np.repeat(firsts - (done - counts), counts) + np.arange(counts.sum())).tolist()
    return ids
