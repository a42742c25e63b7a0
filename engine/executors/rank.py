"""`python -m engine.executors.rank`: one tensor-parallel rank above 0, started by rank 0's process.

stdin is a configuration, then Steps; stdout is one report, when the weights are loaded; talk goes to stderr.
It ends with stdin, whatever it is doing: that is how it learns that its parent is done or dead.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from typing import IO, TYPE_CHECKING

from engine.devices import pin_thread
from engine.errors import AdviseError
from engine.executors.wire import RankConfig, RankReport, receive_config, receive_step, send
from engine.step import Step

if TYPE_CHECKING:
    from engine.executors.runner import Runner


def main() -> int:
    """Load, report, join the group, run Steps until stdin ends; returns the exit status."""
    # A Ctrl-C or a service manager signals the whole group; only rank 0 knows when the last step is over.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Whatever a library prints must not be read as a report.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as reports:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        config = receive_config(sys.stdin.buffer)
        if config is None:
            return 0
        pin_thread(config.cores)
        steps: queue.SimpleQueue[Step] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(sys.stdin.buffer, steps), daemon=True).start()
        runner = _load(config, reports)
    if runner is None:
        return 1
    runner.join(config.rendezvous)
    runner.prepare()
    while True:
        runner.run(steps.get())


def _listen(pipe: IO[bytes], steps: queue.SimpleQueue[Step]) -> None:
    """Queue the Steps that come; at the end of the pipe the process ends, from inside a collective too."""
    while (step := receive_step(pipe)) is not None:
        steps.put(step)
    os._exit(0)


def _load(config: RankConfig, reports: IO[bytes]) -> Runner | None:
    """The runner of this rank, not joined yet; None where it could not be made, which is reported."""
    import torch

    from engine.executors.runner import Runner

    torch.set_num_threads(config.threads)
    try:
        runner = Runner(config)
    except AdviseError as error:
        send(reports, RankReport(error=": ".join(filter(None, (error.message, error.why)))))
        return None
    send(reports, RankReport(weight_bytes=runner.model.weight_bytes, handle=runner.handle))
    return runner


if __name__ == "__main__":
    sys.exit(main())
