"""What serving costs this host beside the steps: CPU time of router and client, copies between processes.

On a CPU the router and the client run on the cores that instances compute on. What they take is measured by
`advise calibrate`, a request and a token at a time rather than as a share: the share grows with the load, and a
plan looks at many loads. Without a measurement the constants here stand in, and the plan says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import Field, ValidationError

from engine.config import Config
from engine.errors import InputError
from engine.step_time.derived import DerivedStepTime
from engine.step_time.model import StepShape

# Ours, measured with `advise calibrate` on two cores of a shared server.
REQUEST_S, TOKEN_S = 3e-3, 0.06e-3
COPY_BYTES_PER_S = 0.7e9


class HostCosts(Config):
    """CPU time that serving takes beside the steps, and how fast one process copies KV from another."""

    request_s: float = Field(REQUEST_S, ge=0, description="CPU seconds of router and client for a request")
    token_s: float = Field(TOKEN_S, ge=0, description="CPU seconds of router and client for an output token")
    copy_bytes_per_s: float = Field(
        COPY_BYTES_PER_S, gt=0, description="KV between two processes, both checksums included, bytes/s"
    )
    measured: bool = Field(False, description="by `advise calibrate` on this machine; else constants of ours")

    def __str__(self) -> str:
        basis = "measured here" if self.measured else "ours; advise calibrate measures it"
        return (
            f"{self.request_s * 1e3:.2g} ms of CPU a request and {self.token_s * 1e3:.2g} ms a token ({basis})"
        )


@dataclass(frozen=True, slots=True)
class SharedCores(DerivedStepTime):
    """Steps of an instance whose cores also run router and client, for as many of its rows as the step has.

    Instances use all cores evenly, so that of a CPU second for an instance's own requests each of its d cores
    gives 1/d, its neighbours' requests being theirs. `prompt_s` counts for every chunk of a prompt, a little
    too often where one is computed in several; that a thread which waits for a late one loses time too is
    left out.
    """

    prompt_s: float = 0.0  # for each prefill row
    row_s: float = 0.0  # for each decode row

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step, seconds."""
        prefill, rows, _ = shape
        return self.model.seconds(shape) + self.prompt_s * len(prefill) + self.row_s * rows

    def decode_line(self, rows: int, context: int) -> tuple[float, float]:
        """(a, b) of `a + b i` seconds, see StepTimeModel."""
        first, growth = self.model.decode_line(rows, context)
        return first + self.row_s * rows, growth


def load_host_costs(path: Path) -> HostCosts | None:
    """What was measured on this machine; None without a file. Raises InputError."""
    if not path.exists():
        return None
    try:
        return HostCosts.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, ValidationError) as error:
        why = str(error).splitlines()[0]
        raise InputError(
            "not a file of host costs", where=str(path), why=why, hint="advise calibrate"
        ) from None


def save_host_costs(path: Path, costs: HostCosts) -> None:
    """Write the file, replacing it in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    text = yaml.safe_dump(costs.model_dump(mode="json"), sort_keys=False)
    part.write_text(
        "# Measured by `advise calibrate`: CPU seconds of router and client; bytes/s of KV.\n" + text,
        encoding="utf-8",
    )
    part.replace(path)
