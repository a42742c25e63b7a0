"""Stop strings: where an output ends because of what it says.

Owns the text that is held back because a stop string may have begun in it. The end does not depend on how the
text is cut into tokens.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Passes the text of one output on until a stop string is complete.

    The first one to be complete counts, the longest where several are at the same character. The text ends
    before it, or with it where `keep` is set; nothing behind it is ever given out.
    """

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, stops))
        self._keep = keep
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """The text that is certain now. Do not call it again once `found`."""
        text = self._held + piece
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.found = True
            end, start = min(ends)
            self._held = ""
            return text[: end if self._keep else start]
        begun = self._begun(text)
        self._held = text[len(text) - begun :]
        return text[: len(text) - begun]

    def flush(self) -> str:
        """What was held back, at the end of an output in which no stop string was complete."""
        held, self._held = self._held, ""
        return held

    def _begun(self, text: str) -> int:
        """How many of the last characters are the beginning of a stop string, at most."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
