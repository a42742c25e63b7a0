"""The canonical bytes of a prompt: what an engine would see, as far as the log shows it, in the engine's order.

Tools first, then each message's role and content, as chat templates have it; plain prompts as they are. Equal
prompts have equal bytes, and what two prompts share at their start they share here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from advisor.logs.record import Prompt

_encode = msgspec.json.Encoder(enc_hook=str).encode


def canonical_bytes(prompt: Prompt) -> bytes:
    """UTF-8; lone surrogates become question marks. Token ids are four bytes each."""
    if prompt.tokens is not None:
        return np.asarray(prompt.tokens, dtype="<u4").tobytes()
    if prompt.messages is None:
        return (prompt.text or "").encode("utf-8", "replace")
    parts = [f"<|tool|>{_json(tool)}\n" for tool in prompt.tools or ()]
    # About as long as what chat templates put around a message.
    parts += [
        f"<|{message['role']}|>\n{message['content']}{_extra(message) if len(message) > 2 else ''}<|end|>\n"
        for message in prompt.messages
    ]
    return "".join(parts).encode("utf-8", "replace")


def joined_text(prompt: Prompt) -> str:
    """Messages as one plain text, for a tokenizer without a chat template."""
    parts = [str(tool) for tool in prompt.tools or ()]
    return "\n".join(parts + [f"{message['role']}: {message['content']}" for message in prompt.messages or ()])


def _extra(message: Mapping[str, Any]) -> str:
    """What a message has beside its role and content."""
    names = (name for name in message if name not in ("role", "content"))
    return "".join([f"\n{name}: {_json(message[name])}" for name in names])


def _json(value: Mapping[str, Any]) -> str:
    try:
        return _encode(value).decode()
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError, RecursionError, msgspec.MsgspecError):
        return str(value)  # integers of more than 64 bits, lone surrogates
