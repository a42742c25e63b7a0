"""The Target: which stack, model and devices a plan is for, and which latencies it must keep.

Owns the model and its YAML form. Every field carries its origin, so that each assumption can be printed:
flag > target file > log > this machine > preset. Who fills it from those layers is `resolve`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.config import Config

Origin = Literal["flag", "target file", "log", "this machine", "preset"]
Stack = Literal["advise", "vllm", "sglang", "trtllm"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
Objective = Literal["goodput", "throughput"]

CPU = "cpu"  # the device name of this machine's cores


class Slo(Config):
    """Latency targets of one request; null: not asked for. `attainment`: the share that must keep them."""

    ttft_s: float | None = Field(None, gt=0, description="time to first token, seconds")
    tpot_s: float | None = Field(None, gt=0, description="mean time per output token after the first, seconds")
    tbt_s: float | None = Field(None, gt=0, description="largest gap between tokens, seconds")
    attainment: float = Field(0.90, gt=0, le=1, description="share of requests that keep every target")

    @property
    def gap_s(self) -> float | None:
        """The per-token target a step must fit in, seconds: TBT, else TPOT as if it were TBT."""
        return self.tbt_s if self.tbt_s is not None else self.tpot_s


class Target(Config):
    """What a plan is for."""

    stack: Stack = Field("advise", description="serving engine")
    stack_version: str | None = Field(None, description="version of the serving engine")
    model: str = Field(description="a model profile's id, or the name of the model at `model_path`")
    model_path: str | None = Field(None, description="folder, GGUF file or config.json; null: by name")
    dtype: Dtype = Field("auto", description="weights; auto: bfloat16 where the device is fast in it")
    kv_dtype: Literal["auto", "bfloat16", "float16", "float32", "fp8"] = Field(
        "auto", description="KV cache; auto: as the weights"
    )
    max_len: int | None = Field(None, ge=1, description="longest prompt plus output, tokens; null: the model's")
    gpu: str = Field(description="a GPU profile's id, or `cpu`: the cores of this machine")
    gpus: int | Literal["auto"] = Field(1, description="how many GPUs; on a CPU how many cores")
    link: str | None = Field(None, description="network between nodes, e.g. 100Gbps; null: the GPU's own links")
    memory_bytes: int | None = Field(None, description="memory of the host; only set where gpu is `cpu`")
    slo: Slo = Field(Slo(), description="latency targets")
    objective: Objective = Field("goodput", description="what to maximise")
    isolation: Literal["none", "client", "session"] = Field("none", description="who may share prefix blocks")
    origins: dict[str, Origin] = Field(default_factory=dict, description="where each field comes from")

    @property
    def on_cpu(self) -> bool:
        """Whether the devices are this machine's cores."""
        return self.gpu == CPU
