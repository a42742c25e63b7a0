"""What the YAML files under `profiles/` hold, one model a file. No reading: that is `profiles`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.config import Config
from engine.shape import Experts, Latent, ModelShape, Window
from engine.step_time.published import Piece, PolynomialStepTime, TableStepTime
from engine.step_time.roofline import Constants

DeviceClass = Literal["nvlink", "blackwell", "pcie", "amd"]


class Link(Config):
    """A GPU's own link to its neighbours."""

    kind: Literal["none", "nvlink", "xgmi"]
    gbs_per_dir: float = Field(description="GB/s per direction per GPU")
    scope: str = Field(description="who is reached")


class GpuProfile(Config):
    """Vendor figures of one GPU; dense peaks."""

    id: str
    name: str
    vendor: Literal["nvidia", "amd"]
    aliases: tuple[str, ...] = ()
    memory_gb: float = Field(description="vendor nominal GB, 1e9 bytes")
    mem_bw_gbs: float = Field(description="peak memory bandwidth, GB/s")
    bf16_tflops: float = Field(description="dense peak, 1e12 FLOP/s")
    fp8_tflops: float | None = None
    fp4_tflops: float | None = None
    link: Link
    unverified: tuple[str, ...] = Field((), description="fields that rest on memory alone")
    sources: dict[str, tuple[str, ...]]

    @property
    def device_class(self) -> DeviceClass:
        """The class whose measured step times say how good a roofline of this GPU is."""
        if self.vendor == "amd":
            return "amd"
        if self.link.kind == "none":
            return "pcie"
        return "blackwell" if self.id.lstrip("g").startswith(("b200", "b300")) else "nvlink"

    def link_bytes_per_s(self, tp: int) -> float:
        """Bytes/s a direction between `tp` of these GPUs; 0: PCIe."""
        reached = self.link.scope.partition("-gpu bridge")[0].rpartition(" ")[2]
        if "bridge" in self.link.scope and reached.isdigit() and tp > int(reached):
            return 0.0
        return self.link.gbs_per_dir * 1e9


class ExpertsProfile(Config):
    """Sizes of a mixture of experts; see engine.shape.Experts."""

    count: int
    active: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0
    bias: bool = False


class LatentProfile(Config):
    """Sizes of latent attention; see engine.shape.Latent."""

    kv_rank: int
    q_rank: int | None
    nope: int
    rope: int
    value: int


class WindowProfile(Config):
    """A sliding window and how many layers have it."""

    size: int
    layers: int


class ModelProfile(Config):
    """Sizes of one model."""

    id: str
    aliases: tuple[str, ...] = ()
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_len: int
    tied_embeddings: bool
    gated_mlp: bool
    rope_theta: float | None
    qkv_bias: bool
    qk_norm: bool
    out_bias: bool = False
    mlp_bias: bool = False
    norm_vectors: int = Field(2, description="vectors of `hidden` numbers in a layer's norms")
    other_parameters: int = Field(
        0, description="weights beside layers and embeddings: positions, a norm's bias"
    )
    experts: ExpertsProfile | None = None
    latent: LatentProfile | None = None
    window: WindowProfile | None = None
    quantised_bytes: float | None = Field(None, description="bytes a weight of the layers; null: 16 bits")
    parameters: int = Field(description="weights, elements; tied embeddings once")
    active_parameters: int | None = Field(None, description="weights a token passes; null: all")
    unverified: tuple[str, ...] = Field((), description="fields that rest on memory alone")
    sources: tuple[str, ...]

    @property
    def shape(self) -> ModelShape:
        """The sizes as the engine and the roofline want them."""
        return ModelShape(
            self.layers,
            self.hidden,
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.ffn,
            self.vocab,
            self.max_len,
            rope_theta=self.rope_theta or 10_000.0,
            tied_embeddings=self.tied_embeddings,
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            gated_mlp=self.gated_mlp,
            out_bias=self.out_bias,
            mlp_bias=self.mlp_bias,
            norm_vectors=self.norm_vectors,
            other_parameters=self.other_parameters,
            experts=Experts(**self.experts.model_dump()) if self.experts else None,
            latent=Latent(**self.latent.model_dump()) if self.latent else None,
            window=Window(**self.window.model_dump()) if self.window else None,
            quantised_bytes=self.quantised_bytes,
        )


class SloPreset(Config):
    """A named pair of latency targets."""

    id: str
    ttft_s: float | None
    tpot_s: float | None
    attainment: float
    based_on: tuple[str, ...]
    ours: bool


class PublishedProfile(Config):
    """Published step times of one engine, GPU, model and TP, in milliseconds."""

    id: str
    engine: str
    engine_version: str | None = None
    gpu: str
    model: str
    tp: int
    prefill: tuple[Piece, ...] = ()
    decode: tuple[Piece, ...] = ()
    mixed: tuple[Piece, ...] = ()
    prefill_table: dict[int, float] | None = None
    decode_table: dict[int, float] | None = None
    kv_tokens: int | None = None
    source: str

    def step_time(self) -> PolynomialStepTime | TableStepTime:
        """The step-time model."""
        if self.prefill_table and self.decode_table:
            return TableStepTime(self.prefill_table, self.decode_table)
        return PolynomialStepTime(self.prefill, self.decode, self.mixed)


class RooflineError(Config):
    """How far a family's roofline was from measurements of one class."""

    of: DeviceClass | Literal["moe"] = Field(description="class of device, or models with experts")
    p50: float | None = Field(None, description="median of the absolute relative error; null: not measured")
    p90: float = Field(description="its P90, which plans state")
    rows: int = Field(description="measurements; 0: none, p90 is ours")
    unseen: bool = Field(description="whether the constants were chosen without them")
    sources: tuple[str, ...] = ()


class RooflineProfile(Config):
    """What one engine family gets out of its devices: the constants of `engine.step_time.roofline`."""

    id: str
    stacks: tuple[str, ...] = Field(description="serving engines that it stands for")
    before: int | None = Field(None, description="only for versions below this major one; null: for all")
    constants: Constants
    chosen_on: tuple[str, ...]
    checked_on: tuple[str, ...]
    errors: tuple[RooflineError, ...]

    def error(self, device: DeviceClass, *, experts: bool) -> RooflineError:
        """The known error for a class of device; the worst known where the class was not measured."""
        wanted = "moe" if experts else device
        found = next((error for error in self.errors if error.of == wanted), None)
        return found or max(self.errors, key=lambda error: error.p90)


class HostedPrice(Config):
    """List price of one hosted model, US dollars per million tokens, standard tier, smallest context tier."""

    provider: str
    model: str
    input: float
    cached_input: float | None = Field(None, description="prompt tokens read from the provider's cache")
    cache_write: float | None = Field(None, description="prompt tokens written to it, shortest lifetime")
    cache_write_1h: float | None = None
    cache_write_12h: float | None = None
    output: float
    batch_input: float | None = None
    input_above: dict[int, float] = Field({}, description="input price of prompts beyond so many tokens")
    context: int | None = Field(None, description="longest prompt plus output, tokens")
    min_cache_tokens: int | None = Field(None, description="shortest prefix that is cached")
    sources_agree: bool | None = Field(description="whether both sources print this; null: only one has it")
    sources: tuple[str, ...]


class GpuRental(Config):
    """What a GPU rents for, US dollars an hour: placeholders that the user overrides."""

    gpu: str
    usd_per_hour: float = Field(description="typical")
    low: float
    high: float
    as_of: str = Field(description="year and month, or `undated`")
    spot: bool = Field(False, description="may be taken away at any time")
    source: str


class CachingTerms(Config):
    """How a provider caches prompts."""

    provider: str
    automatic: bool | None = Field(description="whether prompts are cached without asking; null: unknown")
    ttl_s: int | None = Field(None, description="lifetime of an unused prefix, seconds; null: not stated")
    refresh_on_hit: bool | None = None
    granularity_tokens: int | None = None
    unverified: tuple[str, ...] = ()
    sources: tuple[str, ...]


class HostedHost(Config):
    """Whose hosted API a host name is."""

    host: str = Field(description="lower case; * stands for any part of it")
    provider: str


class HostedProfile(Config):
    """Prices of hosted APIs and of rented GPUs, with their date, and the hosts of such APIs."""

    as_of: str
    sources: dict[str, str]
    prices: tuple[HostedPrice, ...]
    caching: tuple[CachingTerms, ...]
    gpu_rental: tuple[GpuRental, ...]
    hosts: tuple[HostedHost, ...]
