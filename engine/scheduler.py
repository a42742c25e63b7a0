"""Which tokens the next step computes: one token-budgeted loop without phases.

A sequence goes waiting -> running -> gone, or back to waiting when preempted. Every query token counts
against the budget: running decodes first, then running prefills in order of admission, then waiting requests
by policy (stall-free batching, Sarathi-Serve Algorithm 3). Never reads a clock, never touches results:
`engine.core` does.

Why every admissible request eventually runs: the policy lets a request be overtaken for a bounded time only
(`engine.policy`); for lack of blocks it is overtaken at most MAX_OVERTAKES times; a request is preempted at
most `max_preemptions` times, after which it is admitted with the blocks of its whole life and never preempted
again; and with nothing running every block is available.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.config import PoolConfig
from engine.invariants import require
from engine.kv.cache import KVCache
from engine.policy import Policy
from engine.request import Status
from engine.sequence import Sequence

MAX_OVERTAKES = 8  # ours: admissions past a request that does not fit, before it blocks the queue

Work = list[tuple[Sequence, int]]  # (sequence, query tokens) of one step


class Scheduler:
    """Owns the waiting and running requests of one instance."""

    def __init__(self, pool: PoolConfig, cache: KVCache, policy: Policy, max_preemptions: int) -> None:
        self.waiting: OrderedDict[str, Sequence] = OrderedDict()  # preempted ones in front
        self.running: OrderedDict[str, Sequence] = OrderedDict()  # in order of admission
        self.preemptions = 0
        self.prefix_query_tokens = 0  # prompt tokens of requests at their first admission
        self.prefix_hit_tokens = 0  # of these, found in the cache
        self._budget = pool.token_budget
        self._whole_prompts = pool.batching == "prefill_first"
        self._cache = cache
        self._policy = policy
        self._max_preemptions = max_preemptions
        # Even when all of them decode, they fit in the budget: no decode ever stalls.
        self._max_running = min(pool.max_seqs, pool.token_budget)

    @property
    def full(self) -> bool:
        """No request can be admitted before one leaves."""
        return len(self.running) >= self._max_running

    def schedule(self, now: float) -> Work:
        """The work of the next step; empty only if nothing waits or runs."""
        if self._whole_prompts:
            return self._admit(now, self._budget) or self._decodes() or self._admit(now, self._budget)
        work = self._decodes()
        work += self._prefills(self._budget - len(work))
        # A step that preempted admits nobody: the preempted request is first in line and still does not fit.
        work += self._admit(now, self._budget - sum(tokens for _, tokens in work))
        return work

    def remove(self, seq: Sequence, status: Status, after: int | None = None) -> None:
        """Take `seq` out in terminal `status`; its blocks go back, once step `after` is retired if given."""
        seq.move(status)
        self.waiting.pop(seq.request.id, None)
        self.running.pop(seq.request.id, None)
        self._cache.release(seq.table, after)

    def cached_tokens(self, seq: Sequence) -> int:
        """Tokens of a waiting request that the prefix tree holds now."""
        return self._cache.match(seq.table, len(seq.tokens))

    def check_invariants(self) -> None:
        """Queues, states and blocks agree."""
        require(not self.waiting.keys() & self.running.keys(), "a request both waits and runs")
        require(len(self.running) <= self._max_running, "too many requests run")
        for seq in self.waiting.values():
            require(seq.status is Status.QUEUED and seq.computed == 0, "a waiting request is not queued")
            require(not seq.table.blocks and not seq.table.path, "a waiting request holds blocks")
        for seq in self.running.values():
            require(seq.status in (Status.PREFILL, Status.DECODE), "a running request does not run")
            require(0 <= seq.computed < len(seq.tokens), "a running request has nothing to compute")
            require(seq.status is Status.PREFILL or seq.remaining == 1, "a decode is not one token behind")
            require(seq.preemptions <= self._max_preemptions, "a request was preempted too often")
            computed_blocks = self._cache.blocks_for(seq.computed)
            require(computed_blocks <= len(seq.table.blocks), "a computed position has no block")
        self._cache.check_invariants(seq.table for seq in self.running.values())

    def _decodes(self) -> Work:
        # Making room may preempt later members of the list, which then decode no more.
        running = list(self.running.values())
        return [(seq, 1) for seq in running if seq.status is Status.DECODE and self._make_room(seq)]

    def _prefills(self, left: int) -> Work:
        work = []
        for seq in self.running.values():
            if left and seq.status is Status.PREFILL:
                tokens = min(seq.remaining, left)
                work.append((seq, tokens))
                left -= tokens
        return work

    def _admit(self, now: float, left: int) -> Work:
        """Waiting requests while budget, places and blocks last; no part of a prompt in prefill_first."""
        work: Work = []
        if not self.waiting or left <= 0:
            return work
        passed: list[Sequence] = []
        for seq in self._policy(self.waiting.values(), self.cached_tokens):
            if self.full or left <= 0:
                break
            cached = self.cached_tokens(seq)
            tokens = len(seq.tokens) - cached
            if self._whole_prompts and work and tokens > left:
                break
            if not self._allocate(seq):
                passed.append(seq)
                if seq.preemptions or len(passed) > MAX_OVERTAKES or seq.overtaken >= MAX_OVERTAKES:
                    break
                continue
            self._start(seq, cached, now)
            tokens = tokens if self._whole_prompts else min(tokens, left)
            work.append((seq, tokens))
            left -= tokens
            for other in passed:
                other.overtaken += 1
            if any(other.overtaken >= MAX_OVERTAKES for other in passed):
                break
        return work

    def _allocate(self, seq: Sequence) -> bool:
        """Blocks for all tokens so far, for the whole life once it may not be preempted any more.

        A spare block per running request must stay available, so that their next blocks preempt nobody.
        """
        last_chance = seq.preemptions >= self._max_preemptions
        positions = seq.lifetime_positions if last_chance else len(seq.tokens)
        return self._cache.admit(seq.table, positions, spare=len(self.running))

    def _start(self, seq: Sequence, cached: int, now: float) -> None:
        del self.waiting[seq.request.id]
        self.running[seq.request.id] = seq
        seq.move(Status.PREFILL)
        seq.computed = cached
        if seq.admitted_s is None:
            seq.admitted_s = now
            seq.cached_tokens = cached
            self.prefix_query_tokens += len(seq.tokens)
            self.prefix_hit_tokens += cached

    def _make_room(self, seq: Sequence) -> bool:
        """A block for the next token, preempting the latest admitted for it; False if that was `seq`."""
        while not self._cache.grow(seq.table, len(seq.tokens)):
            # There always is one: those past their last chance hold all they need, so `seq` is not one of them.
            victim = next(s for s in reversed(self.running.values()) if s.preemptions < self._max_preemptions)
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        """Back to the front of waiting: private blocks freed, tokens kept, published pages stay matchable."""
        self._cache.release(seq.table)
        del self.running[seq.request.id]
        seq.move(Status.QUEUED)
        seq.computed = 0
        seq.preemptions += 1
        self.preemptions += 1
        self.waiting[seq.request.id] = seq
        self.waiting.move_to_end(seq.request.id, last=False)
