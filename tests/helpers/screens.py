"""Every screen of the commands, from constructed data: no engine, no log, no clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from helpers.results import SCENARIOS, START, make_records, make_result, sample_analysis, scenario
from rich.console import Console

from advisor.advice.analysis import Analysis
from advisor.advice.drift import Move, PlanDrift
from advisor.advice.host import HostCosts
from advisor.deploy.calibrate import CalibrationResult
from advisor.deploy.launch import CpuTimes, Edit, Launchable, Launched
from advisor.deploy.local import Emulated, EngineInfo, InstanceInfo
from advisor.redact import Effect, Redacted, describe
from advisor.report.beside import show_beside
from advisor.report.doctor import show_endpoint, show_environment
from advisor.report.drift import show_drift
from advisor.report.launch import (
    show_calibrated,
    show_calibration,
    show_cpu_times,
    show_host_costs,
    show_launched,
    show_launching,
    show_serving,
)
from advisor.report.terminal import show_analysis, show_next
from advisor.report.verdict import ReplayTalk, show_results
from advisor.validation.doctor import EndpointReport, EnvironmentReport, Finding
from advisor.validation.options import Cost
from engine.step_time.calibrated import CalibratedStepTime
from engine.step_time.files import Key

OUT = Path("advise-out")
Screen = Callable[[Console], None]


def analyze(console: Console) -> None:
    analysis = sample_analysis()
    show_analysis(console, analysis)
    names = ("target.yaml", "engine.yaml", "plan.json", "trace.jsonl", "report.html")
    show_next(console, analysis, OUT, tuple(OUT / name for name in names))


def no_plan(console: Console) -> None:
    why = "no GPU was found or named"
    analysis = sample_analysis().model_copy(update={"plan": None, "plan_reason": why})
    show_analysis(console, analysis)
    show_next(console, analysis, OUT, ())


def infeasible(console: Console) -> None:
    analysis = _changed(verdict="infeasible", chosen=None, runner_up=None, gpus_needed=None, usd_per_month=None)
    show_analysis(console, analysis, measured=False)
    show_next(console, analysis, OUT, (OUT / "plan.json",))


def plan_beside(console: Console) -> None:
    show_beside(
        console, sample_analysis(), _changed(verdict="change", chosen="5 prefill x TP 1 + 3 decode x TP 1")
    )


def _changed(**values: Any) -> Analysis:
    analysis = sample_analysis()
    assert analysis.plan is not None
    return analysis.model_copy(update={"plan": analysis.plan.model_copy(update=values)})


def drift(console: Console, *, replan: bool) -> None:
    moves = (
        Move(
            name="rate_rps",
            was=3.1,
            now=6.4,
            change=1.06,
            over=replan,
            from_s=7200.0,
            low=2.7,
            high=3.4,
            since_s=5400.0 if replan else None,
        ),
        Move(
            name="hit_rate_tokens",
            was=0.41,
            now=0.39,
            change=-0.05,
            over=False,
            from_s=3600.0,
            low=0.38,
            high=0.44,
        ),
        Move(name="attainment", was=0.99, now=0.81, change=-0.18, over=replan, from_s=7200.0),
    )
    notes = ("the log has no clients: isolation cannot be compared",)
    show_drift(
        console,
        PlanDrift(
            replan=replan,
            tolerance=0.25,
            windows=5,
            window_s=1800.0,
            first_epoch_s=1_790_000_400.0 if replan else None,
            moves=moves,
            notes=notes,
        ),
    )


def launch(console: Console) -> None:
    plan = sample_analysis().plan
    assert plan is not None
    what = Launchable(
        OUT / "engine.yaml", plan.engine_config(), plan, "3f1c9a", (Edit("pools.0.token_budget", 512, 1024),)
    )
    instances = tuple(
        InstanceInfo(
            name=f"colocated-{place}",
            role="colocated",
            pid=4100 + place,
            devices=(f"cuda:{place}",),
            dtype="bfloat16",
            kv_tokens=425_328,
        )
        for place in range(2)
    )
    info = EngineInfo(
        url="http://127.0.0.1:8000",
        model="llama-3.1-8b",
        dtype="bfloat16",
        devices=("cuda:0", "cuda:1"),
        threads=4,
        max_len=131_072,
        vocab_size=128_256,
        kv_tokens_planned=425_328,
        kv_tokens_actual=380_000,
        load_seconds=3.2,
        pid=4099,
        instances=instances,
        emulated=Emulated(gpu="h100-sxm", time_scale=4.0),
        note="no CUDA graphs",
    )
    launched = cast(
        "Launched", SimpleNamespace(launchable=what, engine=SimpleNamespace(info=info, url=info.url))
    )
    show_launching(console, what)
    show_launched(console, launched)
    show_serving(console, launched)
    show_cpu_times(console, CpuTimes(60.0, {"router": 2.1, "colocated-0": 51.0}))


def calibrate(console: Console) -> None:
    steps = CalibratedStepTime(
        (0.004, 0.0, 2.1e-4, 1e-8, 3e-4, 2e-7), error_p50=0.02, error_p90=0.07, steps=212
    )
    key = Key("advise", "0.1.0", "cpu", "smollm2-135m-instruct", "float32", 2)
    show_calibration(console, CalibrationResult(key, steps, Path("~/.cache/advise/step_times.yaml")))
    show_host_costs(console, HostCosts(measured=True))
    show_calibrated(console)


def redact(console: Console) -> None:
    effects = (
        Effect("requests", "2,062", "2,062"), Effect("prompt tokens reused", "87.0%", "86.8%"),
        Effect("verdict", "keep_defaults", "change", changed=True),
    )  # fmt: skip
    redacted = Redacted(Path("shared.jsonl"), 2062, {"without lengths": 3}, ("dropped: client",), effects)
    for line in describe(redacted):
        console.print(line, markup=False, highlight=False)


def cost(console: Console) -> None:
    told = Cost(
        url="https://example.net/v1",
        model="llama-3.1-8b",
        requests=1204,
        prompt_tokens=1_300_400,
        output_tokens=41_000,
        duration_s=600.0,
        end_unix_s=START,
        scaled=("arrivals stretched 1.40 times",),
        left_out=3,
        warm_up_requests=210,
        fell_back=("no token ids: prompts are text",),
        usd=1.234,
        most_runs=14,
    )
    talk = ReplayTalk(console, lambda _done, _total: None)
    talk.cost(told)
    talk.probe(1.25, "fails: 71.0% of 822 requests")


def demo(console: Console) -> None:
    slow = make_result(make_records(tpot_s=0.047, servers=2))
    show_results(console, {"baseline": slow, "advised": scenario("pass")})


def doctor(console: Console) -> None:
    show_environment(
        console,
        EnvironmentReport(
            findings=(
                Finding(name="python", level="ok", said="3.11.7"),
                Finding(
                    name="open files", level="warn", said="1,024 at most; a replay opens one for every request",
                    hint="ulimit -n 65536",
                ),
            )
        ),
    )  # fmt: skip
    found = Finding(name="output length", level="ok", said="min_tokens and ignore_eos are taken")
    show_endpoint(
        console,
        EndpointReport(
            url="http://127.0.0.1:8000",
            engine="vllm 0.11.0",
            model="llama-3.1-8b",
            max_len=8192,
            form="token ids",
            findings=(found,),
        ),
    )


def _validate(name: str) -> Screen:
    return lambda console: show_results(console, {"measured": scenario(name)})


SCREENS: dict[str, Screen] = {
    "analyze": analyze,
    "analyze-no-plan": no_plan,
    "plan-infeasible": infeasible,
    "plan-beside": plan_beside,
    "drift-replan": lambda console: drift(console, replan=True),
    "drift-none": lambda console: drift(console, replan=False),
    "launch": launch,
    "calibrate": calibrate,
    "redact": redact,
    "cost": cost,
    "demo": demo,
    "doctor": doctor,
    **{f"validate-{name.replace(' ', '-')}": _validate(name) for name in SCENARIOS},
}


def shown(screen: Screen, width: int, *, terminal: bool = False, colour: bool = False) -> str:
    """What a screen prints on a terminal of that width, or into a pipe; times of day are UTC."""
    before, os.environ["TZ"] = os.environ.get("TZ"), "UTC"
    time.tzset()
    try:
        console = Console(
            file=StringIO(), width=width, force_terminal=terminal, no_color=not colour,
            color_system="256" if terminal else None, legacy_windows=False,
        )  # fmt: skip
        screen(console)
        return cast("StringIO", console.file).getvalue()
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()
