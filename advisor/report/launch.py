"""What `launch` and `calibrate` say: the configuration in force and what came up."""

from __future__ import annotations

from rich.console import Console

from advisor.deploy.calibrate import CalibrationResult
from advisor.deploy.launch import Launchable, Launched
from advisor.report.rows import row
from engine.step_time.model import StepShape

KV_TOLERANCE = 0.05  # planned and actual KV capacity further apart than this are worth a word


def show_launching(console: Console, what: Launchable) -> None:
    """The configuration about to run, and how it differs from the plan."""
    console.print(f"starting {what.config_path}")
    for edit in what.edits:
        console.print(f"  edited: {edit.key} {edit.planned} -> {edit.actual}")
    if what.edits:
        console.print("  the plan's prediction does not hold for an edited configuration")


def show_launched(console: Console, launched: Launched) -> None:
    """URL, model, dtype, devices, KV capacity planned and actual, and the configuration in force."""
    info, config = launched.engine.info, launched.launchable.config
    row(console, "url", info.url)
    row(console, "model", f"{info.model}, {info.dtype}, context {info.max_len} tokens")
    row(console, "devices", f"{', '.join(info.devices)} ({info.threads} threads)")
    planned, actual = info.kv_tokens_planned, info.kv_tokens_actual
    row(console, "KV", f"{actual:,} tokens; planned {planned:,}")
    if abs(actual - planned) > KV_TOLERANCE * planned:
        row(console, "", "planned and actual differ by more than 5 %", style="yellow")
    elsewhere = {"cuda_graphs"} if info.devices[0].startswith("cpu") else set()
    for pool in config.pools:
        values = pool.model_dump(exclude={"count", "role", "kv_tokens"} | elsewhere)
        text = ", ".join(f"{name} {value}" for name, value in values.items())
        row(console, "pool", f"{pool.count} x {pool.role}: {text}")
    if info.note:
        row(console, "note", info.note, style="yellow")
    if info.fault:
        row(console, "fault", info.fault, style="yellow")


def show_serving(console: Console, launched: Launched) -> None:
    """What to do with it."""
    row(console, "try", f"curl {launched.engine.url}/v1/models   (Ctrl-C drains and stops)")


def show_calibration(console: Console, result: CalibrationResult) -> None:
    """What was measured and how far it is off."""
    key, step_time = result.key, result.step_time
    prefill = 512 / step_time.seconds(StepShape(prefill=((512, 0),)))
    decode = step_time.seconds(StepShape((), 1, 512))
    row(console, "model", f"{key.model}, {key.dtype}, {key.devices}")
    row(
        console,
        "steps",
        f"prefill of 512 tokens {prefill:,.0f} tokens/s; one decode {decode * 1e3:.1f} ms a token",
    )
    row(
        console,
        "error",
        f"on held-out steps of {step_time.steps}: median {step_time.error_p50:.1%}, "
        f"P90 {step_time.error_p90:.1%}",
    )
    row(console, "kept in", str(result.path))
