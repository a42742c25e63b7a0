"""What every StepTimeModel keeps to: calibrated, published, roofline, any of them scaled or on stages."""

from __future__ import annotations

from itertools import pairwise

import pytest

from advisor.advice.profiles import model_shape, step_times
from advisor.advice.steps import gpu_roofline
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.model import StepShape, StepTimeModel
from engine.step_time.pipelined import PipelinedStepTime
from engine.step_time.scaled import ScaledStepTime

MODELS: dict[str, StepTimeModel] = {
    "calibrated": CalibratedStepTime(Coefficients(1e-2, 1e-3, 1e-4, 1e-8, 1e-4, 1e-7)),
    "calibrated with bumps": CalibratedStepTime(
        Coefficients(1e-2, 1e-3, 1e-4, 1e-8, 1e-3, 1e-7), bumps=(0, 0, 0, 2e-3, 1e-3, 0, 0, 0, 0)
    ),
    **{
        f"roofline {name}": gpu_roofline(model_shape(name), "h100-sxm", "vllm", tp=8)
        for name in (
            "llama-3.1-8b",
            "mixtral-8x7b",
            "gpt-oss-120b",
            "mistral-7b-v0.1",
            "deepseek-v3",
            "opt-13b",
        )
    },
    **{profile.id: profile.step_time() for profile in step_times()},
}
MODELS |= {
    f"scaled {name}": ScaledStepTime(MODELS[name], 1.3, 0.8) for name in ("calibrated", "sarathi-yi-34b-tp2")
}
MODELS |= {
    f"pipelined {name}": PipelinedStepTime(MODELS[name], 4, 61, 7168, 32e9)
    for name in ("calibrated", "roofline deepseek-v3", "roofline mistral-7b-v0.1", "distserve-opt-13b-tp1")
}


def covers(model: StepTimeModel, phase: str) -> None:
    """Skip where a published fit does not answer for the phase."""
    if phase not in getattr(model, "covers", (phase,)):
        pytest.skip(f"published without {phase} steps")


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
class TestStepTimeModel:
    def test_nothing_takes_no_time(self, model: StepTimeModel) -> None:
        assert model.seconds(StepShape()) == 0.0

    def test_it_names_its_source_and_an_error_or_none(self, model: StepTimeModel) -> None:
        assert model.source in ("calibrated", "published", "roofline")
        assert model.error_p90 is None or 0 < model.error_p90 < 1

    def test_a_longer_prefill_takes_longer(self, model: StepTimeModel) -> None:
        covers(model, "prefill")
        times = [model.seconds(StepShape(prefill=((new, 0),))) for new in (512, 1024, 2048, 4096)]
        assert all(0 < shorter < longer for shorter, longer in pairwise(times))

    def test_more_decodes_take_no_less(self, model: StepTimeModel) -> None:
        covers(model, "decode")
        times = [model.seconds(StepShape((), rows, 1024 * rows)) for rows in (1, 8, 32, 64)]
        assert all(0 < fewer <= more for fewer, more in pairwise(times))

    @pytest.mark.parametrize("rows", [1, 7, 94, 95, 256])
    @pytest.mark.parametrize("mean", [1, 500, 20_000])
    def test_decode_steps_ahead_lie_on_its_line(self, model: StepTimeModel, rows: int, mean: int) -> None:
        covers(model, "decode")
        context = rows * mean + rows // 2
        start, growth = model.decode_line(rows, context)
        before_bend = model.bend - context / rows
        for i in (0, 1, 17, 4000):
            if i < before_bend or before_bend <= 0:
                step = model.seconds(StepShape((), rows, context + i * rows))
                assert start + growth * i == pytest.approx(step, rel=1e-12)


def test_two_factors_scale_decodes_and_what_prefills_add() -> None:
    model = MODELS["calibrated"]
    scaled = ScaledStepTime(model, prefill=3.0, decode=2.0)
    decode, both = StepShape((), 8, 4000), StepShape(((100, 50),), 8, 4000)
    assert scaled.seconds(decode) == pytest.approx(2 * model.seconds(decode))
    added = model.seconds(both) - model.seconds(decode)
    assert scaled.seconds(both) == pytest.approx(2 * model.seconds(decode) + 3 * added)
    assert scaled.seconds(StepShape(((100, 50),))) == pytest.approx(3 * model.seconds(StepShape(((100, 50),))))
