"""One rank's forward pass: from a Step to its tokens.

Owns the model, the attention backend with its KV pool, the decode graphs and the call that samples. Knows
nothing of queues, clocks, other steps or who asks; a rank above 0 runs the same and gives no tokens.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from engine.attention.torch import TorchAttention
from engine.errors import InputError
from engine.executors.graphs import DecodeGraphs, Record, cuda_recorder
from engine.executors.shared_pool import as_tensor, create_memory
from engine.executors.tensor_parallel import GroupCollective
from engine.executors.warm_up import warm_up_steps
from engine.executors.wire import RankConfig
from engine.model.base import Model
from engine.model.collective import Alone
from engine.model.load import load_model
from engine.model.ops import Ops, TorchOps
from engine.sampling import Choice, TorchChoice, sample_step
from engine.shape import ModelShape
from engine.step import Step, StepResult
from engine.text import eos_token_ids
from engine.transfer.cuda_ipc import DeviceMemory
from engine.transfer.layout import KvLayout

_log = logging.getLogger(__name__)
DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,  # for tests that compare exactly
}


class MakesAttention(Protocol):
    """How every attention backend is made."""

    def __call__(
        self,
        shape: ModelShape,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        windows: Sequence[int],
        pool: torch.Tensor | None,
    ) -> Any:
        """A backend with a KV pool of `num_blocks`, in `pool`'s memory; see `engine.attention.base`."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """What a device brings: arithmetic, attention, sampling, and how it records graphs (None: it has none)."""

    ops: Ops
    make_attention: MakesAttention
    choice: Choice
    record: Record | None = None


def parts_of(device: torch.device) -> DeviceParts:
    """Torch on a CPU, our Triton kernels on CUDA."""
    if device.type == "cpu":
        return DeviceParts(TorchOps(), TorchAttention, TorchChoice())
    from engine.attention.triton import TritonAttention
    from engine.kernels.ops import TritonOps
    from engine.kernels.sampling import TritonChoice

    torch.cuda.set_device(device)
    attention = partial(TritonAttention, device=str(device))
    return DeviceParts(TritonOps(), attention, TritonChoice(), cuda_recorder(device))


class Runner:
    """Runs Steps on one device. `join` where there are other ranks, then `prepare`, then `run`.

    `parts` None: those of the device. Raises InputError where the folder's model cannot be run.
    """

    def __init__(self, config: RankConfig, parts: DeviceParts | None = None) -> None:
        if config.dtype not in DTYPES:
            raise InputError(
                f"unknown dtype {config.dtype!r}",
                why=f"known are auto, {', '.join(DTYPES)}",
                hint="dtype: auto",
            )
        self._config = config
        self._device = torch.device(config.device)
        self._parts = parts or parts_of(self._device)
        self._group = GroupCollective(config.rank, config.ranks) if config.ranks > 1 else None
        dtype, folder = DTYPES[config.dtype], Path(config.folder)
        self.model: Model = load_model(
            folder,
            dtype,
            device=config.device,
            collective=self._group or Alone(),
            ops=self._parts.ops,
            dummy=config.dummy,
            progress=_log.info if config.rank == 0 else None,
        )
        self.memory = create_memory(config, self.layout) if config.shared else None
        self._attention = self._parts.make_attention(
            self.model.local_shape,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            dtype=dtype,
            windows=self.model.windows,
            pool=None if self.memory is None else as_tensor(self.memory, dtype),
        )
        self._eos_token_ids = eos_token_ids(folder)
        self._graphs: DecodeGraphs | None = None

    @property
    def handle(self) -> bytes:
        """What opens this rank's pool from another process; empty where a file does, or nothing."""
        return self.memory.handle if isinstance(self.memory, DeviceMemory) else b""

    @property
    def layout(self) -> KvLayout:
        """How the KV of all ranks lies in memory."""
        config, shape = self._config, self.model.local_shape
        return KvLayout(
            model=hashlib.sha256((Path(config.folder) / "config.json").read_bytes()).hexdigest(),
            dtype=config.dtype,
            block_size=config.block_size,
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            ranks=config.ranks,
        )

    def join(self, rendezvous: str) -> None:
        """Meet the other ranks; returns when all are there."""
        if self._group is not None:
            self._group.join(rendezvous, self._config.device)

    @torch.inference_mode()
    def prepare(self) -> None:
        """Warm every variant up in the trash block, then capture the decode graphs where there are any."""
        config = self._config
        for step in warm_up_steps(block_size=config.block_size, max_seqs=config.max_seqs):
            self.run(step)
        if self._device.type == "cuda":
            self._attention.warm_up()
        if self._parts.record is not None and config.cuda_graphs:
            self._graphs = DecodeGraphs(
                self.model,
                self._attention,
                max_seqs=config.max_seqs,
                device=self._device,
                record=self._parts.record,
            )

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult | None:
        """Carry `step` out; the tokens are on the host when it returns. None on ranks above 0."""
        if self._graphs is not None and self._graphs.covers(step):
            logits = self._graphs.run(step)
        else:
            logits = self._forward(step)
        if logits is None:
            return None
        return sample_step(logits, step, self._eos_token_ids, self._parts.choice)

    def _forward(self, step: Step) -> torch.Tensor | None:
        ids: list[int] = []
        positions: list[int] = []
        sampled: list[int] = []
        for row in step.rows:
            ids += row.tokens
            positions += range(row.start, row.start + len(row.tokens))
            if row.sample:
                sampled.append(len(ids) - 1)
        meta = self._attention.plan(step.rows)
        # On a CPU this takes microseconds of a step of milliseconds, which buffers kept for it would not save.
        tokens, places, last = (
            torch.tensor(numbers, dtype=torch.int64).to(self._device) for numbers in (ids, positions, sampled)
        )
        return self.model.forward(tokens, places, last, self._attention, meta)
