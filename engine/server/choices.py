"""What one call asks of the engine: for each prompt its sampling, checked, and one request a choice.

Owns the checks that need the model's sizes, and how the choices of a prompt draw apart.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.request import Request, SamplingParams
from engine.server.bodies import GenerationBody
from engine.server.errors import ApiError

_SEEDS = 2**63
# The golden ratio's fraction in 64 bits: seeds near each other stay apart whatever the choice (Weyl sequence).
_APART = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Served:
    """What one server serves. `max_len` is prompt plus output, tokens, that model and KV cache both hold."""

    model: str
    max_len: int
    vocab_size: int
    max_queued: int


def sampling_of(
    served: Served, body: GenerationBody, prompt: tuple[int, ...], asked: int | None, default: int
) -> SamplingParams:
    """How to sample behind `prompt`; `asked` and `default` are output tokens. Raises ApiError 400, 404."""
    if body.model not in (None, served.model):
        raise ApiError(404, f"no such model; this is {served.model}", param="model", code="model_not_found")
    if not prompt:
        raise ApiError(400, "the prompt is empty", param="prompt")
    if max(prompt) >= served.vocab_size or min(prompt) < 0:
        raise ApiError(400, f"token ids go from 0 to {served.vocab_size - 1}", param="prompt")
    room = served.max_len - len(prompt)
    if room < (asked or 1):
        wanted = f"{len(prompt)} prompt tokens and {asked or 1} output tokens"
        message = f"this model holds {served.max_len} tokens; {wanted} were asked for"
        raise ApiError(400, message, param="prompt", code="context_length_exceeded")
    max_tokens = asked or min(default, room)
    if body.min_tokens > max_tokens:
        raise ApiError(400, f"min_tokens is over max_tokens, {max_tokens}", param="min_tokens")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        temperature=body.temperature,
        top_k=max(body.top_k, 0),
        top_p=body.top_p,
        seed=secrets.randbits(63) if body.seed is None else body.seed % _SEEDS,
        ignore_eos=body.ignore_eos,
        logprobs=body.top,
    )


def engine_requests(
    answer_id: str,
    prompts: Sequence[tuple[int, ...]],
    sampling: Sequence[SamplingParams],
    scope: str,
    n: int,
) -> list[list[Request]]:
    """For each prompt its `n` requests. An answer of one choice has the id of its request."""
    single = len(prompts) * n == 1
    return [
        [
            Request(
                id=answer_id if single else f"{answer_id}-{at * n + choice}",
                prompt=prompt,
                sampling=replace(params, seed=choice_seed(params.seed, choice)),
                namespace=scope,
            )
            for choice in range(n)
        ]
        for at, (prompt, params) in enumerate(zip(prompts, sampling, strict=True))
    ]


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one choice of a prompt; the first has the given one, and says what it says without others."""
    return (seed + choice * _APART) % _SEEDS
