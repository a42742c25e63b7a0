"""The advisor: reads request logs, measures them, advises, launches and validates. It never imports torch.

`read`, `measure` and `plan` are the Python face of `advise analyze`; they give the models that `--json` prints.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from engine import __version__

__all__ = ["__version__", "measure", "plan", "read"]

_HOMES = {
    "read": ("advisor.logs.read", "read"),
    "measure": ("advisor.workload.measure", "measure"),
    "plan": ("advisor.advice.advise", "advise"),
}


def __getattr__(name: str) -> Any:
    """Load on first use: `import advisor` stays as cheap as `advise --help` needs."""
    if name in _HOMES:
        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'advisor' has no attribute {name!r}")
