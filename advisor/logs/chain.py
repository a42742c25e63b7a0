"""Block ids that name the content of one block, made to name all that comes before it too.

`Blocks` promises that equal ids mean equal content and equal content before. Most producers chain their hashes;
some hash each block by itself (the published Qwen-Bailian traces), so that one id stands behind different
beginnings. Exact: no hashing, so no collisions. Knows nothing of formats.
"""

from __future__ import annotations

import numpy as np

from advisor.logs.trace import IntColumn, rank_by_first


def is_chained(ids: IntColumn, starts: IntColumn) -> bool:
    """Whether every id always follows the same id, or always starts its row.

    `ids` are ordinals from 0; row i is `ids[starts[i]:starts[i + 1]]`.
    """
    if len(ids) == 0:
        return True
    # Half the width of `ids`: this runs over every block of the log.
    before = np.empty(len(ids), dtype=np.int32)
    before[1:] = ids[:-1]
    before[starts[:-1][np.diff(starts) > 0]] = -1
    one_before = np.empty(int(ids.max()) + 1, dtype=np.int32)
    one_before[ids] = before  # of an id that occurs several times, any one of its predecessors
    return bool(np.array_equal(one_before[ids], before))


def chain(ids: IntColumn, starts: IntColumn) -> IntColumn:
    """Ordinals in order of first appearance, one for each different beginning of a row.

    `ids` themselves where they are chained already. Goes over the rows once for every block of the longest.
    """
    if is_chained(ids, starts):
        return ids
    lengths = np.diff(starts)
    longest_first = np.argsort(-lengths, kind="stable")
    begins, ends = starts[:-1][longest_first], -lengths[longest_first]
    width = int(ids.max()) + 1
    chained = np.empty_like(ids)
    prefix = np.zeros(len(begins), dtype=np.int64)  # of each row so far
    distinct = 1
    for depth in range(int(lengths.max())):
        rows = int(np.searchsorted(ends, -depth))  # those with more blocks than this
        at = begins[:rows] + depth
        pairs, found = np.unique(prefix[:rows] * width + ids[at], return_inverse=True)
        prefix = distinct + found
        distinct += len(pairs)
        chained[at] = prefix
    return rank_by_first(chained)[1]
