"""A server without weights whose KV is real and can be moved: `engine.executors.hashed`, no time between steps.

Output depends on every position of the KV it was made from. `model.path` in its engine.yaml is how long a step
takes, seconds; EOS ends a request now and then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

import numpy as np
from helpers.server_fake import EOS, VOCAB, BytesCodec, program, run

from advisor.deploy.local import RunningEngine, start_engine
from engine.config import EngineConfig, ModelConfig, PoolConfig, RouterConfig, ServerConfig
from engine.emulated_backend import hash_layout
from engine.executors.hashed import HashedKV
from engine.server.backend import Backend
from engine.server.messages import Start
from engine.step import Step, StepResult
from engine.transfer.pages import HostPages

_PROGRAM = program("server_kv")


def kv_engine(
    role: str, *, router: Mapping[str, object] | None = None, step_s: float = 0.0, **pool: object
) -> RunningEngine:
    """A running server of one instance of this role; `router` and `pool` are fields of their configurations."""
    config = EngineConfig(
        pools=(PoolConfig.model_validate({"role": role, "kv_tokens": 8192, **pool}),),
        router=RouterConfig.model_validate(router or {}),
        model=ModelConfig(name="hashes", path=str(step_s)),
        server=ServerConfig(port=0, drain_s=5.0),
    )
    return start_engine(config, program=_PROGRAM, timeout_s=60)


class Hashing:
    """An Executor over the pages' memory."""

    def __init__(self, pages: HostPages, step_s: float) -> None:
        self._kv = HashedKV(pages.array(0).view(np.uint32)[0, ..., 0], vocab=VOCAB)
        self._step_s = step_s

    def submit(self, step: Step) -> Hashed:
        return Hashed(self._kv, step, self._step_s)


class Hashed:
    """A step that runs when its result is asked for."""

    def __init__(self, kv: HashedKV, step: Step, step_s: float) -> None:
        self._kv, self._step, self._step_s = kv, step, step_s

    def result(self) -> StepResult:
        time.sleep(self._step_s)
        return StepResult(self._step.id, self._kv.carry_out(self._step))


def load_kv(start: Start, config: EngineConfig, probed: Callable[[str], None]) -> Backend:
    probed("none")
    pool = config.pools[start.pool]
    kv_tokens = pool.kv_tokens or 8192
    pages = HostPages.create(hash_layout(pool.block_size), kv_tokens // pool.block_size + 1)
    return Backend(
        executor=Hashing(pages, float(config.model.path or 0)),
        eos_token_ids=frozenset({EOS}),
        num_blocks=pages.num_blocks,
        vocab_size=VOCAB,
        max_len=4096,
        dtype="none",
        devices=(f"hashes:{start.first_device}",),
        threads=1,
        kv_tokens_planned=kv_tokens,
        pages=pages,
    )


def main() -> int:
    return run("server_kv", load_kv, BytesCodec())


if __name__ == "__main__":
    sys.exit(main())
