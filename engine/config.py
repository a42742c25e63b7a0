"""What the bundled engine runs: pools of instances, a router, a model, a server.

The generated `engine.yaml` is this model, nothing more. Unknown keys are errors that name the nearest known
key. The advisor writes it, `advise launch` reads it, the simulator runs it.
"""

from __future__ import annotations

import difflib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Config(BaseModel):
    """Base of every configuration model: frozen, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest_key(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for key in values:
                if key not in cls.model_fields:
                    near = difflib.get_close_matches(str(key), cls.model_fields, n=1)
                    hint = f"; did you mean {near[0]!r}?" if near else ""
                    raise ValueError(f"unknown key {str(key)!r}{hint}")
        return values


class PoolConfig(Config):
    """One pool of identical instances."""

    role: Literal["colocated", "prefill", "decode"] = Field(
        "colocated", description="which phases this pool's instances run"
    )
    count: int = Field(1, ge=1, description="instances in the pool")
    tp: int = Field(1, ge=1, description="tensor-parallel degree of one instance, devices")
    pp: int = Field(1, ge=1, description="pipeline stages of one instance")
    devices_per_instance: int = Field(
        1,
        ge=1,
        description="devices of one instance: GPUs, tp x pp of them, or CPU cores, of which each of the tp "
        "ranks gets an equal share as threads",
    )
    batching: Literal["chunked", "prefill_first"] = Field(
        "chunked",
        description="chunked: one token-budgeted step for decodes and prefill chunks; "
        "prefill_first: whole prompts before any decode, the papers' baseline",
    )
    token_budget: int = Field(512, ge=1, description="query tokens of one step, tokens")
    max_seqs: int = Field(64, ge=1, description="requests running at once")
    block_size: int = Field(16, ge=1, description="tokens of one KV block")
    prefix_cache: bool = Field(True, description="keep and reuse the KV of shared prompt prefixes")
    queue_policy: Literal["fcfs", "prefix_first"] = Field(
        "fcfs", description="order of waiting requests; prefix_first: longest cached prefix, with aging"
    )
    kv_tokens: int | None = Field(
        None, ge=1, description="KV cache size of one instance, tokens; null: what the memory allows"
    )
    cuda_graphs: bool = Field(True, description="on GPUs, replay decode steps as CUDA graphs; a CPU has none")


class RouterConfig(Config):
    """How requests find an instance."""

    policy: Literal["round_robin", "least_loaded", "prefix_affinity"] = Field(
        "round_robin", description="choice of instance"
    )
    bypass: bool = Field(False, description="prefill short uncached prompts on the decode instance")
    on_partner_loss: Literal["colocate", "reject"] = Field(
        "colocate", description="what a split does when the other side is gone"
    )
    transport: Literal["auto", "shared_memory", "cuda_ipc", "tcp"] = Field(
        "auto",
        description="how a split moves KV; auto: shared_memory between cores, cuda_ipc between GPUs of a host",
    )
    kv_host: str = Field("127.0.0.1", description="with transport tcp: the address that KV is pulled from")
    kv_from: tuple[str, ...] = Field(
        (), description="hosts beside loopback that a decode server behind another router may pull KV from"
    )


class ModelConfig(Config):
    """Which model, in which numbers."""

    name: str = Field("smollm2-135m-instruct", description="name in /v1/models, and in the model profiles")
    path: str | None = Field(None, description="local folder, GGUF file or hub name; null: the embedded model")
    dtype: Literal["auto", "bfloat16", "float16", "float32", "float64"] = Field(
        "auto",
        description="weights and KV; auto: on a CPU float32 where a probe finds it clearly faster, else "
        "bfloat16; on a GPU bfloat16 from compute capability 8.0 on, else float16; float64 is for exact tests",
    )
    max_len: int | None = Field(
        None, ge=1, description="longest prompt plus output, tokens; null: the model's own"
    )


class ServerConfig(Config):
    """The HTTP front."""

    host: str = Field("127.0.0.1", description="address to bind; anything but loopback needs an API key")
    port: int = Field(8000, ge=0, le=65535, description="port; 0 takes a free one")
    max_queued: int = Field(256, ge=1, description="requests waiting before new ones get 429")
    drain_s: float = Field(30.0, ge=0, description="time running requests get to finish after SIGTERM, seconds")
    restart: bool = Field(True, description="start an instance that died again")


class EngineConfig(Config):
    """Everything that `advise launch` needs to start the bundled engine."""

    pools: tuple[PoolConfig, ...] = Field((PoolConfig(),), min_length=1, description="the pools of instances")
    router: RouterConfig = Field(RouterConfig(), description="how requests find an instance")
    model: ModelConfig = Field(ModelConfig(), description="which model, in which numbers")
    server: ServerConfig = Field(ServerConfig(), description="the HTTP front")
