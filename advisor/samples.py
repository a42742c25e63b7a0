"""Sample logs, generated: what a small LLM service writes, so that the loop can be tried without one.

Owns the shape of the sample traffic. Nothing is downloaded and nothing is random: the same seed gives the same
bytes on every machine. The text is made of plain English words, so that a real tokenizer has real work.
`python -m advisor.samples FILE` writes one.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

_START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
_WORDS = (
    "the a our your this that every some account order invoice parcel address payment refund store card "
    "delivery customer support team price window morning evening week month number page form letter offer "
    "please check send open close change wait ask answer call find keep move return order update confirm "
    "quickly again today tomorrow soon already later once twice always never new old blue small large late "
    "early broken missing wrong right second first last next and or but because when before after with "
    "without from into over under about near for it they we you he she is was has will can should may"
)


@dataclass(frozen=True, slots=True)
class ChatService:
    """A chat service with one long system prompt, turns that repeat their history, documents, and bursts.

    Rates are means over the whole log; `burst` multiplies the rate of new sessions for `burst_s` seconds in
    every `burst_every_s`. Lengths are in words; a word is about one token.
    """

    minutes: float = 75.0
    sessions_rps: float = 0.15
    turns_mean: float = 3.0
    think_s: float = 14.0
    documents_rps: float = 0.05
    burst: float = 3.0
    burst_s: float = 20.0
    burst_every_s: float = 240.0
    system_words: int = 800
    user_words: tuple[int, int] = (12, 45)
    answer_words: tuple[int, int] = (14, 44)
    document_words: tuple[int, int] = (380, 800)
    model: str = "smollm2-135m-instruct"

    def lines(self, seed: int = 0) -> Iterator[dict[str, Any]]:
        """Request and response lines as an OpenAI-compatible gateway logs them, in order of arrival."""
        rng = random.Random(seed)
        rows = [*self._chats(rng), *self._documents(rng)]
        for number, (arrival_s, session, messages, answer) in enumerate(sorted(rows, key=lambda row: row[0])):
            yield {
                "timestamp": (_START + timedelta(seconds=arrival_s)).isoformat(timespec="milliseconds"),
                "request_id": f"req-{number:05d}",
                "session_id": session,
                "route": "/v1/chat/completions",
                "request": {"model": self.model, "messages": messages},
                "response": {"choices": [{"message": {"role": "assistant", "content": answer}}]},
                "status": 200,
            }

    def _chats(self, rng: random.Random) -> Iterator[tuple[float, str, list[dict[str, str]], str]]:
        system = {
            "role": "system",
            "content": "You are the support desk of a shop. " + _text(rng, self.system_words),
        }
        for number, start_s in enumerate(self._session_starts(rng)):
            messages, now = [system], start_s
            for _ in range(_geometric(rng, self.turns_mean)):
                messages = [*messages, {"role": "user", "content": _text(rng, rng.randint(*self.user_words))}]
                answer = _text(rng, rng.randint(*self.answer_words))
                if now < self.minutes * 60:
                    yield now, f"chat-{number:04d}", messages, answer
                messages = [*messages, {"role": "assistant", "content": answer}]
                now += 2.0 + rng.expovariate(1 / self.think_s)

    def _session_starts(self, rng: random.Random) -> Iterator[float]:
        share = self.burst_s / self.burst_every_s
        calm_rps = self.sessions_rps / (1 + share * (self.burst - 1))
        now = 0.0
        while (now := now + rng.expovariate(calm_rps * self.burst)) < self.minutes * 60:
            bursting = now % self.burst_every_s < self.burst_s
            if bursting or rng.random() < 1 / self.burst:  # thinning of a Poisson process at the burst rate
                yield now

    def _documents(self, rng: random.Random) -> Iterator[tuple[float, str, list[dict[str, str]], str]]:
        now, number = 0.0, 0
        while (now := now + rng.expovariate(self.documents_rps)) < self.minutes * 60:
            text = "Summarize this letter in two sentences. " + _text(rng, rng.randint(*self.document_words))
            answer = _text(rng, rng.randint(*self.answer_words))
            yield now, f"document-{number:04d}", [{"role": "user", "content": text}], answer
            number += 1


def write_sample(path: Path, service: ChatService, seed: int = 0) -> int:
    """Write the service's log to `path` as JSON lines; gives the number of requests."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for line in service.lines(seed):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            count += 1
    return count


def _geometric(rng: random.Random, mean: float) -> int:
    turns = 1
    while rng.random() < 1 - 1 / mean:
        turns += 1
    return turns


def _text(rng: random.Random, words: int) -> str:
    vocabulary, sentences = _WORDS.split(), []
    while words > 0:
        length = min(words, rng.randint(6, 14))
        sentences.append(" ".join(rng.choices(vocabulary, k=length)).capitalize() + ".")
        words -= length
    return " ".join(sentences)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the sample log that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m advisor.samples", description="Write a sample log.")
    parser.add_argument("file", type=Path, help="JSON lines, as an OpenAI-compatible gateway logs them")
    parser.add_argument("--minutes", type=float, default=ChatService().minutes, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the traffic; default: %(default)s")
    given = parser.parse_args(arguments)
    count = write_sample(given.file, ChatService(minutes=given.minutes), given.seed)
    sys.stderr.write(f"{count} requests\n")


if __name__ == "__main__":
    main()
