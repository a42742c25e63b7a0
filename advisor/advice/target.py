"""The Target: which stack, model and devices a plan is for, and which latencies it must keep.

Owns the model and its YAML form. Every field carries its origin, so that each assumption can be printed:
flag > target file > what runs now > log > this machine > preset. Who fills it from those layers is `resolve`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from advisor.advice.host import HostCosts
from advisor.simulation.slo import Slo
from engine.config import Config

Origin = Literal["flag", "target file", "what runs now", "log", "this machine", "preset"]
Stack = Literal["advise", "vllm", "sglang", "trtllm"]
Dtype = Literal["auto", "bfloat16", "float16", "float32", "fp8", "fp4", "int8", "int4"]
KvDtype = Literal["auto", "bfloat16", "float16", "float32", "fp8"]
Objective = Literal["goodput", "tbt", "throughput"]

CPU = "cpu"  # the device name of this machine's cores


class Target(Config):
    """What a plan is for."""

    stack: Stack = Field("advise", description="serving engine")
    stack_version: str | None = Field(None, description="version of the serving engine")
    model: str = Field(description="a model profile's id, or the name of the model at `model_path`")
    model_path: str | None = Field(None, description="folder, GGUF file or config.json; null: by name")
    dtype: Dtype = Field("auto", description="weights; auto: bfloat16 where the device is fast in it")
    kv_dtype: KvDtype = Field("auto", description="KV cache; auto: as the weights")
    max_len: int | None = Field(None, ge=1, description="longest prompt plus output, tokens; null: the model's")
    gpu: str = Field(description="a GPU profile's id, or `cpu`: the cores of this machine")
    gpus: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        1, description="how many GPUs; on a CPU how many cores"
    )
    link: str | None = Field(None, description="network between nodes, e.g. 100Gbps; null: the GPU's own links")
    memory_bytes: int | None = Field(None, gt=0, description="memory of the host; only set where gpu is `cpu`")
    host: HostCosts | None = Field(
        None, description="what router and client take of the cores; only where gpu is `cpu`, null: constants"
    )
    gpu_price: float | None = Field(
        None, ge=0, description="US dollars an hour of one GPU; null: the dated price of the profiles"
    )
    slo: Slo = Field(Slo(), description="latency targets")
    objective: Objective = Field("goodput", description="what to maximise")
    deadline_s: float | None = Field(
        None, gt=0, description="seconds for the whole log as one batch; only without latency targets"
    )
    isolation: Literal["none", "client", "session"] = Field("none", description="who may share prefix blocks")
    origins: dict[str, Origin] = Field(default_factory=dict, description="where each field comes from")

    @property
    def on_cpu(self) -> bool:
        """Whether the devices are this machine's cores."""
        return self.gpu == CPU

    @property
    def host_costs(self) -> HostCosts:
        """What serving costs the host beside the steps: as measured, else the constants."""
        return self.host or HostCosts()
