"""A model without weights whose KV is real: position p of a request holds a hash of its tokens 0 to p.

A running hash, h(p) = h(p - 1) x BASE + token + 1 modulo 2^64, from 0: its low half lies where keys do, its
high half where values do. The token that a step yields is a function of the hash at its last position, so that
a token lost, doubled or misplaced, a wrong prefix hit or a bad copy of KV changes all output behind it. Two
neighbours give their token back. So before a prefill goes on behind earlier KV, and at a request's first and
last tokens, the whole context is read, and where two neighbours fit no token the hash goes wrong for good.
Other decodes read the last position alone.

Tokens are the same whatever the batching, the budget, the prefix cache, preemption or a split. How a request
samples does not matter to them, only how long it is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.step import PREVIOUS, Step, StepRow

BASE = 0x5851F42D4C957F2D  # odd, so that it has an inverse modulo 2^64 (Knuth's multiplier of MMIX)
MOST_TOKENS = 1 << 32  # of a vocabulary; a wrong neighbour passes for a token once in 2^32

_INVERSE = pow(BASE, -1, 1 << 64)
_WRONG = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
Hashes = npt.NDArray[np.uint64]
Halves = npt.NDArray[np.uint32]


class HashedKV:
    """KV and tokens of one emulated instance.

    `kv`: the memory, uint32 [2, blocks, block_size]. Tokens are below `vocab` and none of `never`.
    """

    def __init__(self, kv: Halves, *, vocab: int, never: frozenset[int] = frozenset()) -> None:
        _, blocks, self._block_size = kv.shape
        self._low, self._high = kv.reshape(2, blocks * self._block_size)
        self._never = np.array(sorted(token for token in never if token < vocab), dtype=np.uint64)
        self._choices = np.uint64(vocab - len(self._never))
        self._last: tuple[Step, tuple[int | None, ...]] | None = None
        self._powers, self._inverses = _powers(BASE, 512), _powers(_INVERSE, 512)

    def carry_out(self, step: Step) -> tuple[int | None, ...]:
        """Write the KV of the step's tokens; per row the sampled token, or None.

        All rows read before any writes: what the same step writes is not readable yet.
        """
        rows = step.rows
        ends = np.empty(len(rows), dtype=np.uint64)
        single = [i for i, row in enumerate(rows) if len(row.tokens) == 1 and row.start]
        slots: list[npt.NDArray[np.int64]] = []
        hashes: list[Hashes] = []
        if single:
            at, ends[single] = self._extend([rows[i] for i in single])
            slots.append(at)
            hashes.append(ends[single])
        for i, row in enumerate(rows):
            if len(row.tokens) > 1 or not row.start:
                hashes.append(self._chunk(row))
                slots.append(self._slots(row, row.start, row.start + len(row.tokens)))
                ends[i] = hashes[-1][-1]
        if rows:
            self._write(np.concatenate(slots), np.concatenate(hashes))
        sampled = self._tokens(ends).tolist()
        tokens = tuple([token if row.sample else None for row, token in zip(rows, sampled, strict=True)])
        self._last = step, tokens
        return tokens

    def _extend(self, rows: list[StepRow]) -> tuple[npt.NDArray[np.int64], Hashes]:
        """Rows of one token behind others: its place, and the hash that belongs there."""
        size = self._block_size
        start = np.array([row.start for row in rows])
        before = np.array([row.blocks[(row.start - 1) // size] for row in rows])
        own = np.array([row.blocks[row.start // size] for row in rows])
        prior = self._read(before * size + (start - 1) % size)
        for i, row in enumerate(rows):
            if _reads_all(row) and not self._context_fits(row):
                prior[i] ^= _WRONG
        tokens = [row.tokens[0] if row.tokens[0] != PREVIOUS else self._previous(row) for row in rows]
        hashes = prior * np.uint64(BASE) + np.array(tokens, dtype=np.uint64) + np.uint64(1)
        return own * size + start % size, hashes

    def _chunk(self, row: StepRow) -> Hashes:
        """The hashes of a row's tokens: powers of BASE, taken out of a plain running sum."""
        count = len(row.tokens)
        if count > len(self._powers):
            self._powers, self._inverses = _powers(BASE, 2 * count), _powers(_INVERSE, 2 * count)
        terms = (np.array(row.tokens, dtype=np.uint64) + np.uint64(1)) * self._inverses[:count]
        if row.start:
            prior = self._read(self._slots(row, row.start - 1, row.start))
            terms[:1] += (prior if self._context_fits(row) else prior ^ _WRONG) * np.uint64(BASE)
        return self._powers[:count] * np.cumsum(terms, dtype=np.uint64)

    def _context_fits(self, row: StepRow) -> bool:
        """Whether every two neighbours before the row's tokens are those of some token."""
        hashes = self._read(self._slots(row, 0, row.start))
        between = hashes - np.uint64(1)
        between[1:] -= hashes[:-1] * np.uint64(BASE)
        return bool((between < np.uint64(MOST_TOKENS)).all())

    def _slots(self, row: StepRow, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Where positions `start` to `stop` of the row lie."""
        size = self._block_size
        first = start // size
        blocks = np.array(row.blocks[first : -(-stop // size)], dtype=np.int64)
        places: npt.NDArray[np.int64] = (blocks[:, None] * size + np.arange(size)).ravel()
        return places[start - first * size : stop - first * size]

    def _read(self, slots: npt.NDArray[np.int64]) -> Hashes:
        hashes: Hashes = self._high[slots].astype(np.uint64) << _HALF
        hashes |= self._low[slots]
        return hashes

    def _write(self, slots: npt.NDArray[np.int64], hashes: Hashes) -> None:
        self._low[slots] = hashes.astype(np.uint32)
        self._high[slots] = (hashes >> _HALF).astype(np.uint32)

    def _previous(self, row: StepRow) -> int:
        """The token that the step before sampled for this row's request."""
        if self._last is not None:
            step, tokens = self._last
            for other, token in zip(step.rows, tokens, strict=True):
                if other.request_id == row.request_id and token is not None:
                    return token
        raise ValueError(f"no step before sampled a token of request {row.request_id}")

    def _tokens(self, hashes: Hashes) -> Hashes:
        """The token behind each hash: its bits mixed (splitmix64, Steele et al. 2014), below the vocabulary."""
        z = hashes ^ (hashes >> np.uint64(30))
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        z %= self._choices
        for token in self._never:
            z += z >= token
        return z


def _reads_all(row: StepRow) -> bool:
    """Whether a row of one token is to read its whole context."""
    return row.prefill or row.output_index <= 1 or row.output_index + 1 >= row.sampling.max_tokens


def _powers(base: int, count: int) -> Hashes:
    """base^0 to base^(count - 1), modulo 2^64."""
    factors = np.full(count, base, dtype=np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)
