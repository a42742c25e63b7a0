"""Run every benchmark that takes minutes, or those named: `python -m benchmarks [install] [sharing] ...`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_LONG = {"faults", "rehearsal", "three_ideas"}  # half an hour and more each; they are resumed, and named


def main() -> int:
    """Run the scripts one after another, each in its own process; gives the worst exit code."""
    here = Path(__file__).parent
    names = sys.argv[1:] or sorted({path.stem for path in here.glob("[a-z]*.py")} - _LONG)
    worst = 0
    for name in names:
        print(f"== {name}", flush=True)
        worst = max(worst, subprocess.call([sys.executable, "-m", f"benchmarks.{name}"], cwd=here.parent))
    return worst


if __name__ == "__main__":
    sys.exit(main())
