"""The command line: the app with its commands, exit codes, and how errors are printed.

The commands themselves are in `advisor.commands`; they import the packages that do the work when they run, so
that `advise --help` loads neither numpy nor torch.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from advisor.commands import measuring, planning, serving
from advisor.commands.talk import talk
from engine.errors import AdviseError, InputError

app = typer.Typer(
    name="advise",
    help="Reads the request logs of an LLM service, advises how to serve it, launches that and measures it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from advisor import __version__

        typer.echo(f"advise {__version__}")
        raise typer.Exit


app.command()(planning.analyze)
app.command("plan")(planning.plan_again)
app.command()(planning.redact)
app.command()(serving.launch)
app.command()(measuring.validate)
app.command()(measuring.report)
app.command()(measuring.doctor)
app.command()(serving.calibrate)
app.command()(serving.demo)


def main() -> NoReturn:
    """Run the command line; the process exits with the code of docs/configuration.md."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and give its exit code; every error is printed the same way."""
    try:
        return int(app(arguments, prog_name="advise", standalone_mode=False) or 0)
    except AdviseError as error:
        _complain(error)
        return error.exit_code
    except typer.TyperException as error:  # unknown flags, missing arguments
        _complain(InputError(error.format_message(), hint="advise COMMAND --help"))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        talk().print("interrupted")
        return 130
    except Exception as error:  # a bug: name the place, never the data
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        _complain(
            AdviseError(
                f"this is a bug in advise: {type(error).__name__} at {place}",
                hint="advise --version   (say it and this line in a report)",
            )
        )
        return 5


def _complain(error: AdviseError) -> None:
    from advisor.report.rows import visible

    console = talk()
    console.print(f"error: {visible(error.message)}", style="red", markup=False)
    for label, text in (("where", error.where), ("why", error.why), ("hint", error.hint)):
        if text:
            console.print(f"  {label + ':':<6} {visible(text)}", markup=False)
