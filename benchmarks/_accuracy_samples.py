"""The four sample logs of `accuracy`: what kind of service each is of, and which targets it has.

Fixed before anything was measured. Requests are short, so that two cores serve a thousand of them in minutes;
what is long in the name is long beside the others.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from advisor.samples import ChatService
from advisor.simulation.slo import Slo

MINUTES = 20.0
_NONE = 1e-6  # a second: not once in a log


@dataclass(frozen=True, slots=True)
class Sample:
    """A generated log with targets."""

    name: str
    words: str
    service: ChatService
    slo: Slo

    @property
    def digest(self) -> str:
        """Names everything that decides what the log holds and which requests are good."""
        return hashlib.sha256(repr((self.service, self.slo.model_dump())).encode()).hexdigest()[:12]

    @property
    def targets(self) -> str:
        """The targets in a few words."""
        named = (("TTFT", self.slo.ttft_s), ("TPOT", self.slo.tpot_s))
        kept = ", ".join(f"{name} {1e3 * value:g} ms" for name, value in named if value is not None)
        return f"{kept}, {self.slo.attainment:.0%} of requests"


SLO = Slo(ttft_s=1.5, tpot_s=0.12)
SAMPLES = (
    Sample(
        "chat",
        "chats that share a system prompt of 400 words, 2.5 turns",
        ChatService(
            minutes=MINUTES, sessions_rps=0.6, turns_mean=2.5, think_s=8.0, documents_rps=_NONE, burst=1.5,
            burst_s=20.0, burst_every_s=120.0, system_words=400, user_words=(8, 25), answer_words=(6, 14),
        ),
        SLO,
    ),
    Sample(
        "documents",
        "documents of 150-300 words that nothing shares, answers of 4-8",
        ChatService(
            minutes=MINUTES, sessions_rps=_NONE, documents_rps=1.2, document_words=(150, 300),
            answer_words=(4, 8),
        ),
        Slo(ttft_s=3.0, tpot_s=0.3),
    ),
    Sample(
        "agent",
        "agents of 8 turns behind instructions of 500 words, each turn a result of 15-40 words",
        ChatService(
            minutes=MINUTES, sessions_rps=0.18, turns_mean=8.0, think_s=4.0, documents_rps=_NONE, burst=1.2,
            system_words=500, user_words=(15, 40), answer_words=(5, 12),
        ),
        SLO,
    ),
    Sample(
        "bursts",
        "single short questions, four times as many for 10 s of every minute",
        ChatService(
            minutes=MINUTES, sessions_rps=1.6, turns_mean=1.0, documents_rps=_NONE, burst=4.0, burst_s=10.0,
            burst_every_s=60.0, system_words=6, user_words=(10, 40), answer_words=(6, 16),
        ),
        SLO,
    ),
)  # fmt: skip
