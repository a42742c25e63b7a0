"""Reads measured step times and served results into rooflines of the built-in profiles and their terms.

Owns how a row of the data is asked of a step-time model: the shape of a step, and a served TPOT as the mean
step of a closed loop. Prints nothing.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from advisor.advice import profiles
from advisor.advice.steps import ELEMENT_BYTES, gpu_device
from engine.shape import ModelShape
from engine.step_time.model import StepShape
from engine.step_time.roofline import Device, RooflineStepTime, Terms

GPUS = {"a100_sxm": "a100-sxm-80g", "h100_sxm": "h100-sxm", "b200_sxm": "b200-sxm", "l40s": "l40s"}
MEMORY_FRACTION = 0.9
SOURCES = ("inferencex-", "nv-gap-", "nim-")
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "int8-weight": "int8"}
SERVED = {
    "meta-llama/Llama-3.1-70B": "llama3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "llama3-70b-instruct": "llama3-70b",
    "llama3-8b-instruct": "llama3-8b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One row: where it is from, the built-in model's terms for it, and the seconds that were measured."""

    source: str
    group: tuple[str, ...]  # what a calibration may be made for: source, GPU, model, dtype, engine
    phase: str
    tp: int
    lengths: tuple[int, int]
    concurrency: int
    model: RooflineStepTime
    terms: Terms
    seconds: float

    @property
    def error(self) -> float:
        """Relative error of the built-in model."""
        return sum(self.terms) / self.seconds - 1

    @property
    def moe(self) -> bool:
        """Whether the model has experts."""
        return self.model.shape.experts is not None


class Silicon:
    """The folder of measurements."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._dims = json.loads((folder / "dims.json").read_text())

    def steps(self) -> Iterator[Measured]:
        """Steps of `step_times.csv`; mixed phases and unknown models are left out."""
        for row in self._rows("step_times.csv"):
            shape = self._shape(row["model"])
            if shape is None or row["phase"] not in ("prefill", "decode"):
                continue
            step = _step(row)
            model = self._model(row, shape, _family(row["source"], row["engine"]))
            yield Measured(
                row["source"],
                _group(row),
                row["phase"],
                model.tp,
                (0, 0),
                step.decode_rows or len(step.prefill),
                model,
                model.terms(step),
                float(row["ms"]) / 1e3,
            )

    def table(self, source: str, model: str, dtype: str, tp: int) -> tuple[list[StepShape], list[float]]:
        """Shapes and seconds of one group of `step_times.csv`, as it names them; mixed phases are left out."""
        shapes, seconds = [], []
        for row in self._rows("step_times.csv"):
            named = row["source"], row["model"], row["dtype"], int(float(row["tp"]))
            if named == (source, model, dtype, tp) and row["phase"] in ("prefill", "decode"):
                shapes.append(_step(row))
                seconds.append(float(row["ms"]) / 1e3)
        return shapes, seconds

    def served(self) -> Iterator[Measured]:
        """Closed-loop TPOT on one instance, from `end_to_end.csv`."""
        for row in self._rows("end_to_end.csv"):
            prompt, output = _number(row["isl"]), _number(row["osl"])
            concurrency = _number(row["concurrency_or_rate"])
            shape = self._shape(SERVED.get(row["model"], ""))
            known = shape is not None and row["gpu"] in GPUS and row["source"].startswith(SOURCES)
            if not known or row["layout"] != "agg" or not row["tpot_ms"] or not row["tp"]:
                continue
            if shape is None or not (prompt and output and concurrency):
                continue
            model = self._model(row, shape, _family(row["source"], row["engine"]))
            yield Measured(
                row["source"],
                _group(row),
                "served",
                model.tp,
                (prompt, output),
                concurrency,
                model,
                served_terms(model, prompt, output, concurrency, self._memory(row["gpu"])),
                float(row["tpot_ms"]) / 1e3,
            )

    def _rows(self, name: str) -> Iterator[dict[str, str]]:
        with (self._folder / name).open() as file:
            yield from csv.DictReader(file)

    def _shape(self, name: str) -> ModelShape | None:
        sizes = self._dims["models"].get(name)
        if sizes is None:
            known = {model.id: model.shape for model in profiles.models()}
            return known.get(name)
        keys = ("layers", "d_model", "q_heads", "kv_heads", "head_dim", "d_ff", "vocab")
        layers, hidden, heads, kv_heads, head_dim, ffn, vocab = (int(sizes[key]) for key in keys)
        return ModelShape(
            layers, hidden, heads, kv_heads, head_dim, ffn, vocab, 2**17, gated_mlp=sizes["mlp_matrices"] == 3
        )

    def _model(self, row: dict[str, str], shape: ModelShape, family: tuple[str, str]) -> RooflineStepTime:
        dtype, tp = DTYPES.get(row["dtype"], row["dtype"]), int(float(row["tp"]))
        kv = 1.0 if dtype in ("fp8", "fp4") else 2.0
        constants = profiles.roofline(*family).constants
        return RooflineStepTime(
            shape, self._device(row["gpu"], tp, dtype), constants, tp, ELEMENT_BYTES[dtype], kv
        )

    def _device(self, gpu: str, tp: int, dtype: str) -> Device:
        if gpu in GPUS:
            return gpu_device(GPUS[gpu], tp, dtype)
        peaks: dict[str, Any] = self._dims["gpus"][gpu]  # a GPU without a profile of ours
        low = peaks["dense_tflops_fp8"] * 1e12 if dtype == "fp8" else None
        link = peaks["p2p_gb_s_per_direction"] * 1e9
        return Device(peaks["dense_tflops_16bit"] * 1e12, peaks["mem_gb_s"] * 1e9, link, low)

    def _memory(self, gpu: str) -> float:
        return profiles.gpu(GPUS[gpu]).memory_gb * 1e9


def served_terms(
    model: RooflineStepTime, prompt: int, output: int, concurrency: int, memory_bytes: float
) -> Terms:
    """Terms of the mean step of a closed loop: all run, as far as their KV fits, and each step carries its
    share of a new prompt's prefill beside the decodes.
    """
    context = prompt + output / 2
    weights = model.shape.weight_bytes(model.weight_bytes) / model.tp
    token = model.shape.kv_bytes_per_token(model.kv_bytes) * model.shape.kv_share(model.tp)
    fitting = int((memory_bytes * MEMORY_FRACTION - weights) / (token * context))
    rows = max(1, min(concurrency, fitting))
    decode = model.terms(StepShape((), rows, round(rows * context)))
    mixed = model.terms(StepShape(((prompt, 0),), rows, round(rows * context)))
    share = rows / output
    return Terms(*(d + share * (m - d) for d, m in zip(decode, mixed, strict=True)))


def _step(row: dict[str, str]) -> StepShape:
    """The step of a row: prompts of equal length, or decodes."""
    batch, new, context = (int(float(row[k] or 0)) for k in ("batch", "new_tokens", "context_tokens"))
    if row["phase"] == "prefill":
        return StepShape(((new // batch, context // batch),) * batch)
    return StepShape((), batch, context)


def _family(source: str, engine: str) -> tuple[str, str]:
    """Stack and version whose constants a source is asked with."""
    if source.startswith(("splitwise", "distserve", "preble")):
        return "eager", ""
    if source.startswith(("trtllm", "nim")):
        return "trtllm", "0"
    if engine.startswith("trtllm"):
        return "trtllm", ""
    return "vllm", ""  # and gpt-fast, which has no constants of its own: graphs, too


def _group(row: dict[str, str]) -> tuple[str, ...]:
    return row["source"], row["gpu"], row["model"], row["dtype"], row["engine"]


def _number(text: str) -> int:
    try:
        return round(float(text))
    except (ValueError, OverflowError):  # a data set, or `inf`
        return 0


def matrix(rows: list[Measured]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Terms [rows, 9] and seconds [rows]."""
    return np.array([row.terms for row in rows]), np.array([row.seconds for row in rows])
