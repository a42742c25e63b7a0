"""Generated calls with everything that a log could say of them: what writers of log formats render in tests.

Chats of several turns over a few shared system prompts, so that prefixes are shared; some fields are missing,
some calls fail. The same seed gives the same calls.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from helpers.logs import WordEncoder

START_NS = 1_789_372_800 * 10**9  # 2026-09-14 08:00:00 UTC
MS = 10**6
ENCODER = WordEncoder()


@dataclass(frozen=True)
class Call:
    """One call to a model. A failed one has no tokens; times are nanoseconds, whole milliseconds."""

    id: str
    arrival_ns: int
    e2e_ns: int
    ttft_ns: int | None  # after arrival; None: the log has no first token
    messages: tuple[Mapping[str, str], ...]
    answer: str
    cached_tokens: int | None
    model: str
    client: str | None
    session: str | None
    turn: int  # from 1
    parent: str | None  # id of the turn before
    error: str | None  # a short code such as "429"; None where it went well
    tokens: tuple[int, ...] = field(repr=False)  # of the messages, with `ENCODER`

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def end_ns(self) -> int:
        return self.arrival_ns + self.e2e_ns

    @property
    def prompt_tokens(self) -> int:
        """0 for a failed call, as logs have it."""
        return len(self.tokens) if self.ok else 0

    @property
    def output_tokens(self) -> int:
        return len(self.answer.split()) if self.ok else 0


def make_calls(count: int = 500, seed: int = 0) -> list[Call]:
    """Calls in order of arrival, all at different times."""
    rng = random.Random(seed)
    systems = [" ".join(f"rule{s}.{i}" for i in range(40 + 13 * s)) for s in range(3)]
    open_chats: list[list[Mapping[str, str]]] = []
    last_ids: list[str | None] = []
    names: list[tuple[str | None, str | None, str]] = []  # session, client, model
    calls: list[Call] = []
    now = START_NS
    while len(calls) < count:
        now += rng.randrange(1, 4000) * MS
        if not open_chats or rng.random() < 0.3:
            open_chats.append([{"role": "system", "content": rng.choice(systems)}])
            last_ids.append(None)
            chat = len(open_chats) - 1
            names.append(
                (
                    None if rng.random() < 0.1 else f"s-{chat}",
                    None if rng.random() < 0.1 else f"c-{rng.randrange(20)}",
                    "qwen3-8b" if rng.random() < 0.8 else "llama-70b",
                )
            )
        chat = rng.randrange(max(0, len(open_chats) - 8), len(open_chats))
        question = {"role": "user", "content": _words(rng, rng.randrange(3, 30))}
        answer = _words(rng, rng.randrange(1, 60))
        failed = rng.random() < 0.08
        call = _call(
            rng, len(calls), now, [*open_chats[chat], question], answer, names[chat], last_ids[chat], failed
        )
        calls.append(call)
        if call.ok:
            open_chats[chat] = [*open_chats[chat], question, {"role": "assistant", "content": answer}]
            last_ids[chat] = call.id
    return calls


def shuffled(calls: Sequence[Call], seed: int = 1) -> list[Call]:
    """Another order, as merged shards and logging at the end give."""
    return random.Random(seed).sample(calls, len(calls))


def _call(
    rng: random.Random,
    number: int,
    now: int,
    messages: list[Mapping[str, str]],
    answer: str,
    names: tuple[str | None, str | None, str],
    parent: str | None,
    failed: bool,
) -> Call:
    e2e = rng.randrange(20, 9000) * MS
    tokens = tuple(ENCODER.encode_chat(messages))
    return Call(
        id=f"call-{number}",
        arrival_ns=now,
        e2e_ns=e2e,
        ttft_ns=None if rng.random() < 0.1 or failed else min(e2e, rng.randrange(10, 900) * MS),
        messages=tuple(messages),
        answer=answer,
        cached_tokens=None if rng.random() < 0.1 else rng.randrange(len(tokens)),
        model=names[2],
        client=names[1],
        session=names[0],
        turn=sum(message["role"] == "user" for message in messages),
        parent=parent,
        error=rng.choice(["429", "500", "503"]) if failed else None,
        tokens=tokens,
    )


def _words(rng: random.Random, count: int) -> str:
    return " ".join(f"w{rng.randrange(1000)}" for _ in range(count))
