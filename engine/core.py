"""The engine core: requests in, steps out, results in, tokens out. No clock, no IO, no torch.

A driver (a thread on the wall clock, or the simulator on a virtual one) calls

    add / abort  ->  next_step  ->  (an executor runs the Step)  ->  complete or fail  ->  events for clients

and passes `now` in seconds of its own clock. One step is in flight at a time, in a pipeline one a stage, with
`overlap` two where the second is the same decodes once more, so that a device never waits for its host. An
abort at any moment ends the request for its client at once, while its blocks stay held until the step in flight
is done with them. In a split the prefill side keeps a finished request's blocks until `release_kv`, the decode
side takes blocks with `reserve` and goes on with `start_decode`. Single owner: only one thread may call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from random import Random
from typing import Literal, NamedTuple

from engine.config import PoolConfig
from engine.decodes import DecodeGroup
from engine.errors import InputError
from engine.invariants import InvariantError, require
from engine.kv.cache import KVCache
from engine.policy import policy_for
from engine.request import Request, Status
from engine.scheduler import Scheduler, Work
from engine.sequence import Sequence
from engine.step import PREVIOUS, Step, StepResult, StepRow, TokenLogprobs
from engine.step_time.model import StepShape

FinishReason = Literal["stop", "length", "abort", "error"]
NO_CONTENT = 0  # stands for a token of a modelled step


@dataclass(slots=True)  # frozen ones take three times as long to make, and there is one a token
class TokenEvent:
    """One output token of a request, or its end without one (`token` None: aborted or failed).

    `index` counts output tokens from 0. `cached_tokens` is the prefix hit at the request's first admission,
    `queued_s` the wait before it. `at` is the driver's clock; both in seconds. `logprobs`: where asked for.
    """

    request_id: str
    token: int | None
    index: int
    finish_reason: FinishReason | None
    cached_tokens: int
    at: float
    queued_s: float = 0.0
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class CoreStats:
    """Counters and gauges. Blocks: free + cached + used = total; cached means published and unreferenced.

    Prefix tokens are counted once a request, at its first admission: `prefix_hit_tokens` of
    `prefix_query_tokens` prompt tokens came from the cache.
    """

    waiting: int
    running: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_used: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    finished: int
    aborted: int
    failed: int


class Flight(NamedTuple):
    """A step that is being carried out. `rows`: its decodes in row order, where a Step was made of it."""

    id: int
    work: Work
    rows: list[Sequence] | None

    @property
    def shape(self) -> StepShape:
        """All that decides how long it takes."""
        group, decodes, chunks = self.work
        prefill = tuple([(tokens, start) for _, tokens, start in chunks])
        return StepShape(prefill, decodes, group.context if decodes else 0)


class EngineCore:
    """One instance: `num_blocks` KV blocks (the trash block 0 included), contexts of up to `max_len` tokens."""

    def __init__(
        self,
        pool: PoolConfig,
        *,
        num_blocks: int,
        max_len: int,
        eos_token_ids: frozenset[int] = frozenset(),
        max_preemptions: int = 3,
        shuffle: Random | None = None,
        overlap: bool = False,
    ) -> None:
        self._cache = KVCache(num_blocks, pool.block_size, prefix_cache=pool.prefix_cache, shuffle=shuffle)
        policy = policy_for(pool.queue_policy)
        self._scheduler = Scheduler(pool, self._cache, policy, max_preemptions)
        self._max_len = max_len
        self._eos = eos_token_ids
        self._overlap = overlap and pool.pp == 1
        self._flights: deque[Flight] = deque()
        self._steps = 0
        self._kept: dict[str, Sequence] = {}
        self._ended = {Status.FINISHED: 0, Status.ABORTED: 0, Status.FAILED: 0}

    @property
    def has_work(self) -> bool:
        """Something waits, runs or is in flight; what only keeps blocks is none."""
        return bool(self._scheduler.waiting or self._scheduler.running or self._flights)

    @property
    def holds_for_others(self) -> bool:
        """Blocks are kept for another instance, or reserved for KV of one: so requests may have to wait."""
        return bool(self._kept or self._scheduler.pulling)

    @property
    def full(self) -> bool:
        """Nobody who waits can begin before somebody ends."""
        return self._scheduler.full

    @property
    def preempted(self) -> list[str]:
        """Requests that the last step preempted."""
        return self._scheduler.preempted

    @property
    def decoding(self) -> tuple[int, int]:
        """Requests that decode now, and their contexts summed, tokens."""
        rows = context = 0
        for group in self._scheduler.groups:
            rows += group.size
            context += group.context
        return rows, context

    def check(self, request: Request) -> None:
        """Raises InputError for a request that can never run here, or whose id is in use."""
        prompt, output = len(request.prompt), request.sampling.max_tokens
        where = f"request {request.id}"
        if not prompt or output < 1:
            raise InputError(
                "a request needs at least one prompt token and max_tokens of 1",
                where=where,
                hint="send a prompt, and max_tokens of at least 1",
            )
        if self._find(request.id):
            raise InputError(
                "a request with this id is already in the engine",
                where=where,
                hint="give every request an id of its own",
            )
        if prompt + output > self._max_len:
            raise InputError(
                f"{prompt} prompt tokens + max_tokens {output} exceed the context of {self._max_len}",
                where=where,
                hint="shorten the prompt or lower max_tokens",
            )
        if self._cache.blocks_for(prompt + output - 1) > self._cache.pool.total:
            capacity = self._cache.pool.total * self._cache.block_size
            raise InputError(
                f"{prompt} prompt tokens + max_tokens {output} exceed the KV cache of {capacity} tokens",
                where=where,
                hint="shorten the prompt, lower max_tokens or raise kv_tokens in engine.yaml",
            )

    def add(self, request: Request, now: float) -> None:
        """Queue a request. Raises InputError for one that can never run here, or whose id is in use."""
        self.check(request)
        self.queue(request, now)

    def queue(self, request: Request, now: float) -> None:
        """Queue a request that was checked."""
        self._scheduler.add(Sequence(request, now, self._cache.block_size))

    def abort(self, request_id: str, now: float) -> list[TokenEvent]:
        """End a request wherever it is. Unknown and ended ids are no-ops: aborts may come late or twice."""
        seq = self._find(request_id)
        return [self._end(seq, Status.ABORTED, "abort", now)] if seq else []

    def next_step(self, now: float) -> Step | None:
        """The next forward pass; None where it waits for one in flight, or where there is nothing to do."""
        flight = self.next_flight(now)
        if flight is None:
            return None
        group, decodes, chunks = flight.work
        running = self._scheduler.running.values() if decodes else ()
        decoding = [seq for seq in running if seq.group is group]
        self._flights[-1] = flight._replace(rows=decoding)
        rows = [self._row(seq, seq.computed, 1, group.in_flight - 1) for seq in decoding]
        rows += [self._row(seq, start, tokens) for seq, tokens, start in chunks]
        return Step(flight.id, tuple(rows))

    def next_flight(self, now: float) -> Flight | None:
        """As `next_step`, for a driver that only needs the step's shape and completes it without a result."""
        scheduler, flights = self._scheduler, self._flights
        groups = scheduler.groups
        stages = len(groups)
        if scheduler.preempted:
            scheduler.preempted = []
        work = None
        if len(flights) < stages:
            for i in range(self._steps, self._steps + stages):
                group = groups[i % stages]
                if not group.in_flight:
                    work = scheduler.schedule(now, group)
                    if work is not None:
                        break
        elif self._overlap and len(flights) == 1 and not flights[0].work.chunks:
            work = scheduler.decodes_ahead(groups[0])
        if work is None:
            return None
        self._steps += 1
        for seq, _, _ in work.chunks:
            seq.in_flight += 1
        work.group.in_flight += 1
        flight = Flight(self._steps, work, None)
        flights.append(flight)
        return flight

    def complete(self, step_id: int, result: StepResult | None, now: float) -> list[TokenEvent]:
        """Take in the result of the oldest step in flight; returns one event per sampled token, in row order.

        Without a result, the step was modelled: tokens have no content, and only first and last ones give
        events.
        """
        flight = self._retire(step_id)
        group, decodes, chunks = flight.work
        ending = group.advance() if decodes else []
        if result is None:
            events = [self._end(seq, Status.FINISHED, "length", now, NO_CONTENT) for seq in ending]
            tokens: Iterator[int | None] = repeat(NO_CONTENT)
        else:
            require(result.step_id == step_id, "the result is of another step")
            tokens = iter(result.tokens)
            rows = zip(flight.rows or (), tokens, strict=False)
            events = [self._token(seq, token, now) for seq, token in rows if not seq.status.ended]
        for seq, count, start in chunks:
            token = next(tokens)
            if seq.status.ended:
                continue
            if seq.advance(count):
                events.append(self._first_token(seq, group, token, now))
            else:
                self._cache.publish(seq.table, start + count)
        if result is not None and result.logprobs is not None:
            seqs = [*(flight.rows or ()), *(seq for seq, _, _ in chunks)]
            by_id = {seq.request.id: one for seq, one in zip(seqs, result.logprobs, strict=True)}
            for event in events:
                event.logprobs = by_id[event.request_id]
        if self._scheduler.late and not group.in_flight:
            self._scheduler.settle(group)
        return events

    def fail(self, step_id: int, now: float) -> list[TokenEvent]:
        """The step in flight raised: end its requests. Nothing that it computed is ever published."""
        flight = self._retire(step_id)
        seqs = [seq for seq in self._scheduler.running.values() if seq.group is flight.work.group]
        seqs = [*(seqs if flight.work.decodes else ()), *(seq for seq, _, _ in flight.work.chunks)]
        events = [self._end(seq, Status.FAILED, "error", now) for seq in seqs if not seq.status.ended]
        if not flight.work.group.in_flight:
            self._scheduler.settle(flight.work.group)
        return events

    def release_kv(self, request_id: str, now: float) -> None:  # noqa: ARG002 - as every call of the core
        """Give back the blocks of a request that ended with `keep_kv`. Unknown ids are no-ops."""
        seq = self._kept.pop(request_id, None)
        if seq is not None:
            # A step made ahead may still write behind the end of a request that ended without being foreseen.
            ahead = self._overlap and self._flights
            self._scheduler.release(seq, self._flights[-1].id if ahead else None)

    def reserve(self, request: Request, now: float) -> int | None:
        """Take the blocks of a request's whole life, whose prompt another instance computes.

        Returns the leading prompt tokens that are cached here and need not come; None where there is no room
        now. Raises InputError for a request that can never run here.
        """
        self.check(request)
        return self._scheduler.reserve(Sequence(request, now, self._cache.block_size), now)

    def start_decode(self, request_id: str, token: int | None, now: float) -> int:  # noqa: ARG002
        """The KV of a reserved request is here; it decodes from the next step on, behind `token`.

        Returns the number of the group that it decodes in.
        """
        seq = self._scheduler.pulling.get(request_id)
        if seq is None:
            raise InvariantError(f"request {request_id} has reserved nothing")
        return self._scheduler.start_decode(seq, token)

    def kept_blocks(self, request_id: str) -> list[int]:
        """The blocks of a request that ended with `keep_kv`, until `release_kv`."""
        return list(self._kept[request_id].table.blocks)

    def reserved_blocks(self, request_id: str) -> list[int]:
        """The blocks of a reserved request that waits for its KV."""
        return list(self._scheduler.pulling[request_id].table.blocks)

    def decode_run(self) -> int:
        """How many of the next steps are surely pure decodes of the requests running now.

        In them nothing is admitted and blocks suffice, and none ends but with the last, so that a simulator may
        jump over them. A lower bound; 0 while a step is in flight, where someone could be admitted, or where an
        end of sequence may come.
        """
        scheduler = self._scheduler
        group = scheduler.groups[0]
        if self._flights or not group.size or not scheduler.idle_prefill or len(scheduler.groups) > 1:
            return 0
        if self._eos and any(not seq.request.sampling.ignore_eos for seq in scheduler.running.values()):
            return 0
        available, steps = self._cache.available, group.ticks_to_end
        # Each needs a block every `block_size` steps, and one more where it stands before a boundary.
        while steps > 0 and group.size * (steps // self._cache.block_size + 1) > available:
            steps //= 2
        return steps

    def jump(self, steps: int, now: float) -> list[TokenEvent]:
        """Carry out the first `steps` of a `decode_run` at once, until `now`; their tokens have no content.

        Returns the ends that come with the last of them.
        """
        self._steps += steps
        ending = self._scheduler.jump(steps)
        return [self._end(seq, Status.FINISHED, "length", now, NO_CONTENT) for seq in ending]

    def stats(self) -> CoreStats:
        """Counters and gauges of this moment."""
        scheduler, cache = self._scheduler, self._cache
        return CoreStats(
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            blocks_total=cache.pool.total,
            blocks_free=cache.pool.free,
            blocks_cached=cache.tree.evictable,
            blocks_used=cache.pool.total - cache.available,
            prefix_query_tokens=scheduler.prefix_query_tokens,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            preemptions=scheduler.preemptions,
            finished=self._ended[Status.FINISHED],
            aborted=self._ended[Status.ABORTED],
            failed=self._ended[Status.FAILED],
        )

    def check_invariants(self) -> None:
        """Everything below agrees, and the steps in flight hold only requests that run or have ended."""
        self._scheduler.check_invariants(list(self._kept.values()))
        for flight in self._flights:
            for seq in [*(flight.rows or ()), *(seq for seq, _, _ in flight.work.chunks)]:
                require(seq.status is not Status.QUEUED, "a request was preempted in flight")

    def _find(self, request_id: str) -> Sequence | None:
        scheduler = self._scheduler
        return (
            scheduler.running.get(request_id)
            or scheduler.waiting.get(request_id)
            or scheduler.pulling.get(request_id)
        )

    def _row(self, seq: Sequence, start: int, tokens: int, ahead: int = 0) -> StepRow:
        """`ahead`: steps in flight that add a token each before this one."""
        end = start + tokens
        known = tuple(seq.tokens[start:end]) if seq.known else (NO_CONTENT,) * tokens
        return StepRow(
            request_id=seq.request.id,
            tokens=(PREVIOUS,) if ahead else known,
            start=start + ahead,
            blocks=tuple(seq.table.blocks),
            sample=end == seq.length,
            prefill=seq.group is None,
            sampling=seq.request.sampling,
            output_index=seq.output_tokens + ahead,
        )

    def _retire(self, step_id: int) -> Flight:
        if not self._flights or self._flights[0].id != step_id:
            raise InvariantError(f"step {step_id} is not the oldest in flight")
        flight = self._flights.popleft()
        flight.work.group.in_flight -= 1
        for seq, _, _ in flight.work.chunks:
            seq.in_flight -= 1
        if self._cache.fenced:
            self._scheduler.retire(step_id)
        return flight

    def _first_token(self, seq: Sequence, group: DecodeGroup, token: int | None, now: float) -> TokenEvent:
        """A prompt is computed, or after a preemption all tokens are again: one more comes out."""
        reason = self._reason(seq, token, seq.output_tokens)
        if reason is None or seq.request.keep_kv:
            self._cache.publish(seq.table, seq.computed)
        seq.append(token)
        if reason is not None:
            return self._end(seq, Status.FINISHED, reason, now, token)
        self._scheduler.join(seq, group)
        return _event(seq, token, None, now)

    def _token(self, seq: Sequence, token: int | None, now: float) -> TokenEvent:
        """The next token of a decode, which its group has counted already."""
        reason = self._reason(seq, token, seq.output_tokens - 1)
        seq.keep(token)
        if reason is None:
            return _event(seq, token, None, now)
        return self._end(seq, Status.FINISHED, reason, now, token)

    def _reason(self, seq: Sequence, token: int | None, index: int) -> FinishReason | None:
        """Why output token `index` is the last, if it is: end of sequence, or the request's length."""
        if token is None:
            raise InvariantError("a row to sample has no token")
        sampling = seq.request.sampling
        if token in self._eos and not sampling.ignore_eos and index >= sampling.min_tokens:
            return "stop"
        return "length" if index + 1 == sampling.max_tokens else None

    def _end(
        self, seq: Sequence, status: Status, reason: FinishReason, now: float, token: int | None = None
    ) -> TokenEvent:
        keep = status is Status.FINISHED and seq.request.keep_kv
        if keep:
            self._kept[seq.request.id] = seq
        # A step in flight may still read and write the blocks.
        after = self._flights[-1].id if seq.busy else None
        self._scheduler.remove(seq, status, after, keep_kv=keep)
        self._ended[status] += 1
        return _event(seq, token, reason, now)


def _event(seq: Sequence, token: int | None, reason: FinishReason | None, now: float) -> TokenEvent:
    index = seq.output_tokens - (token is not None)
    queued_s = (now if seq.admitted_s is None else seq.admitted_s) - seq.arrival_s
    return TokenEvent(seq.request.id, token, index, reason, seq.cached_tokens, now, queued_s)
