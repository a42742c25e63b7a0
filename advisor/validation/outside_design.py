"""What a calibration from outside sends: how long its prompts are, how many streams it opens, how they meet.

Pure numbers. Sizes follow the speed of the endpoint, so that a laptop and a node of GPUs are both measured in
minutes, and the token budget that its first answers show: a prompt longer than that is no single step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SHORTEST, LONGEST, LONGEST_CPU = 16, 8160, 2016  # prompt tokens; a little under a power of two (ours)
PROBE_S = 4.0  # the prompts of one probe may take about so long to compute (ours)
STREAMS, STREAMS_CPU = (1, 4, 16, 32, 64), (1, 2, 4, 8, 16)
# Decode steps of a probe in which all of its streams run, and prompts sent beside them; where a step takes long
# enough to be told from the lateness of a stamp, fewer (ours).
STEPS, REPEATS = 32, 3
LONG_S, LONG_STEPS, LONG_REPEATS = 0.1, 16, 1
MOST_OUTPUT = 400
_FULL = 0.3  # of the longest step beside a prompt: shorter ones hold no part of it (ours)
_NEAR = 0.12  # a budget so near to a usual one is that one (ours)


@dataclass(frozen=True, slots=True)
class Speed:
    """What a first look says of an endpoint, in seconds of the clock that it stands for."""

    prompt_tokens_per_s: float
    gap_s: float  # between tokens of a lone stream


@dataclass(frozen=True, slots=True)
class Design:
    """One pass, apart from its order and its contexts.

    `lone`: tokens of prompts sent alone. `streams`: how many decode at once. `mixed`: tokens of a prompt sent
    beside so many streams; the first is the shortest lone one beside a single stream. `budget`: prompt and
    decode tokens that the engine puts into a step; None: more than any prompt here. `contexts`: prompt tokens
    of a stream, shortest and longest, before `longest_total` of all streams limits them. `steps` and `repeats`:
    see `STEPS` and `REPEATS`.
    """

    lone: tuple[int, ...]
    streams: tuple[int, ...]
    mixed: tuple[tuple[int, int], ...]
    budget: int | None
    contexts: tuple[int, int]
    longest_total: int
    steps: int = STEPS
    repeats: int = REPEATS

    def context(self, streams: int, share: float) -> int:
        """Prompt tokens of each of so many streams; `share` from 0, the shortest, to 1, the longest."""
        low, high = self.contexts
        return max(low, min(int(low * (high / low) ** share), self.longest_total // streams))

    def output(self, streams: int, context: int, beside_s: float = 0.0, gap_s: float = 1.0) -> int:
        """Output tokens of a stream, so that all still run `steps` steps after the last of them has begun.

        `beside_s`: seconds that prompts beside them take on top.
        """
        per_prompt = 1 if self.budget is None else -(-context // self.budget)
        return min(MOST_OUTPUT, self.steps + 1 + streams * (1 + per_prompt) + int(beside_s / gap_s))


def longest_prompt(speed: Speed, *, on_cpu: bool, max_len: int | None) -> int:
    """Tokens of the longest prompt worth sending: by the device, the context, and the time that it takes."""
    longest = LONGEST_CPU if on_cpu else LONGEST
    if max_len is not None:
        longest = min(longest, max_len * 3 // 4)
    return max(4 * SHORTEST, min(longest, int(speed.prompt_tokens_per_s * PROBE_S)))


def design(
    speed: Speed, budget: int | None, *, on_cpu: bool, max_len: int | None, most_streams: int | None = None
) -> Design:
    """The pass for an endpoint of this speed and token budget."""
    longest = longest_prompt(speed, on_cpu=on_cpu, max_len=max_len)
    lone_most = longest if budget is None else min(longest, budget)
    shortest = min(SHORTEST, lone_most)
    lone = [round(shortest * (lone_most / shortest) ** (step / 4)) for step in range(5)]
    streams = tuple(n for n in (STREAMS_CPU if on_cpu else STREAMS) if n <= (most_streams or n))
    few, many = streams[min(2, len(streams) - 1)], streams[min(3, len(streams) - 1)]
    beside = longest if budget is None else min(longest, 2 * max(1, budget - many))
    total = int(min(speed.prompt_tokens_per_s * PROBE_S, (max_len or LONGEST) * many))
    return Design(
        lone=tuple(dict.fromkeys(lone)),
        streams=streams,
        mixed=((lone[0], 1), (lone[3], few), (beside, many)),
        budget=budget,
        contexts=(SHORTEST, longest // 2),
        longest_total=max(total, SHORTEST * streams[-1]),
        steps=LONG_STEPS if speed.gap_s > LONG_S else STEPS,
        repeats=LONG_REPEATS if speed.gap_s > LONG_S else REPEATS,
    )


def chunks(tokens: int, context: int, budget: int | None, streams: int) -> list[tuple[int, int]]:
    """(new, context) of the steps that compute a prompt beside so many streams: decodes go first (Sarathi)."""
    room = tokens if budget is None else max(1, budget - streams)
    return [(min(room, tokens - done), context + done) for done in range(0, tokens, room)]


def budget_of(tokens: int, streams: int, excess: Sequence[float]) -> int | None:
    """The token budget, from how much longer than a plain decode each step of the streams beside a prompt was.

    `excess`, seconds, ends with the step that gave the prompt its first token. None where one step held all of
    it. A usual budget (a power of two, a multiple of 128) stands for one near it.
    """
    if not excess or max(excess) <= 0:
        return None
    held: list[float] = []
    for one in reversed(excess):
        if held and one < _FULL * max(excess):
            break
        held.append(one)
    if len(held) < 2:
        return None
    full = float(np.median(held[1:]))
    each = tokens / (len(held) - 1 + min(1.0, max(0.0, held[0] / full)))
    usual = [2**power for power in range(4, 15)] + list(range(128, 16385, 128))
    nearest = min(usual, key=lambda one: abs(np.log(max(1, one - streams) / each)))
    return nearest if abs((nearest - streams) / each - 1) <= _NEAR else round(each) + streams
