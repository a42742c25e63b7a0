"""Latency targets of a request: what a good request is."""

from __future__ import annotations

from pydantic import Field

from engine.config import Config


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
