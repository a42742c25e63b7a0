"""What every StepTimeModel keeps to: calibrated, published and roofline."""

from __future__ import annotations

from itertools import pairwise

import pytest

from advisor.advice.profiles import model_shape, step_times
from advisor.advice.steps import gpu_device
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.model import StepShape, StepTimeModel
from engine.step_time.roofline import RooflineStepTime

MODELS: dict[str, StepTimeModel] = {
    "calibrated": CalibratedStepTime(Coefficients(1e-2, 1e-3, 1e-4, 1e-8, 1e-4, 1e-7)),
    "roofline": RooflineStepTime(model_shape("llama-3.1-8b"), gpu_device("h100-sxm"), 1, 2.0, 2.0),
    **{profile.id: profile.step_time() for profile in step_times()},
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
class TestStepTimeModel:
    def test_nothing_takes_no_time(self, model: StepTimeModel) -> None:
        assert model.seconds(StepShape()) == 0.0

    def test_it_names_its_source_and_an_error_or_none(self, model: StepTimeModel) -> None:
        assert model.source in ("calibrated", "published", "roofline")
        assert model.error_p90 is None or 0 < model.error_p90 < 1

    def test_a_longer_prefill_takes_longer(self, model: StepTimeModel) -> None:
        if "prefill" not in getattr(model, "covers", ("prefill",)):
            pytest.skip("published without prefill steps")
        times = [model.seconds(StepShape(prefill=((new, 0),))) for new in (512, 1024, 2048, 4096)]
        assert all(0 < shorter < longer for shorter, longer in pairwise(times))

    def test_more_decodes_take_no_less(self, model: StepTimeModel) -> None:
        if "decode" not in getattr(model, "covers", ("decode",)):
            pytest.skip("published without decode steps")
        times = [model.seconds(StepShape(decode=(1024,) * rows)) for rows in (1, 8, 32, 64)]
        assert all(0 < fewer <= more for fewer, more in pairwise(times))
