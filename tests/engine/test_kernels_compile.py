"""Kernels compiled for GPUs that are not there, in a process where the interpreter is off."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parent.parent.parent
LINE = re.compile(r"^sm_(\d+) +(\S.*?) +(\d+|-) +(\d+|-) +(\d+)$")


def compile_kernels(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", "engine.kernels.compile", *arguments],
        capture_output=True, text=True, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip


def test_bfloat16_kernels_compile_for_hopper_and_attention_does_not_spill() -> None:
    done = compile_kernels("--only", "128 bf16", "--jobs", "1", "--arch", "90")
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [found.groups() for found in map(LINE.match, done.stdout.splitlines()) if found]
    names = {name for _, name, *_ in lines}
    assert {"decode split 128 bf16", "prefill window 128 bf16", "merge 64 128 bf16", "store 128 bf16"} <= names
    for _, name, registers, spilled, shared in lines:
        assert 0 < int(registers) <= 255
        assert int(shared) <= 227 * 1024
        assert int(spilled) == 0 or name.startswith(("norm", "rotary", "store"))


# 163 KB and 227 KB a block: CUDA C++ programming guide, table of technical specifications.
@pytest.mark.parametrize(
    ("arch", "attention", "shared", "spilled", "fault"),
    [
        (80, True, 166_912, 0, None),
        (80, True, 166_913, 0, "needs 166913 bytes of shared memory of 166912"),
        (90, False, 232_448, 0, None),
        (90, False, 232_449, 0, "needs 232449 bytes of shared memory of 232448"),
        (90, True, 0, 8, "spills 8 bytes"),
        (90, False, 0, 8, None),
    ],
)
def test_what_fails_the_check(
    arch: int, attention: bool, shared: int, spilled: int, fault: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    from engine.kernels.compile import Built, report

    built = Built("decode", arch, attention, shared, registers=64, spilled=spilled)
    assert built.fault == fault
    assert report([built]) == (0 if fault is None else 1)
    assert (fault or "") in capsys.readouterr().err


def test_a_kernel_that_does_not_compile_fails_the_check_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    from engine.kernels.compile import Built, report

    assert report([Built("decode 64", 80, True, error="no such thing")]) == 1
    assert "sm_80 decode 64: does not compile: no such thing" in capsys.readouterr().err


def test_without_cuobjdump_the_check_says_so_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from engine.kernels import compile as command

    monkeypatch.setattr(command, "find_cuobjdump", lambda: None)
    assert command.main([]) == 1
    assert "no cuobjdump" in capsys.readouterr().err


@pytest.mark.slow
def test_every_variant_of_every_architecture() -> None:
    done = compile_kernels("--all", "--arch", "80", "--arch", "86", "--arch", "90")
    assert done.returncode == 0, done.stderr[-2000:]
