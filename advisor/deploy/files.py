"""The files of a plan: target.yaml, engine.yaml, plan.json, trace.jsonl.

    absent -> ours (the digest in it matches) -> ours again, or edited by hand (it does not): kept without
    `force`

Every file carries a digest of the rest of itself, the YAML ones in their first line; trace.jsonl's is in
plan.json. All are checked before any is written. Same analysis, same bytes: no clock, no host, no path but
the user's.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from advisor.advice.analysis import Analysis
from advisor.advice.plan import Plan
from advisor.advice.target import Target
from engine.config import EngineConfig
from engine.errors import InputError
from engine.resources import data_folder

TARGET, ENGINE, PLAN, TRACE = "target.yaml", "engine.yaml", "plan.json", "trace.jsonl"
_DIGEST_LINE = "# Written by advise; digest of the lines below: "
TraceSaver = Callable[[Path], None]


class Field(NamedTuple):
    """One line of a YAML file: a value as JSON (which YAML includes) and the comment beside it."""

    name: str
    value: str
    reason: str


def write_plan_files(
    out: Path, analysis: Analysis, trace_saver: TraceSaver, *, force: bool = False
) -> tuple[Path, ...]:
    """Write the plan's files into `out` and return their paths; an infeasible plan has no engine.yaml.

    `trace_saver` writes the trace to the path it is given. Raises InputError naming a file that was edited by
    hand, unless `force`; ValueError for an analysis without a plan.
    """
    plan = analysis.plan
    if plan is None:
        raise ValueError("an analysis without a plan has no files")
    out.mkdir(parents=True, exist_ok=True)
    if not force:
        for name in edited_files(out):
            raise InputError(
                f"{name} was edited by hand and would be overwritten",
                where=str(out / name),
                hint=f"add --force, or --out ANOTHER_FOLDER to keep {out / name}",
            )
    texts = {TARGET: _sealed(_target_yaml(plan.target))}
    if plan.chosen is not None:
        texts[ENGINE] = _sealed(_engine_yaml(analysis, plan))
    else:
        (out / ENGINE).unlink(missing_ok=True)  # it belonged to an earlier plan, and launch would find it
    trace_saver(out / TRACE)
    texts[PLAN] = _plan_json(analysis, _sha256((out / TRACE).read_bytes()))
    for name, text in texts.items():
        _write(out / name, text.encode())
    return tuple(out / name for name in (*texts, TRACE))


def edited_files(out: Path) -> tuple[str, ...]:
    """Names of the plan's files in `out` that are not as `advise` wrote them, or were never its own."""
    names = [name for name in (TARGET, ENGINE) if (out / name).exists() and not _intact_yaml(out / name)]
    plan = out / PLAN
    content = _read_json(plan) if plan.exists() else {}
    if plan.exists() and not _intact_plan(content):
        names.append(PLAN)
    trace = out / TRACE
    if trace.exists() and _sha256(trace.read_bytes()) != content.get("trace_sha256"):
        names.append(TRACE)
    return tuple(names)


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read: what traffic is like is the owner's business."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        path.chmod(0o600)  # it may have been there
        file.write(content)


def _sealed(text: str) -> str:
    return f"{_DIGEST_LINE}{_sha256(text.encode())}\n{text}"


def _intact_yaml(path: Path) -> bool:
    first, _, rest = path.read_bytes().partition(b"\n")
    return first.decode(errors="replace") == _DIGEST_LINE + _sha256(rest)


def _plan_json(analysis: Analysis, trace_sha256: str) -> str:
    content = {"digest": analysis.digest(), "trace_sha256": trace_sha256, **analysis.model_dump(mode="json")}
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON object; empty where it is none."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _intact_plan(content: dict[str, Any]) -> bool:
    analysis = {name: value for name, value in content.items() if name not in ("digest", "trace_sha256")}
    canonical = json.dumps(analysis, sort_keys=True, separators=(",", ":"))
    return content.get("digest") == _sha256(canonical.encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _target_yaml(target: Target) -> str:
    values = target.model_dump(mode="json", exclude={"origins", "slo"}, exclude_none=True)
    slo = target.slo.model_dump(mode="json")
    return _render(
        "target.yaml.j2",
        fields=list(_fields(values, target.origins)),
        slo=list(_fields(slo, target.origins, "slo.")),
    )


def _engine_yaml(analysis: Analysis, plan: Plan) -> str:
    config: EngineConfig = plan.engine_config()
    values, reasons = config.model_dump(mode="json"), plan.reasons
    slo = plan.target.slo.model_dump(exclude_none=True)
    error = "unknown" if plan.step_time.error_p90 is None else f"{plan.step_time.error_p90:.1%}"
    return _render(
        "engine.yaml.j2",
        plan_digest=analysis.digest()[:12],
        advise_version=analysis.meta.advise_version,
        seed=analysis.meta.seed,
        target=f"{plan.target.model} on {plan.target.gpus} x {plan.target.gpu}, "
        + ", ".join(f"{name} {value:g}" for name, value in slo.items()),
        step_time=f"{plan.step_time.source}, {plan.step_time.key}; P90 error {error}",
        pools=[list(_fields(pool, reasons, f"pools.{i}.")) for i, pool in enumerate(values["pools"])],
        sections=[
            (name, list(_fields(values[name], reasons, f"{name}."))) for name in ("router", "model", "server")
        ],
    )


def _fields(values: dict[str, Any], reasons: dict[str, Any], prefix: str = "") -> Iterable[Field]:
    for name, value in values.items():
        yield Field(name, json.dumps(value), reasons.get(prefix + name, ""))


def _render(template: str, **values: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_folder("templates") / "advise"),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)
