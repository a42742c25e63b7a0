"""What this version of the bundled engine can launch. A plan's `runs_on`, `launch` and the engine ask here."""

from __future__ import annotations

from engine.config import EngineConfig, PoolConfig
from engine.fetch import EMBEDDED_NAME

CUDA_NOTE = "CUDA path: compiled and interpreted, not yet executed"
"""What is said of a GPU, for as long as nobody has run the engine on one."""


def why_not_launchable(config: EngineConfig, *, emulated: bool = False) -> str | None:
    """Why the bundled engine cannot run `config`, in one sentence; None where it can.

    `emulated`: steps are slept and KV has no shape, so that neither weights nor devices are asked for.
    """
    why = _why_not_a_fleet(config.pools)
    if why is not None or emulated:
        return why
    degrees = sorted({pool.tp for pool in config.pools if pool.role != "colocated"})
    if len(degrees) > 1:
        return f"prefill and decode pools differ in tp: {_words(degrees)}; KV moves between equal ranks only"
    if config.model.path is None and config.model.name != EMBEDDED_NAME:
        return f"the weights of {config.model.name} have no path; plan with --model FOLDER, or set model.path"
    return None


def why_too_few_cores(config: EngineConfig, cores: int) -> str | None:
    """Why instances on CPU cores, none shared by two, do not fit on `cores`, in one sentence; None: they do."""
    needed = devices(config)
    if needed <= cores:
        return None
    instances = ", ".join(f"{pool.count} {pool.role} x {pool.devices_per_instance}" for pool in config.pools)
    return f"{needed} cores are needed ({instances}), this machine has {cores}"


def devices(config: EngineConfig) -> int:
    """Devices of all instances."""
    return sum(pool.count * pool.devices_per_instance for pool in config.pools)


def _why_not_a_fleet(pools: tuple[PoolConfig, ...]) -> str | None:
    if any(pool.pp > 1 for pool in pools):
        return "this version launches instances of pp 1 only"
    for pool in pools:
        if pool.devices_per_instance % pool.tp:
            return f"{pool.devices_per_instance} devices cannot be shared equally by {pool.tp} ranks"
    roles = {pool.role for pool in pools}
    if ("prefill" in roles) != ("decode" in roles) and len(roles) > 1:
        one, other = ("prefill", "decode") if "prefill" in roles else ("decode", "prefill")
        return f"a {one} pool needs a {other} pool beside it; alone it serves behind another router"
    sizes = sorted({pool.block_size for pool in pools})
    if len(sizes) > 1:
        return f"pools of one fleet differ in block_size: {_words(sizes)} tokens"
    return None


def _words(numbers: list[int]) -> str:
    return " and ".join(map(str, numbers))
