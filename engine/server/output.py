"""One output on its way to the client: the tokens of one engine request become the text of a choice.

Owns where the text ends: with the request, or before a stop string, which may be while the engine still runs.
It never talks to the engine; `Generation` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import UNSET

from engine.server.bodies import GenerationBody
from engine.server.codec import TextCodec
from engine.server.logprobs import Scored
from engine.server.shapes import Finished
from engine.server.stops import StopFinder
from engine.server.ticket import Ticket


class Piece(NamedTuple):
    """What one token adds. Ids are all that are to be shown; `scored` is empty without logprobs."""

    text: str
    token: int | None
    scored: tuple[Scored, ...] = ()


class Output:
    """The tokens of one ticket as text. `reason`: why it ended, once it has; `stopped`: by a stop string."""

    def __init__(self, ticket: Ticket, codec: TextCodec, body: GenerationBody) -> None:
        self.ticket = ticket
        self.reason: str | None = None
        self.stopped = False
        self.taken = 0  # tokens
        self._codec = codec
        self._stream = codec.stream()
        self._finder = StopFinder(body.stop, keep=body.include_stop_str_in_output) if body.stop else None
        self._min_tokens = body.min_tokens
        self._scores = body.top is not None
        self._shows_ids = body.return_token_ids
        self._characters = 0
        self._gathered: list[Piece] = []

    def pieces(self) -> Iterator[Piece]:
        """One for each token that came since, and for what was held back; exhaust it."""
        ticket = self.ticket
        for at in range(self.taken, len(ticket.tokens)):
            if self.reason is not None:
                return
            token, offset = ticket.tokens[at], self._characters
            scored: tuple[Scored, ...] = ()
            text = self._stream.push(token)
            self.taken += 1
            if self._scores:
                self._characters += len(text)
                # An executor that only models a model has none to give.
                logprobs = ticket.logprobs[at] if at < len(ticket.logprobs) else None
                scored = (Scored(token, logprobs, offset),)
            yield Piece(text if self._finder is None else self._before_stop(text), token, scored)
        if self.reason is None and ticket.ending is not None:
            tail = self._stream.flush()
            if self._finder is not None:
                tail = self._before_stop(tail)
                tail += self._finder.flush()
            self.reason = self.reason or ticket.ending.reason
            if tail:
                yield Piece(tail, None)

    def finish(self) -> Finished | None:
        """All of it, once it has ended; None before. Not to be mixed with `pieces`."""
        ending = self.ticket.ending
        if self._finder is None and ending is None:
            return None
        if self._finder is None and not self._scores and ending is not None:
            self.taken, self.reason = len(self.ticket.tokens), ending.reason
            text = self._codec.decode(self.ticket.tokens)
        else:
            self._gathered += self.pieces()
            text = "".join([piece.text for piece in self._gathered])
        if self.reason is None:
            return None
        ids = self.ticket.tokens[: self.taken] if self._shows_ids else UNSET
        return Finished(text, ids, [one for piece in self._gathered for one in piece.scored], self.reason)

    def _before_stop(self, text: str) -> str:
        """The part of `text` that is certain; sets the reason where a stop string is complete."""
        finder = self._finder
        if finder is None or self.taken <= self._min_tokens:
            return text
        text = finder.push(text)
        if finder.found:
            self.stopped, self.reason = True, "stop"
        return text
