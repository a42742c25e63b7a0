"""What `launch` and `calibrate` say: the configuration in force and what came up."""

from __future__ import annotations

from functools import partial

from rich.console import Console

from advisor.deploy.calibrate import CalibrationResult
from advisor.deploy.launch import Launchable, Launched
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
    print_row = partial(console.print, highlight=False)
    print_row(f"  url       {info.url}")
    print_row(f"  model     {info.model}, {info.dtype}, context {info.max_len} tokens")
    print_row(f"  devices   {', '.join(info.devices)} ({info.threads} threads)")
    planned, actual = info.kv_tokens_planned, info.kv_tokens_actual
    print_row(f"  KV cache  {actual:,} tokens; planned {planned:,}")
    if abs(actual - planned) > KV_TOLERANCE * planned:
        print_row("            planned and actual differ by more than 5 %", style="yellow")
    for pool in config.pools:
        values = pool.model_dump(exclude={"count", "role", "kv_tokens"})
        text = ", ".join(f"{name} {value}" for name, value in values.items())
        print_row(f"  pool      {pool.count} x {pool.role}: {text}")
    if info.fault:
        print_row(f"  fault     {info.fault}", style="yellow")
    print_row(f"  try       curl {info.url}/v1/models        Ctrl-C drains and stops")


def show_calibration(console: Console, result: CalibrationResult) -> None:
    """What was measured and how far it is off."""
    model, step_time = result.key.model, result.step_time
    prefill = 512 / step_time.seconds(StepShape(prefill=((512, 0),)))
    decode = step_time.seconds(StepShape(decode=(512,)))
    print_row = partial(console.print)
    print_row(f"  {model}, {result.key.dtype}, {result.key.parallel} threads: {step_time.steps} steps")
    print_row(f"  prefill of 512 tokens {prefill:,.0f} tokens/s; one decode {decode * 1e3:.1f} ms a token")
    print_row(f"  error on held-out steps: median {step_time.error_p50:.1%}, P90 {step_time.error_p90:.1%}")
    print_row(f"  kept in {result.path}")
