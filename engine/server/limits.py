"""What a request may cost before it is understood: the size, depth and time of its body.

The limits of a connection are `connection`'s, those of fields stand with the fields in `bodies`. All are ours;
the published denial-of-service reports behind them are in docs/api.md.
"""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from engine.server.errors import ApiError

MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_HEAD_BYTES = 16 * 1024
MAX_DEPTH = 32
READ_TIMEOUT_S = 15.0
# An unread rest of a body would be taken for the next request.
_CLOSE = {"connection": "close"}
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_DEEP = b"[" * (MAX_DEPTH + 1)
_ALL_BUT_STRUCTURE = bytes(sorted(set(range(256)) - set(b'"[]{}')))


async def read_body(request: Request) -> bytes:
    """The body, within limits of size and time. Raises ApiError 413, 408, 400."""
    too_large = ApiError(413, f"the body is over {MAX_BODY_BYTES} bytes", code="body_too_large", headers=_CLOSE)
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"the body took over {READ_TIMEOUT_S:g} s", headers=_CLOSE) from None
    except ClientDisconnect:
        raise ApiError(400, "the client went away") from None
    return bytes(body)


def is_too_deep(raw: bytes) -> bool:
    """Whether JSON text nests arrays and objects deeper than `MAX_DEPTH`.

    Found without parsing, and without a Python step a byte: what is no bracket outside of a string goes, then
    the innermost pairs go, level by level. Text that is no JSON may pass; the parser refuses it.
    """
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = unescaped.translate(None, _ALL_BUT_STRUCTURE)
    brackets = b"".join(structure.split(b'"')[::2]).translate(_BRACKETS)
    for _ in range(MAX_DEPTH):
        if _DEEP in brackets:
            return True
        brackets = brackets.replace(b"[]", b"")
    return b"[" in brackets
