"""Whether a command line of `advise` that is written somewhere could be run: command and flags exist."""

from __future__ import annotations

import re
import shlex
from typing import Any

import typer.main

from advisor.cli import app

GROUP: Any = typer.main.get_command(app)


def problem(line: str) -> str | None:
    """What is wrong with a line that begins with `advise`; None: nothing.

    What stands three spaces behind it, what it is piped into and what comes after a comma are no part of it.
    """
    _, *words = shlex.split(re.split(r" {3,}| \| |, ", line)[0])
    if words[0] in ("--version", "--help"):
        return None if len(words) == 1 else "more words"
    command = GROUP.commands.get(words[0])
    if command is None:
        return f"there is no command {words[0]}"
    context = command.context_class(command, info_name=words[0])
    try:
        _, left, _ = command.make_parser(context).parse_args(args=words[1:])
    except typer.TyperException as error:
        return str(error.format_message())
    return f"it takes no {left}" if left else None
