"""What a puller and a source say, over a Unix socket or TCP, and the connection that carries it.

    source: 32 random bytes
    puller: 32 random bytes, proof that it knows the launch's secret
    source: Proven, its own proof -- or Refusal, and the end
    puller: Hello, its layout
    source: Welcome, its nonce and on one host its memory -- or Refusal, and the end
    puller: Ask                    source: Found (over TCP the bytes follow it), or Gone
    puller: Confirm, once copied   source: Busy while it reads its pages, then StillHeld, with their CRC-32, or
                                           Gone
    puller: Wanted                 no answer; only where the router of the source cannot be told

The secret itself never travels, and nothing of a puller is parsed before its proof is right. Frames are a
four-byte length and MessagePack, their size is capped; all else is bytes of KV, whose number both sides know.
"""

from __future__ import annotations

import hmac

import msgspec

from engine.transfer.layout import KvLayout

CHALLENGE_BYTES = 32
PROOF_BYTES = 32


class Proven(msgspec.Struct, frozen=True, tag=True):
    """The puller knows the secret; proof that the source does."""

    proof: bytes


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The puller's layout."""

    layout: KvLayout


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The layouts agree. Descriptors of the memory come beside this message."""

    nonce: str
    num_blocks: int
    handles: tuple[bytes, ...]


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Not to this puller, or not this."""

    why: str


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Where are positions `start` to `stop` of a request, at the source's start `nonce`?"""

    request_id: str
    nonce: str
    start: int
    stop: int


class Found(msgspec.Struct, frozen=True, tag=True):
    """In `blocks`, by position; none over TCP, where the bytes follow. `serial` names this keeping of it."""

    serial: int
    blocks: tuple[int, ...]


class Gone(msgspec.Struct, frozen=True, tag=True):
    """It is not kept here, or no more."""


class Confirm(msgspec.Struct, frozen=True, tag=True):
    """Is what was found under `serial` still kept, and what is its checksum now?"""

    request_id: str
    nonce: str
    serial: int
    start: int
    stop: int


class Busy(msgspec.Struct, frozen=True, tag=True):
    """The answer is being worked on."""


class StillHeld(msgspec.Struct, frozen=True, tag=True):
    """It was kept all the time."""

    crc32: int


class Wanted(msgspec.Struct, frozen=True, tag=True):
    """What is kept for another fleet: `still`, its lease is renewed; else it is let go at once. Idempotent."""

    request_id: str
    nonce: str
    still: bool


Question = Ask | Confirm | Wanted
Answer = Found | Gone | Busy | StillHeld | Refusal


def proof(secret: str, side: str, challenges: bytes) -> bytes:
    """That `side` ("puller" or "source") knows the secret, good for these two challenges alone."""
    return hmac.digest(secret.encode(), side.encode() + challenges, "sha256")


def proves(given: bytes, secret: str, side: str, challenges: bytes) -> bool:
    """Whether `given` is that proof, compared in constant time."""
    return hmac.compare_digest(given, proof(secret, side, challenges))
