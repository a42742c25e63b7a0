"""The Outcome: what became of every request of a Load, and of the instances that served it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.logs.trace import BoolColumn, FloatColumn, IntColumn
from advisor.simulation.slo import Slo


@dataclass(frozen=True, slots=True, repr=False)
class Outcome:
    """Columns: [requests], in the order of the Load. Times in seconds.

    A request that was refused, failed or never finished is not `served` and has NaN everywhere.
    """

    arrival_s: FloatColumn  # when it was sent: as in the Load for open turns, later for causal ones
    ttft_s: FloatColumn
    e2e_s: FloatColumn
    tpot_s: FloatColumn  # NaN for one output token
    max_gap_s: FloatColumn  # largest gap between two of its tokens; NaN for one output token
    queued_s: FloatColumn  # before its first step
    cached_tokens: IntColumn  # prompt tokens that hit at its first admission
    prompt_tokens: IntColumn
    output_tokens: IntColumn
    served: BoolColumn
    gap_s: FloatColumn  # [gaps], all gaps between tokens, equal ones once ...
    gap_count: FloatColumn  # [gaps], ... with how often each occurred
    preemptions: int = 0
    rerun: int = 0  # times that a request began again because its instance had died
    busy_s: float = 0.0  # summed over instances
    end_s: float = 0.0  # when the last request ended
    early_turns: float = 0.0  # share of turns sent before their predecessor ended
    stopped_early: bool = False  # the backlog showed that the target is out of reach

    def __len__(self) -> int:
        return len(self.arrival_s)

    def kept(self, slo: Slo) -> BoolColumn:
        """Requests that kept every latency target; those not served kept none (joint attainment, DistServe)."""
        good = self.served.copy()
        for limit, value in ((slo.ttft_s, self.ttft_s), (slo.tpot_s, self.tpot_s), (slo.tbt_s, self.max_gap_s)):
            if limit is not None:
                # One output token has no gap to be too long; what was not served is out already.
                good &= ~(value > limit)
        return good

    def attainment(self, slo: Slo) -> float:
        """Share of requests that kept every target; 0 for none, or where the pooled P99 gap exceeds `tbt_s`."""
        if len(self) == 0 or (slo.tbt_s is not None and (self.gap_quantile(0.99) or 0.0) > slo.tbt_s):
            return 0.0
        return float(self.kept(slo).mean())

    def gap_quantile(self, q: float) -> float | None:
        """Quantile of all gaps between tokens of all requests, seconds; None without gaps."""
        if len(self.gap_s) == 0:
            return None
        order = np.argsort(self.gap_s, kind="stable")
        total = np.cumsum(self.gap_count[order])
        return float(self.gap_s[order][np.searchsorted(total, q * total[-1])])

    @property
    def hit_rate_tokens(self) -> float | None:
        """Cached prompt tokens over all prompt tokens of served requests; None where none was."""
        prompt = int(self.prompt_tokens[self.served].sum())
        return float(self.cached_tokens[self.served].sum() / prompt) if prompt else None
