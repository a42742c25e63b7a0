"""What `launch` and `calibrate` say: the configuration in force and what came up."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from advisor.advice.host import HostCosts
from advisor.deploy.calibrate import CalibrationResult
from advisor.deploy.launch import CpuTimes, Launchable, Launched
from advisor.deploy.local import EngineInfo
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
    """URL, model, instances with their devices and KV capacity, how KV moves, the configuration in force."""
    info, config = launched.engine.info, launched.launchable.config
    _show_banners(console, info)
    row(console, "url", info.url)
    row(console, "model", f"{info.model}, {info.dtype}, context {info.max_len} tokens")
    if info.instances:
        row(console, "router", f"pid {info.pid}")
    for one in info.instances:
        text = f"{one.name}: {one.role}, pid {one.pid}, {', '.join(one.devices)}, {one.dtype}"
        row(console, "instance", f"{text}, {one.kv_tokens:,} KV tokens")
    if not info.instances:
        row(console, "devices", f"{', '.join(info.devices)} ({info.threads} threads)")
    row(console, "moves KV", info.transport or "never: every request stays on its instance")
    planned, actual = info.kv_tokens_planned, info.kv_tokens_actual
    row(console, "KV", f"{actual:,} tokens an instance; planned {planned:,}")
    if abs(actual - planned) > KV_TOLERANCE * planned:
        row(console, "", "planned and actual differ by more than 5 %", style="yellow")
    elsewhere = {"cuda_graphs"} if info.devices and not info.devices[0].startswith("cuda") else set()
    for pool in config.pools:
        values = pool.model_dump(exclude={"count", "role", "kv_tokens"} | elsewhere)
        text = ", ".join(f"{name} {value}" for name, value in values.items())
        row(console, "pool", f"{pool.count} x {pool.role}: {text}")
    if info.note:
        row(console, "note", info.note, style="yellow")
    if info.fault:
        row(console, "fault", info.fault, style="yellow")


def _show_banners(console: Console, info: EngineInfo) -> None:
    """What a reader must know before any figure."""
    if info.emulated is not None:
        slower = info.emulated.time_scale
        pace = "" if slower == 1 else f", its clock {slower:g} times slower"
        row(
            console,
            "EMULATED",
            f"{info.emulated.gpu}: steps are slept, not computed{pace}",
            style="bold yellow",
        )
        row(console, "", "tokens are made up; a rehearsal proves plumbing, not advice", style="yellow")
    if info.oversubscribed:
        row(
            console,
            "SHARED",
            "more instances than cores: for correctness only, no goodput",
            style="bold yellow",
        )


def show_serving(console: Console, launched: Launched) -> None:
    """What to do with it."""
    row(console, "try", f"curl {launched.engine.url}/v1/models   (Ctrl-C drains and stops)")
    folder = launched.launchable.folder
    row(console, "next", f"advise validate {folder}   (in another terminal)")


def show_cpu_times(console: Console, times: CpuTimes) -> None:
    """The CPU time that each process took while it served, as a share of one core."""
    if times.wall_s <= 0:
        return
    for index, (name, cpu_s) in enumerate(times.cpu_s.items()):
        share = f"{name} {cpu_s:,.1f} s, {cpu_s / times.wall_s:.1%} of a core"
        row(console, "CPU" if index == 0 else "", share)


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


def show_host_costs(console: Console, costs: HostCosts) -> None:
    """What serving costs this host beside the steps."""
    row(console, "serving", f"router and client take {costs}")
    row(
        console,
        "moves KV",
        f"{costs.copy_bytes_per_s / 1e9:.2f} GB/s between two processes, checksums included",
    )


def show_calibrated(console: Console, path: Path | None = None) -> None:
    """What to do with new step times; `path` is their file where an engine was measured from outside."""
    used = "advise analyze LOG --here" if path is None else f"advise analyze LOG --step-times {path}"
    row(console, "next", f"{used}   (a plan on these step times)")
