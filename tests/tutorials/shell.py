"""The commands of a tutorial, and a shell that runs them one after another as a person at a terminal would.

Owns how a command is told from its page: the lines of ```console blocks that begin with `$ `.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "tutorials"
NAMES = tuple(sorted(path.stem for path in DOCS.glob("*.md")))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Ran:
    """One command that was run, and what it said on both streams."""

    command: str
    code: int
    output: str


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def blocks(name: str) -> list[tuple[str, str]]:
    """Language and content of every fenced block."""
    return _BLOCK.findall(page(name))


def commands(name: str) -> list[str]:
    """The commands, in the order of the page."""
    lines = [line for language, text in blocks(name) if language == "console" for line in text.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def run_all(
    lines: Sequence[str],
    folder: Path,
    programs: Path,
    variables: Mapping[str, str],
    *,
    fine: Mapping[str, Sequence[int]],
    timeout_s: float,
) -> list[Ran]:
    """Run the commands in one shell with jobs, in `folder`; `programs` goes before everything else on PATH.

    Stops after the first whose exit code is not 0, nor among those of the first key of `fine` that is in it.
    What still runs in the background is stopped at the end.
    """
    said = folder.parent / "said"
    said.mkdir()
    script = ["set -m", "trap 'kill $(jobs -p) 2>/dev/null' EXIT"]
    for number, line in enumerate(lines):
        codes = next((codes for part, codes in fine.items() if part in line), ())
        script += [
            f"{{ {line}\n}} > {said}/{number}.out 2>&1",
            f"code=$?; echo $code > {said}/{number}.code",
            f"case $code in {'|'.join(map(str, (0, *codes)))}) ;; *) exit 1 ;; esac",
        ]
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **variables, "PATH": path}
    shell = subprocess.Popen(["/bin/bash", "-c", "\n".join(script)], cwd=folder, env=environment)
    try:
        shell.wait(timeout_s)
    except subprocess.TimeoutExpired:
        shell.send_signal(signal.SIGTERM)  # its trap stops the jobs
        shell.wait(60)
    return [_ran(line, said, number) for number, line in enumerate(lines) if (said / f"{number}.out").exists()]


def _ran(line: str, said: Path, number: int) -> Ran:
    code = said / f"{number}.code"
    output = (said / f"{number}.out").read_text(encoding="utf-8", errors="replace")
    return Ran(line, int(code.read_text()) if code.exists() else -1, output)
