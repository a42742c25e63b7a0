"""Prompt tokens that no earlier request had before, at pages of one token: the least work of any prefix cache.

Owns the walk through what follows each beginning, token by token, where more than one block does. Works on the
numbers of `identity`, never on tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.logs.identity import Pages
from advisor.logs.ordinals import Ids, stretches
from advisor.logs.trace import IntColumn


def novel_tokens(
    ids: Ids, starts: IntColumn, fill: Ids, pages: Pages, root: Sequence[int] | IntColumn
) -> IntColumn:
    """Prompt tokens whose beginning no earlier row had, for each row.

    Their sum is the number of nodes of a radix tree with one-token pages: the least prefill work of any
    schedule (SGLang, NeurIPS'24, Theorem 3.1). `ids` are the blocks of rows in order of arrival, with a partial
    last one; `fill` and `pages` say of every block how many tokens it has and a hash of each. Rows of different
    `root` [rows] have nothing in common.
    """
    rows = len(starts) - 1
    first_row = np.full(len(fill), rows, dtype=np.int64)
    parent = np.zeros(len(fill), dtype=np.int64)
    roots = -1 - np.asarray(root, dtype=np.int64)
    for some, span in reversed(list(stretches(starts))):
        row = np.repeat(np.arange(some.start, some.stop), np.diff(starts[some.start : some.stop + 1]))
        here = ids[span]
        before = np.concatenate((here[:1], here[:-1])).astype(np.int64)
        is_first = np.append(True, row[1:] != row[:-1])
        before[is_first] = roots[row[is_first]]
        parent[here] = before
        first_row[here[::-1]] = row[::-1]  # the last one written stays
    node = np.argsort(first_row, kind="stable")
    node = node[first_row[node] < rows]
    novel = np.zeros(rows, dtype=np.int64)
    _, group = np.unique(parent[node], return_inverse=True)
    for depth in range(pages.shape[1] + 1):
        alone = np.bincount(group)[group] == 1
        novel += np.bincount(first_row[node[alone]], fill[node[alone]] - depth, rows).astype(np.int64)
        node, group = node[~alone], group[~alone]
        left = fill[node] > depth
        node, group = node[left], group[left]
        if len(node) == 0:
            break
        # Nodes are in the order of their first rows, so that the first of each group is the earliest.
        _, first, group = np.unique(group * 2**16 + pages[node, depth], return_index=True, return_inverse=True)
        novel += np.bincount(first_row[node[first]], minlength=rows)
    return novel
