"""`python -m engine.server --config engine.yaml`: load a model and serve it.

stdout is one JSON line, talk goes to stderr. `advise launch` starts this; nothing else has to.
"""

from __future__ import annotations

import argparse
import logging
import sys
from functools import partial
from pathlib import Path

from engine.server.backend import load_torch
from engine.server.process import Options, serve


def arguments() -> argparse.ArgumentParser:
    """The command line of a server process."""
    parser = argparse.ArgumentParser(prog="python -m engine.server", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="engine.yaml")
    parser.add_argument("--port", type=int, help="instead of the file's server.port; 0 takes a free one")
    parser.add_argument("--step-log", type=Path, help="write one JSON line a step to this file")
    parser.add_argument("--fault", help="slow-steps:3 makes every step take three times as long")
    parser.add_argument(
        "--load", choices=("auto", "dummy"), default="auto", help="dummy: random weights of the model's shape"
    )
    parser.add_argument("--parent-pid", type=int, help="stop when this process, the parent, is gone")
    return parser


def main() -> int:
    """Parse, load, serve; returns the exit status."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    given = arguments().parse_args()
    options = Options(given.port, given.step_log, given.fault, given.parent_pid)
    return serve(given.config, partial(load_torch, dummy=given.load == "dummy"), options)


if __name__ == "__main__":
    sys.exit(main())
