"""The control of a plan: what runs now, as a layout that the simulation can run beside the others.

Owns the step from a `Current` (read, or a stack's defaults) to a `Layout`, and the words that say where each of
its values comes from. Reads nothing but what `current` reads; changes no setting without saying so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TextIO

from advisor.advice import profiles
from advisor.advice.current import Around, Current, defaults, read_current
from advisor.advice.current.model import TITLES
from advisor.advice.search.hardware import Hardware
from advisor.advice.search.layout import Layout
from advisor.advice.sizing import parallel, sizes
from advisor.advice.target import Target
from engine.config import PoolConfig
from engine.errors import InputError, MachineError

PREFIX = "control"  # of its entries among a plan's reasons


@dataclass(frozen=True, slots=True)
class Control:
    """The layout, and by dotted path why each value is what it is. `known`: somebody said what runs."""

    layout: Layout
    reasons: Mapping[str, str]
    known: bool


def read_control(source: str, gpu: str | None, version: str | None, stdin: TextIO | None = None) -> Current:
    """What `--current` describes, on a GPU of the profiles. Raises InputError."""
    memory_gb = None if gpu is None else profiles.gpu(gpu).memory_gb
    return read_current(source, Around(version, gpu, memory_gb), stdin=stdin)


def control_of(current: Current, hardware: Hardware, gpus: int) -> Control:
    """The control that was read. `gpus`: devices of the target. Raises InputError where it cannot be run."""
    name = f"now: {_described(current)}"
    layout, changed = _layout(name, current, hardware, gpus)
    return Control(layout, _reasons(current, layout, changed), known=True)


def default_control(target: Target, hardware: Hardware, gpus: int) -> Control | None:
    """The defaults of the target's stack, of the fewest GPUs an instance that hold the model.

    An instance has pipeline stages only where no TP holds it. None for the bundled engine, whose defaults the
    simulation knows. Raises MachineError where nothing fits.
    """
    if target.stack == "advise" or target.on_cpu:
        return None
    memory_gb = profiles.gpu(target.gpu).memory_gb
    for tp, pp in sizes(gpus):
        current = defaults(
            target.stack, target.stack_version, memory_gb, gpu=target.gpu, max_len=target.max_len, tp=tp,
            count=gpus // (tp * pp),
        )  # fmt: skip
        if all(hardware.fits(tp, pool.token_budget, pp) for pool in current.pools):
            pools = tuple(pool.model_copy(update={"pp": pp}) for pool in current.pools)
            current = replace(current, pools=pools)
            layout, changed = _layout(f"defaults of {TITLES[target.stack]}", current, hardware, gpus)
            return Control(layout, _reasons(current, layout, changed), known=False)
    raise MachineError("the model does not fit", hint="advise analyze LOG --gpus N, with a larger N")


def _described(current: Current) -> str:
    """Stack and pools in a line."""
    pools = " + ".join(
        f"{pool.count} {'' if pool.role == 'colocated' else pool.role + ' '}x {parallel(pool.tp, pool.pp)}"
        for pool in current.pools
    )
    return f"{TITLES[current.stack]}, {pools}"


def _layout(name: str, current: Current, hardware: Hardware, gpus: int) -> tuple[Layout, list[str]]:
    """As the simulation runs it, and what that changes."""
    roles = {pool.role for pool in current.pools}
    if roles not in ({"colocated"}, {"prefill", "decode"}):
        raise InputError(
            "what runs now is not whole", why=f"it has pools for {' and '.join(sorted(roles))} only",
            hint="give the launches of both sides of a split to --current",
        )  # fmt: skip
    changed: list[str] = []
    pools = tuple(_pool(pool, hardware, gpus, changed) for pool in current.pools)
    return Layout(name, pools, current.router), list(dict.fromkeys(changed))


def _pool(pool: PoolConfig, hardware: Hardware, gpus: int, changed: list[str]) -> PoolConfig:
    tp, pp = gpus if hardware.on_cpu else pool.tp, pool.pp
    if tp not in hardware.copies:
        known = ", ".join(f"TP {degree}" for degree in hardware.copies)
        raise InputError(
            f"an instance of {parallel(tp, pp)} cannot be simulated",
            why=f"for this model can be: {known}",
            hint="leave --current out, or change the degrees in it",
        )
    if pool.block_size != hardware.block_size:
        changed.append(f"blocks of {pool.block_size} tokens are simulated as blocks of {hardware.block_size}")
    kv_tokens = pool.kv_tokens
    if kv_tokens is None:
        try:
            kv_tokens = hardware.kv_tokens(tp, pool.token_budget, pp)
        except MachineError as error:
            raise InputError(
                "the model does not fit as it runs now",
                why=error.why or error.message,
                hint="name the GPUs it runs on: --gpu h200-sxm --gpus 8",
            ) from None
        changed.append(f"{kv_tokens:,} KV tokens an instance: what the GPU's memory allows")
    if kv_tokens < hardware.longest:
        changed.append(f"its KV cache is smaller than the longest request, {hardware.longest:,} tokens")
    devices = gpus if hardware.on_cpu else tp * pp
    return pool.model_copy(
        update={"devices_per_instance": devices, "block_size": hardware.block_size, "kv_tokens": kv_tokens}
    )


def _reasons(current: Current, layout: Layout, changed: list[str]) -> dict[str, str]:
    """What was read and from where, what was assumed and by which source, and what was not understood."""
    reasons = {PREFIX: layout.name}
    for said in current.read:
        reasons[f"{PREFIX}.{said.setting}"] = f"read: {said.value} ({said.by})"
    for one in current.assumed:
        doubt = "" if one.verified else "; not verified"
        reasons.setdefault(
            f"{PREFIX}.{one.setting}", f"assumed: {one.value} ({one.source}; {one.versions}{doubt})"
        )
    for name, value in current.other.items():
        reasons.setdefault(f"{PREFIX}.{name}", f"read: {value}")
    for flag in current.unknown:
        nearest = f"; the nearest are {', '.join(flag.nearest)}" if flag.nearest else ""
        reasons[f"{PREFIX}.unknown.{flag.flag}"] = f"not known, left out{nearest}"
    for number, note in enumerate((*current.notes, *changed)):
        reasons[f"{PREFIX}.notes.{number}"] = note
    return reasons
