"""The two files about step times: the step log that an engine writes, and `step_times.yaml` in the user cache.

All reading and writing of this package is here; the models never do IO. A step log is JSON lines: a header
that says what was measured, then one step a line. `step_times.yaml` keeps one calibration per `Key`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from engine.errors import InputError
from engine.step_time.calibrated import KNOTS, CalibratedStepTime, Coefficients
from engine.step_time.model import StepShape


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What a calibration is for; step times of one key say nothing about another.

    `parallel` is the devices of one instance: GPUs, or the threads of all its ranks. `tp` is how many ranks
    they are; on GPUs both are the tensor-parallel degree.
    """

    engine: str
    version: str
    device: str
    model: str
    dtype: str
    parallel: int
    tp: int = 1

    @property
    def devices(self) -> str:
        """`parallel` and `tp` in words."""
        if self.device != "cpu":
            return f"{self.device}, {self.parallel} way TP"
        ranks = "" if self.tp == 1 else f" as {self.tp} ranks"
        return f"cpu, {self.parallel} thread(s){ranks}"

    def __str__(self) -> str:
        return f"{self.engine} {self.version}, {self.model}, {self.dtype}, {self.devices}"


@dataclass(frozen=True, slots=True)
class StepLog:
    """Measured steps and what ran them.

    `header` holds engine, version, model, dtype, device, threads (devices of all ranks), tp, block_size; device
    and tp came later, logs without them are of one rank on a CPU.
    """

    header: dict[str, Any]
    shapes: tuple[StepShape, ...]
    seconds: tuple[float, ...]

    def key(self) -> Key:
        """The key of a calibration made from this log. Raises InputError where the header lacks a field."""
        h = self.header
        try:
            return Key(
                engine=str(h["engine"]),
                version=str(h["version"]),
                device=str(h.get("device", "cpu")),
                model=str(h["model"]),
                dtype=str(h["dtype"]),
                parallel=int(h["threads"]),
                tp=int(h.get("tp", 1)),
            )
        except KeyError as error:
            raise InputError(
                f"the step log's header has no {error.args[0]}",
                hint="advise launch --step-log FILE   (writes a new one)",
            ) from None


def read_step_log(path: Path) -> StepLog:
    """Read a step log. Raises InputError naming the line that is not one; steps of 0 seconds are left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines:
        raise InputError("the step log is empty", where=str(path), hint="advise calibrate")
    shapes, seconds = [], []
    for number, line in enumerate(lines[1:], start=2):
        try:
            row = json.loads(line)
            shape = _shape(row)
            duration = float(row["seconds"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                "not a step of a step log",
                where=f"{path}:{number}",
                why=str(error),
                hint="advise launch --step-log FILE   (writes a new one)",
            ) from None
        if duration > 0 and (shape.prefill or shape.decode_rows):
            shapes.append(shape)
            seconds.append(duration)
    return StepLog(json.loads(lines[0]), tuple(shapes), tuple(seconds))


def _shape(row: Mapping[str, Any]) -> StepShape:
    """One line's step; older logs list the context of every decode row under `decode`."""
    prefill = tuple((int(new), int(context)) for new, context in row["prefill"])
    if "decode" in row:
        contexts = [int(context) for context in row["decode"]]
        return StepShape(prefill, len(contexts), sum(contexts))
    return StepShape(prefill, int(row["decode_rows"]), int(row["decode_context"]))


def load_calibrations(path: Path) -> dict[Key, CalibratedStepTime]:
    """Calibrations in a `step_times.yaml`, the newest last; none without a file. Raises InputError."""
    if not path.exists():
        return {}
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))["calibrations"]
        return {Key(**e["key"]): _model(e) for e in entries}
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise InputError(
            "not a file of step times", where=str(path), why=str(error), hint="advise calibrate"
        ) from None


def save_calibrations(path: Path, calibrations: dict[Key, CalibratedStepTime]) -> None:
    """Write a `step_times.yaml` in this order, replacing the file in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({"calibrations": list(_entries(calibrations))}, sort_keys=False)
    part = path.with_suffix(".part")
    part.write_text(
        "# Step times measured by `advise calibrate`, in seconds a unit.\n" + text, encoding="utf-8"
    )
    part.replace(path)


def _model(entry: dict[str, Any]) -> CalibratedStepTime:
    return CalibratedStepTime(
        Coefficients(**entry["coefficients"]),
        entry["error_p50"],
        entry["error_p90"],
        entry["steps"],
        _bumps(entry.get("bumps", {})),
    )


def _bumps(found: Mapping[int, float]) -> tuple[float, ...]:
    if not set(found) <= set(KNOTS):
        raise KeyError(f"bumps at other tokens than {KNOTS}")
    return tuple(float(found.get(tokens, 0.0)) for tokens in KNOTS)


def _entries(calibrations: dict[Key, CalibratedStepTime]) -> Iterable[dict[str, Any]]:
    for key, model in calibrations.items():
        yield {
            "key": asdict(key),
            "coefficients": model.coefficients._asdict(),
            "bumps": {tokens: bump for tokens, bump in zip(KNOTS, model.bumps, strict=True) if bump},
            "error_p50": model.error_p50,
            "error_p90": model.error_p90,
            "steps": model.steps,
        }
