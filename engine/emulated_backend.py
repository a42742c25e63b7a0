"""What an instance of an emulated fleet runs on: its executor, and its KV in pages that others can copy."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.config import EngineConfig
from engine.emulation import Emulation
from engine.executors.emulated import EmulatedExecutor
from engine.transfer.layout import KvLayout
from engine.transfer.pages import HostPages


@dataclass(frozen=True, slots=True)
class EmulatedParts:
    """What an instance's backend takes from an emulation. `num_blocks` counts the trash block.

    Steps are not to be made ahead of their tokens: the simulator makes none so. The core is to be told modelled
    times, the clock's over `time_scale`: by them its queue ages.
    """

    executor: EmulatedExecutor
    pages: HostPages
    num_blocks: int
    kv_tokens_planned: int
    vocab_size: int
    max_len: int
    device: str
    time_scale: float


def load_emulated(emulation: Emulation, config: EngineConfig, pool: int) -> EmulatedParts:
    """The parts of an instance of `config.pools[pool]`. Raises InputError where that cannot be emulated.

    Makes this process wake up on time; threads that it starts later do too.
    """
    emulation.check(config)
    _wake_on_time()
    ours, modelled = config.pools[pool], emulation.pools[pool]
    tokens = modelled.kv_tokens if ours.kv_tokens is None else ours.kv_tokens
    num_blocks = tokens // ours.block_size + 1
    pages = HostPages.create(hash_layout(ours.block_size), num_blocks)
    return EmulatedParts(
        executor=EmulatedExecutor(
            modelled.step_time,
            # Bytes [1 layer, 2, blocks, block_size, 4] as one uint32 each.
            pages.array(0).view(np.uint32)[0, ..., 0],
            sleep=time.sleep,
            clock=time.monotonic,
            time_scale=emulation.time_scale,
            vocab=emulation.vocab,
            never=frozenset(emulation.eos_token_ids),
        ),
        pages=pages,
        num_blocks=num_blocks,
        kv_tokens_planned=tokens,
        vocab_size=emulation.vocab,
        max_len=emulation.max_len,
        device=emulation.gpu,
        time_scale=emulation.time_scale,
    )


def hash_layout(block_size: int) -> KvLayout:
    """Pages of `HashedKV`: 8 bytes a position, one half of the hash as keys and the other as values."""
    return KvLayout(model="emulated", dtype="float32", block_size=block_size, layers=1, kv_heads=1, head_dim=1)


def _wake_on_time() -> None:
    """Linux lets a sleep end 50 us late to save wake-ups, 1 % of a step of 5 ms."""
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1", encoding="ascii")
