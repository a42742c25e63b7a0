"""Errors that a person can act on: what went wrong, where, why, and one command that helps.

Everything that a user can cause is one of these; any other exception that escapes is a bug (exit 5).
The advisor raises them too. Messages never hold prompt text.
"""

from __future__ import annotations


class AdviseError(Exception):
    """Base of the errors shown to users.

    `message` says what; `where` names the file, line or request; `why` the reason; `hint` is one runnable
    command or edit. `exit_code` follows the table in docs/configuration.md.
    """

    exit_code = 5

    def __init__(
        self, message: str, *, where: str | None = None, why: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.why = why
        self.hint = hint


class InputError(AdviseError):
    """The user's input or flags cannot be used; exit 2."""

    exit_code = 2


class MachineError(AdviseError):
    """This machine lacks something: a model file, an extra, a port, a running engine; exit 3."""

    exit_code = 3


class InvalidMeasurementError(AdviseError):
    """A measurement was taken but does not deserve trust; exit 4."""

    exit_code = 4
