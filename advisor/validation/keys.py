"""The API key of an endpoint: from the environment, or a file that only its owner can read.

Owns where a key comes from: never a command line. It is never printed, and errors do not hold it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from engine.errors import InputError

ENVIRONMENT = "ADVISE_API_KEY"
_MOST_BYTES = 4096


def read_key(file: Path | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The key in `file`, else of the environment; None where there is none. Raises InputError."""
    if file is None:
        return _checked(environ.get(ENVIRONMENT, ""), f"${ENVIRONMENT}") or None
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        hint = f"export {ENVIRONMENT}=KEY"
        raise InputError(
            "the key file cannot be read", where=str(file), why=error.strerror, hint=hint
        ) from None
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise InputError(
            "others can read the key file",
            where=str(file),
            why=f"its mode is {stat.S_IMODE(mode):04o}",
            hint=f"chmod 600 {file}",
        )
    key = _checked(text.decode("utf-8", errors="replace"), str(file))
    if not key:
        raise InputError("the key file is empty", where=str(file), hint=f"export {ENVIRONMENT}=KEY")
    return key


def _checked(text: str, where: str) -> str:
    """A key without what surrounds it: one word, as a header can carry it."""
    key = text.strip()
    if len(key) > _MOST_BYTES or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(
            "this is not an API key",
            where=where,
            why="a key is one printable word",
            hint=f"export {ENVIRONMENT}=KEY",
        )
    return key
