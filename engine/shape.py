"""The sizes of a decoder-only model: enough to place it, count its memory and time its steps.

Owns the arithmetic from sizes to parameters and KV bytes: gated and plain MLPs, grouped KV heads, experts,
latent attention (MLA), sliding windows. Reading a `config.json` is `engine.shape_config`; holds no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HEAD_BYTES = 2.0  # quantised checkpoints leave embeddings and the vocabulary's matrix in 16 bits


@dataclass(frozen=True, slots=True)
class Experts:
    """The MLPs of a mixture of experts. `shared_ffn` is the width of all shared experts of a layer together.

    The first or every n-th `dense_layers` have one MLP of the model's `ffn` instead. `bias`: experts and their
    router have one; `gated_share`: a gate decides how much the shared experts count (Qwen2-MoE).
    """

    count: int
    active: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0
    bias: bool = False
    gated_share: bool = False


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2): the KV of a token is one vector of `kv_rank` + `rope`."""

    kv_rank: int
    q_rank: int | None
    nope: int
    rope: int
    value: int


@dataclass(frozen=True, slots=True)
class Window:
    """`layers` of the model attend to the last `size` tokens only, the others to all."""

    size: int
    layers: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of one model. `ffn` is the width of a dense layer's MLP; with MLA `head_dim` is that of q and k.

    Biases: `qkv_bias` (Qwen2), `out_bias` of attention's output, `mlp_bias`. `qk_norm`: norms on q and k
    (Qwen3). `norm_vectors`: vectors of `hidden` numbers in a layer's norms. `other_parameters`: learned
    positions, attention sinks, a final norm's bias. `quantised_bytes`: bytes a weight of the layers as the
    checkpoint stores it, None where it is not quantised.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_len: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    gated_mlp: bool = True
    out_bias: bool = False
    mlp_bias: bool = False
    norm_vectors: int = 2
    other_parameters: int = 0
    experts: Experts | None = None
    latent: Latent | None = None
    window: Window | None = None
    quantised_bytes: float | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Read the dictionary of a Hugging Face `config.json`.

        Raises InputError where a size is missing or the architecture is none that these sizes describe.
        """
        from engine.shape_config import shape_of_config  # it needs this class

        return shape_of_config(config)

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention."""
        if self.latent is not None:
            return self._latent_parameters(self.latent)
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        total = 2 * self.hidden * (q + kv)
        total += (q + 2 * kv) * self.qkv_bias + self.hidden * self.out_bias
        return total + 2 * self.head_dim * self.qk_norm

    def _latent_parameters(self, latent: Latent) -> int:
        head = latent.nope + latent.rope
        if latent.q_rank is None:
            query = self.hidden * self.heads * head
        else:
            query = latent.q_rank * (self.hidden + self.heads * head + 1)
        key_value = self.hidden * (latent.kv_rank + latent.rope) + latent.kv_rank
        key_value += latent.kv_rank * self.heads * (latent.nope + latent.value)
        return query + key_value + self.heads * latent.value * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert; 0 without experts."""
        return self._mlp(self.experts.ffn, self.experts.bias) if self.experts else 0

    @property
    def expert_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return self.layers - self.experts.dense_layers if self.experts else 0

    def _mlp(self, ffn: int, bias: bool) -> int:
        matrices = 3 if self.gated_mlp else 2
        return matrices * self.hidden * ffn + ((matrices - 1) * ffn + self.hidden) * bias

    def layer_parameters(self, *, active: bool = False) -> int:
        """Weights of all layers; `active`: only the experts that one token passes."""
        each = self.attention_parameters + self.norm_vectors * self.hidden
        dense = (self.layers - self.expert_layers) * self._mlp(self.ffn, self.mlp_bias)
        if self.experts is None:
            return self.layers * each + dense
        experts = self.experts
        router = self.hidden * (experts.count + experts.gated_share) + experts.count * experts.bias
        shared = self._mlp(experts.shared_ffn, bias=False) if experts.shared_ffn else 0
        routed = (experts.active if active else experts.count) * self.expert_parameters
        return self.layers * each + dense + self.expert_layers * (router + shared + routed)

    @property
    def embedding_parameters(self) -> int:
        """Weights of the token embedding and, where it is another one, of the vocabulary's matrix."""
        return self.vocab * self.hidden * (1 if self.tied_embeddings else 2)

    @property
    def parameters(self) -> int:
        """Weights of the whole model, elements; tied embeddings count once."""
        return self.embedding_parameters + self.layer_parameters() + self.hidden + self.other_parameters

    @property
    def active_parameters(self) -> int:
        """Weights that one token passes, both embeddings counted."""
        active = self.layer_parameters(active=True)
        return self.embedding_parameters + active + self.hidden + self.other_parameters

    def weight_bytes(self, bytes_per_element: float = 2) -> int:
        """Bytes of all weights; below 16 bits an element, embeddings keep 16."""
        layers = self.parameters - self.embedding_parameters
        return round(
            layers * bytes_per_element + self.embedding_parameters * max(bytes_per_element, HEAD_BYTES)
        )

    def kv_bytes_per_token(self, bytes_per_element: float = 2) -> int:
        """KV bytes of one token over all layers and heads, before any tensor-parallel split (DistServe).

        Layers with a sliding window count in full: an engine may keep what lies before it.
        """
        width = 2 * self.kv_heads * self.head_dim
        if self.latent is not None:
            width = self.latent.kv_rank + self.latent.rope
        return round(self.layers * width * bytes_per_element)

    def kv_share(self, tp: int) -> float:
        """Share of a token's KV that one of `tp` devices holds: whole heads; all of it where KV is latent."""
        return 1.0 if self.latent is not None else -(-self.kv_heads // tp) / self.kv_heads

    @property
    def attention_width(self) -> int:
        """Multiply-adds of one query-key pair in one layer: scores and values of all heads."""
        if self.latent is not None:
            return self.heads * (self.latent.nope + self.latent.rope + self.latent.value)
        return 2 * self.heads * self.head_dim
