"""`python -m engine.server --config engine.yaml`: start the instances of a fleet and serve it.

stdout is one JSON line, talk goes to stderr. `advise launch` starts this; nothing else has to.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from engine.server.process import Options, serve


def arguments() -> argparse.ArgumentParser:
    """The command line of a server process."""
    parser = argparse.ArgumentParser(prog="python -m engine.server", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="engine.yaml")
    parser.add_argument("--port", type=int, help="instead of the file's server.port; 0 takes a free one")
    parser.add_argument("--step-log", type=Path, help="write one JSON line a step to this file")
    parser.add_argument(
        "--request-log", type=Path, help="append one JSON line a finished request, without text"
    )
    parser.add_argument(
        "--fault",
        help="slow-steps:3, slow-link:10 (times), link-rate:1e6 (bytes/s), transfer-fail:0.05, "
        "transfer-corrupt:0.05",
    )
    parser.add_argument(
        "--load", choices=("auto", "dummy"), default="auto", help="dummy: random weights of the model's shape"
    )
    parser.add_argument("--parent-pid", type=int, help="stop when this process, the parent, is gone")
    parser.add_argument("--emulate", type=Path, help="emulation file: steps are slept, not computed")
    parser.add_argument(
        "--oversubscribe", action="store_true", help="more instances than cores: for correctness only"
    )
    return parser


def options_of(given: argparse.Namespace) -> Options:
    """What the command line says of this run."""
    return Options(
        port=given.port,
        step_log=given.step_log,
        request_log=given.request_log,
        fault=given.fault,
        parent_pid=given.parent_pid,
        dummy=given.load == "dummy",
        emulate=given.emulate,
        oversubscribe=given.oversubscribe,
    )


def main() -> int:
    """Parse, load, serve; returns the exit status."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    given = arguments().parse_args()
    return serve(given.config, options_of(given))


if __name__ == "__main__":
    sys.exit(main())
