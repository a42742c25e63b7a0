"""A server process whose steps take a given time of the wall clock: the real loop, routes and EmulatedExecutor.

`model.path` in its engine.yaml is `BASE_S:TOKEN_S`: a step takes BASE_S, and TOKEN_S more for each token that
it computes, seconds.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.server_fake import VOCAB, BytesCodec

from advisor.deploy.local import RunningEngine, start_engine
from engine.config import EngineConfig, ModelConfig, PoolConfig, ServerConfig
from engine.executors.emulated import EmulatedExecutor
from engine.server.__main__ import arguments
from engine.server.backend import Backend
from engine.server.process import Options, serve
from engine.step_time.model import StepShape

_PROGRAM = (
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parent.parent)!r}); "
    "from helpers.server_emulated import main; sys.exit(main())",
)


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


def load_emulated(config: EngineConfig) -> Backend:
    pool = config.pools[0]
    base_s, token_s = map(float, str(config.model.path).split(":"))
    times: Any = LinearStepTime(base_s, token_s)
    kv_tokens = pool.kv_tokens or 65_536
    return Backend(
        executor=EmulatedExecutor(times, sleep=time.sleep, clock=time.monotonic, vocab=VOCAB),
        codec=BytesCodec(),
        eos_token_ids=frozenset(),
        num_blocks=kv_tokens // pool.block_size + 1,
        vocab_size=VOCAB,
        max_len=4096,
        dtype="none",
        devices=("emulated:0",),
        threads=1,
        kv_tokens_planned=kv_tokens,
    )


def main() -> int:
    given = arguments().parse_args()
    return serve(
        given.config, load_emulated, Options(given.port, given.step_log, given.fault, given.parent_pid)
    )


if __name__ == "__main__":
    sys.exit(main())
