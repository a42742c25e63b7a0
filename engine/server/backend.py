"""What an instance needs of a model: an executor, the memory of its KV, and the sizes that bound requests.

Owns the loading of the real one, torch on this machine's GPUs or cores, from files that are already here: an
engine never fetches. Tests bring their own backend, so that HTTP is tested without a model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.config import EngineConfig, PoolConfig
from engine.devices import Gpu, cores_of_instance, cuda_gpus, pin_thread
from engine.emulated_backend import load_emulated
from engine.emulation import read_emulation
from engine.errors import MachineError
from engine.executors.warm_up import decode_sizes
from engine.host import usable_cores, usable_memory
from engine.kv.capacity import cpu_kv_bytes, gpu_kv_bytes, kv_blocks
from engine.launchable import CUDA_NOTE, why_too_few_cores
from engine.server.codec import config_folder
from engine.server.messages import Start
from engine.shape import ModelShape
from engine.split import local_shape
from engine.step import Executor
from engine.text import eos_token_ids
from engine.transfer.pages import Pages

ENGINE_EXTRA = "pip install 'advise[engine]'"
_ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """A loaded model. `num_blocks` counts the trash block; `max_len` is the model's context, tokens.

    `threads` are those of all `tp` ranks. `device` is `cpu` or the GPU's name; `note` is what a user should
    know of it.
    """

    executor: Executor
    eos_token_ids: frozenset[int]
    num_blocks: int
    vocab_size: int
    max_len: int
    dtype: str
    devices: tuple[str, ...]
    threads: int
    kv_tokens_planned: int
    device: str = "cpu"
    tp: int = 1
    note: str | None = None
    overlap: bool = False
    time_scale: float = 1.0  # wall seconds that a second of the core's clock takes
    pages: Pages | None = None
    close: Callable[[], None] = lambda: None


def load_backend(start: Start, config: EngineConfig, probed: Callable[[str], None]) -> Backend:
    """The backend of one instance; `probed` hears the numbers it computes in before the weights are loaded."""
    if start.emulation is None:
        return load_torch(start, config, probed)
    probed("none")
    parts = load_emulated(read_emulation(Path(start.emulation)), config, start.pool)
    return Backend(
        executor=parts.executor,
        eos_token_ids=frozenset(),
        num_blocks=parts.num_blocks,
        vocab_size=parts.vocab_size,
        max_len=parts.max_len,
        dtype="none",
        devices=(f"{parts.device} (emulated)",) * config.pools[start.pool].devices_per_instance,
        threads=1,
        kv_tokens_planned=parts.kv_tokens_planned,
        device=parts.device,
        tp=config.pools[start.pool].tp,
        pages=parts.pages,
        time_scale=parts.time_scale,
        close=parts.pages.close,
    )


def load_torch(start: Start, config: EngineConfig, probed: Callable[[str], None]) -> Backend:
    """Load the configured model on the instance's own devices.

    Raises MachineError where torch, the files, devices or memory are missing, InputError where the model does
    not split between the ranks.
    """
    try:
        from engine.executors.torch import TorchExecutor, probe_dtype
    except ImportError as error:
        why = f"{error.name} is not installed"
        raise MachineError("cannot load the engine", why=why, hint=ENGINE_EXTRA) from None
    pool, model, dummy = config.pools[start.pool], config.model, start.dummy
    folder = config_folder(model.path, dummy=dummy)
    shape = ModelShape.from_config(msgspec.json.decode((folder / "config.json").read_bytes()))
    local_shape(shape, pool.tp)
    gpus, host_cores = serving_gpus(pool, cuda_gpus()[start.first_device :]), usable_cores()
    if gpus:
        _log.warning(CUDA_NOTE)
    else:
        _refuse_too_few_cores(start, config, host_cores)
        pin_thread(cores_of_instance(start.first_device, pool.devices_per_instance))
    dtype = start.dtype
    if dtype == "auto":
        dtype = gpus[0].dtype if gpus else probe_dtype()
    probed(dtype)
    planned, blocks = kv_size(shape, pool, gpus, _ELEMENT_BYTES[dtype], host_cores)
    executor = TorchExecutor(
        folder,
        dtype=dtype,
        num_blocks=blocks,
        block_size=pool.block_size,
        threads=1 if gpus else pool.devices_per_instance // pool.tp,
        device="cuda" if gpus else "cpu",
        tp=pool.tp,
        pin=True,
        max_seqs=pool.max_seqs,
        cuda_graphs=pool.cuda_graphs,
        dummy=dummy,
        first_gpu=start.first_device,
        shared=start.transport is not None,
    )
    return Backend(
        executor=executor,
        eos_token_ids=eos_token_ids(folder),
        num_blocks=blocks,
        vocab_size=executor.shape.vocab,
        max_len=executor.shape.max_len,
        dtype=dtype,
        devices=_device_names("cuda" if gpus else "cpu", start.first_device, pool.devices_per_instance),
        threads=pool.devices_per_instance,
        kv_tokens_planned=planned,
        device=gpus[0].name if gpus else "cpu",
        tp=pool.tp,
        note=CUDA_NOTE if gpus else None,
        # On a CPU the step runs on the cores that would make the next one.
        overlap=bool(gpus),
        pages=executor.pages,
        close=executor.close,
    )


def _device_names(kind: str, first: int, count: int) -> tuple[str, ...]:
    return tuple(f"{kind}:{number}" for number in range(first, first + count))


def _refuse_too_few_cores(start: Start, config: EngineConfig, cores: int) -> None:
    why = why_too_few_cores(config, cores)
    if why is not None and not start.oversubscribe:
        raise MachineError(
            "the instances do not fit on the cores of this machine",
            where="pools",
            why=why,
            hint="advise launch --oversubscribe   (for correctness, never for goodput)",
        )


def serving_gpus(pool: PoolConfig, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs of an instance, one a rank; none where it is to run on cores.

    An instance of more devices than ranks was planned for cores. Raises MachineError for too few GPUs.
    """
    if not gpus or pool.devices_per_instance != pool.tp:
        return ()
    if len(gpus) < pool.tp:
        raise MachineError(
            f"an instance of {pool.tp} GPUs does not fit",
            where="pools.0.tp",
            why=f"this machine has {len(gpus)}",
            hint=f"tp: {len(gpus)}",
        )
    return tuple(gpus[: pool.tp])


def kv_size(
    shape: ModelShape, pool: PoolConfig, gpus: Sequence[Gpu], element_bytes: int, host_cores: int
) -> tuple[int, int]:
    """KV tokens as planned, and the blocks of each rank, trash block included, that this machine gives them."""
    if gpus:
        graph_rows = sum(decode_sizes(pool.max_seqs)) if pool.cuda_graphs else 0
        memory = gpu_kv_bytes(
            shape,
            memory_bytes=min(gpu.free_bytes for gpu in gpus),
            token_budget=pool.token_budget,
            max_seqs=pool.max_seqs,
            tp=pool.tp,
            weight_element_bytes=element_bytes,
            graph_bytes=graph_rows * shape.vocab * element_bytes,  # each graph has its own logits
        )
    else:
        cores = pool.devices_per_instance
        instance = cpu_kv_bytes(host_bytes=usable_memory(), host_devices=host_cores, instance_devices=cores)
        memory = instance // pool.tp
    blocks = kv_blocks(shape, memory, block_size=pool.block_size, tp=pool.tp, kv_element_bytes=element_bytes)
    if pool.kv_tokens is None:
        return (blocks - 1) * pool.block_size, blocks
    return pool.kv_tokens, min(blocks, max(pool.kv_tokens // pool.block_size, 1) + 1)
