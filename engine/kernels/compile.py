"""`python -m engine.kernels.compile`: compile every kernel variant for GPUs that are not there, and check it.

Prints per kernel registers, spills and shared memory as `cuobjdump` reads them from the binary. Exits 1 where a
kernel does not compile, an attention kernel spills, or shared memory is over what a block may have. Runs no
kernel; says nothing about speed.
"""

# ruff: noqa: T201 - the command prints a table

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels.launch import Launch
from engine.kernels.tiles import Gpu
from engine.kernels.variants import Variant, variants

# Shared memory that one block may have (CUDA C++ programming guide, table of technical specifications).
SHARED_BYTES = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024}
ARCHITECTURES = (80, 90)
_POINTERS = {
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32",
    torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class Built:
    """One compiled variant. `spilled`: bytes of stack and local memory; `shared`: bytes a block asks for."""

    name: str
    architecture: int
    attention: bool
    shared: int = 0
    registers: int | None = None
    spilled: int | None = None
    error: str | None = None

    @property
    def fault(self) -> str | None:
        """Why the check fails for it, or None."""
        if self.error:
            return f"does not compile: {self.error}"
        limit = SHARED_BYTES[self.architecture]
        if self.shared > limit:
            return f"needs {self.shared} bytes of shared memory of {limit}"
        if self.attention and self.spilled:
            return f"spills {self.spilled} bytes"
        return None


def source(launch: Launch) -> Any:
    """What triton would specialise for at this launch: types, constants, and what divides by 16."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for number, parameter in enumerate(launch.kernel.params):
        name = parameter.name
        value = launch.arguments[name]
        if parameter.is_constexpr or (
            isinstance(value, int) and value == 1 and not parameter.do_not_specialize
        ):
            signature[name] = "constexpr"
            constants[name] = value
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = _POINTERS[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        # The allocator aligns tensors, and heads are multiples of 16 numbers.
        aligned = isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0)
        if aligned and not parameter.do_not_specialize:
            attributes[(number,)] = [["tt.divisibility", 16]]
    return ASTSource(launch.kernel, signature, constants, attributes)


def build(variant: Variant, cuobjdump: str | None) -> Built:
    """Compile one variant and read what it uses."""
    major, minor = variant.gpu.capability
    architecture = 10 * major + minor
    launch = variant.launch
    try:
        compiled = triton.compile(
            source(launch),
            target=GPUTarget("cuda", architecture, 32),
            options=launch.options,
        )
    except Exception as error:  # the compiler's own, of any kind: it is this variant's result
        words = (str(error).strip() or repr(error)).splitlines()
        return Built(variant.name, architecture, variant.attention, error=words[0])
    registers = spilled = None
    if cuobjdump:
        registers, spilled = _usage(cuobjdump, compiled.asm["cubin"])
    return Built(variant.name, architecture, variant.attention, compiled.metadata.shared, registers, spilled)


def find_cuobjdump() -> str | None:
    """The one that triton ships, or on PATH, or of a CUDA toolkit."""
    shipped = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    candidates = (str(shipped), shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump")
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def report(built: Sequence[Built]) -> int:
    """Print a line a kernel, then what is wrong; returns the exit code."""
    print(f"{'arch':6}{'kernel':34}{'registers':>10}{'spilled':>9}{'shared':>9}")
    for one in built:
        numbers = ("-" if number is None else str(number) for number in (one.registers, one.spilled))
        print(f"sm_{one.architecture:<3}{one.name:34}{next(numbers):>10}{next(numbers):>9}{one.shared:>9}")
    faulty = [one for one in built if one.fault]
    for one in faulty:
        print(f"sm_{one.architecture} {one.name}: {one.fault}", file=sys.stderr)
    print(f"{len(built)} kernels, {len(faulty)} faulty")
    return 1 if faulty or not built else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m engine.kernels.compile", description=__doc__)
    parser.add_argument(
        "--arch", type=int, action="append", choices=sorted(SHARED_BYTES), help="default: 80, 90"
    )
    parser.add_argument("--only", default="", help="variants whose name contains this")
    parser.add_argument("--all", action="store_true", help="also those that compile like another")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--no-resources", action="store_true", help="do not read registers and spills")
    options = parser.parse_args(arguments)
    cuobjdump = None if options.no_resources else find_cuobjdump()
    if cuobjdump is None and not options.no_resources:
        print(
            "no cuobjdump in triton, on PATH or in /usr/local/cuda; --no-resources goes without",
            file=sys.stderr,
        )
        return 1
    jobs = [
        (architecture, options.all, variant.name, cuobjdump)
        for architecture in options.arch or ARCHITECTURES
        for variant in variants(_gpu(architecture), full=options.all)
        if options.only in variant.name
    ]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        return report(list(pool.map(_build_named, jobs)))


def _build_named(job: tuple[int, bool, str, str | None]) -> Built:
    """Launches do not travel between processes: a child finds its variant by name."""
    architecture, full, name, cuobjdump = job
    found = next(one for one in variants(_gpu(architecture), full=full) if one.name == name)
    return build(found, cuobjdump)


def _gpu(architecture: int) -> Gpu:
    return Gpu(divmod(architecture, 10), processors=1)  # processors decide the number of splits, not a kernel


def _usage(cuobjdump: str, cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack and local memory, of a binary with one kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        done = subprocess.run(
            [cuobjdump, "--dump-resource-usage", str(path)], capture_output=True, text=True, check=True
        )
    found = _USAGE.search(done.stdout)
    if found is None:
        raise ValueError(f"cuobjdump's output has changed: {done.stdout[:200]!r}")
    registers, stack, _, local = map(int, found.groups())
    return registers, stack + local


if __name__ == "__main__":
    sys.exit(main())
