"""Which tokens the next step computes: one token-budgeted loop without phases.

A sequence goes waiting -> running -> gone, or back to waiting when preempted; on the decode side of a split it
goes pulling -> running -> gone. Every query token counts against the budget: running decodes first, then
running prefills in order of admission, then waiting requests by policy (stall-free batching, Sarathi-Serve
Algorithm 3). Never reads a clock, never touches results: `engine.core` does.

A pipeline of `pp` stages has `pp` steps in flight. Decodes wait for the token before, so they are dealt into as
many groups, one for each step in flight; chunks of one prompt follow each other into consecutive steps.

Why every admissible request eventually runs: the policy lets a request be overtaken for a bounded time only
(`engine.policy`); for lack of blocks it is overtaken at most MAX_OVERTAKES times; a request is preempted at
most `max_preemptions` times, after which it is admitted with the blocks of its whole life and never preempted
again; and with nothing running every block is available.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import NamedTuple

from engine.config import PoolConfig
from engine.decodes import DecodeGroup
from engine.invariants import require
from engine.kv.cache import KVCache
from engine.policy import Policy
from engine.request import Status
from engine.sequence import Sequence

MAX_OVERTAKES = 8  # ours: admissions past a request that does not fit, before it blocks the queue


# Part of a prompt in a step: of a sequence so many tokens, from this position on.
Chunk = tuple[Sequence, int, int]


class Work(NamedTuple):
    """The work of one step: the decodes of a group, all or none, and chunks of prompts."""

    group: DecodeGroup
    decodes: int
    chunks: list[Chunk]


class Scheduler:
    """Owns the waiting and running requests of one instance."""

    def __init__(self, pool: PoolConfig, cache: KVCache, policy: Policy, max_preemptions: int) -> None:
        self.waiting: OrderedDict[str, Sequence] = OrderedDict()  # preempted ones in front
        self.running: OrderedDict[str, Sequence] = OrderedDict()  # in order of admission
        self.pulling: dict[str, Sequence] = {}  # admitted; their KV is on the way
        self.groups = tuple(DecodeGroup(number, pool.block_size) for number in range(pool.pp))
        self.preemptions = 0
        self.preempted: list[str] = []  # the core empties it before every step
        self.prefix_query_tokens = 0  # prompt tokens of requests at their first admission
        self.prefix_hit_tokens = 0  # of these, found in the cache
        self._budget = pool.token_budget
        self._whole_prompts = pool.batching == "prefill_first"
        self._cache = cache
        self._policy = policy
        self._max_preemptions = max_preemptions
        # Even when all of them decode, they fit in the budget: no decode ever stalls.
        self._max_running = min(pool.max_seqs, pool.token_budget)
        self._admissions = 0
        self._prefilling: dict[str, Sequence] = {}  # running, not decoding; in order of admission
        self.late: list[tuple[DecodeGroup, Sequence, int | None]] = []  # start to decode, with their token
        self._stuck = False  # nobody could be admitted, and nothing has changed since that could help

    @property
    def full(self) -> bool:
        """No request can be admitted before one leaves."""
        return len(self.running) + len(self.pulling) >= self._max_running

    @property
    def idle_prefill(self) -> bool:
        """Nobody prefills, and nobody could be admitted before a sequence leaves."""
        return not self._prefilling and (not self.waiting or self._stuck or self.full)

    def add(self, seq: Sequence) -> None:
        """Queue a new request."""
        self.waiting[seq.request.id] = seq
        self._stuck = False

    def schedule(self, now: float, group: DecodeGroup) -> Work | None:
        """The work of the next step, with the decodes of `group`; None where it has nothing to do."""
        if self._whole_prompts:
            chunks = self._admit(now, self._budget)
            decodes = 0 if chunks else self._decodes(group)
            if not chunks and not decodes:
                chunks = self._admit(now, self._budget)
        else:
            decodes = self._decodes(group)
            left = self._budget - decodes
            chunks = self._prefills(left) if self._prefilling else []
            if self.waiting and not self._stuck:
                for _, tokens, _ in chunks:
                    left -= tokens
                # A step that preempted admits nobody: the preempted request is first in line and does not fit.
                chunks += self._admit(now, left)
        return Work(group, decodes, chunks) if decodes or chunks else None

    def decodes_ahead(self, group: DecodeGroup) -> Work | None:
        """The decodes of `group` once more, behind a step of theirs that is in flight.

        None where it would differ from what is made after that step: somebody may end by length, be admitted,
        join or be preempted. An end of sequence alone cannot be foreseen; that row is computed for nothing.
        """
        if not group.size or self.late or not self.idle_prefill or group.ticks_to_end <= 1:
            return None
        needy = group.growing()
        if len(needy) > self._cache.available:
            return None
        self._grow(needy)
        return Work(group, group.size, [])

    def reserve(self, seq: Sequence, now: float) -> int | None:
        """Take all blocks of a request whose KV comes from elsewhere: its cached tokens, None without room."""
        self._cache.match(seq.table, seq.prompt_length)
        if self.full or not self._take_blocks(seq, seq.lifetime_positions):
            return None
        cached = seq.table.published * self._cache.block_size
        seq.move(Status.PULLING)
        self.pulling[seq.request.id] = seq
        self._count_admission(seq, cached, now)
        return cached

    def start_decode(self, seq: Sequence, token: int | None) -> int:
        """The KV of a pulled request's prompt is here; `token` is its first output token. Returns its group.

        A step of that group that is in flight goes without it.
        """
        group = min(self.groups, key=lambda group: group.size + sum(late[0] is group for late in self.late))
        if group.in_flight:
            self.late.append((group, seq, token))
        else:
            self._go_on(group, seq, token)
        return group.number

    def settle(self, group: DecodeGroup) -> None:
        """A step of the group is over: those that came meanwhile join it."""
        late = self.late
        self.late = [one for one in late if one[0] is not group]
        for joins, seq, token in late:
            if joins is group and not seq.status.ended:
                self._go_on(group, seq, token)

    def join(self, seq: Sequence, group: DecodeGroup) -> None:
        """From now on `seq` decodes in `group`."""
        self._prefilling.pop(seq.request.id, None)
        self._stuck = False  # its pages are published
        seq.move(Status.DECODE)
        group.join(seq)

    def remove(self, seq: Sequence, status: Status, after: int | None = None, *, keep_kv: bool = False) -> None:
        """Take `seq` out in terminal `status`.

        Its blocks go back, once step `after` is retired if given, unless they are to be kept.
        """
        seq.move(status)
        self._take_out(seq)
        self.waiting.pop(seq.request.id, None)
        self.pulling.pop(seq.request.id, None)
        if not keep_kv:
            self._cache.release(seq.table, seq.computed, after, over=status is Status.FINISHED)

    def jump(self, steps: int) -> list[Sequence]:
        """Let a run of pure decodes pass; returns those that end with its last step."""
        group = self.groups[0]
        self._grow(group.growing_within(steps))
        return group.advance(steps)

    def cached_tokens(self, seq: Sequence) -> int:
        """Tokens of a waiting request that the prefix tree holds now."""
        return self._cache.match(seq.table, seq.length)

    def retire(self, step_id: int) -> None:
        """Step `step_id` and all before it are done: blocks that waited for them go back."""
        if self._cache.retire(step_id):
            self._stuck = False

    def release(self, seq: Sequence, after: int | None = None) -> None:
        """Give back the blocks that an ended request kept, once step `after` is retired if given."""
        self._cache.release(seq.table, seq.computed, after)
        self._stuck = False

    def check_invariants(self, kept: list[Sequence]) -> None:
        """Blocks, states and sums of all requests agree. `kept` have ended and keep their blocks."""
        for seq in self.waiting.values():
            require(seq.status is Status.QUEUED, "a waiting request is not queued")
            require(not seq.table.blocks, "a waiting request holds blocks")
            require(seq.computed == 0, "a waiting request has computed tokens")
        require(len(self.running) <= self._max_running, "too many requests run")
        for name, seq in self.running.items():
            decodes = seq.status is Status.DECODE
            require(decodes or seq.status is Status.PREFILL, "a running request does not run")
            require(decodes == (seq.group is not None), "a decode is in no group")
            require(decodes != (name in self._prefilling), "a running request neither prefills nor decodes")
            require(0 <= seq.computed < seq.length, "a running request has nothing to compute")
            require(not decodes or seq.length - seq.computed == 1, "a decode is not one token behind")
            require(not seq.known or len(seq.tokens) == seq.length, "tokens and their number disagree")
            require(seq.preemptions <= self._max_preemptions, "a request was preempted too often")
            computed_blocks = self._cache.blocks_for(seq.computed)
            require(computed_blocks <= len(seq.table.blocks), "a computed position has no block")
        for group in self.groups:
            group.check_invariants(seq for seq in self.running.values() if seq.group is group)
        holders = [*self.running.values(), *self.pulling.values(), *kept]
        self._cache.check_invariants(seq.table for seq in holders)

    def _go_on(self, group: DecodeGroup, seq: Sequence, token: int | None) -> None:
        del self.pulling[seq.request.id]
        self.running[seq.request.id] = seq
        seq.restart(seq.prompt_length)
        self._cache.publish(seq.table, seq.prompt_length)
        seq.append(token)
        self.join(seq, group)

    def _decodes(self, group: DecodeGroup) -> int:
        """Make room for the next token of every decode, preempting where it must; returns how many decode."""
        needy = group.growing()
        if needy:
            if len(needy) <= self._cache.available:
                self._grow(needy)
            else:
                for seq in [*needy]:
                    if seq.group is group:
                        self._make_room(seq)
        return group.size

    def _grow(self, needy: list[Sequence]) -> None:
        """A block for each of `needy`; there are enough."""
        for seq, block in zip(needy, self._cache.take(len(needy)), strict=True):
            seq.table.blocks.append(block)

    def _prefills(self, left: int) -> list[Chunk]:
        chunks = []
        for seq in self._prefilling.values():
            if left <= 0:
                break
            tokens = min(seq.length - seq.scheduled, left)
            if tokens > 0:  # in a pipeline all of it may be in flight
                chunks.append(self._chunk(seq, tokens))
                left -= tokens
        return chunks

    def _admit(self, now: float, left: int) -> list[Chunk]:
        """Waiting requests while budget, places and blocks last; no part of a prompt in prefill_first."""
        chunks: list[Chunk] = []
        if not self.waiting or self._stuck or left <= 0 or self.full:
            return chunks
        passed: list[Sequence] = []
        # No more can be looked at: each is admitted, or passed over.
        most = self._max_running - len(self.running) + MAX_OVERTAKES + 1
        for seq in list(islice(self._policy(self.waiting.values(), self.cached_tokens), most)):
            if self.full or left <= 0:
                break
            cached = self.cached_tokens(seq)
            if self._whole_prompts and chunks and seq.length - cached > left:
                break
            if not self._allocate(seq):
                passed.append(seq)
                if seq.preemptions or len(passed) > MAX_OVERTAKES or seq.overtaken >= MAX_OVERTAKES:
                    break
                continue
            cached = self._start(seq, now)
            tokens = seq.length - cached if self._whole_prompts else min(seq.length - cached, left)
            chunks.append(self._chunk(seq, tokens))
            left -= tokens
            if passed and self._overtake(passed):
                break
        self._stuck = bool(passed) and not chunks
        return chunks

    def _overtake(self, passed: list[Sequence]) -> bool:
        """Somebody was admitted past these. Whether one of them blocks the queue from now on."""
        for seq in passed:
            seq.overtaken += 1
        return any(seq.overtaken >= MAX_OVERTAKES for seq in passed)

    def _chunk(self, seq: Sequence, tokens: int) -> Chunk:
        start = seq.scheduled
        seq.scheduled += tokens
        return seq, tokens, start

    def _allocate(self, seq: Sequence) -> bool:
        """Blocks for all tokens so far, for the whole life once it may not be preempted any more.

        A spare block per running request must stay available, so that their next blocks preempt nobody.
        """
        last_chance = seq.preemptions >= self._max_preemptions
        return self._take_blocks(seq, seq.lifetime_positions if last_chance else seq.length)

    def _take_blocks(self, seq: Sequence, positions: int) -> bool:
        if self._cache.admit(seq.table, positions, spare=len(self.running)):
            return True
        if self.running or self.pulling:
            return False
        # Nobody will make more room, and it is there: but for a run that it would hold and use in part only.
        self._cache.do_without_parts(seq.table)
        return self._cache.admit(seq.table, positions, spare=0)

    def _start(self, seq: Sequence, now: float) -> int:
        """From waiting to running; returns its cached tokens."""
        cached = seq.table.published * self._cache.block_size
        del self.waiting[seq.request.id]
        self.running[seq.request.id] = self._prefilling[seq.request.id] = seq
        seq.move(Status.PREFILL)
        seq.restart(cached)
        self._count_admission(seq, cached, now)
        return cached

    def _count_admission(self, seq: Sequence, cached: int, now: float) -> None:
        self._admissions += 1
        seq.order = self._admissions
        if seq.admitted_s is None:
            seq.admitted_s = now
            seq.cached_tokens = cached
            self.prefix_query_tokens += seq.length
            self.prefix_hit_tokens += cached

    def _make_room(self, seq: Sequence) -> None:
        """A block for the next token, preempting the latest admitted for it, which may be `seq`."""
        while not self._cache.grow(seq.table, seq.length):
            # There always is one: those past their last chance hold all they need, so `seq` is not one of them.
            victim = next(
                s
                for s in reversed(self.running.values())
                if s.preemptions < self._max_preemptions and not s.busy
            )
            self._preempt(victim)
            if victim is seq:
                return

    def _preempt(self, seq: Sequence) -> None:
        """Back to the front of waiting: private blocks freed, tokens kept, published pages stay matchable."""
        self._take_out(seq)
        self._cache.release(seq.table, seq.computed)
        seq.move(Status.QUEUED)
        seq.restart(0)
        seq.preemptions += 1
        self.preemptions += 1
        self.preempted.append(seq.request.id)
        self.waiting[seq.request.id] = seq
        self.waiting.move_to_end(seq.request.id, last=False)

    def _take_out(self, seq: Sequence) -> None:
        """Out of what runs."""
        self._stuck = False
        self.running.pop(seq.request.id, None)
        self._prefilling.pop(seq.request.id, None)
        if seq.group is not None:
            seq.group.leave(seq)
