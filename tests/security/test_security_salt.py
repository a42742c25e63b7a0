"""A tenant's cache salt hides its prefixes: the time to a first token tells another tenant nothing.

A server process whose steps take real time (EmulatedExecutor: 1 ms and 40 us a token computed). The victim
sends a prompt; then the attacker, who guesses its first 256 tokens, sends the guess with an ending of its own
and takes the time to the first chunk. Half of the guesses are right; for the other half the victim sent another
prompt of the same length, so that nothing but the cache can differ. The AUC of all thresholds on that time is
the Mann-Whitney statistic (Hanley and McNeil 1982): the chance that a right guess answers faster than a wrong
one.

CVE-2025-46570 is this attack on vLLM. Of n right and n wrong guesses without any signal the AUC has a standard
deviation of sqrt((2 n + 1) / (12 n^2)): 0.0129 for 2,000 probes, so 0.55 is 3.9 of them (one false alarm in
20,000 runs), and 0.041 for 200.
"""

from __future__ import annotations

import asyncio
import math
import time
from random import Random

import aiohttp
import numpy as np
import pytest
from helpers.server_emulated import emulated_engine
from scipy.stats import mannwhitneyu, rankdata

from engine.config import PoolConfig

PREFIX = 256  # tokens guessed; 10 ms of computing
POOL = PoolConfig(kv_tokens=16_384, token_budget=512)
STEP_S, TOKEN_S = 1e-3, 40e-6


def auc(right: list[float], wrong: list[float]) -> float:
    """The chance that a right guess is faster than a wrong one, ties half."""
    ranks = rankdata(np.concatenate([wrong, right]))
    n, m = len(wrong), len(right)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def standard_deviation(n: int) -> float:
    """Of the AUC of `n` right and `n` wrong guesses, where there is no signal."""
    return math.sqrt((2 * n + 1) / (12 * n * n))


async def first_token_s(session: aiohttp.ClientSession, prompt: list[int], salt: str | None) -> float:
    """Seconds from sending to the first bytes of the stream."""
    body = {"prompt": prompt, "max_tokens": 1, "stream": True, **({"cache_salt": salt} if salt else {})}
    started = time.perf_counter()
    async with session.post("/v1/completions", json=body) as response:
        assert response.status == 200
        await response.content.readany()
        seconds = time.perf_counter() - started
        await response.read()
    return seconds


async def probe(
    url: str, probes: int, victim: str | None, attacker: str | None
) -> tuple[list[float], list[float]]:
    """Times of right and of wrong guesses, in random order."""
    random = Random(probes)
    truths = [True, False] * (probes // 2)
    random.shuffle(truths)
    times: dict[bool, list[float]] = {True: [], False: []}
    async with aiohttp.ClientSession(url) as session:
        for truth in truths:
            guess, other = ([random.randrange(1, 256) for _ in range(PREFIX)] for _ in range(2))
            await first_token_s(session, [*(guess if truth else other), 1, 2, 3], victim)
            times[truth].append(await first_token_s(session, [*guess, 4, 5, 6], attacker))
    return times[True], times[False]


def attack(probes: int, victim: str | None, attacker: str | None) -> float:
    """The attacker's AUC."""
    with emulated_engine(STEP_S, TOKEN_S, pool=POOL) as engine:
        right, wrong = asyncio.run(probe(engine.url, probes, victim, attacker))
    value = auc(right, wrong)
    medians = f"{np.median(right) * 1e3:.2f} / {np.median(wrong) * 1e3:.2f} ms"
    print(f"AUC {value:.3f} of {probes} probes; TTFT of right / wrong guesses {medians}")  # noqa: T201
    return value


def test_the_auc_is_that_of_scipy_and_of_a_hand_count() -> None:
    """Of 3 x 2 pairs 4 are in order and one is a tie: 4.5 / 6."""
    right, wrong = [1.0, 2.0, 5.0], [2.0, 6.0]
    assert auc(right, wrong) == 4.5 / 6
    assert auc(right, wrong) == mannwhitneyu(wrong, right).statistic / 6


def test_guesses_tell_nothing_across_salts_and_much_without() -> None:
    """Fewer probes, so the bound without a signal is 5 standard deviations: a false alarm in 1.7 million runs,
    both sides counted. That without a salt, 5 of them too, leaves room for other work on the machine."""
    assert attack(100, None, None) >= 0.5 + 5 * standard_deviation(50)
    assert abs(attack(200, "victim", "attacker") - 0.5) <= 5 * standard_deviation(100)


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "attacker"), [("victim", "attacker"), ("victim", None)])
def test_2_000_guesses_across_salts_are_no_better_than_chance(victim: str | None, attacker: str | None) -> None:
    value = attack(2_000, victim, attacker)
    assert max(value, 1 - value) <= 0.55


@pytest.mark.slow
@pytest.mark.parametrize("salt", [None, "shared"])
def test_2_000_guesses_see_a_prefix_that_is_shared(salt: str | None) -> None:
    assert attack(2_000, salt, salt) >= 0.9
