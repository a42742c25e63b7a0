"""Clients: how much of the traffic each sends, and how bursty each is by itself.

A sum of bursty clients can look smooth, and one of them can be most of the load (ServeGen, arXiv 2505.09999).
Works on client ordinals; names never come here.
"""

from __future__ import annotations

import numpy as np

from advisor.logs.trace import FloatColumn, IntColumn, Trace
from advisor.workload.arrivals import find_tick
from advisor.workload.model import Burstiness, Clients, TopClient

WINDOW_S = 600.0  # ServeGen's
ACTIVE_REQUESTS = 10  # of a client in a window; ServeGen's data has none with fewer
TOP = 10


def measure_clients(trace: Trace, rng: np.random.Generator) -> Clients | None:
    """Everything about clients; None where no request names one. `rng` places stamps within the clock tick."""
    if trace.client is None or not np.any(trace.client.codes >= 0):
        return None
    codes = trace.client.codes
    labelled = codes >= 0
    names = len(trace.client.names)
    tokens = (np.maximum(trace.prompt_tokens, 0) + np.maximum(trace.output_tokens, 0)).astype(np.float64)
    requests, by_client = (
        np.bincount(codes[labelled], weights=amount[labelled], minlength=names).astype(np.float64)
        for amount in (np.ones(len(trace)), tokens)
    )
    known = bool(tokens.any())
    order = np.argsort(-requests, kind="stable")
    order = order[requests[order] > 0]
    top = tuple(
        TopClient(
            client=int(client),
            request_share=float(requests[client] / len(trace)),
            token_share=float(by_client[client] / tokens.sum()) if known else None,
        )
        for client in order[:TOP]
    )
    return Clients(
        clients=len(order),
        request_share=float(labelled.mean()),
        top1_share=concentration(requests, 1, len(trace)),
        top10_share=concentration(requests, TOP, len(trace)),
        top1_token_share=concentration(by_client, 1, float(tokens.sum())) if known else None,
        top10_token_share=concentration(by_client, TOP, float(tokens.sum())) if known else None,
        top=top,
        burstiness=_burstiness_of_log(trace, rng),
    )


def concentration(amounts: FloatColumn, top: int, total: float) -> float:
    """Share of `total` that the largest `top` amounts have. [clients]"""
    return float(np.sort(amounts)[::-1][:top].sum() / total)


def burstiness(cv: FloatColumn, weight: FloatColumn) -> Burstiness:
    """Summary of the active windows of all clients: CV of gaps and rate (or requests) of each. [windows]"""
    if len(cv) == 0:
        return Burstiness(
            window_s=WINDOW_S, active_windows=0, cv_p50=None, over_1_share=None, over_1_rate_share=None
        )
    return Burstiness(
        window_s=WINDOW_S,
        active_windows=len(cv),
        cv_p50=float(np.median(cv)),
        over_1_share=float(np.mean(cv > 1)),
        over_1_rate_share=float(weight[cv > 1].sum() / weight.sum()),
    )


def window_variation(client: IntColumn, arrival_s: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
    """CV of the gaps, and the requests, of every active window of every client.

    Windows are consecutive from time 0; gaps are those between arrivals of one client in one window. A window
    without time between its arrivals has no CV and is left out.
    """
    window = (arrival_s // WINDOW_S).astype(np.int64)
    order = np.lexsort((arrival_s, window, client))
    client, window, stamps = client[order], window[order], arrival_s[order]
    same = (client[1:] == client[:-1]) & (window[1:] == window[:-1])
    group = np.concatenate(([0], np.cumsum(~same))) if len(client) else np.zeros(0, dtype=np.int64)
    counts = np.bincount(group).astype(np.float64)
    gaps, of = np.diff(stamps)[same], group[1:][same]
    gap_counts = np.maximum(1, counts - 1)
    mean = np.bincount(of, weights=gaps, minlength=len(counts)) / gap_counts
    deviation = np.bincount(of, weights=(gaps - mean[of]) ** 2, minlength=len(counts)) / gap_counts
    active = (counts >= ACTIVE_REQUESTS) & (mean > 0)
    return np.sqrt(deviation[active]) / mean[active], counts[active]


def _burstiness_of_log(trace: Trace, rng: np.random.Generator) -> Burstiness | None:
    """None where the log has no times or no label goes with one. Stamps are spread within the clock's tick."""
    codes = np.full(len(trace), -1) if trace.client is None else trace.client.codes
    rows = np.flatnonzero((codes >= 0) & np.isfinite(trace.arrival_s))
    if len(rows) == 0:
        return None
    stamps = trace.arrival_s[rows]
    tick_s = find_tick(np.diff(np.sort(trace.arrival_s[np.isfinite(trace.arrival_s)])))
    if tick_s is not None:
        stamps = stamps + rng.uniform(0.0, tick_s, len(stamps))
    return burstiness(*window_variation(codes[rows], stamps - stamps.min()))
