"""Every attempt of a process to reach somebody, written to a file as it is made.

`guard(folder)` gives a folder for PYTHONPATH whose sitecustomize, the first code of any Python process, sets an
audit hook that cannot be taken back: names asked for, connects, datagrams. uvloop does its own, in C, so its
loop's methods are watched too. One line an attempt; nothing is stopped.
"""

from __future__ import annotations

from pathlib import Path

_SITECUSTOMIZE = """
import os, sys

_file = os.open({file!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_WATCHED = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
            "socket.gethostbyname", "socket.gethostbyaddr", "urllib.Request", "http.client.connect",
            "ftplib.connect", "smtplib.connect")
_METHODS = ("create_connection", "create_unix_connection", "create_datagram_endpoint", "sock_connect",
            "getaddrinfo", "getnameinfo", "sock_sendto")

def _note(what):
    os.write(_file, what.encode("ascii", "replace")[:300] + bytes([10]))

def _hook(event, given):
    if event in _WATCHED:
        _note(event + " " + repr(given[1:] if event.startswith("socket.c") else given[:3]))

def _watch(loop, name):
    inner = getattr(loop, name)
    def watched(self, *given, **named):
        if named.get("sock") is None:  # else it takes over a socket whose connect was seen
            _note("uvloop." + name + " " + repr(given[1:]))
        return inner(self, *given, **named)
    setattr(loop, name, watched)

sys.addaudithook(_hook)
try:
    import uvloop
except ImportError:
    pass
else:
    for _name in _METHODS:
        _watch(uvloop.Loop, _name)
_note("watching " + str(os.getpid()))
"""


class Outbound:
    """What was attempted so far, by all processes that started under the guard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "guard"
        self._file = folder / "attempts.txt"
        self.folder.mkdir()
        (self.folder / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(file=str(self._file)))

    def lines(self) -> list[str]:
        """All lines, those of processes that began to watch included."""
        return self._file.read_text().splitlines() if self._file.exists() else []

    def watched(self) -> list[int]:
        """The processes that are watched."""
        return [int(line.split()[1]) for line in self.lines() if line.startswith("watching ")]

    def attempts(self) -> list[str]:
        """What was attempted."""
        return [line for line in self.lines() if not line.startswith("watching ")]
