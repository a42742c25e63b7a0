"""The emulation file: read again it gives the very numbers that the simulator uses, and says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml

from advisor.advice.profiles import model_shape, step_times
from advisor.advice.steps import gpu_roofline
from engine.config import EngineConfig, PoolConfig
from engine.emulated_backend import load_emulated
from engine.emulation import EmulatedLink, EmulatedPool, Emulation, emulation_text, read_emulation
from engine.errors import InputError
from engine.launchable import why_not_launchable
from engine.request import SamplingParams
from engine.step import Step, StepRow
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.model import StepShape, StepTimeModel
from engine.step_time.pipelined import PipelinedStepTime
from engine.step_time.plain import from_plain, plain
from engine.step_time.published import PolynomialStepTime
from engine.step_time.roofline import CPU_CONSTANTS, RooflineStepTime, cpu_cores
from engine.step_time.scaled import ScaledStepTime

CALIBRATED = CalibratedStepTime(
    Coefficients(1 / 97, 1e-3 / 7, 1e-4 / 3, 1e-8 / 3, 1e-4, 1e-7 / 9),
    error_p50=0.018,
    error_p90=1 / 11,
    steps=431,
    bumps=(0.0, 0.0, 0.001 / 3, 2e-3, 1e-3, 0.0, 0.0, 0.0, 0.0),
)
LLAMA = gpu_roofline(model_shape("llama-3.1-8b"), "h100-sxm", "vllm", tp=2)
MODELS: dict[str, StepTimeModel] = {
    "calibrated": CALIBRATED,
    "scaled": ScaledStepTime(CALIBRATED, 1 / 3, 1.7),
    "scaled roofline": ScaledStepTime(LLAMA, 0.9, 1.1),
    "cores": RooflineStepTime(model_shape("llama-3.1-8b"), cpu_cores(2), CPU_CONSTANTS),
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


def random_shape(random: Random) -> StepShape:
    prefill = tuple(
        (random.randrange(1, 5000), random.choice((0, random.randrange(60_000))))
        for _ in range(random.choice((0, 0, 1, 3)))
    )
    rows = random.choice((0, 1, random.randrange(300)))
    return StepShape(prefill, rows, sum(random.randrange(1, 9000) for _ in range(rows)))


def answer(ask: Callable[..., Any], *of: Any) -> Any:
    """What a model says, or that it does not cover this."""
    try:
        return ask(*of)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_read_again_gives_exactly_the_same_seconds(name: str) -> None:
    model, random = MODELS[name], Random(3)
    again = from_plain(yaml.safe_load(yaml.safe_dump(plain(model))))
    assert type(again) is type(model)
    assert again == model
    assert (again.source, again.error_p90, again.bend) == (model.source, model.error_p90, model.bend)
    for shape in (random_shape(random) for _ in range(400)):
        assert answer(again.seconds, shape) == answer(model.seconds, shape)
        line = max(1, shape.decode_rows), shape.decode_context
        assert answer(again.decode_line, *line) == answer(model.decode_line, *line)


def test_every_kind_of_published_times_is_among_them() -> None:
    kinds = {plain(model)["kind"] for model in MODELS.values()}
    assert kinds == {"calibrated", "polynomial", "table", "roofline", "scaled"}


def test_stages_have_no_plain_form() -> None:
    with pytest.raises(ValueError, match="PipelinedStepTime has no plain form"):
        plain(PipelinedStepTime(LLAMA, 4, 32, 4096, 1e9))
    with pytest.raises(ValueError, match="PipelinedStepTime has no plain form"):
        plain(ScaledStepTime(PipelinedStepTime(LLAMA, 4, 32, 4096, 1e9)))


SPLIT = EngineConfig(
    pools=(
        PoolConfig(role="prefill", count=2, token_budget=2048, kv_tokens=4_000),
        PoolConfig(role="decode", block_size=16),
    )
)
EMULATION = Emulation(
    gpu="h100-sxm",
    time_scale=2.5,
    pools=(
        EmulatedPool(role="prefill", step_time=LLAMA, kv_tokens=500_000),
        EmulatedPool(role="decode", step_time=MODELS["scaled"], kv_tokens=1_000),
    ),
    link=EmulatedLink(bytes_per_s=25e9 / 1.1, latency_s=1e-3 / 3),
    kv_bytes_per_token=131_072,
    max_len=131_072,
    vocab=128_256,
    eos_token_ids=(128_001, 128_009),
)


def write(tmp_path: Path, change: Callable[[Any], object] = lambda _: None) -> Path:
    values = yaml.safe_load(emulation_text(EMULATION))
    change(values)
    path = tmp_path / "emulation.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def test_a_file_read_again_is_equal(tmp_path: Path) -> None:
    path = tmp_path / "emulation.yaml"
    path.write_text(emulation_text(EMULATION), encoding="utf-8")
    assert read_emulation(path) == EMULATION
    assert read_emulation(write(tmp_path)) == EMULATION
    bare = EMULATION.model_copy(update={"link": None, "eos_token_ids": ()})
    path.write_text(emulation_text(bare), encoding="utf-8")
    assert read_emulation(path) == bare


def set_step_time(key: str, value: object) -> Callable[[Any], object]:
    return lambda values: values["pools"][0]["step_time"].__setitem__(key, value)


BROKEN: dict[str, tuple[Callable[[Any], object], str]] = {
    "an unknown key": (lambda v: v.update(vocabulary=5), "unknown key 'vocabulary'; did you mean 'vocab'?"),
    "no scale": (lambda v: v.update(time_scale=0), "time_scale: .*greater than 0"),
    "a negative link": (lambda v: v["link"].update(bytes_per_s=-1), "link.bytes_per_s: .*greater than 0"),
    "no gpu": (lambda v: v.pop("gpu"), "gpu: Field required"),
    "no pools": (lambda v: v.update(pools=[]), "pools: .*at least 1"),
    "an unknown role": (lambda v: v["pools"][1].update(role="both"), "pools.1.role: .*'colocated'"),
    "another kind": (set_step_time("kind", "guess"), "pools.0.step_time: unknown kind of step times 'guess'"),
    "step times of text": (lambda v: v["pools"][0].update(step_time="fast"), "pools.0.step_time: .*mapping"),
    "an unknown term": (set_step_time("tpp", 2), "pools.0.step_time: roofline step times, tpp: unknown key"),
    "a term left out": (
        lambda v: v["pools"][0]["step_time"].pop("tp"),
        "pools.0.step_time: roofline step times, tp: missing",
    ),
    "a constant left out": (
        lambda v: v["pools"][0]["step_time"]["constants"].pop("mixed"),
        "roofline step times, constants.mixed: missing",
    ),
    "an unknown size": (
        lambda v: v["pools"][0]["step_time"]["shape"].update(layer=2),
        "roofline step times, shape.layer: unknown key",
    ),
    "a number as text": (set_step_time("weight_bytes", "2"), "weight_bytes: '2' is not of the form 2.0"),
    "no number": (set_step_time("weight_bytes", "two"), "roofline step times, weight_bytes: .*valid number"),
    "a device that does nothing": (
        lambda v: v["pools"][0]["step_time"]["device"].update(flops=0.0),
        "pools.0.step_time: roofline step times: .*division by zero",
    ),
    "times that are none": (
        lambda v: v["pools"][1]["step_time"]["model"]["coefficients"].update(base=-1.0),
        "pools.1.step_time: the step times are no times",
    ),
    "an unknown factor": (
        lambda v: v["pools"][1]["step_time"].update(speed=1.0),
        "pools.1.step_time: scaled step times, speed",
    ),
    "a factor left out": (
        lambda v: v["pools"][1]["step_time"].pop("decode"),
        "pools.1.step_time: scaled step times, decode: missing",
    ),
    "only ends of sequence": (lambda v: v.update(vocab=2, eos_token_ids=[0, 1]), "every token"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_is_named(what: str, tmp_path: Path) -> None:
    change, words = BROKEN[what]
    path = write(tmp_path, change)
    with pytest.raises(InputError) as caught:
        read_emulation(path)
    assert (caught.value.message, caught.value.where) == ("not an emulation file", str(path))
    assert re.search(words, str(caught.value.why)), caught.value.why


def test_no_file_no_yaml_and_nothing_in_it_are_input_errors(tmp_path: Path) -> None:
    path = tmp_path / "emulation.yaml"
    for text, message in ((None, "cannot read"), ("a: [", "not valid YAML"), ("", "not an emulation file")):
        if text is not None:
            path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            read_emulation(path)


def test_a_published_fit_of_one_phase_is_no_step_time_of_a_pool() -> None:
    published = [model for model in MODELS.values() if isinstance(model, PolynomialStepTime)]
    one = next(model for model in published if len(model.covers) == 1)
    with pytest.raises(ValueError, match="do not cover"):
        EmulatedPool(role="decode", step_time=one, kv_tokens=1)


class TestLoading:
    def test_an_instance_has_the_blocks_of_its_plan_and_takes_the_models_time(self) -> None:
        parts = load_emulated(EMULATION, SPLIT, 0)
        assert (parts.num_blocks, parts.kv_tokens_planned) == (4_000 // 16 + 1, 4_000)
        assert (parts.vocab_size, parts.max_len) == (128_256, 131_072)
        assert (parts.device, parts.time_scale) == ("h100-sxm", 2.5)
        handle = parts.executor.submit(Step(1, (row((1, 2, 3)),)))
        assert handle.seconds == 2.5 * LLAMA.seconds(StepShape(((3, 0),)))

    def test_where_the_configuration_has_no_kv_tokens_it_has_those_of_the_emulation(self) -> None:
        parts = load_emulated(EMULATION, SPLIT, 1)
        assert (parts.num_blocks, parts.kv_tokens_planned) == (1_000 // 16 + 1, 1_000)
        handle = parts.executor.submit(Step(1, (row((1, 2, 3)),)))
        assert handle.seconds == 2.5 * MODELS["scaled"].seconds(StepShape(((3, 0),)))

    def test_ends_of_sequence_are_never_sampled(self) -> None:
        few = EMULATION.model_copy(update={"vocab": 3, "eos_token_ids": (0, 2)})
        executor = load_emulated(few, SPLIT, 0).executor
        tokens = [executor.submit(Step(n, (row((n,)),))).step_result.tokens for n in range(30)]
        assert set(tokens) == {(1,)}

    def test_what_the_executor_writes_is_in_the_pages(self) -> None:
        """Position 0 holds the first token and one: its low half as keys, its high half as values."""
        parts = load_emulated(EMULATION, SPLIT, 0)
        assert parts.pages.layout.bytes_per_token == 8
        assert parts.pages.num_blocks == parts.num_blocks
        parts.executor.submit(Step(1, (row((41, 7)),)))
        data = np.frombuffer(b"".join(map(bytes, parts.pages.read((3,), 0, 2))), np.uint32).tolist()
        second = 42 * 0x5851F42D4C957F2D + 8
        assert data == [42, second & 0xFFFFFFFF, 0, second >> 32 & 0xFFFFFFFF]

    def test_stages_are_refused_with_the_words_of_launch(self) -> None:
        config = EngineConfig(pools=(PoolConfig(pp=2),))
        colocated = EMULATION.pools[0].model_copy(update={"role": "colocated"})
        emulation = EMULATION.model_copy(update={"pools": (colocated,)})
        with pytest.raises(InputError, match="cannot be emulated") as caught:
            load_emulated(emulation, config, 0)
        assert caught.value.why == why_not_launchable(config)
        assert "pp 1 only" in str(caught.value.why)

    def test_the_emulation_of_another_plan_is_refused_with_both(self) -> None:
        with pytest.raises(InputError, match="another configuration") as caught:
            load_emulated(EMULATION, EngineConfig(), 0)
        assert caught.value.why == "it has prefill, decode; engine.yaml colocated"


def row(tokens: tuple[int, ...]) -> StepRow:
    return StepRow("r", tokens, 0, (3,), True, True, SamplingParams())


def test_the_link_is_the_simulators() -> None:
    """DistServe: 512 tokens of OPT-66B are 1,207,959,552 bytes; over 25 GB/s 48.3 ms, and 2 ms of latency."""
    link = EmulatedLink(bytes_per_s=25e9, latency_s=0.002).open()
    link.start("a", 0, 1, 1_207_959_552, 3.0)
    assert link.next_s == pytest.approx(3.050318382, abs=1e-9)
