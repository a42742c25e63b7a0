"""The fleets of the fault suite: a tiny model in float64, the embedded one in float32, emulated ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tokenizers
from helpers.faults_client import Ask, asks
from helpers.tiny_model import write_tiny_model

from advisor.deploy.local import RunningEngine, start_engine
from engine.config import EngineConfig, ModelConfig, PoolConfig, RouterConfig, ServerConfig
from engine.emulation import EmulatedLink, EmulatedPool, Emulation
from engine.host import usable_cores
from engine.launchable import devices
from engine.step_time.published import TableStepTime

Kind = Literal["tiny", "embedded", "emulated"]
VOCAB = {"tiny": 256, "embedded": 49_152, "emulated": 32_000}
WORDS = {"tiny": "tiny float64", "embedded": "SmolLM2 fp32", "emulated": "emulated"}
KV_TOKENS = {"tiny": 8_192, "embedded": 16_384, "emulated": 40_000}


@dataclass(frozen=True)
class Spec:
    """A fleet of one kind. `server`: fields of ServerConfig; `steps_ms`: an emulated prefill's and decode's."""

    kind: Kind
    prefill: int = 0
    decode: int = 0
    colocated: int = 0
    fault: str | None = None
    max_seqs: int = 64
    server: Mapping[str, Any] = field(default_factory=dict)
    steps_ms: tuple[float, float] = (6.0, 8.0)

    @property
    def layout(self) -> str:
        """As people write it."""
        split = f"{self.prefill}P{self.decode}D" if self.prefill else ""
        return split + (f"{self.colocated} colocated" if self.colocated else "")

    @property
    def words(self) -> str:
        """Kind and layout."""
        return f"{WORDS[self.kind]}, {self.layout}"

    def asks(
        self, count: int, seed: int, *, longest: int = 120, output: tuple[int, int] = (8, 40)
    ) -> list[Ask]:
        """Requests for this model."""
        return asks(count, seed, vocab=VOCAB[self.kind], longest=longest, output=output)

    def start(self, folder: Path, *, port: int = 0, log: Path | None = None) -> RunningEngine:
        """Start it; `folder` is the tiny model's."""
        pools = self._pools()
        config = EngineConfig(
            pools=pools,
            model=_model(self.kind, folder),
            router=RouterConfig(policy="least_loaded"),
            server=ServerConfig.model_validate({"port": port, **self.server}),
        )
        return start_engine(
            config,
            fault=self.fault,
            log_file=log,
            emulation=_emulation(pools, *self.steps_ms) if self.kind == "emulated" else None,
            oversubscribe=usable_cores() < devices(config),
        )

    def _pools(self) -> tuple[PoolConfig, ...]:
        counts = {"prefill": self.prefill, "decode": self.decode, "colocated": self.colocated}
        common = {"token_budget": 256, "max_seqs": self.max_seqs, "kv_tokens": KV_TOKENS[self.kind]}
        return tuple(
            PoolConfig.model_validate({"role": role, "count": count, **common})
            for role, count in counts.items()
            if count
        )


def tiny_folder(folder: Path) -> Path:
    """A tiny random Llama, with a tokenizer of one word a token."""
    write_tiny_model(folder)
    words = {f"w{number}": number for number in range(VOCAB["tiny"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def _model(kind: Kind, folder: Path) -> ModelConfig:
    if kind == "embedded":
        return ModelConfig(dtype="float32")
    # In float64 two ways to compute a token differ by far less than any two logits.
    return ModelConfig(name=kind, path=str(folder), dtype="float64" if kind == "tiny" else "auto")


def _emulation(pools: tuple[PoolConfig, ...], prefill_ms: float, decode_ms: float) -> Emulation:
    """Instances of one made-up GPU: 512 prompt tokens take 5 x `prefill_ms`, 64 decodes 1.5 x `decode_ms`."""
    times = TableStepTime(
        prefill_ms={1: prefill_ms, 512: 5 * prefill_ms}, decode_ms={1: decode_ms, 64: 1.5 * decode_ms}
    )
    return Emulation(
        gpu="made up",
        pools=tuple(
            EmulatedPool(role=pool.role, step_time=times, kv_tokens=KV_TOKENS["emulated"]) for pool in pools
        ),
        link=EmulatedLink(bytes_per_s=25e9, latency_s=0.001),
        kv_bytes_per_token=131_072,
        max_len=4096,
        vocab=VOCAB["emulated"],
    )
