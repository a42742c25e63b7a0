"""A server process whose steps take a given time of the wall clock: the real loop, routes and EmulatedExecutor.

`model.path` in its engine.yaml is `BASE_S:TOKEN_S`: a step takes BASE_S, and TOKEN_S more for each token that
it computes, seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from helpers.server_fake import VOCAB, BytesCodec, program, run

from advisor.deploy.local import RunningEngine, start_engine
from engine.config import EngineConfig, ModelConfig, PoolConfig, ServerConfig
from engine.executors.emulated import EmulatedExecutor
from engine.server.backend import Backend
from engine.server.messages import Start
from engine.step_time.model import StepShape

_PROGRAM = program("server_emulated")


@dataclass(frozen=True)
class LinearStepTime:
    """Seconds of a step, linear in its tokens; as much of `StepTimeModel` as an executor asks for."""

    base_s: float
    token_s: float

    def seconds(self, shape: StepShape) -> float:
        return self.base_s + self.token_s * shape.tokens


def emulated_engine(base_s: float, token_s: float, *, pool: PoolConfig, **server: Any) -> RunningEngine:
    """A running emulation; `server` are fields of ServerConfig."""
    config = EngineConfig(
        pools=(pool,),
        model=ModelConfig(name="emulated", path=f"{base_s}:{token_s}"),
        server=ServerConfig(**{"port": 0, "drain_s": 5.0, **server}),
    )
    return start_engine(config, program=_PROGRAM, timeout_s=60)


def load_emulated(start: Start, config: EngineConfig, probed: Callable[[str], None]) -> Backend:
    probed("none")
    pool = config.pools[start.pool]
    base_s, token_s = map(float, str(config.model.path).split(":"))
    times: Any = LinearStepTime(base_s, token_s)
    kv_tokens = pool.kv_tokens or 65_536
    num_blocks = kv_tokens // pool.block_size + 1
    kv = np.zeros((2, num_blocks, pool.block_size), np.uint32)
    return Backend(
        executor=EmulatedExecutor(times, kv, sleep=time.sleep, clock=time.monotonic, vocab=VOCAB),
        eos_token_ids=frozenset(),
        num_blocks=num_blocks,
        vocab_size=VOCAB,
        max_len=4096,
        dtype="none",
        devices=("emulated:0",),
        threads=1,
        kv_tokens_planned=kv_tokens,
    )


def main() -> int:
    return run("server_emulated", load_emulated, BytesCodec())


if __name__ == "__main__":
    sys.exit(main())
