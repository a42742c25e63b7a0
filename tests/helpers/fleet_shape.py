"""What a random fleet is made of and asked: pools, memories, policies, how bad things are, prompts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from helpers.core_soak import DOCUMENT
from helpers.echo import VOCAB

from engine.config import PoolConfig, RouterConfig
from engine.request import Request, SamplingParams

MAX_LEN = 60
ROLES = (
    {"prefill": 1, "decode": 1},
    {"prefill": 1, "decode": 1},
    {"prefill": 2, "decode": 1},
    {"prefill": 1, "decode": 2},
    {"prefill": 2, "decode": 2},
    {"prefill": 1, "decode": 3},
    {"colocated": 2},
    {"colocated": 1, "prefill": 1, "decode": 1},
    {"colocated": 2, "prefill": 1, "decode": 2},
)


@dataclass(frozen=True)
class PlaceShape:
    """One instance, whatever start of it.

    `early`: its steps run when they begin, else at their end. `by_bytes`: it asks a source for bytes, else it
    reads the source's memory.
    """

    pool: PoolConfig
    num_blocks: int
    step_s: float
    max_preemptions: int
    overlap: bool
    early: bool
    by_bytes: bool


class Shape:
    """Everything about a world that does not change. Chances are per event, shares of all, times in seconds."""

    def __init__(self, random: Random) -> None:
        choice = random.choice
        self.delay_s = choice([0.001, 0.02, 0.2])
        self.tails = choice([5, 30]), choice([5, 30])  # of control messages and of the KV plane
        self.loss, self.doubled = choice([0.0, 0.02, 0.1]), choice([0.0, 0.1])
        self.spoiled, self.twice = choice([0.05, 0.05, 0.4]), choice([0.02, 0.3])
        self.block_size = choice([1, 4, 4, 16])
        self.step_s = choice([0.02, 0.05, 0.2])
        self.lease_s, self.hung_s = choice([2.0, 6.0, 30.0]), choice([4.0, 8.0])
        self.router = RouterConfig(
            policy=choice(["round_robin", "least_loaded", "prefix_affinity"]),
            bypass=random.random() < 0.4,
            on_partner_loss=choice(["colocate", "colocate", "reject"]),
        )
        self.pools = [self._pool(random, *one) for one in choice(ROLES).items()]
        more = choice([(0, 10), (0, 10), (0, 60), (60, 200)])
        members = [pool for pool in self.pools for _ in range(pool.count)]
        self.places = [self._place(random, pool, random.randrange(28, 60) + choice(more)) for pool in members]
        smallest = min(one.num_blocks for one in self.places)
        self.longest = min(MAX_LEN, (smallest - 1) * self.block_size + 1)
        self.most_open = choice([3, 8, 20])
        self.most_queued = choice([self.most_open // 2 + 1, 30])
        self.arrival_s = self.step_s * choice([0.5, 2, 6])
        self.leaves = choice([0.001, 0.01, 0.03])
        self.faults = choice([0.002, 0.01, 0.04])
        # Of deaths, pauses, drains, deaths heard of late, and restarts of the router.
        self.weights = [choice([0, 1, 4]), *(choice([0, 1, 3]) for _ in range(3)), 0.04]
        self.restarts = random.random() < 0.85

    def _pool(self, random: Random, role: str, count: int) -> PoolConfig:
        return PoolConfig(
            role=role,
            count=count,
            batching=random.choice(["chunked", "chunked", "prefill_first"]),
            queue_policy=random.choice(["fcfs", "prefix_first"]),
            prefix_cache=random.random() < 0.8,
            token_budget=random.choice([64, 64, 16, 7, 2]),
            max_seqs=random.choice([8, 3]),
            block_size=self.block_size,
            pp=random.choice([1, 1, 2]),
            kv_tokens=random.choice([None, 200]),
        )

    def _place(self, random: Random, pool: PoolConfig, tokens: int) -> PlaceShape:
        return PlaceShape(
            pool,
            num_blocks=max(tokens // self.block_size, 3) + 1,
            step_s=self.step_s * random.choice([1, 1, 3]),
            max_preemptions=random.randrange(4),
            overlap=pool.pp == 1 and random.random() < 0.5,
            early=random.random() < 0.5,
            by_bytes=random.random() < 0.4,
        )


def choices(random: Random, names: int, longest: int) -> list[Request]:
    """A request or several choices of one prompt, named from `names` on. One in 33 nobody can serve."""
    document = random.randrange(3) * DOCUMENT
    prefix = random.choice([0, random.randrange(DOCUMENT), 4, 8, 16])
    tail = [random.randrange(VOCAB) for _ in range(random.choice([0, 1, 1, 2, 6, 30]))]
    prompt = [*range(document, document + prefix), *tail][: longest - 1] or [document]
    most = min(random.choice([4, 12, 24]), longest - len(prompt) + 1)
    output = random.randrange(1, max(2, most))
    if random.random() < 0.03:
        output += MAX_LEN
    sampling = SamplingParams(max_tokens=output, min_tokens=random.choice([0, 0, 3, 30]))
    tokens = tuple(one % VOCAB for one in prompt)
    first = Request(f"r{names}", tokens, sampling, random.choice(["", "", "other"]))
    more = random.choice([0] * 8 + [1, 2])
    return [first, *(replace(first, id=f"r{names + 1 + number}") for number in range(more))]
