"""What the scripts share: the chats that they send and what came back, kept for the test to compare."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SYSTEM = "You answer questions about the Harbor ticketing system. Reply in one short sentence. " * 6
QUESTIONS = (
    "Where do I reset a badge?",
    "Who owns a ticket after a handover?",
    "How long are closed tickets kept?",
    "Can two people share one queue?",
    "What does priority three mean?",
    "How do I merge duplicates?",
)


@dataclass
class Job:
    """One script's run: where to send, where to write."""

    url: str
    model: str
    out: Path
    answers: list[dict[str, int]]

    @classmethod
    def of_argv(cls) -> Job:
        """`script URL MODEL FOLDER`."""
        url, model, folder = sys.argv[1:]
        return cls(url, model, Path(folder), [])

    def chats(self) -> list[list[dict[str, str]]]:
        """The messages of every call: one system prompt, one question."""
        return [
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
            for question in QUESTIONS
        ]

    def keep(self, usage: Any) -> None:
        """Remember the usage of an answer, as the server told the client."""
        details = getattr(usage, "prompt_tokens_details", None)
        cached = getattr(details, "cached_tokens", None) or 0
        self.answers.append(
            {
                "prompt_tokens": usage.prompt_tokens,
                "output_tokens": usage.completion_tokens,
                "cached_tokens": cached,
            }
        )

    def finish(self) -> None:
        """Write what the clients saw."""
        (self.out / "answers.json").write_text(json.dumps(self.answers))
