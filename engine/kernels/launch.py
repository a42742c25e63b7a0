"""A launch of a kernel as plain data: serving runs it, `engine.kernels.compile` compiles it without a GPU.

So what is compiled ahead of time is what serving launches, argument by argument. Owns no kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Launch:
    """`kernel` over `grid` programs; `arguments` by name, compile-time constants included."""

    kernel: Any  # triton's JITFunction, or its stand-in under the interpreter
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    warps: int = 4
    stages: int = 3

    def run(self) -> None:
        """Queue it on the current stream; nothing where the grid is empty."""
        if all(self.grid):
            self.kernel[self.grid](**self.arguments, **self.options)

    @property
    def options(self) -> dict[str, Any]:
        """Triton's compile options. Fused multiply-add is asked for by name: its default is about to change."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}


def padded(size: int) -> int:
    """The power of two at or above `size`: a kernel's tiles have such sides."""
    return 1 << max(size - 1, 0).bit_length()
