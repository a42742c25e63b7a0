"""The papers' numbers through the simulator, next to what they print; docs/papers.md says why they differ.

Needs ../shared for the lengths. `--requests N` of each simulation, 2,048 unless given: about four minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from advisor.simulation.slo import Slo

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
sys.path.insert(0, str(ROOT / "tests"))

from helpers import papers  # noqa: E402 - what the tests run, too
from helpers.papers import Served, mistral_7b, openchat, poisson, published, roofline, yi_34b  # noqa: E402

ACCURACY = {  # requests/s: attainment, %, of vLLM and of DistServe-Low, as measured there
    1.0: (97.0, 100.0),
    1.5: (65.5, 100.0),
    2.0: (52.8, 99.3),
    2.5: (44.9, 87.3),
    3.0: (36.7, 83.0),
    3.5: (27.8, 77.3),
    4.0: (23.6, 70.0),
}
CHATBOT_66B = {"text": Slo(ttft_s=2.5, tpot_s=0.15), "script": Slo(ttft_s=0.4, tpot_s=0.1)}
ABLATION = {
    "hybrid batching only": (0.53, 0.68),
    "chunked prefill only": (1.04, 0.17),
    "both": (0.76, 0.14),
}


def distserve(requests: int) -> None:
    """Figure 1, the plan of OPT-13B, the accuracy table."""
    print("DistServe Figure 1, requests/s           colocated  prefill  decode | ratios to colocated")
    print(
        "  paper                                       1.60     5.60   10.00 |  3.50  6.25  2.08 (2P1D a GPU)"
    )
    for name in ("vllm-opt-13b-tp1", "distserve-opt-13b-tp1"):
        found = papers.figure_one(published(name), requests)
        rates = "  ".join(f"{rate:7.2f}" for rate in found[:3])
        ratios = "  ".join(f"{ratio:4.2f}" for ratio in found.ratios)
        factor = "  ".join(f"{rate / of:.2f}x" for rate, of in zip(found[:3], (1.6, 5.6, 10.0), strict=True))
        print(f"  {name:38} {rates} |  {ratios}  faster than the paper: {factor}")
    for cv in (1.0, 3.0):
        load = poisson(requests, 512, 64, cv=cv)
        objective = papers.Attainment(papers.FIGURE_1)
        rate = papers.highest_rate([papers.whole(published("vllm-opt-13b-tp1"))], load, objective, 2.0)
        print(f"  colocated with gaps of CV {cv:.0f}: {rate:.2f} requests/s")
    load = poisson(requests, *openchat(SHARED, 2047))
    prefill = {tp: papers.prefill_rate_per_gpu(tp, load, 0.25) for tp in (1, 2, 4)}
    decode = {tp: papers.decode_rate_per_gpu(tp, load, 0.1) for tp in (1, 2)}
    print("OPT-13B chatbot, requests/s a GPU by TP (paper's plan: prefill TP2, decode TP1)")
    print(f"  prefill {_rounded(prefill)}, decode {_rounded(decode)}")
    print("OPT-66B, attainment %: paper | ours, targets of the text and of the script")
    for rate, measured in ACCURACY.items():
        for name, pools, value in zip(
            ("vLLM", "DistServe-Low"), (papers.vllm_66b(), papers.distserve_low()), measured, strict=True
        ):
            ours = [100 * papers.attainment(pools, load, rate, slo) for slo in CHATBOT_66B.values()]
            print(f"  {rate:.1f} rps {name:14} {value:5.1f} | {ours[0]:5.1f} {ours[1]:5.1f}")


def _rounded(rates: dict[int, float]) -> str:
    return ", ".join(f"TP{tp} {rate:.2f}" for tp, rate in rates.items())


def sarathi(requests: int) -> None:
    """Capacities by budget, gains over whole prompts first, the ablation table."""
    load = poisson(requests, *openchat(SHARED))
    cases: list[tuple[str, Served, tuple[float, ...], str]] = [
        ("Yi-34B, roofline", yi_34b(), (0.2, 1.0), "<= 3.7x, 1.65x"),
        ("Yi-34B, artifact's table", yi_34b(published("sarathi-yi-34b-tp2")), (0.2, 1.0), "<= 3.7x, 1.65x"),
        ("Mistral-7B, published", mistral_7b(), (0.1, 0.5), "2.6x"),
        ("Mistral-7B, roofline", mistral_7b(roofline("mistral-7b-v0.1")), (0.1, 0.5), "2.6x"),
    ]
    print("Sarathi-Serve, ShareGPT: capacity, requests/s, by budget (paper: 512 strict, 2048 relaxed)")
    for name, model, targets, gain in cases:
        for tbt_s, budget in zip(targets, (512, 2048), strict=True):
            stalling = model.capacity(load, tbt_s, 8192, batching="prefill_first")
            found = {size: model.capacity(load, tbt_s, size, tolerance=0.01) for size in (512, 1024, 2048)}
            by_budget = "  ".join(f"{size} {rate:5.2f}" for size, rate in found.items())
            print(
                f"  {name:25} P99 TBT {tbt_s:.1f} s: {by_budget} | whole prompts first {stalling:5.2f},"
                f" gain {found[budget] / stalling:.2f}x at {budget} (paper, over vLLM: {gain})"
            )
    prompt, output = openchat(SHARED)
    draws = [papers.ablation(yi_34b(), poisson(128, prompt, output, seed), 512) for seed in range(9)]
    print("Sarathi-Serve ablation, Yi-34B, 128 requests at 1 rps: P50 TTFT / P99 TBT, s (median of 9 draws)")
    for name, (ttft_s, tbt_s) in ABLATION.items():
        ours = np.median([one[name] for one in draws], axis=0)
        print(f"  {name:22} paper {ttft_s:.2f} / {tbt_s:.2f}  ours {ours[0]:.2f} / {ours[1]:.2f}")


def sglang() -> None:
    """Gains of the cache for chats, and what the order of the queue does."""
    print(
        "SGLang, 20 conversations of 4 turns at once, Llama-2-7B on A10G: gain of the cache (mean of 20 draws)"
    )
    for name, output, paper in (("short", (4, 8), "gains"), ("long", (256, 512), "almost none")):
        loads = [papers.chats(20, output, seed) for seed in range(20)]
        gains = {
            order: float(np.mean([papers.cache_gain(load, order) for load in loads])) for order in papers.ORDERS
        }
        print(f"  {name:5} replies: paper {paper:11} ours " + _percent(gains))
    print("Longest prefix first over FCFS, 32 documents (LPMX: P50 -62 %, P99 +64 %; FCFS hits all: P99 +13 %)")
    for kv, rate in ((24_000, 4.0), (80_000, 6.0)):
        load = papers.shared_documents(300, rate)
        before = papers.queue_order(load, kv, "fcfs")
        for order in ("prefix_first", "longest"):
            after = papers.queue_order(load, kv, order)
            p50, p99 = (np.quantile(after.e2e_s, q) / np.quantile(before.e2e_s, q) - 1 for q in (0.5, 0.99))
            hits = f"hit {before.hit_rate_tokens:.3f} -> {after.hit_rate_tokens:.3f}"
            print(f"  KV {kv:,}, {order:12}: {hits}, P50 {p50:+.0%}, P99 {p99:+.0%}")


def aging_rates() -> None:
    """What faster and slower aging of the prefix-first queue gives: why the engine's is what it is."""
    print("aging, tokens/s: gain of the cache with short and long replies (20 draws), P99 over FCFS (10 draws)")
    chats = [[papers.chats(20, output, seed) for seed in range(20)] for output in ((4, 8), (256, 512))]
    documents = [papers.shared_documents(300, 6.0, seed) for seed in range(10)]
    fcfs = [np.quantile(papers.queue_order(load, 80_000, "fcfs").e2e_s, 0.99) for load in documents]
    for rate in (1000.0, 500.0, 250.0):
        with papers.aging(rate):
            short, long = (np.mean([papers.cache_gain(one, "prefix_first") for one in some]) for some in chats)
            aged = [papers.queue_order(load, 80_000, "prefix_first").e2e_s for load in documents]
        p99 = np.mean([np.quantile(e2e_s, 0.99) / before for e2e_s, before in zip(aged, fcfs, strict=True)])
        print(f"  {rate:5,.0f}: {short:+.1%}, {long:+.1%}, {p99:.2f}x")


def _percent(gains: dict[str, float]) -> str:
    return ", ".join(f"{name} {gain:+.1%}" for name, gain in gains.items())


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=2048)
    requests = parser.parse_args().requests
    if not SHARED.is_dir():
        print("needs ../shared, which holds the lengths")
        return
    distserve(requests)
    sarathi(requests)
    sglang()
    aging_rates()


if __name__ == "__main__":
    main()
