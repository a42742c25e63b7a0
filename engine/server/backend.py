"""What the server needs of a model: an executor, a codec for text, and the sizes that bound requests.

Owns the loading of the real one, torch on this machine's CPU, from files that are already here: an engine never
fetches. Tests bring their own backend, so that HTTP is tested without a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from engine.config import EngineConfig, PoolConfig
from engine.errors import MachineError
from engine.fetch import model_folder
from engine.host import usable_cores, usable_memory
from engine.kv.capacity import cpu_kv_bytes, kv_blocks
from engine.server.codec import TextCodec
from engine.shape import ModelShape
from engine.step import Executor
from engine.text import Tokenizer, eos_token_ids

ENGINE_EXTRA = "pip install 'advise[engine]'"
_ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Backend:
    """A loaded model. `num_blocks` counts the trash block; `max_len` is the model's context, tokens."""

    executor: Executor
    codec: TextCodec
    eos_token_ids: frozenset[int]
    num_blocks: int
    vocab_size: int
    max_len: int
    dtype: str
    devices: tuple[str, ...]
    threads: int
    kv_tokens_planned: int


def load_torch(config: EngineConfig) -> Backend:
    """Load the configured model. Raises MachineError where torch, the files or memory are missing."""
    try:
        import torch

        from engine.executors.torch import TorchExecutor, probe_dtype
    except ImportError as error:
        why = f"{error.name} is not installed"
        raise MachineError("cannot load the engine", why=why, hint=ENGINE_EXTRA) from None
    pool, model = config.pools[0], config.model
    threads = pool.devices_per_instance
    torch.set_num_threads(threads)
    folder = model_folder(model.path, fetch=False)
    dtype = probe_dtype() if model.dtype == "auto" else model.dtype
    shape = ModelShape.from_config(msgspec.json.decode((folder / "config.json").read_bytes()))
    planned, blocks = _blocks(shape, pool, _ELEMENT_BYTES[dtype])
    executor = TorchExecutor(
        folder, dtype=dtype, threads=threads, num_blocks=blocks, block_size=pool.block_size
    )
    executor.warm_up()
    return Backend(
        executor=executor,
        codec=Tokenizer.load(folder, name=model.name),
        eos_token_ids=eos_token_ids(folder),
        num_blocks=blocks,
        vocab_size=executor.shape.vocab,
        max_len=executor.shape.max_len,
        dtype=dtype,
        devices=tuple(f"cpu:{core}" for core in range(threads)),
        threads=threads,
        kv_tokens_planned=planned,
    )


def _blocks(shape: ModelShape, pool: PoolConfig, element_bytes: int) -> tuple[int, int]:
    """KV tokens as planned, and the blocks, trash block included, that this machine gives them."""
    memory = cpu_kv_bytes(
        host_bytes=usable_memory(), host_devices=usable_cores(), instance_devices=pool.devices_per_instance
    )
    blocks = kv_blocks(shape, memory, block_size=pool.block_size, kv_element_bytes=element_bytes)
    if pool.kv_tokens is None:
        return (blocks - 1) * pool.block_size, blocks
    return pool.kv_tokens, min(blocks, max(pool.kv_tokens // pool.block_size, 1) + 1)
