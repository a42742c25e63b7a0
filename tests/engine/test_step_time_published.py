"""Published step times give the values that their sources print: DistServe, Sarathi-Serve, Preble."""

from __future__ import annotations

import pytest

from advisor.advice import profiles
from engine.step_time.model import StepShape


def milliseconds(profile: str, shape: StepShape) -> float:
    """One step of a published profile."""
    found = next(p for p in profiles.step_times() if p.id == profile)
    return 1e3 * found.step_time().seconds(shape)


def prefill(new: int, context: int = 0) -> StepShape:
    return StepShape(prefill=((new, context),))


@pytest.mark.parametrize(
    ("profile", "tokens", "expected_ms"),
    [
        # DistServe repository's coefficients, D(512) and D(2048) at TP 1, 2, 4.
        ("distserve-opt-13b-tp1", 512, 72.15),
        ("distserve-opt-13b-tp2", 512, 50.50),
        ("distserve-opt-13b-tp4", 512, 31.70),
        ("distserve-opt-13b-tp1", 2048, 256.69),
        ("distserve-opt-13b-tp2", 2048, 165.46),
        ("distserve-opt-13b-tp4", 2048, 92.24),
        ("vllm-opt-13b-tp1", 512, 96.11),
        # Sarathi-Serve artifact, Yi-34B TP2 A100, prefill iterations.
        ("sarathi-yi-34b-tp2", 128, 48.1),
        ("sarathi-yi-34b-tp2", 512, 105.6),
        ("sarathi-yi-34b-tp2", 1024, 214.3),
        ("sarathi-yi-34b-tp2", 2048, 366.0),
        ("sarathi-yi-34b-tp2", 16384, 4407),
        # Preble, Mistral-7B on A100: 8.96 below 64 tokens, 10.5 below 256, then 0.0503 T + 5.51.
        ("sglang-mistral-7b-a100", 63, 8.96),
        ("sglang-mistral-7b-a100", 64, 10.5),
        ("sglang-mistral-7b-a100", 1000, 55.81),
    ],
)
def test_prefill_takes_what_the_source_prints(profile: str, tokens: int, expected_ms: float) -> None:
    assert milliseconds(profile, prefill(tokens)) == pytest.approx(expected_ms, abs=0.006)


@pytest.mark.parametrize(
    ("small", "large", "tokens", "speedup"),
    # K(TP1->2) of OPT-13B and K(TP2->4) of OPT-66B (DistServe, OSDI'24, derived goldens).
    [
        ("distserve-opt-13b-tp1", "distserve-opt-13b-tp2", 512, 1.43),
        ("distserve-opt-13b-tp1", "distserve-opt-13b-tp2", 2048, 1.55),
        ("distserve-opt-66b-tp2", "distserve-opt-66b-tp4", 512, 1.74),
        ("distserve-opt-66b-tp2", "distserve-opt-66b-tp4", 2048, 1.87),
    ],
)
def test_tensor_parallel_speedups_of_distserve(small: str, large: str, tokens: int, speedup: float) -> None:
    ratio = milliseconds(small, prefill(tokens)) / milliseconds(large, prefill(tokens))
    assert ratio == pytest.approx(speedup, abs=0.005)


@pytest.mark.parametrize(
    ("rows", "expected_ms"),
    # Sarathi-Serve artifact, Yi-34B decode by batch.
    [(1, 46.8), (4, 48.8), (8, 69.7), (32, 87.9), (128, 189.3)],
)
def test_decode_of_yi_34b(rows: int, expected_ms: float) -> None:
    assert milliseconds("sarathi-yi-34b-tp2", StepShape((), rows, 1000 * rows)) == pytest.approx(expected_ms)


def test_decodes_ride_along_with_a_chunk() -> None:
    # Sarathi-Serve artifact: 1,021 prefill tokens and 3 decodes 217.65 ms, 1,024 prefill tokens 217.2 ms.
    shape = StepShape(((1021, 0),), 3, 3000)
    assert milliseconds("sarathi-yi-34b-tp2", shape) == pytest.approx(217.65, rel=0.02)


def test_distserve_decode_switches_fits_at_batch_95() -> None:
    # OPT-13B TP1 coefficients below and from 95 (DistServe, OSDI'24), 544 tokens of context each.
    below = 19.9347 + 6.2694e-4 * 94 * 544 + 0.038507 * 94
    above = 7.1662 + 5.798e-4 * 95 * 544 + 0.158311 * 95
    assert milliseconds("distserve-opt-13b-tp1", StepShape((), 94, 94 * 544)) == pytest.approx(below)
    assert milliseconds("distserve-opt-13b-tp1", StepShape((), 95, 95 * 544)) == pytest.approx(above)


def test_niyama_has_two_pieces_for_mixed_batches() -> None:
    # Llama3-8B A100 (Sarathi-Serve, OSDI'24), seconds; total 512 and 513 tokens.
    small = 0.014936 + 5.88e-5 * 512 + 2.25e-5 * 500 + 3.63e-5 * 12 + 1.11e-7 * 12 * 1000 + 7.55e-7 * 300
    large = 0.005004 + 2.719e-5 * 513 + 6.863e-5 * 501 - 4.144e-5 * 12 + 1.663e-7 * 12 * 1000 + 2.727e-6 * 300
    for new, expected in ((500, small), (501, large)):
        shape = StepShape(((new, 300),), 12, 12 * 1000)
        assert milliseconds("sarathi-llama-3-8b-tp1", shape) == pytest.approx(1e3 * expected)


def test_a_cached_prefix_saves_what_preble_says() -> None:
    # Llama3-70B A100 TP2: 28.93 + 0.1822 ext + 0.0040 seq + 2.55e-6 ext seq ms (Sarathi-Serve, OSDI'24).
    name = "sglang-llama-3-70b-a100-tp2"
    whole = 28.93 + (0.1822 + 0.0040) * 4096 + 2.55e-6 * 4096**2
    cached = 28.93 + 0.1822 * 1024 + 0.0040 * 4096 + 2.55e-6 * 1024 * 4096
    assert milliseconds(name, prefill(4096)) == pytest.approx(whole)
    assert milliseconds(name, prefill(1024, 3072)) == pytest.approx(cached)


def test_a_fit_answers_only_for_the_phases_that_were_published() -> None:
    with pytest.raises(ValueError, match="decode"):
        milliseconds("sglang-llama-3-70b-h100-tp2", StepShape((), 1, 100))
    covers = {p.id: p.step_time().covers for p in profiles.step_times()}
    assert covers["distserve-opt-66b-tp8"] == {"prefill"}
    assert covers["distserve-opt-13b-tp1"] == covers["sarathi-yi-34b-tp2"] == {"prefill", "decode"}


def test_an_empty_step_takes_no_time() -> None:
    assert {milliseconds(p.id, StepShape()) for p in profiles.step_times()} == {0.0}
