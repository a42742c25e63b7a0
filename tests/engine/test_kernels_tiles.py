"""The table of tiles and the number of splits; nothing here runs a kernel."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from engine.errors import InputError, MachineError
from engine.kernels.tiles import KNOWN_CAPABILITIES, Gpu, splits_of, tile_of

A100, H100 = Gpu((8, 0), 108), Gpu((9, 0), 132)


@pytest.mark.parametrize("capability", [*KNOWN_CAPABILITIES, (8, 9), (10, 0), (12, 0)])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128])
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("group", [1, 3, 8, 71])
def test_every_gpu_has_a_tile_that_holds_a_token_with_all_its_heads(
    capability: tuple[int, int], head_dim: int, itemsize: int, group: int
) -> None:
    for decode in (True, False):
        tile = tile_of(Gpu(capability, 100), head_dim, group, itemsize, decode=decode)
        assert tile.queries >= max(16, group)
        for side in (tile.queries, tile.keys, tile.warps):
            assert side & (side - 1) == 0


def test_what_has_no_kernel_is_refused() -> None:
    with pytest.raises(MachineError, match=r"capability 7\.5"):
        tile_of(Gpu((7, 5), 40), 64, 1, 2, decode=True)
    with pytest.raises(InputError, match="heads of 256"):
        tile_of(A100, 256, 1, 2, decode=True)
    with pytest.raises(InputError, match="numbers of 8 bytes"):
        tile_of(A100, 64, 1, 8, decode=True)


# By hand from the rule: 4 programs a processor over rows x KV heads, parts of 256 positions or more, a power of
# two, at most 64.
@pytest.mark.parametrize(
    ("gpu", "rows", "kv_heads", "longest", "splits"),
    [
        (H100, 1, 8, 131_072, 64),  # 528 / 8 = 66, capped
        (H100, 1, 8, 2_048, 8),  # 8 parts of 256
        (H100, 1, 8, 2_049, 16),  # 9 of them, rounded up
        (H100, 8, 8, 131_072, 16),  # 528 / 64 = 8.25 -> 9
        (H100, 66, 8, 131_072, 1),
        (A100, 256, 8, 131_072, 1),
        (A100, 1, 1, 256, 1),
        (A100, 1, 1, 257, 2),
        (A100, 0, 1, 0, 1),
    ],
)
def test_splits_fill_the_processors_and_no_more(
    gpu: Gpu, rows: int, kv_heads: int, longest: int, splits: int
) -> None:
    assert splits_of(gpu, rows, kv_heads, longest) == splits
