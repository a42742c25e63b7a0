"""How a replay's requests are written for one endpoint: the path, the fields, what a prompt stands as.

Plain data and the bytes it makes. Which form an endpoint takes is found in forms.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from advisor.validation.prompts import Tokens
from advisor.validation.words import Wording

Name = Literal["token ids", "text", "chat"]
Prompt = list[int] | str | Tokens

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
EXTRAS = ("return_token_ids", "min_tokens", "ignore_eos", "stream_options", "temperature")
"""Fields that not every server takes, most exotic first."""


@dataclass(frozen=True, slots=True)
class Form:
    """How requests are written for one endpoint, and what it tells of them."""

    name: Name
    path: str
    model: str
    fields: tuple[str, ...] = EXTRAS
    limit_field: str = "max_tokens"
    wording: Wording | None = None  # of the forms that send text
    fell_back: tuple[str, ...] = ()
    reports_usage: bool = True
    reports_cached: bool | None = None  # None: not known
    cached_when_none: bool = True  # also reported where nothing was cached; else absent then
    returns_ids: bool = True
    forces_length: bool | None = None  # None: not known
    tokens_per_chunk: float | None = None

    def write(self, prompts: Sequence[Tokens]) -> list[Prompt]:
        """What stands in the bodies for planned prompts: their ids, or texts of the same length."""
        if self.wording is None:
            return [prompt.tolist() for prompt in prompts]
        return list(self.wording.write(prompts))

    def as_seen(self, prompts: Sequence[Tokens]) -> list[Tokens]:
        """The prompts as the endpoint's prefix cache sees them, up to a renaming of ids."""
        return list(prompts) if self.wording is None else self.wording.as_seen(prompts)

    def body(self, prompt: Prompt, output_tokens: int) -> bytes:
        """The request as bytes: this prompt, this many output tokens where that can be forced, streamed.

        A prompt that is planned ids is written first; `write` does many at once, faster.
        """
        return _body(self, self.write([prompt])[0] if isinstance(prompt, np.ndarray) else prompt, output_tokens)


def _body(form: Form, prompt: Prompt, output_tokens: int) -> bytes:
    request: dict[str, Any] = {"model": form.model}
    if form.path == CHAT:
        request["messages"] = [{"role": "user", "content": prompt}]
    else:
        request["prompt"] = prompt
    request |= {form.limit_field: output_tokens, "stream": True}
    values: dict[str, Any] = {
        "return_token_ids": True,
        "min_tokens": output_tokens,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    return msgspec.json.encode(request | {name: values[name] for name in EXTRAS if name in form.fields})
