"""The main function of a process that reads pieces of a log (see `workers`).

Takes pickled jobs on standard input and answers on standard output until the input ends. Whatever fails is told
by its kind and place only: the words of an error may quote the log.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import traceback
from pathlib import Path

from advisor.logs.parse import Parsed, Parser, Setup
from advisor.logs.text import TextReader, Unit
from advisor.logs.workers import Failure, Job


def main() -> None:
    """Serve one log."""
    gc.set_threshold(100_000)  # rows come and go by the thousand, and none refers to itself
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end ends the input
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print must not end up among the answers
    jobs = sys.stdin.buffer
    try:
        setup, unit = pickle.load(jobs)  # noqa: S301 - of our own parent
        parser = _parser(setup, unit)
        while True:
            job: Job = pickle.load(jobs)  # noqa: S301
            pickle.dump(_answer(parser, job), answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
    except (EOFError, OSError, pickle.UnpicklingError):
        os._exit(0)  # the parent is done, or gone: nothing is left to close


def _parser(setup: Setup, unit: Unit) -> Parser:
    text = TextReader(None, setup.options.block_size, setup.key)
    text.use(unit)
    return Parser(setup, text)


def _answer(parser: Parser, job: Job) -> Parsed | Failure:
    try:
        return parser.read_piece(job.piece, job.source, text=job.text)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        places = tuple(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
        return Failure(type(error).__name__, places)
