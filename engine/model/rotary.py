"""Rotary positions: the frequencies that a config asks for, and their cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from engine.model.supported import rope_settings
from engine.shape import ModelShape


def rotary_frequencies(shape: ModelShape, config: Mapping[str, Any]) -> torch.Tensor:
    """Radians a position for each pair of a head, [head_dim / 2] float32, scaled where the config asks.

    `linear` divides all by `factor`. `llama3` stretches wavelengths longer than the original context by
    `factor` and blends those near it (Llama 3.1 reference code). `yarn` blends between the pairs that turn
    `beta_fast` and `beta_slow` times in it (arXiv 2309.00071, section 3.2). The settings were checked at load.
    """
    pairs = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
    frequencies = torch.tensor(shape.rope_theta) ** -pairs
    kind, scaling = rope_settings(config)
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / float(scaling["factor"])
    if kind == "yarn":
        stretched = _yarn_ramp(shape, scaling)
        return frequencies * (1 - stretched) + frequencies / float(scaling["factor"]) * stretched
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    scaled: torch.Tensor = (1 - blend) * frequencies / scaling["factor"] + blend * frequencies
    return scaled


def rotary_magnitude(config: Mapping[str, Any]) -> float:
    """What sines and cosines are multiplied by: YaRN's temperature (section 3.3), else 1."""
    kind, scaling = rope_settings(config)
    if kind != "yarn":
        return 1.0
    stated = scaling.get("attention_factor")
    return float(0.1 * math.log(max(scaling["factor"], 1)) + 1 if stated is None else stated)


def _yarn_ramp(shape: ModelShape, scaling: Mapping[str, Any]) -> torch.Tensor:
    """How far each pair is stretched, 0 to 1: [head_dim / 2]."""

    def pair_of(turns: float) -> float:
        """The pair, counted in head dimensions, that makes so many turns in the original context."""
        context = scaling["original_max_position_embeddings"] / (2 * math.pi * turns)
        return shape.head_dim * math.log(context) / (2 * math.log(shape.rope_theta))

    low = max(math.floor(pair_of(scaling.get("beta_fast") or 32)), 0)
    high = min(math.ceil(pair_of(scaling.get("beta_slow") or 1)), shape.head_dim - 1)
    width = high - low if high != low else 0.001
    return ((torch.arange(shape.head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)


def rotary_tables(
    frequencies: torch.Tensor,
    max_len: int,
    dtype: torch.dtype,
    device: torch.device | str,
    magnitude: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and signed sine of every position, [max_len, 1, head_dim]; frequencies: [head_dim / 2] float32."""
    angles = torch.arange(max_len, dtype=torch.float32)[:, None] * frequencies
    cos, sin = (angles.cos() * magnitude).to(dtype), (angles.sin() * magnitude).to(dtype)
    return (
        torch.cat((cos, cos), dim=-1)[:, None, :].to(device),
        torch.cat((-sin, sin), dim=-1)[:, None, :].to(device),
    )
