"""Block ids and novel tokens equal what sets of whole prefixes give; hashes collide as rarely as is claimed."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from advisor.logs.columns import Columns
from advisor.logs.formats.base import Basis
from advisor.logs.identity import PrefixHasher
from advisor.logs.part import make_part
from advisor.logs.record import Prompt, Record
from advisor.logs.text import TextReader

KEY, OTHER_KEY = b"0123456789abcdef", b"fedcba9876543210"
Rows = list[tuple[str, list[int]]]
prompts = st.lists(
    st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 1), min_size=1, max_size=9)),
    min_size=1,
    max_size=12,
)


def build(
    rows: Rows, arrivals: list[int], size: int, key: bytes, batch: int = 5
) -> tuple[list[list[int]], list[int], list[int]]:
    """Block ids and novel tokens of the rows in order of arrival, and that order."""
    text, columns = TextReader(None, size, key), Columns(size)
    records = [
        Record(arrival_ns=arrival, model=model, prompt=Prompt(tokens=tokens))
        for (model, tokens), arrival in zip(rows, arrivals, strict=True)
    ]
    text.settle(records)
    for start in range(0, len(records), batch):
        some = records[start : start + batch]
        for record in some:
            text.hold(record)
        errors, content = text.take(some)
        assert errors == [None] * len(some)
        columns.add(make_part(some, content, key))
    trace = columns.finish(Basis(clock=None, arrival=""))[0]
    assert trace.blocks is not None
    assert trace.novel_tokens is not None
    order = np.argsort(arrivals, kind="stable").tolist()
    return [trace.blocks.row(row).tolist() for row in range(len(rows))], trace.novel_tokens.tolist(), order


@given(prompts, st.integers(1, 4), st.data())
def test_ids_and_novel_tokens_against_sets_of_prefixes(rows: Rows, size: int, data: st.DataObject) -> None:
    arrivals = data.draw(st.lists(st.integers(0, 5), min_size=len(rows), max_size=len(rows)))
    ids, novel, order = build(rows, arrivals, size, KEY)
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for place, row in enumerate(order):
        model, tokens = rows[row]
        ends = range(size, len(tokens) + 1, size)
        assert ids[place] == [known.setdefault((model, tuple(tokens[:end])), len(known)) for end in ends]
        prefixes = {(model, tuple(tokens[:end])) for end in range(1, len(tokens) + 1)}
        assert novel[place] == len(prefixes - seen)
        seen |= prefixes


@given(prompts, st.integers(1, 4))
def test_neither_the_key_of_the_run_nor_the_batches_show(rows: Rows, size: int) -> None:
    arrivals = list(range(len(rows)))
    assert build(rows, arrivals, size, KEY) == build(rows, arrivals, size, OTHER_KEY, batch=3)


@given(prompts, st.randoms(use_true_random=False))
def test_the_sum_of_novel_tokens_does_not_depend_on_order_or_block_size(rows: Rows, random: object) -> None:
    one = build(rows, list(range(len(rows))), 1, KEY)[1]
    other = build(rows, list(range(len(rows)))[::-1], 4, KEY)[1]
    assert sum(one) == sum(other)


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=12), min_size=1, max_size=8), st.integers(1, 5))
def test_a_number_stands_for_one_beginning_whatever_is_hashed_beside_it(
    rows: list[list[int]], width: int
) -> None:
    def numbers(prompts: list[list[int]]) -> list[list[int]]:
        counts = np.array([len(prompt) // width for prompt in prompts])
        flat = [word for prompt in prompts for word in prompt[: len(prompt) // width * width]]
        hashes = PrefixHasher(KEY, width).prefixes(np.array(flat, dtype=np.uint32).reshape(-1, width), counts)
        return [part.tolist() for part in np.split(hashes, np.cumsum(counts)[:-1])]

    together = numbers(rows)
    assert [numbers([row])[0] for row in rows] == together
    found = {
        number: tuple(row[: (i + 1) * width])
        for row, ids in zip(rows, together, strict=True)
        for i, number in enumerate(ids)
    }
    beginnings = {tuple(row[: end * width]) for row in rows for end in range(1, len(row) // width + 1)}
    assert set(found.values()) == beginnings
    assert len(found) == len(beginnings)


def test_words_that_differ_in_one_bit_or_trade_places_are_told_apart() -> None:
    """Half a million pairs for which a plain sum of products collides often: 2^64 leaves no chance for one."""
    rng = np.random.default_rng(0)
    base = rng.integers(0, 2**32, 16, dtype=np.uint32)
    rows = {base.tobytes()}
    for bit in range(512):
        changed = base.copy()
        changed[bit // 32] ^= np.uint32(1 << bit % 32)
        rows.add(changed.tobytes())
        for other in range(bit):
            if other % 32 == 31:  # the highest bits of two words
                again = changed.copy()
                again[other // 32] ^= np.uint32(1 << 31)
                rows.add(again.tobytes())
    rows |= {np.roll(base, shift).tobytes() for shift in range(16)}
    words = np.frombuffer(b"".join(sorted(rows)), dtype=np.uint32).reshape(-1, 16)
    one_block = np.ones(len(words), dtype=np.int64)
    assert len(np.unique(PrefixHasher(KEY, 16).prefixes(words, one_block))) == len(rows)
    as_prompts = PrefixHasher(KEY, 4).prefixes(words.reshape(-1, 4), 4 * one_block)[3::4]
    assert len(np.unique(as_prompts)) == len(rows)


def test_blocks_have_the_hashes_of_the_paper() -> None:
    """Multilinear in whole numbers of any size, also for blocks of more words than floats add up exactly."""
    rng = np.random.default_rng(0)
    for width in (1, 3, 16, 5000):
        words = rng.integers(0, 2**32, (40, width), dtype=np.uint32)
        words[0] = 2**32 - 1
        hasher = PrefixHasher(KEY, width)
        pieces = hasher._keys.astype(np.int64).astype(object)  # whole numbers of Python, as are all below
        keys = pieces[:, :2] + 2**24 * pieces[:, 2:]
        assert all(0 <= key < 2**47 for key in keys.flat)
        first = hasher._first.T.astype(object)
        expected = (first + words.view(np.uint16).astype(object) @ keys) % 2**47 // 2**15
        assert np.array_equal(np.stack(hasher._blocks(words), axis=1), expected)


def test_numbers_do_not_depend_on_how_many_blocks_are_hashed_at_once() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, (5000, 16), dtype=np.uint32)
    hasher = PrefixHasher(KEY, 16)
    together = hasher.prefixes(words, np.ones(len(words), dtype=np.int64))
    alone = [hasher.prefixes(words[row : row + 1], np.array([1]))[0] for row in range(0, 5000, 97)]
    assert together[::97].tolist() == alone


def test_hashes_are_spread_evenly() -> None:
    """The upper and lower halves of many hashes collide as often as random numbers do (birthday paradox)."""
    words = np.arange(1 << 18, dtype=np.uint32).reshape(-1, 1)
    hashes = PrefixHasher(KEY, 1).prefixes(words, np.ones(len(words), dtype=np.int64))
    expected = len(words) ** 2 / 2 / 2**32
    for half in (hashes >> np.uint64(32), hashes & np.uint64(2**32 - 1)):
        collisions = len(words) - len(np.unique(half))
        assert 0 <= collisions < 6 * expected
