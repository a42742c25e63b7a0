"""Attention over paged KV, one kernel for prefill, decode and a mix of both; and the merge of a split decode.

A program takes a tile of query rows (some tokens of one sequence, times the query heads of one KV head, so that
K and V are read once for the group) over all keys that those tokens see, by an online softmax in float32
(FlashAttention, Dao et al. 2022, section 3.1). A decode of few rows is cut along the keys as well: each part
writes its sum, peak and weight, and a second kernel merges them (Flash-Decoding, Dao et al. 2023).

Nothing past a sequence's length is read as a number: 0 x NaN is NaN (vllm#47305). Offsets into the pool are
64-bit: block x stride passes 2^31 in pools of a few GB (vllm#47671). Launched by `engine.kernels.paged`.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803, N806 - triton reads a kernel's annotations itself, and its constants are upper-case by custom

import triton
import triton.language as tl


@triton.jit
def _row_of(tile, starts, first_row, rows, base, TOKENS: tl.constexpr):
    """The last row whose first tile is at or before `tile`.

    Rows are given count // TOKENS + 1 tiles, one more than some need, so that a row's first tile follows from
    its first token alone.
    """
    low = 0
    high = rows
    while high - low > 1:
        middle = (low + high) // 2
        if (tl.load(starts + first_row + middle) - base) // TOKENS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["first_row", "rows", "table_row", "window"])
def attention_kernel(
    q,  # [tokens, heads, HEAD_DIM]
    keys,  # [blocks, BLOCK, kv_heads, HEAD_DIM]
    values,  # the same
    out,  # [tokens, heads, HEAD_DIM]; SPLIT: float32 [rows, heads, splits, HEAD_PAD], sums of weighted values
    peaks,  # SPLIT: float32 [rows, heads, splits], largest score, in units of log 2
    sums,  # SPLIT: float32 [rows, heads, splits], sum of weights
    starts,  # int32 [rows + 1], first token of each row
    lengths,  # int32 [rows], positions in KV, this step's included
    table,  # int32 [rows, at least the blocks of each]
    first_row,
    rows,
    scale,  # of scores, times log2(e)
    window,  # a query sees itself and the window - 1 positions before
    q_token,  # strides, in numbers; the last dimension's are 1
    q_head,
    out_token,
    out_head,
    kv_block,
    kv_slot,
    kv_head,
    table_row,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,  # rows of a tile
    KEYS: tl.constexpr,
    DECODE: tl.constexpr,  # row r has one token, token r, and one tile
    SPLIT: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    TOKENS: tl.constexpr = QUERIES // GROUP
    tile = tl.program_id(0)
    head_of_kv = tl.program_id(1)
    if DECODE:
        row = first_row + tile
        first = row
        count = 1
        offset = 0
    else:
        base = tl.load(starts + first_row)
        member = _row_of(tile, starts, first_row, rows, base, TOKENS)
        row = first_row + member
        first = tl.load(starts + row)
        count = tl.load(starts + row + 1) - first
        offset = (tile - ((first - base) // TOKENS + member)) * TOKENS
        if offset >= count:
            return
    length = tl.load(lengths + row)
    context = length - count

    lane = tl.arange(0, QUERIES)
    query = offset + lane // GROUP  # [QUERIES] which token of the row
    real = (lane < TOKENS * GROUP) & (query < count)
    position = context + query  # [QUERIES]
    head = head_of_kv * GROUP + lane % GROUP  # [QUERIES]
    dim = tl.arange(0, HEAD_PAD)
    real_dim = dim < HEAD_DIM
    token = (first + query).to(tl.int64)
    q_tile = tl.load(
        q + token[:, None] * q_token + head[:, None] * q_head + dim[None, :],
        mask=real[:, None] & real_dim[None, :],
        other=0.0,
    )  # [QUERIES, HEAD_PAD]

    end = tl.minimum(length, context + offset + TOKENS)  # no query of this tile sees a key from here on
    begin = 0
    if WINDOWED:
        begin = tl.maximum(context + offset - window + 1, 0) // KEYS * KEYS
    if SPLIT:
        splits = tl.num_programs(2)
        split = tl.program_id(2)
        share = tl.cdiv(tl.cdiv(end - begin, KEYS), splits) * KEYS
        begin += split * share
        end = tl.minimum(end, begin + share)

    peak = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, HEAD_PAD], tl.float32)
    for key_start in range(begin, end, KEYS):
        key = key_start + tl.arange(0, KEYS)
        known = key < end
        block = tl.load(table + row.to(tl.int64) * table_row + key // BLOCK, mask=known, other=0)
        place = block.to(tl.int64) * kv_block + key % BLOCK * kv_slot + head_of_kv * kv_head  # [KEYS]
        key_tile = tl.load(
            keys + place[None, :] + dim[:, None], mask=known[None, :] & real_dim[:, None], other=0.0
        )  # [HEAD_PAD, KEYS]
        value_tile = tl.load(
            values + place[:, None] + dim[None, :], mask=known[:, None] & real_dim[None, :], other=0.0
        )  # [KEYS, HEAD_PAD]
        scores = tl.dot(q_tile, key_tile, input_precision="ieee") * scale  # [QUERIES, KEYS]
        seen = (key[None, :] <= position[:, None]) & known[None, :]
        if WINDOWED:
            seen &= key[None, :] > position[:, None] - window
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        # A query that has seen no key yet has a peak of -inf, and -inf - -inf is NaN.
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - level[:, None])
        fade = tl.exp2(peak - level)
        total = total * fade + tl.sum(weights, 1)
        mixed = mixed * fade[:, None]
        mixed = tl.dot(weights.to(value_tile.dtype), value_tile, mixed, input_precision="ieee")
        peak = higher

    if SPLIT:
        part = (row.to(tl.int64) * HEADS + head) * splits + split  # [QUERIES]
        tl.store(peaks + part, peak, mask=real)
        tl.store(sums + part, total, mask=real)
        # An empty part is known by its peak; what is at its place in `out` is never read.
        full = real & (peak > float("-inf"))
        tl.store(out + part[:, None] * HEAD_PAD + dim[None, :], mixed, mask=full[:, None] & real_dim[None, :])
    else:
        mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(
            out + token[:, None] * out_token + head[:, None] * out_head + dim[None, :],
            mixed.to(out.dtype.element_ty),
            mask=real[:, None] & real_dim[None, :],
        )


@triton.jit
def merge_kernel(
    parts,  # float32 [rows, heads, SPLITS, HEAD_PAD]
    peaks,  # float32 [rows, heads, SPLITS]
    sums,  # the same
    out,  # [rows, heads, HEAD_DIM]
    out_token,
    out_head,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, HEAD_PAD)
    real_dim = dim < HEAD_DIM
    part = (row * HEADS + head) * SPLITS + tl.arange(0, SPLITS)  # [SPLITS]
    peak = tl.load(peaks + part)
    full = peak > float("-inf")
    highest = tl.max(peak, 0)
    weight = tl.exp2(peak - tl.where(highest == float("-inf"), 0.0, highest))  # [SPLITS], 0 for empty parts
    total = tl.sum(weight * tl.load(sums + part, mask=full, other=0.0), 0)
    mixed = tl.load(
        parts + part[:, None] * HEAD_PAD + dim[None, :], mask=full[:, None] & real_dim[None, :], other=0.0
    )  # [SPLITS, HEAD_PAD]
    merged = tl.sum(weight[:, None] * mixed, 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * out_token + head * out_head + dim, merged.to(out.dtype.element_ty), mask=real_dim)
