"""Step-time models as plain data and back: what an emulation file holds of them.

Every model is its class's fields under a `kind`; read again it is equal, so it gives the very same seconds. The
wrappers of a fit (ScaledStepTime) hold the model that they wrap. Stages (PipelinedStepTime) have no plain form:
nobody runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from engine.step_time.calibrated import CalibratedStepTime
from engine.step_time.model import StepTimeModel
from engine.step_time.published import PolynomialStepTime, TableStepTime
from engine.step_time.roofline import RooflineStepTime
from engine.step_time.scaled import ScaledStepTime

_KINDS: Mapping[str, type[Any]] = {
    "calibrated": CalibratedStepTime,
    "polynomial": PolynomialStepTime,
    "table": TableStepTime,
    "roofline": RooflineStepTime,
    "scaled": ScaledStepTime,
}
_FACTORS = TypeAdapter(dict[Literal["prefill", "decode"], float])


def plain(model: StepTimeModel) -> dict[str, Any]:
    """A model as dictionaries, lists and numbers. Raises ValueError for one that has no such form."""
    for kind, cls in _KINDS.items():
        if type(model) is cls:
            if isinstance(model, ScaledStepTime):
                factors = {"prefill": model.prefill, "decode": model.decode}
                return {"kind": kind, **factors, "model": plain(model.model)}
            return {"kind": kind, **_plain(model)}
    raise ValueError(f"{type(model).__name__} has no plain form")


def from_plain(values: object) -> StepTimeModel:
    """The model that `plain` wrote, nothing left out or added. Raises ValueError that names what is wrong."""
    if not isinstance(values, Mapping):
        raise ValueError("step times are a mapping with a kind")
    kind = values.get("kind")
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(f"unknown kind of step times {kind!r}; known are {', '.join(_KINDS)}")
    given = {key: value for key, value in values.items() if key != "kind"}
    try:
        if cls is ScaledStepTime:
            model: StepTimeModel = from_plain(given.pop("model", None))
            model = ScaledStepTime(model, **_FACTORS.validate_python(given))
        else:
            model = TypeAdapter(cls).validate_python(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{kind} step times, {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ArithmeticError as error:
        raise ValueError(f"{kind} step times: {error}") from None
    unlike = _unlike(values, plain(model))
    if unlike is not None:
        raise ValueError(f"{kind} step times, {unlike}")
    return model


def _unlike(given: Any, written: Any, path: str = "") -> str | None:
    """Where `given` is not what `plain` writes, in words."""
    if isinstance(given, Mapping) and isinstance(written, Mapping):
        for key in (*given, *written):
            if key not in written:
                return f"{path}{key}: unknown key"
            if key not in given:
                return f"{path}{key}: missing"
        parts = [(f"{path}{key}.", given[key], written[key]) for key in given]
    elif isinstance(given, list) and isinstance(written, list) and len(given) == len(written):
        parts = [(f"{path}{i}.", *both) for i, both in enumerate(zip(given, written, strict=True))]
    else:
        return None if given == written else f"{path[:-1]}: {given!r} is not of the form {written!r}"
    return next((found for name, one, other in parts if (found := _unlike(one, other, name))), None)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value) if each.init}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(one) for name, one in value._asdict().items()}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value
