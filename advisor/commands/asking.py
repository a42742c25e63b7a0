"""What a person is asked before load goes to another machine.

Asks on a terminal only, and never where `--yes` was given. Where nobody can be asked the answer is no: an error
whose hint is `--yes`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

Yes = Annotated[bool, typer.Option("--yes", help="Send load to a host that is not this machine, unasked.")]
KeyFile = Annotated[
    Path | None,
    typer.Option("--api-key-file", help="File with the endpoint's API key, mode 0600; else $ADVISE_API_KEY."),
]


def may_send(url: str, *, yes: bool) -> bool:
    """Whether real load may go to `url`: this machine, `--yes`, or a person who said so.

    Raises typer.Abort where the person says no, InputError for what is no URL.
    """
    from advisor.validation import refuse

    question = refuse.question(url)
    if question is None or yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    typer.echo(f"{question} [y/N] ", nl=False, err=True)  # not typer.confirm: a part of that is on stdout
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort
    return True


def ask_first(url: str, *, yes: bool, key: bool = False) -> None:
    """Raise where load may not go to `url`, as `may_send` and `refuse.remote` do; `key`: a key goes with it."""
    from advisor.validation import refuse

    refuse.remote(url, allowed=may_send(url, yes=yes), key=key)
