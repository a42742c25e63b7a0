"""The backtest: factors hidden in a log come back, and on a real run of vLLM it says how far off it is."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from advisor.advice.backtest import Backtest, Measured, backtest
from advisor.advice.profiles import model_shape
from advisor.advice.search.hardware import Hardware
from advisor.advice.search.judge import simulate_layout
from advisor.advice.search.layout import Layout
from advisor.advice.sizing import ModelCopy
from advisor.advice.steps import choose_step_times
from advisor.advice.target import Target
from advisor.logs.trace import Trace
from advisor.simulation.from_trace import load_of
from engine.config import PoolConfig, RouterConfig


def hardware_for(target: Target) -> Hardware:
    shape = model_shape(target.model)
    model = choose_step_times(target, shape, 1, {}).model
    copy = ModelCopy(target, shape, 1, target.dtype)
    return Hardware(False, {1: model}, {1: copy}, 8192, shape.kv_bytes_per_token(), 1e11)


def one_instance(**settings: object) -> Layout:
    pool = PoolConfig(kv_tokens=200_000, **settings)  # type: ignore[arg-type]
    return Layout("as it runs", (pool,), RouterConfig())


def bursty_trace(requests: int) -> Trace:
    rng = np.random.default_rng(0)
    return Trace(
        arrival_s=np.cumsum(rng.exponential(0.25, requests)),
        prompt_tokens=rng.integers(100, 4000, requests),
        output_tokens=rng.integers(1, 300, requests),
    )


@pytest.mark.parametrize(("prefill", "decode"), [(1.0, 1.0), (1.6, 1.0), (0.8, 1.5), (2.0, 2.0)])
def test_factors_that_were_hidden_in_a_log_are_found(prefill: float, decode: float) -> None:
    hardware = hardware_for(Target(model="llama-3.1-8b", gpu="h100-sxm"))
    layout, trace = one_instance(token_budget=2048, max_seqs=128), bursty_trace(800)
    load = load_of(trace, 16)
    truth = simulate_layout(load, layout, hardware.moved(prefill=prefill, decode=decode))
    measured = Measured(truth.ttft_s, truth.tpot_s, truth.e2e_s, np.full(len(load), -1))
    found = backtest(load, measured, layout, hardware)
    assert found.prefill_factor == pytest.approx(prefill, rel=0.05)
    assert found.decode_factor == pytest.approx(decode, rel=0.05)
    assert found.off == (max(prefill, decode) > 1.25)
    assert max(abs(one.error) for one in found.after) < 0.05


def test_a_log_without_latencies_has_no_backtest() -> None:
    assert Measured.of(bursty_trace(100)) is None


def run_of_vllm(path: Path) -> Trace:
    """300 requests of Llama-3.1-8B on an RTX PRO 6000, vLLM 0.19.0 (LLMServingSim's measurements)."""
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))

    def column(name: str) -> np.ndarray:
        return np.array([float(row[name]) for row in rows])

    return Trace(
        arrival_s=column("queued_s"),
        prompt_tokens=column("input_tokens").astype(np.int64),
        output_tokens=column("output_tokens").astype(np.int64),
        ttft_s=column("first_token_s") - column("queued_s"),
        e2e_s=column("last_token_s") - column("queued_s"),
    )


def test_a_real_run_of_vllm_is_predicted_and_two_factors_help_on_its_second_half(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shared / "silicon/runs/llmservingsim-rtx_pro_6000-llama-3.1-8b-tp1.csv.gz"
    trace = run_of_vllm(path)
    target = Target(model="llama-3.1-8b", gpu="rtxpro6000", stack="vllm")
    layout = one_instance(token_budget=2048, max_seqs=128)
    measured = Measured.of(trace)
    assert measured is not None
    found = backtest(load_of(trace, 16), measured, layout, hardware_for(target))
    with capsys.disabled():
        show(found)
    assert {(one.metric, one.quantile) for one in found.before} >= {
        ("ttft_s", 50),
        ("tpot_s", 99),
        ("e2e_s", 90),
    }
    tpot = {one.quantile: one.error for one in found.after if one.metric == "tpot_s"}
    assert abs(tpot[50]) < 0.05
    assert found.helps


def show(found: Backtest) -> None:
    print(f"\nfactors: prefill {found.prefill_factor:.2f}, decode {found.decode_factor:.2f}")  # noqa: T201
    for before, after in zip(found.before, found.after, strict=True):
        print(  # noqa: T201 - the figures that are asked for
            f"{before.metric} P{before.quantile}: logged {before.logged:.4f} s, "
            f"predicted {before.predicted:.4f} s ({before.error:+.1%}), "
            f"fitted {after.predicted:.4f} s ({after.error:+.1%})"
        )
