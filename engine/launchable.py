"""What this version of the bundled engine can launch. The plan's `runs_on` and `launch` both ask here."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.fetch import EMBEDDED_NAME

CUDA_NOTE = "CUDA path: compiled and interpreted, not yet executed"
"""What is said of a GPU, for as long as nobody has run the engine on one."""


def why_not_launchable(config: EngineConfig) -> str | None:
    """Why the bundled engine cannot run `config`, in one sentence; None where it can."""
    pool = config.pools[0]
    if len(config.pools) > 1 or pool.role != "colocated":
        return "this version launches colocated instances only, no prefill/decode split"
    if pool.count > 1:
        return "this version launches one instance, not several replicas"
    if pool.pp > 1:
        return "this version launches instances of pp 1 only"
    if pool.devices_per_instance % pool.tp:
        return f"{pool.devices_per_instance} devices cannot be shared equally by {pool.tp} ranks"
    if config.model.path is None and config.model.name != EMBEDDED_NAME:
        return f"the weights of {config.model.name} have no path; plan with --model FOLDER, or set model.path"
    return None
